"""A regression on one HTML page: its summary and the picture of its coefficients, nothing from elsewhere."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from fedpoint.show.markup import Html, scrolling, tag
from fedpoint.show.page import document

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def page(title: str, summary: str, picture: Figure) -> str:
    """The whole page as text."""
    lead, _, rest = summary.partition("\n")
    drawn = tag("figure", _drawn(picture), tag("figcaption", "Estimates with 95 % intervals"))
    return document("fit", title, lead, [drawn, scrolling(tag("pre", rest.strip("\n")), "Summary of the fit")])


def _drawn(picture: Figure) -> Html:
    """As SVG within the page; text as paths and no style of its own, which the page's policy would not allow."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedpoint", "svg.fonttype": "path"}):
        picture.savefig(out, format="svg", metadata={"Date": None})
    return Html(_with_attributes(out.getvalue()[out.getvalue().index("<svg") :]))


def _with_attributes(svg: str) -> str:
    """style="a: b; c: d" as attributes a="b" c="d"; the style element left out, with its joins as an attribute."""
    import re

    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)

    def attributes(found: re.Match[str]) -> str:
        parts = (part.split(":", 1) for part in found[1].split(";") if ":" in part)
        return " ".join(f'{name.strip()}="{value.strip()}"' for name, value in parts)

    return re.sub(r'style="([^"]*)"', attributes, svg).replace("<svg ", '<svg role="img" aria-label="Coefficients" ', 1)
