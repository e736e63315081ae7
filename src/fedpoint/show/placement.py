"""Where do labels go? Beside the ends of their curves, around their nodes; decided when a figure is drawn.

Only then its size and that of its texts are known, so that labels keep apart whatever a figure's size, format and
resolution. matplotlib asks an annotation for its place whenever it lays out or draws: here it asks all its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text
from matplotlib.ticker import Locator
from matplotlib.transforms import IdentityTransform

from fedpoint.show.drawing import spread, ticks
from fedpoint.show.figures import INK, PALE

GAP = 0.25  # between labels of curves, in units of their size


class Ticks(Locator):
    """Ticks of an axis, by its range when it is drawn."""

    def __init__(self, of: Axis, most: int, whole: bool):
        self.of, self.most, self.whole = of, most, whole

    def __call__(self) -> Sequence[float]:
        return self.tick_values(*sorted(self.of.get_view_interval()))

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        log = self.of.get_scale() == "log"
        return [tick.at for tick in ticks(vmin, vmax, log, self.most, self.whole)] if vmin < vmax else []


def size_of(text: Text, renderer: RendererBase) -> tuple[float, float]:
    """Width and height on the page, wherever it is."""
    box = Text.get_window_extent(text, renderer)
    return box.width, box.height


def pixels(renderer: RendererBase) -> float:
    """Of a point."""
    return float(np.asarray(renderer.points_to_pixels(1.0)))


class EndLabel(Annotation):
    """A curve's label to the right of the axes, at the height where the curve ends, or as near as others let it."""

    def __init__(self, ax: Axes, curve: Line2D, size: float):
        super().__init__(
            str(curve.get_label()),
            (1, 0.5),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=curve.get_color(),
            linespacing=1.1,
            annotation_clip=False,
            clip_on=False,
        )
        self.set_transform(IdentityTransform())  # until it is placed, as `annotate` does
        self.ax, self.curve, self.size = ax, curve, size
        self.column: list[EndLabel] = [self]

    def update_positions(self, renderer: RendererBase) -> None:
        between = GAP * self.size * pixels(renderer)
        sizes = [(size_of(label, renderer)[1] + between) / self.ax.bbox.height for label in self.column]
        places = spread([label.end() for label in self.column], sizes)
        self.xy = (1.0, places[self.column.index(self)])
        super().update_positions(renderer)

    def end(self) -> float:
        """Where the curve ends, as a fraction of the axes' height."""
        points = np.asarray(self.curve.get_xydata(), float)
        heights = (self.curve.get_transform() + self.ax.transAxes.inverted()).transform(points)[:, 1]
        seen = heights[np.isfinite(heights)]
        return float(np.clip(seen[-1], 0, 1)) if len(seen) else 0.0


def end_labels(ax: Axes, curves: Sequence[Line2D], size: float) -> None:
    """Label curves at their right ends, each in its colour."""
    labels = [EndLabel(ax, curve, size) for curve in curves]
    for label in labels:
        label.column = labels
        ax.add_artist(label)


class NodeNames:
    """Names of nodes: each beside its node where there is room, else farther away with a line to it."""

    RINGS = (1.5, 6, 12, 18, 26, 36, 48)  # distances from a node, in points
    LINE = 1  # from this ring on
    ROOM = np.array([2.0, 0.5])  # between names, across and up
    TOWARDS = np.array([(0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1)])  # below is best

    def __init__(self, ax: Axes, names: Sequence[str], places: np.ndarray, radius: float, size: float):
        self.ax, self.places, self.radius = ax, places, radius
        self.labels = [NodeName(self, i, name, size) for i, name in enumerate(names)]
        self._made: tuple[tuple[float, ...], list[NamePlace | None]] | None = None
        for label in self.labels:
            ax.add_artist(label)

    def found(self, renderer: RendererBase) -> list[NamePlace | None]:
        """Where each name is; None where there is no room for it."""
        state = (*self.ax.bbox.bounds, *self.ax.viewLim.bounds, pixels(renderer))
        if self._made is None or self._made[0] != state:
            self._made = state, self._arrange(renderer)
        return self._made[1]

    def _arrange(self, renderer: RendererBase) -> list[NamePlace | None]:
        point, frame = pixels(renderer), np.asarray(self.ax.bbox.extents)
        nodes = self.ax.transData.transform(self.places)
        sizes = np.array([size_of(label, renderer) for label in self.labels]) + self.ROOM * point
        taken = np.column_stack([nodes - self.radius * point, nodes + self.radius * point])  # boxes that are not free
        found: list[NamePlace | None] = [None] * len(nodes)
        crowd = (np.abs(nodes[:, None] - nodes) < 2 * sizes[:, None]).all(2).sum(1)
        for i in np.argsort(crowd, kind="stable"):  # names with room stay close, the crowded go around them
            steps = np.concatenate(
                [self.TOWARDS * (sizes[i] / 2 + (self.radius + ring) * point) for ring in self.RINGS]
            )
            boxes = np.column_stack([nodes[i] + steps - sizes[i] / 2, nodes[i] + steps + sizes[i] / 2])
            inside = ((boxes[:, :2] >= frame[:2]) & (boxes[:, 2:] <= frame[2:])).all(1)
            free = np.flatnonzero(inside & ~_overlap(boxes, taken).any(1))
            if len(free):
                x, y = steps[free[0]] / point
                found[i] = NamePlace(float(x), float(y), far=bool(free[0] >= self.LINE * len(self.TOWARDS)))
                taken = np.vstack([taken, boxes[free[0]]])
        return found


class NamePlace(NamedTuple):
    """From a node's centre to that of its name, in points; far: a line is needed between them."""

    x: float
    y: float
    far: bool


def _overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, m): whether boxes (left, bottom, right, top) overlap."""
    apart = (a[:, None, :2] >= b[None, :, 2:]) | (b[None, :, :2] >= a[:, None, 2:])
    return ~np.any(apart, axis=2)


class NodeName(Annotation):
    """A name of a node, where `NodeNames` puts it."""

    def __init__(self, names: NodeNames, index: int, name: str, size: float):
        x, y = names.places[index]
        super().__init__(
            name,
            (float(x), float(y)),
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=size,
            color=INK,
            zorder=3,
            path_effects=[withStroke(linewidth=1.6, foreground="white")],
            arrowprops={"arrowstyle": "-", "color": PALE, "linewidth": 0.5, "shrinkA": 0, "shrinkB": names.radius},
            annotation_clip=False,
            clip_on=False,
        )
        self.set_transform(IdentityTransform())
        self.names, self.index = names, index
        self.set_in_layout(False)  # it stays within its axes

    def update_positions(self, renderer: RendererBase) -> None:
        place = self.names.found(renderer)[self.index]
        if place is not None and self.arrow_patch is not None:
            self.set_position((place.x, place.y))
            self.arrow_patch.set_visible(place.far)
        super().update_positions(renderer)

    def draw(self, renderer: RendererBase) -> None:
        if self.names.found(renderer)[self.index] is not None:
            super().draw(renderer)
