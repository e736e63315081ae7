"""Where does a subject decide? Comparisons, minima, maxima and the like in its own lines, and how they came out."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import linecache
import site
import sysconfig
from collections import defaultdict
from collections.abc import Hashable, Iterable
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Literal, NamedTuple, TypeAlias

from fedpoint.results.certificate import Unexercised

# Functions that take one of several values, in NumPy, in JAX and in Python itself.
EXTREMES = ("min", "max", "minimum", "maximum", "fmin", "fmax", "clip", "clamp")
CHOOSING = frozenset((*EXTREMES, "where", "select", "select_n", "cond", "switch", "while_loop"))
Owner: TypeAlias = Literal["user", "plumbing", "others"]  # plumbing: what lies between a line and an operation


@cache
def owner_of(file: str) -> Owner:
    """Whose a file of source is."""
    path, plumbing, others, python = Path(file).resolve(), *_folders()
    if not linecache.getline(file, 1) or any(map(path.is_relative_to, plumbing)):
        return "plumbing"
    if any(map(path.is_relative_to, others)):
        return "others"
    return "plumbing" if path.is_relative_to(python) else "user"


@cache
def _folders() -> tuple[list[Path], list[Path], Path]:
    """Of NumPy and JAX, of fedpoint and whatever is installed, and of Python itself."""
    found = [importlib.util.find_spec(name) for name in ("numpy", "jax", "jaxlib", "fedpoint")]
    *plumbing, fedpoint = [Path(spec.origin or "").resolve().parent for spec in found if spec is not None]
    installed = [Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())]
    return plumbing, [fedpoint, *installed], Path(sysconfig.get_path("stdlib")).resolve()


def sourceless(name: str, functions: Iterable[object]) -> list[Unexercised]:
    """What to say of a subject whose source is not at hand, as of one that was typed into an interpreter."""
    codes = (function.__code__ for function in functions if isinstance(function, FunctionType))
    if all(linecache.getline(code.co_filename, 1) for code in codes):
        return []
    return [Unexercised("", 0, name, "its source is not at hand")]


class Site(NamedTuple):
    """An expression of the user's that decides: from (line, column) to (line, column)."""

    file: str
    begin: tuple[int, int]
    end: tuple[int, int]
    code: str
    compares: bool

    def holds(self, other: Site) -> bool:
        return self != other and self.file == other.file and self.begin <= other.begin and other.end <= self.end


@cache
def site_of(code: CodeType, instruction: int) -> Site | None:
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
    return Site(code.co_filename, (line, first), (last, end), " ".join(words.split()), compares)


def _name(function: ast.expr) -> str:
    """What a function is called, wherever it comes from."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


class Decisions:
    """How decisions came out, by where they are and which of several in one expression it was."""

    def __init__(self) -> None:
        self._seen: dict[Site, dict[Hashable, set[int]]] = defaultdict(lambda: defaultdict(set))

    def note(self, place: Site, which: Hashable, outcomes: Iterable[int]) -> None:
        self._seen[place][which].update(outcomes)

    def one_sided(self) -> list[Unexercised]:
        """Expressions that came out in one way only, the innermost of nested ones."""
        one = [
            place
            for place, several in self._seen.items()
            if any(several.values()) and all(len(seen) <= 1 for seen in several.values())
        ]
        inner = [place for place in one if not any(place.holds(other) for other in one)]
        return [Unexercised(p.file, p.begin[0], p.code, self._words(p)) for p in sorted(inner)]

    def _words(self, place: Site) -> str:
        if not place.compares:
            return "it always took the same side"
        return f"it was always {'true' if any(1 in seen for seen in self._seen[place].values()) else 'false'}"
