"""All mistakes of a file at once: where, what stands there, and what is allowed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedpoint.config.kinds import Table
from fedpoint.config.lines import Path, key_lines, line_of
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.core.types import Plain

NOTHING = "\0"  # the value of a key that is not there
WORDS = {  # pydantic's, and ours
    "Input should": "must",
    "Value error, ": "",
    "a valid integer": "a whole number",
    "a valid ": "a ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "boolean": "true or false",
    "be a true or false": "be true or false",
}

Model = TypeVar("Model", bound=Table)


@dataclass(frozen=True)
class FileMistake:
    """One mistake: the key's path, the value that stands there, and what is wrong."""

    path: Path
    message: str
    value: Plain = NOTHING

    def text(self, lines: dict[Path, int]) -> str:
        line = line_of(lines, self.path)
        where = f"line {line}: " if line else ""
        value = "" if self.value == NOTHING else f" = {_shown(self.value)}"
        return f"{where}{dotted(self.path)}{value}: {self.message}"


class Mistakes(FedpointError):
    """A file with mistakes; `mistakes` lists them in the order of the file."""

    def __init__(self, name: str, mistakes: list[FileMistake], text: str = ""):
        lines = key_lines(text)
        self.mistakes = sorted(mistakes, key=lambda m: line_of(lines, m.path) or 0)
        shown = [m.text(lines) for m in self.mistakes]
        count = counted(len(shown), "mistake")
        super().__init__(f"{name}: {count}\n" + "\n".join(f"  {line}" for line in shown))


def validated(
    model: type[Model], table: Plain, where: Path = (), **context: object
) -> tuple[Model | None, list[FileMistake]]:
    """A table of a file as its model has it, or what is wrong with it."""
    try:
        return model.model_validate(table, context=context), []
    except ValidationError as error:
        return None, [_mistake(e, where, model) for e in error.errors(include_url=False)]


def _mistake(error: ErrorDetails, where: Path, model: type[Table]) -> FileMistake:
    """One of pydantic's errors in our words, at the key of the file."""
    loc = tuple(part for part in error["loc"] if isinstance(part, int) or part not in ("int", "str", "float"))
    path, value = (*where, *loc), error["input"]
    match error["type"]:
        case "extra_forbidden":
            return FileMistake(
                path, f"unknown key; {nearest(str(loc[-1]), _inner(model, loc[:-1]).model_fields)}", value
            )
        case "missing" if owner := _inner(model, loc[:-1]).owner:
            return FileMistake(path[:-1], f"{owner} needs {loc[-1]}")
        case "missing":
            hint = _inner(model, loc[:-1]).model_fields[str(loc[-1])].description
            return FileMistake(path, "is missing" + (f"; {hint}" if hint else ""))
        case "too_short" | "too_long" if loc[:1] == ("edges",):
            return FileMistake(path, "an edge is a pair of nodes", value)
        case "value_error" if not loc:
            return FileMistake(path, must(error["msg"]))
    return FileMistake(path, must(error["msg"]), value)


def _inner(model: type[Table], path: Path) -> type[Table]:
    """The model of a table inside of a table."""
    for key in path:
        field = model.model_fields.get(str(key))
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        model = next((kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, Table)), model)
    return model


def must(message: str) -> str:
    """Pydantic's "Input should be ..." in our words."""
    for theirs, ours in WORDS.items():
        message = message.replace(theirs, ours)
    return message


def dotted(path: Path) -> str:
    """problem.agents, algorithm[2].step; counted from 1, as people do."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def _shown(value: Plain, most: int = 60) -> str:
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{k} = {_shown(v)}" for k, v in value.items()) + "}"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f'"{value}"'
    else:
        text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
