"""Which colours, dashes and widths do lines have? One set for files, pages, notebooks and the live page.

`assets/curves.css` holds the same colours for browsers; a test compares them. The hues follow Okabe and Ito, so that
colour-blind readers can tell them apart. They come in three shades, because no shade is dark enough for text on white
and light enough on black.
"""

from __future__ import annotations

ON_WHITE = ("#0069a6", "#b84a00", "#00734f", "#a1437f", "#7a6000", "#5f4bb6", "#4d4d4d")
ON_BLACK = ("#5ab4f0", "#ff9d57", "#3ecf9c", "#e38fc4", "#dcbf4b", "#b3a4ff", "#b9bec6")
ON_BOTH = ("#2f87c4", "#cf6a1e", "#1f9272", "#b8659a", "#94801f", "#8672d8", "#7d838c")  # for lines; text has the ink's
# On white: text, quiet text, lines of the grid, and axes.
INK, PALE, GRID, RULE = "#1d2430", "#5b6472", "#e1e4ea", "#8b93a0"
WIDTHS = {"thin": 0.8, "": 2.0, "thick": 2.6}  # in pixels
DASHES = {"solid": (), "dashed": (7.0, 5.0), "dotted": (1.5, 4.5)}  # in pixels
SHADE, FAINT = 0.15, 0.4  # how dark bands and thin lines are
POINT = 4 / 3  # pixels of a point


def of(colours: tuple[str, ...], place: int) -> str:
    """The colour of the line at this place, when they are used in order."""
    return colours[place % len(colours)]


def dash_of(place: int) -> str:
    """The dash of the line at this place: another one whenever the colours are used up.

    >>> [dash_of(i) for i in (0, 6, 7, 14, 21)]
    ['solid', 'solid', 'dashed', 'dotted', 'solid']
    """
    return list(DASHES)[place // len(ON_WHITE) % len(DASHES)]
