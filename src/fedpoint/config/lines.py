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
    """Text and comments as dots, so that what is in them does not count; line breaks stay."""
    return re.sub(r"[^\n]", ".", match.group())


def _blank_long(match: re.Match) -> str:
    """Likewise, but a text on one line stays: it may be a key."""
    return _blank(match) if match.group().startswith(('"""', "'''", "#")) else match.group()


def key_lines(text: str) -> dict[Path, int]:
    """The line of every key that begins a line, by its path; tables of a list carry their index."""
    visible, bare = _HIDDEN.sub(_blank_long, text), _HIDDEN.sub(_blank, text)
    lines: dict[Path, int] = {}
    table: Path = ()
    counts: dict[Path, int] = {}
    depth = 0
    for number, (line, brackets) in enumerate(zip(visible.split("\n"), bare.split("\n"), strict=True), 1):
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
        depth = max(0, depth + sum(map(brackets.count, "[{")) - sum(map(brackets.count, "]}")))
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """The line of a key, or of the nearest table around it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)
