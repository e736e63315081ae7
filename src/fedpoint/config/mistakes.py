"""All mistakes of a file at once: where, what stands there, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedpoint.config.lines import Path, key_lines, line_of
from fedpoint.core.errors import FedpointError, nearest

NOTHING = object()  # the value of a key that is not there


@dataclass(frozen=True)
class Mistake:
    """One mistake: the key's path, the value that stands there, and what is wrong."""

    path: Path
    message: str
    value: Any = NOTHING

    def text(self, lines: dict[Path, int]) -> str:
        line = line_of(lines, self.path)
        where = f"line {line}: " if line else ""
        value = "" if self.value is NOTHING else f" = {_shown(self.value)}"
        return f"{where}{dotted(self.path)}{value}: {self.message}"


def of_table(
    text: Any, where: Path, known: Callable[[Mapping], list[str]], build: Callable[[Any], Any]
) -> list[Mistake]:
    """What is wrong with a table by itself: every unknown key, and what `build` says of the rest."""
    unknown = []
    try:
        if isinstance(text, Mapping):
            names = known(text)
            unknown = [
                Mistake((*where, key), f"unknown key; {nearest(key, names)}", item)
                for key, item in text.items()
                if key not in names
            ]
            text = {key: item for key, item in text.items() if key in names}
        build(text)
    except FedpointError as error:
        return [*unknown, Mistake(where, str(error), text)]
    return unknown


class Mistakes(FedpointError):
    """A file with mistakes; `mistakes` lists them in the order of the file."""

    def __init__(self, name: str, mistakes: list[Mistake], text: str = ""):
        lines = key_lines(text)
        self.mistakes = sorted(mistakes, key=lambda m: line_of(lines, m.path) or 0)
        shown = [m.text(lines) for m in self.mistakes]
        count = "1 mistake" if len(shown) == 1 else f"{len(shown)} mistakes"
        super().__init__(f"{name}: {count}\n" + "\n".join(f"  {line}" for line in shown))


def dotted(path: Path) -> str:
    """problem.agents, algorithm[2].step; counted from 1, as people do."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def _shown(value: Any, most: int = 60) -> str:
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{k} = {_shown(v)}" for k, v in value.items()) + "}"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f'"{value}"'
    else:
        text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
