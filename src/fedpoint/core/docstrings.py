"""What does a docstring say? Prose, arguments, attributes, an example, references. The only reader of docstrings."""

from __future__ import annotations

import inspect
import re
from types import FunctionType
from typing import NamedTuple

ITEM = re.compile(r"    (\*{0,2}\w+(?:, \*{0,2}\w+)*):(?:\s+(.*))?$")
SECTIONS = {"Args:": "arguments", "Attributes:": "attributes", "Arguments of methods:": "of_methods"}


class Docstring(NamedTuple):
    """A docstring in its parts; each is empty where the docstring has none."""

    words: str  # paragraphs, formulas between dollars included
    arguments: dict[str, str]  # by name
    attributes: dict[str, str]
    of_methods: dict[str, str]  # of a class: what arguments of its methods mean, said once for all of them
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
    parts: dict[str, list[str]] = {name: [] for name in Docstring._fields}
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
        _items(parts["of_methods"]),
        _block(parts["example"]),
        " ".join(_block(parts["references"]).split()),
    )


def meanings(thing: object) -> dict[str, str]:
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


def methods(cls: type) -> dict[str, FunctionType]:
    """The public methods of a class that are defined in this library, inherited ones included, by name.

    Those that replace what another library defines and explains (scikit-learn's `score`) are left out.

    Args:
        cls: a class.
    """
    found: dict[str, FunctionType] = {}
    foreign = {name for base in cls.__mro__ if not base.__module__.startswith("fedpoint") for name in vars(base)}
    for base in cls.__mro__:
        for name in vars(base):
            method = _method(base, name)
            if method is not None and not name.startswith("_") and name not in foreign:
                found.setdefault(name, method)
    return found


def method_meanings(cls: type, name: str) -> dict[str, str]:
    """What the arguments of a method mean, by name.

    A method that replaces one of a base class inherits its explanations: by name, or by place where its arguments are
    called by the symbols of a formula. What several methods share is said once, in the docstring of the class.

    Args:
        cls: a class.
        name: one of its methods.
    """
    bases = [base for base in reversed(cls.__mro__) if _method(base, name) is not None]
    names = parameters(_method(bases[-1], name))
    shared: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        shared |= parsed(vars(base).get("__doc__")).of_methods
    found: dict[str, str] = {}
    for base in bases:
        method = _method(base, name)
        explained = shared | parsed(method.__doc__ if method else "").arguments
        for place, theirs in enumerate(parameters(method)):
            mine = theirs if theirs in names else names[place] if place < len(names) else ""
            if mine and explained.get(theirs):
                found[mine] = explained[theirs]
    return found


def parameters(function: FunctionType | None) -> list[str]:
    """The names of a function's arguments, but for the object or class that it is called on.

    Args:
        function: a function or a method; None has none.
    """
    names = [] if function is None else list(inspect.signature(function).parameters)
    return [name for name in names if name not in ("self", "cls")]


def _method(cls: type, name: str) -> FunctionType | None:
    """What a class itself defines under a name, if that is a function."""
    value = vars(cls).get(name)
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return value if isinstance(value, FunctionType) else None


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


__all__ = ["Docstring", "meanings", "method_meanings", "methods", "parameters", "parsed"]
