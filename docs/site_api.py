"""The reference of the Python interface, made from docstrings: a page for each room of the library."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from itertools import groupby
from typing import Any

from fedpoint.core.docstrings import meanings, parsed

ROOMS = {  # of a page: its title, the rooms whose names it has, and the modules of fp that lie there
    "verbs": ("Verbs", ("verbs",), ()),
    "experiment": ("Experiments and files", ("experiment", "config", "federation"), ()),
    "results": ("Results", ("results",), ()),
    "algorithms": ("Methods", ("algorithms",), ()),
    "core": ("What methods are made of", ("core",), ("steps",)),
    "timing": ("Who works when", ("timing",), ("participation", "staleness")),
    "graphs": ("Networks", ("graphs",), ("gtv",)),
    "problems": ("Problems", ("problems",), ("problems",)),
    "data": ("Data", ("data",), ("data",)),
    "metrics": ("Metrics", ("metrics",), ("metrics",)),
    "channel": ("Channels", ("channel",), ("channel",)),
    "gather": ("Gathers", ("gather",), ("gather",)),
    "attack": ("Attacks", ("attack",), ("attack",)),
    "privacy": ("Privacy", ("privacy",), ("privacy",)),
    "theory": ("Theory", ("theory",), ("theory",)),
    "statistics": ("Statistics", ("statistics",), ("statistics",)),
    "estimators": ("Estimators", ("estimators",), ("estimators",)),
    "trackers": ("Trackers", ("trackers",), ("trackers",)),
}
# What Markdown would take for its own, outside code and formulas.
CODE = re.compile(r"(`[^`]*`|\$\$.+?\$\$|(?<![\\\w$])\$(?!\s)[^$]+?(?<!\s)\$|\*\*[^*\n]+\*\*)", re.S)


def names_of(module: Any) -> list[str]:
    """What a module offers: what it says, else what is made in it."""

    def own(value: Any) -> bool:
        made = getattr(value, "__module__", None) == module.__name__
        return (inspect.isfunction(value) or inspect.isclass(value)) and made

    said = getattr(module, "__all__", None)
    names = said or [name for name, value in vars(module).items() if own(value)]
    return sorted((name for name in names if not name.startswith("_")), key=str.lower)


def contents() -> dict[str, dict[str, Any]]:
    """By page: the public things on it, by their full names. Each stands once, where it is reached most shortly."""
    fp = importlib.import_module("fedpoint")
    pages: dict[str, dict[str, Any]] = {page: {} for page in ROOMS}
    seen: set[int] = set()

    def add(page: str, name: str, thing: Any) -> None:
        if id(thing) not in seen:
            seen.add(id(thing))
            pages[page][name] = thing

    for page, (_, rooms, _) in ROOMS.items():
        for name in sorted(fp._HOME, key=str.lower):
            if fp._HOME[name].split(".")[1] in rooms:
                add(page, f"fp.{name}", getattr(fp, name))
    for page, (_, _, modules) in ROOMS.items():
        for name in modules:
            module = getattr(fp, name)
            for own in names_of(module):
                add(page, f"fp.{name}.{own}", getattr(module, own))
    return pages


def links() -> dict[str, str]:
    """Where every public name is explained: a page and an anchor."""
    return {name: f"reference/{page}.md#{anchor(name)}" for page, things in contents().items() for name in things}


def anchor(name: str) -> str:
    return name.replace(".", "-")


def pages() -> dict[str, str]:
    """The pages by path, and an index of all names."""
    made = contents()
    found = {f"reference/{page}.md": _page(page, things) for page, things in made.items()}
    index = ["# Python", "`import fedpoint as fp`. Names load when they are first used."]
    for page, things in made.items():
        index.append(f"## {ROOMS[page][0]}\n")
        index.append("\n".join(f"- `{name}`: {escaped(_summary(thing))}" for name, thing in things.items()))
    return {**found, "reference/python.md": "\n\n".join(index) + "\n"}


def _page(page: str, things: dict[str, Any]) -> str:
    title, rooms, _ = ROOMS[page]
    said = [importlib.import_module(f"fedpoint.{name}").__doc__ or "" for name in rooms[:1]]
    parts = [f"# {title}", escaped(parsed(said[0]).summary)]
    return "\n\n".join([*parts, *(entry(name, thing) for name, thing in things.items())]) + "\n"


def entry(name: str, thing: Any) -> str:
    """One function, class or value."""
    doc = parsed(thing.__doc__ if callable(thing) else None)
    parts = [f"### `{name}` {{ #{anchor(name)} }}", *_call(name, thing), escaped(doc.words)]
    explained, arguments = meanings(thing) if callable(thing) else {}, _parameters(thing)
    known = {n: p for n, p in arguments.items() if n in explained}
    parts.append(_list("Arguments", {n: _said(known[n], explained[n]) for n in known}))
    own = {n: explained[n] for n in explained if n not in arguments and n not in doc.arguments}
    parts.append(_list("Options", {n: explained[n] for n in doc.arguments if n not in arguments}))
    parts.append(_list("Attributes", own))
    parts.append(_list("Arguments of methods", doc.of_methods))
    parts.append(_methods(thing) if inspect.isclass(thing) else "")
    parts.append(f"```pycon\n{doc.example}\n```" if doc.example else "")
    parts.append(f"References: {escaped(doc.references)}" if doc.references else "")
    return "\n\n".join(part for part in parts if part)


def _summary(thing: Any) -> str:
    return parsed(thing.__doc__).summary if callable(thing) else type(thing).__name__


def _call(name: str, thing: Any) -> list[str]:
    if not callable(thing):
        return []
    arguments = [_argument(p) for p in _parameters(thing).values()]
    text = f"{name}({', '.join(arguments)})"
    if len(text) > 90:
        text = f"{name}(\n    " + ",\n    ".join(arguments) + ",\n)"
    return [f"```python\n{text}\n```"]


def _parameters(thing: Callable | Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(thing).parameters) if callable(thing) else {}
    except (TypeError, ValueError):
        return {}


def _argument(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    return f"{stars}{parameter.name}" + ("" if parameter.default is parameter.empty else f"={_default(parameter)}")


def _default(parameter: inspect.Parameter) -> str:
    """As one would write it; three dots for an object without a short form."""
    said = repr(parameter.default)
    made_later = dataclasses.is_dataclass(parameter.default) and len(said) > 40
    return "..." if made_later or said.startswith("<") or " at 0x" in said else said


def _said(parameter: inspect.Parameter, meaning: str) -> str:
    """A meaning with the type, as it is annotated."""
    kind = parameter.annotation
    kind = "" if kind is parameter.empty else kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return f"(`{kind}`) {meaning}" if kind and "Unpack" not in kind and len(kind) < 60 else meaning


def _list(title: str, items: dict[str, str]) -> str:
    """Names with their meanings; those in a row that share a meaning stand together."""
    lines = []
    for said, some in groupby(items.items(), key=lambda item: item[1]):
        lines.append(f"- {', '.join(f'`{name}`' for name, _ in some)}: {escaped(said)}")
    return f"**{title}**\n\n" + "\n".join(lines) if lines else ""


def _methods(cls: type) -> str:
    """The public methods and properties that the class explains itself, or a base of it in the same room, with the
    arguments that each explains."""
    room, lines = cls.__module__.rsplit(".", 1)[0], list[str]()
    bases = [base for base in reversed(cls.__mro__) if base.__module__.rsplit(".", 1)[0] == room]
    for name in {name: None for base in bases for name in vars(base)}:
        value = inspect.getattr_static(cls, name)
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        inner = getattr(inner, "func", getattr(inner, "fget", inner))  # of a cached or plain property
        if name.startswith("_") or not inspect.isfunction(inner) or not inner.__doc__:
            continue
        known = {p.name: p for p in _parameters(inner).values() if p.name not in ("self", "cls")}
        called = inner is value or isinstance(value, classmethod | staticmethod)
        call = f"{name}({', '.join(map(_argument, known.values()))})" if called else name
        said = parsed(inner.__doc__)
        lines.append(f"- `{call}`: {escaped(said.summary)}")
        told = {n: meaning for n, meaning in said.arguments.items() if n in known}
        lines += [f"    - `{n}`: {escaped(_said(known[n], meaning))}" for n, meaning in told.items()]
    return "**Methods**\n\n" + "\n".join(lines) if lines else ""


def escaped(text: str) -> str:
    """Text of a docstring, in which stars and underscores stand for themselves outside code and formulas."""
    pieces = CODE.split(text)
    for i in range(0, len(pieces), 2):
        lines = pieces[i].split("\n")
        plain = [line if line.startswith("    ") else re.sub(r"([*_<\[\]|])", r"\\\1", line) for line in lines]
        pieces[i] = "\n".join(plain).replace("\\<", "&lt;")
    return "".join(pieces)


__all__ = ["contents", "entry", "escaped", "links", "pages"]
