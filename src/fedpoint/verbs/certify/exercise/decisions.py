"""Where does a subject decide? Comparisons, minima, maxima and the like in its own lines, and how they came out."""

from __future__ import annotations

import ast
import itertools
import linecache
from collections import defaultdict
from collections.abc import Hashable, Iterable
from functools import cache
from types import CodeType
from typing import NamedTuple

from fedpoint.results.certificate import Unexercised
from fedpoint.verbs.certify.exercise.source import refusals

# Functions that take one of several values, in NumPy, in JAX and in Python itself.
EXTREMES = ("min", "max", "minimum", "maximum", "fmin", "fmax", "clip", "clamp")
CHOOSING = frozenset((*EXTREMES, "where", "select", "select_n", "cond", "switch", "while_loop"))


class Expression(NamedTuple):
    """An expression of the user's that decides: from (line, column) to (line, column)."""

    file: str
    begin: tuple[int, int]
    end: tuple[int, int]
    code: str
    compares: bool

    def holds(self, other: Expression) -> bool:
        return self != other and self.file == other.file and self.begin <= other.begin and other.end <= self.end


@cache
def expression_at(code: CodeType, instruction: int) -> Expression | None:
    """The expression that an instruction belongs to, where it decides."""
    line, last, first, end = next(itertools.islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if line is None or last is None or first is None or end is None:
        return None
    text = b"".join(linecache.getline(code.co_filename, n).encode() for n in range(line, last + 1))
    cut = len(linecache.getline(code.co_filename, last).encode()) - end
    words = text[first : len(text) - cut].decode()
    try:
        expression = ast.parse(f"({words})", mode="eval").body
    except SyntaxError:  # a statement
        return None
    compares = isinstance(expression, ast.Compare)
    if not compares and not (isinstance(expression, ast.Call) and _name(expression.func) in CHOOSING):
        return None
    return Expression(code.co_filename, (line, first), (last, end), " ".join(words.split()), compares)


def _name(function: ast.expr) -> str:
    """What a function is called, wherever it comes from."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


class Decisions:
    """How decisions came out, by where they are and which of several in one expression it was."""

    def __init__(self) -> None:
        self._seen: dict[Expression, dict[Hashable, set[int]]] = defaultdict(lambda: defaultdict(set))

    def note(self, place: Expression, which: Hashable, outcomes: Iterable[int]) -> None:
        self._seen[place][which].update(outcomes)

    def one_sided(self) -> list[Unexercised]:
        """Expressions that came out in one way only, the innermost of nested ones."""
        one = [
            place
            for place, several in self._seen.items()
            if any(several.values()) and all(len(seen) <= 1 for seen in several.values())
        ]
        one = [place for place in one if place.begin[0] not in refusals(place.file)]
        inner = [place for place in one if not any(place.holds(other) for other in one)]
        return [Unexercised(p.file, p.begin[0], p.code, self._words(p)) for p in sorted(inner)]

    def _words(self, place: Expression) -> str:
        if not place.compares:
            return "it always took the same side"
        return f"it was always {'true' if any(1 in seen for seen in self._seen[place].values()) else 'false'}"
