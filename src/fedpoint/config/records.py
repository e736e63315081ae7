"""What may a table say that stands for a record? A key for each field; its class checks what goes together."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial, reduce
from pathlib import Path
from typing import Annotated, Generic, TypeAlias, TypeVar

from pydantic import AfterValidator, ConfigDict, JsonValue, TypeAdapter, ValidationError, WithJsonSchema, create_model

from fedpoint.config.kinds import Table
from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import FileMistake, must, validated
from fedpoint.core.describe import rebuild
from fedpoint.core.docstrings import parsed
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.record import Record
from fedpoint.core.settings import check_value
from fedpoint.core.types import Plain, Tree

Kind = TypeVar("Kind", bound=Record)
Read = TypeVar("Read")
Key: TypeAlias = object  # a type, with what pydantic is to do with it
SCALARS: dict[str, tuple[type, str]] = {
    "int": (int, "integer"),
    "float": (float, "number"),
    "bool": (bool, "boolean"),
    "str": (str, "string"),
}
FORM = {"type": "object", "description": "a form of a value, such as {per_agent = [...]} or {epochs = 5}"}


class RecordTable(Table):
    """The table of a record."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def build(self, cls: type[Kind]) -> Kind:
        """The record, of the fields that the table says."""
        names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: value for name, value in self if name in names and name in self.model_fields_set})


def snake(name: str) -> str:
    """WorstCase as worst_case."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def scalar_words(declared: dataclasses.Field) -> list[str]:
    """The plain types that a field is declared with; none where it may hold more than those."""
    text = declared.type if isinstance(declared.type, str) else str(declared.type)
    words = [declared.type.__name__] if isinstance(declared.type, type) else re.split(r"\s*\|\s*", text)
    known = [word for word in words if word in SCALARS]
    return known if len(known) + words.count("None") == len(words) else []


def key_of(owner: str, declared: dataclasses.Field, lists: bool = True) -> Key:
    """The type of a field's key. lists: a list is an array, not several values to compare."""
    words = scalar_words(declared)
    rule = declared.metadata
    plain = [SCALARS[word][1] for word in words] or ["integer" if rule.get("whole") else "number", "string", "boolean"]
    some: list[dict] = [{"type": plain}, FORM]
    schema = {"anyOf": [*some, {"type": "array"}]}
    return Annotated[JsonValue, AfterValidator(partial(read_value, owner, declared, lists)), WithJsonSchema(schema)]


def read_value(owner: str, declared: dataclasses.Field, lists: bool, text: Plain) -> Tree:
    """The value of a field by itself, as the field's declaration allows it."""
    rule, words = declared.metadata, scalar_words(declared)
    try:
        if isinstance(text, list):
            if not lists or words:
                raise FedpointError(
                    "write an array as {values = [...]}, and one number per agent as {per_agent = [...]}"
                )
            text = {"values": text}
        if isinstance(text, Mapping) and "per_agent" in text and not rule.get("per_agent"):
            raise FedpointError("is one for all agents: give one number")
        value = rebuild(text)
        if words and not isinstance(text, Mapping):
            value = _scalar(tuple(words)).validate_python(value, strict=True)
        elif rule.get("low") is not None and isinstance(value, str | bool):
            raise FedpointError(f"must be a number, got {value!r}")
        if "low" in rule and value is not None:
            value = check_value(owner, declared.name, value, rule)
    except ValidationError as error:
        raise ValueError("; or ".join(dict.fromkeys(must(e["msg"]) for e in error.errors()))) from None
    except FedpointError as error:
        message = str(error).removeprefix(f"{owner}: {declared.name} ")
        raise ValueError(re.sub(r", got [^,]*$", "", message)) from None  # the value is shown already
    return float(value) if "float" in words and type(value) is int else value


@cache
def _scalar(words: tuple[str, ...]) -> TypeAdapter:
    kind = reduce(operator.or_, (SCALARS[word][0] for word in words))
    return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))


def table_of(
    record: type[Record],
    head: str,
    more: Mapping[str, Key] | None = None,
    lists: bool = True,
    only: frozenset[str] | None = None,
    name: str | None = None,
    beside: tuple[object, ...] = (),
) -> type[RecordTable]:
    """The model of a record's table: its fields, and `more` keys, or types of their own for some fields.

    lists: whether a list is an array. only: the fields that may be said. name: what people call it, if not its class.
    beside: whose docstrings explain further keys.
    """
    name = name or record.__name__
    keys: dict[str, tuple[Key, object]] = {head: (str | None, None)}
    for declared in dataclasses.fields(record):  # type: ignore[arg-type]
        if only is not None and declared.name not in only:
            continue
        kind = (more or {}).get(declared.name) or key_of(record.__name__, declared, lists)
        free = any(x is not dataclasses.MISSING for x in (declared.default, declared.default_factory))
        keys[declared.name] = (kind, None if free else ...)
    keys |= {name: (kind, None) for name, kind in (more or {}).items() if name not in keys}
    made = create_model(f"{name}Table", __base__=RecordTable, **keys)  # type: ignore[call-overload]
    made.owner, made.__doc__, made.explained_by = name, parsed(record.__doc__).summary, (*beside, record)
    return made


@dataclass(frozen=True)
class Family(Generic[Kind]):
    """Records of one sort that a file names by a word: "median", or {kind = "median", ...}."""

    what: str  # for people: "a schedule"
    classes: Mapping[str, type[Kind]]
    head: str = "kind"
    keys: Mapping[str, Key] = field(default_factory=dict)  # types of their own for some fields
    tables: Mapping[type, type[RecordTable]] = field(default_factory=dict)  # of classes that are written otherwise

    def class_of(self, text: Plain) -> type[Kind]:
        """The class of a word or a table."""
        word = text.get(self.head) if isinstance(text, Mapping) else text
        if word is None and isinstance(text, Mapping):
            raise FedpointError(f'missing "{self.head}"; choose one of {", ".join(self.classes)}')
        if not isinstance(word, str):
            raise FedpointError(f"must be the name of {self.what}, or a table with its {self.head}")
        bare = {name.replace("_", ""): name for name in self.classes}
        found = bare.get(re.sub(r"[-_ ]", "", word.lower()))
        if found is None:
            raise FedpointError(f"unknown {self.head} {word!r}; {nearest(word, self.classes)}")
        return self.classes[found]

    def table(self, cls: type[Kind]) -> type[RecordTable]:
        """The keys of a record's table."""
        return self._tables[cls]

    @cached_property
    def _tables(self) -> dict[type, type[RecordTable]]:
        return {cls: self.tables.get(cls) or self._table(cls) for cls in self.classes.values()}

    def _table(self, cls: type[Kind]) -> type[RecordTable]:
        fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return table_of(cls, self.head, {name: kind for name, kind in self.keys.items() if name in fields})

    def read(self, text: Plain, where: Where, base: Path | None = None) -> tuple[Kind | None, list[FileMistake]]:
        """The record that a text stands for, or what is wrong with it."""
        try:
            cls = self.class_of(text)
            table = {} if isinstance(text, str) else text
            made, wrong = validated(self.table(cls), table, where, base=base)
            if made is None:
                return None, wrong
            return made.build(cls), []
        except FedpointError as error:
            return None, [FileMistake(where, str(error), text)]


def only(read: tuple[Read | None, list[FileMistake]]) -> Read:
    """What was read, or one error with all that is wrong."""
    made, wrong = read
    if made is None or wrong:
        raise FedpointError("; ".join(m.text({}) for m in wrong))
    return made
