"""Which texts may a study hold? No code that is not fedpoint's, and nothing that a screen would not show as it is."""

from __future__ import annotations

from collections.abc import Iterator

from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import FileMistake
from fedpoint.core.types import Plain

FOREIGN = "is not fedpoint's: sites run what is installed there, and no code of a study"
HIDDEN = "holds a line break or another character that a screen does not show as it is"


def foreign_code(text: Plain) -> Iterator[FileMistake]:
    """Classes and functions that are not fedpoint's, anywhere."""
    for path, item in _texts(text):
        if path[-1] in ("name", "class", "python") and "." in item and not item.startswith("fedpoint."):
            yield FileMistake(path, FOREIGN, item)


def unprintable(text: Plain) -> Iterator[FileMistake]:
    """What could draw another consent screen than the study's. Columns may be separated by tabs."""
    for path, item in _texts(text):
        if not all(str(key).isprintable() for key in path):
            yield FileMistake(tuple(ascii(key) for key in path), HIDDEN)
        if not item.isprintable() and path[-1] != "separator":
            yield FileMistake(path, HIDDEN, item)


def _texts(text: Plain, path: Where = ()) -> Iterator[tuple[Where, str]]:
    """Every text and where it stands."""
    if isinstance(text, str):
        yield path, text
    items = text.items() if isinstance(text, dict) else enumerate(text) if isinstance(text, list) else ()
    for key, item in items:
        yield from _texts(item, (*path, key))


__all__ = ["foreign_code", "unprintable"]
