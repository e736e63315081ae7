"""How does a browser show the formulas of the docstrings? As MathML, which latex2mathml makes of LaTeX."""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree

from latex2mathml.converter import convert

from fedpoint.core.errors import FedpointError

BAR = '<mo stretchy="false">&#x0007C;</mo>'
# Left or right, it cannot be told: no space on either side.
TIGHT = BAR.replace("<mo ", '<mo lspace="0" rspace="0" ')
PARTS = {"mfrac": 2, "msub": 2, "msup": 2, "msubsup": 3, "munder": 2, "mover": 2, "munderover": 3}


def formula(latex: str, block: bool = True) -> str:
    """MathML of one formula.

    >>> formula(r"w^+", block=False)
    '<math display="inline"><mrow><msup><mi>w</mi><mo>&#x0002B;</mo></msup></mrow></math>'
    """
    source = re.sub(r"\\arg\b", r"\\operatorname{arg}", latex)
    if block:  # the index of a minimum stands below it
        source = re.sub(r"\\(min|max)\s*_", r"\\\1\\limits_", source)
    try:
        made = convert(source, display="block" if block else "inline")
        tree = ElementTree.fromstring(made)
    except Exception as error:  # those of latex2mathml have no class in common
        raise FedpointError(f"the formula {latex!r} cannot be read: {type(error).__name__}") from error
    _check(latex, tree)
    return made.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "").replace(BAR, TIGHT)


def text(source: str) -> str:
    """A sentence with formulas between dollars, as HTML.

    >>> text("the step $x$ & more")
    'the step <math display="inline"><mrow><mi>x</mi></mrow></math> &amp; more'
    """
    parts = re.split(r"(?<!\$)\$([^$]+)\$(?!\$)", source)
    return "".join(formula(part, block=False) if i % 2 else _escaped(part) for i, part in enumerate(parts))


def _escaped(part: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(part))


def _check(latex: str, tree: ElementTree.Element) -> None:
    """latex2mathml prints what it does not know, and leaves out what is not there."""
    unknown = re.search(r"\\\w+", "".join(tree.itertext()))
    if unknown:
        raise FedpointError(f"the formula {latex!r} has {unknown[0]}, which is not known here")
    if any(len(part) != PARTS.get(part.tag.rpartition("}")[2], len(part)) for part in tree.iter()):
        raise FedpointError(f"the formula {latex!r} ends too early")
