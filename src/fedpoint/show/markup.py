"""HTML and SVG whose every text is escaped: what is not `Html` already becomes it by escaping."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from fedpoint.core.numbers import has_error, to_its_error

VOID = {"meta", "link", "br", "hr", "col", "input"}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MARKS = {True: "✓", False: "✗", None: "–"}  # of a comparison: it holds, it does not, it was not made


class Html(str):
    """Text that is HTML already."""


Cell: TypeAlias = str | float | None  # what an element holds, and what its attributes are


def escape(value: Cell) -> Html:
    """Any value as HTML: `Html` stays, None is nothing, all else is text.

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    if isinstance(value, Html):
        return value
    return Html("" if value is None else html.escape(str(value)))


def join(parts: Iterable[Cell]) -> Html:
    return Html("".join(escape(part) for part in parts))


def tag(name: str, /, *children: Cell, **attributes: Cell) -> Html:
    """An element. Attributes: `class_` is class, `_` is a hyphen, True stands alone, None and False are left out.

    >>> tag("p", "a < b", tag("br"), class_="note", hidden=True)
    '<p class="note" hidden>a &lt; b<br></p>'
    """
    words = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(f" {key}" if value is True else f' {key}="{escape(value)}"')
    opened = f"<{name}{''.join(words)}>"
    return Html(opened if name in VOID else f"{opened}{join(children)}</{name}>")


def table(
    heading: Sequence[Cell], rows: Iterable[Sequence[Cell]], caption: str | None = None, **attributes: Cell
) -> Html:
    """A table whose first column names its rows; the other cells are right-aligned by the style sheet."""
    head = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in heading))) if heading else None
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    return tag("table", caption and tag("caption", caption), head, tag("tbody", *body), **attributes)


def scrolling(content: Html, label: str) -> Html:
    """What may be wider than the page, in a box of its own that scrolls, by keyboard too; label: for screen readers."""
    return tag("div", content, class_="wide", tabindex="0", role="region", aria_label=label)


def number(value: float | None, digits: int = 3) -> str:
    """A number for people.

    >>> [number(v) for v in (0.0, 1234567, 0.012345, 1.5e-7, None, float("inf"))]
    ['0', '1,234,567', '0.0123', '1.5×10⁻⁷', '–', '∞']
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{value:,.0f}".replace("-", "−")
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:,.{digits}g}".replace("-", "−") if abs(value) < 1000 else f"{value:,.0f}".replace("-", "−")
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa.replace('-', '−')}×10{str(int(power)).translate(RAISED)}"


def with_error(mean: float | None, spread: float | None) -> str:
    """A mean and its standard error, to the digit that the error allows.

    >>> with_error(0.0069213, 0.00062), with_error(1234.5, 30.0), with_error(6.9e-6, 6e-7), with_error(8.25, 1e-9)
    ('0.0069 ± 0.0006', '1,230 ± 30', '(6.9 ± 0.6)×10⁻⁶', '8.2500 ± 0.0001')
    """
    if mean is None or spread is None or not has_error(mean, spread):
        return number(mean)
    text, power = to_its_error(mean, spread)
    text = text.replace("-", "−")
    return f"({text})×10{str(power).translate(RAISED)}" if power else text


def size(count: float) -> str:
    """Bytes for people.

    >>> size(12345)
    '12.3 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
