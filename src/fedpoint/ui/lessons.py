"""What do the algorithms do, side by side? From the catalogue's cards, the docstrings and one small problem."""

from __future__ import annotations

import re
from functools import cache
from typing import NotRequired, TypedDict

from fedpoint.algorithms import FedLSA, ScaffLSA
from fedpoint.core.algorithm import CATALOGUE, Card
from fedpoint.core.docstrings import parsed
from fedpoint.ui import examples
from fedpoint.ui.mathml import formula, text

DISPLAYED = re.compile(r"\$\$(.+?)\$\$", re.S)
FIRST = ("fedavg", "fedprox", "scaffold")  # shown at first


class Example(TypedDict):
    """A method's curves on the common problem, and the call that makes it."""

    call: str
    run: list[float]
    forecast: list[float]
    floor: list[float]
    bias2: list[float]


class Parameter(TypedDict):
    name: str
    what: str


class Lesson(TypedDict):
    """What the page says of a method."""

    name: str
    title: str
    summary: str
    limit: str
    where: str
    network: bool
    lecture: str
    restriction: str
    formulas: list[str]
    words: list[str]
    parameters: list[Parameter]
    references: list[str]
    first: bool
    example: NotRequired[Example | None]


@cache
def lessons() -> list[Lesson]:
    """Every method of the catalogue, with what it is on linear systems where it has a name of its own there."""
    found = [_lesson(card, (card.cls and card.cls.__doc__) or "") for card in CATALOGUE.values()]
    for name, title, parent, maker in (
        ("fedlsa", "FedLSA", "fedavg", FedLSA),
        ("scafflsa", "SCAFFLSA", "scaffnew", ScaffLSA),
    ):
        lesson = _lesson(CATALOGUE[parent], maker.__doc__ or "")
        summary = f"{CATALOGUE[parent].title} on linear systems, steps as they are"
        limits = {"fedlsa": "biased when agents differ and H > 1", "scafflsa": "w*"}
        found.append(
            {**lesson, "name": name, "title": title, "summary": summary, "limit": limits[name], "first": False}
        )
    return [{**lesson, "example": _example(lesson["name"])} for lesson in found]


def _example(name: str) -> Example | None:
    """Its curves on the common problem; None for somebody's own method."""
    if name not in examples.CALLS:
        return None
    run, forecast, floor, bias2 = (examples.kept()[name][what].tolist() for what in examples.WHAT)
    return {"call": examples.CALLS[name], "run": run, "forecast": forecast, "floor": floor, "bias2": bias2}


def _lesson(card: Card, doc: str) -> Lesson:
    told = parsed(doc)
    return {
        "name": card.name,
        "title": card.title,
        "summary": card.summary,
        "limit": card.limit,
        "where": "a network" if card.network else "a fusion center",
        "network": card.network,
        "lecture": card.taught,
        "restriction": card.restriction,
        "formulas": [formula(part) for latex in DISPLAYED.findall(told.words) for part in lines(latex)],
        "words": [text(part) for part in _words(told.words)],
        "parameters": [{"name": name, "what": text(what)} for name, what in told.arguments.items()],
        "references": [reference.text() for reference in card.references],
        "first": card.name in FIRST,
    }


def lines(latex: str) -> list[str]:
    """A formula's parts, where a wide space sets them apart: a narrow column shows them one below the other.

    >>> lines(r"a = b, \\qquad c = d.")
    ['a = b', 'c = d']
    """
    latex = latex.replace(r"\quad\text{or}\quad", r"\qquad \text{or }")
    return [" ".join(part.split()).rstrip(",. ") for part in latex.split(r"\qquad")]


def _words(doc: str) -> list[str]:
    """The paragraphs between the formulas."""
    plain = re.sub(DISPLAYED, "\n\n", doc)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", plain)]
    return [part for part in paragraphs if len(part) > 1]
