"""What a reader of a figure needs: every curve has a label that can be seen, no text lies on another or is cut off."""

import itertools

import numpy as np
from matplotlib.legend import Legend
from matplotlib.text import Text


def shown_texts(figure):
    """Every text that is drawn: labels, titles, ticks, legends, notes."""
    hidden = [text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in _hidden(axes, axis)]
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [text for text in texts if not any(text is other for other in hidden)]


def _hidden(axes, axis):
    """Of an axis that is switched off all texts; else those of ticks outside the view, which are kept and not drawn."""
    if not axes.axison:
        return axis.findobj(Text)
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.majorTicks, *axis.minorTicks]
    drawn = [t for t in (*axis.get_major_ticks(), *axis.get_minor_ticks()) if low <= t.get_loc() <= high]
    return [text for tick in ticks if tick not in drawn for text in tick.findobj(Text)]


def box_of(text, renderer):
    return Text.get_window_extent(text, renderer)  # of an annotation: without its arrow


def overlaps(figure):
    """Pairs of texts that lie on each other, or beside each other without a space between them."""
    renderer = figure.canvas.get_renderer()
    texts = shown_texts(figure)
    boxes = [box_of(text, renderer).padded(0.1 * text.get_fontsize(), 0) for text in texts]
    return [
        (texts[i].get_text(), texts[j].get_text())
        for i, j in itertools.combinations(range(len(texts)), 2)
        if boxes[i].overlaps(boxes[j])
    ]


def cut_off(figure):
    """Texts that reach out of the figure."""
    renderer = figure.canvas.get_renderer()
    found = []
    for text in shown_texts(figure):
        box = box_of(text, renderer)
        if box.x0 < 0 or box.y0 < 0 or box.x1 > figure.bbox.x1 or box.y1 > figure.bbox.y1:
            found.append(text.get_text())
    return found


def unlabelled(figure):
    """Curves whose label is nowhere to be read: neither in their axes nor in a key."""
    keys = {text.get_text() for legend in figure.findobj(Legend) for text in legend.get_texts()}
    found = []
    for axes in figure.axes:
        here = {text.get_text() for text in axes.texts}
        for curve in axes.lines:
            points = np.asarray(curve.get_xydata(), float)
            if len(points) > 1 and curve.get_linestyle() != "None" and curve.get_label() not in here | keys:
                found.append((axes.get_title(loc="left"), curve.get_label()))
    return found


def check(figure):
    figure.canvas.draw()  # once, as it is saved: a second time, everything knows its place
    assert unlabelled(figure) == []
    assert overlaps(figure) == []
    assert cut_off(figure) == []
