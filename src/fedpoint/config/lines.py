"""On which line of a TOML file does a key stand? `tomllib` reads values without telling where they were."""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

# Text first in the alternation at each place: a # in a text is no comment, a quote in a comment no text.
_HIDDEN = re.compile(r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL)
_KEY = r"(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')"
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_ASSIGN = re.compile(rf"\s*({_DOTTED})\s*=")


def _names(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_KEY, dotted))


def _blank(match: re.Match) -> str:
    """Text and comments as dots, so that brackets in them do not count; line breaks stay."""
    return re.sub(r"[^\n]", ".", match.group())


def key_lines(text: str) -> dict[Path, int]:
    """The line of every key that begins a line, by its path; tables of a list carry their index."""
    bare = _HIDDEN.sub(_blank, text)
    lines: dict[Path, int] = {}
    table: Path = ()
    counts: dict[Path, int] = {}
    depth = 0
    for number, (line, visible) in enumerate(zip(text.split("\n"), bare.split("\n"), strict=True), 1):
        if depth == 0:
            if header := _HEADER.match(line):
                table = _names(header.group(2))
                if header.group(1) == "[[":
                    index = counts[table] = counts.get(table, -1) + 1
                    lines.setdefault(table, number)
                    table = (*table, index)
                lines.setdefault(table, number)
                continue
            if assigned := _ASSIGN.match(line):
                lines.setdefault((*table, *_names(assigned.group(1))), number)
        depth = max(0, depth + sum(map(visible.count, "[{")) - sum(map(visible.count, "]}")))
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """The line of a key, or of the nearest table around it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)
