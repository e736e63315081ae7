"""Which lines of a subject's own code never ran?"""

from __future__ import annotations

import linecache
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from fedpoint.results.certificate import Unexercised
from fedpoint.verbs.certify.exercise.source import owner_of, refusals

if TYPE_CHECKING:
    from _typeshed import TraceFunction


class Coverage:
    """Functions of the user's that were called meanwhile, and the lines of them that ran."""

    def __init__(self) -> None:
        self._ran: dict[CodeType, set[int]] = defaultdict(set)

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        return self._at_line if owner_of(frame.f_code.co_filename) == "user" else None

    def _at_line(self, frame: FrameType, event: str, argument: object) -> TraceFunction:
        if event == "line":
            self._ran[frame.f_code].add(frame.f_lineno)
        return self._at_line

    def never_ran(self) -> list[Unexercised]:
        """Lines of functions that were called, block by block; not those that only refuse something."""
        ran: dict[str, set[int]] = defaultdict(set)
        there: dict[str, set[int]] = defaultdict(set)
        for code, lines in self._ran.items():
            ran[code.co_filename] |= lines
            there[code.co_filename] |= set(_lines(code))
        found = []
        for file, lines in there.items():
            for block in _blocks(sorted(lines), ran[file]):
                if not refusals(file).issuperset(block):
                    first = linecache.getline(file, block[0]).strip()
                    more = f" (nor what follows, to line {block[-1]})" if len(block) > 1 else ""
                    found.append(Unexercised(file, block[0], first, f"this line never ran{more}"))
        return found


def _lines(code: CodeType) -> Iterator[int]:
    """The lines of a function, and of those inside it, that do something."""
    yield from (line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _lines(inner)


def _blocks(lines: list[int], ran: set[int]) -> Iterator[list[int]]:
    """Those that did not run, as far as they follow each other."""
    block: list[int] = []
    for line in [*lines, -1]:
        if line in ran or line == -1:
            if block:
                yield block
            block = []
        else:
            block.append(line)
