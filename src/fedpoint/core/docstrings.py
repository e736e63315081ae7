"""What does a docstring say? Prose, arguments, attributes, an example, references. The only reader of docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple

ITEM = re.compile(r"    (\*{0,2}\w+(?:, \*{0,2}\w+)*):(?:\s+(.*))?$")
SECTIONS = {"Args:": "arguments", "Attributes:": "attributes"}


class Docstring(NamedTuple):
    """A docstring in its parts; each is empty where the docstring has none."""

    words: str  # paragraphs, formulas between dollars included
    arguments: dict[str, str]  # by name
    attributes: dict[str, str]
    example: str  # doctests
    references: str

    @property
    def summary(self) -> str:
        """The first paragraph, on one line."""
        return " ".join(self.words.split("\n\n")[0].split())

    @property
    def meanings(self) -> dict[str, str]:
        """What arguments and attributes mean, by name."""
        return {**self.attributes, **self.arguments}


def parsed(text: str | None) -> Docstring:
    """The parts of a docstring.

    Args:
        text: as written; None is an empty one.

    >>> doc = parsed('''Move.
    ...
    ...     Args:
    ...         step, count: how far,
    ...             and how often.
    ...
    ...     >>> move(1, 2)
    ...     3''')
    >>> doc.summary, doc.arguments["count"], doc.example
    ('Move.', 'how far, and how often.', '>>> move(1, 2)\\n3')
    """
    parts: dict[str, list[str]] = {name: [] for name in ("words", "arguments", "attributes", "example", "references")}
    part = "words"
    for line in inspect.cleandoc(text or "").splitlines():
        if line in SECTIONS:
            part = SECTIONS[line]
            continue
        if line.startswith(">>>"):
            part = "example"
        elif line.startswith("References:"):
            part, line = "references", line.removeprefix("References:").strip()
        elif line and part in SECTIONS.values() and not line.startswith(" "):
            part = "words"
        parts[part].append(line)
        if not line and part in ("example", "references"):
            part = "words"
    return Docstring(
        _block(parts["words"]),
        _items(parts["arguments"]),
        _items(parts["attributes"]),
        _block(parts["example"]),
        " ".join(_block(parts["references"]).split()),
    )


def meanings(thing: Any) -> dict[str, str]:
    """What the arguments and attributes of a function or a class mean, those of base classes included, by name.

    Args:
        thing: a function, or a class.
    """
    if not inspect.isclass(thing):
        return parsed(thing.__doc__).meanings
    found: dict[str, str] = {}
    for cls in reversed(thing.__mro__):
        found |= parsed(vars(cls).get("__doc__")).meanings
    return found


def _block(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _items(lines: list[str]) -> dict[str, str]:
    """Meanings by name: `a, b: text`, with further lines indented deeper."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        start = ITEM.match(line)
        if start:
            names = [name.lstrip("*") for name in start[1].split(", ")]
            found |= dict.fromkeys(names, start[2] or "")
        else:
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
    return found


__all__ = ["Docstring", "meanings", "parsed"]
