"""Is it an order? Its header is read into types here; a field of another type anywhere is refused."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from fedpoint.core.types import Plain
from fedpoint.federation.secure.letters import STAGES
from fedpoint.federation.site.refusal import malformed
from fedpoint.federation.wire import Classes, OwnSetup, Packet, Written
from fedpoint.store.disk import canonical

KINDS = ("columns", "moments", "ready", "work", *STAGES, "measure", "end", "excluded")
WITH_SETUP = ("ready", "work", "measure", "end")
WITH_ARRAYS = ("work", *STAGES, "measure", "end")
RUN = re.compile(r"[a-z0-9]{1,32}")
FIELDS = frozenset(Written.__annotations__)
SETUP = frozenset(OwnSetup.__annotations__)
WHY = 500  # characters of what a hub says to people
LONGEST = 64  # characters of the word that an answer repeats
WHOLE = 2**53  # numbers beyond it are not those of rounds


class Order(NamedTuple):
    """What a hub asks for. `digest` is of what matters: two orders with the same one get the same answer."""

    kind: str
    run: str
    round: int
    merged: int
    recipe: list[Written]  # of "moments"
    setup: OwnSetup | None  # of "ready", "work", "measure" and "end"
    why: str  # of "excluded": what the hub says to the person here
    digest: str


def read_order(packet: Packet) -> Order:
    """The order of a message, its header looked at."""
    header = cast(Mapping[str, Plain], packet.header)  # of which nothing is known yet
    kind, run = header.get("kind"), header.get("run")
    if not isinstance(kind, str) or kind not in KINDS:
        raise malformed(f"unknown order {kind!r}: a hub asks for {', '.join(KINDS)}")
    if not isinstance(run, str) or not RUN.fullmatch(run):
        raise malformed("the name of a run is 1 to 32 lower-case letters and digits")
    word = header.get("order", "")
    if not isinstance(word, str) or len(word) > LONGEST:
        raise malformed("the word of an order is not a short text")
    round, merged = (_whole(header, name) for name in ("round", "merged"))
    recipe = [_written(one) for one in _list(header.get("recipe"), "recipe")] if kind == "moments" else []
    setup = _setup(header.get("setup")) if kind in WITH_SETUP else None
    if packet.arrays and kind not in WITH_ARRAYS:
        raise malformed(f"an order for {kind} has no arrays")
    digest = _digest(kind, round, merged, recipe, setup, packet)
    return Order(kind, run, round, merged, recipe, setup, str(header.get("why", ""))[:WHY], digest)


def _digest(kind: str, round: int, merged: int, recipe: list[Written], setup: OwnSetup | None, packet: Packet) -> str:
    """Of what an answer depends on; the release of the hub, say, is not among it."""
    matters: object = {"round": round, "merged": merged, "setup": setup}
    if kind in ("columns", "moments", "ready"):
        matters = {"recipe": recipe, "setup": setup}
    sha = hashlib.sha256(canonical([kind, matters]))
    for name, array in sorted(packet.arrays.items()):
        sha.update(canonical([name, str(array.dtype), list(array.shape)]))
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _whole(header: Mapping[str, Plain], name: str) -> int:
    value = header.get(name)
    if type(value) is not int or abs(value) >= WHOLE:
        raise malformed(f"{name} is not a whole number")
    return value


def _list(value: Plain, what: str) -> Sequence[Plain]:
    if not isinstance(value, list):
        raise malformed(f"the {what} is not a list")
    return value


def _number(value: Plain, what: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(_float(value)):
        raise malformed(f"{what} is not a finite number")
    return _float(value)


def _float(value: Plain) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def _written(value: Plain) -> Written:
    """How a column is to be written: every field, of its type, and no other."""
    if not isinstance(value, Mapping) or set(value) != FIELDS:
        raise malformed(f"a column of a recipe has the fields {', '.join(sorted(FIELDS))}")
    column, categories, fill, dates = (value[name] for name in ("column", "categories", "fill", "dates"))
    if not isinstance(column, str):
        raise malformed("the name of a column is not a text")
    if categories is not None and not all(isinstance(word, str) for word in _list(categories, "list of categories")):
        raise malformed(f"the categories of {column!r} are not texts")
    if fill is not None and not isinstance(fill, str):
        fill = _number(fill, f"what fills the gaps of {column!r}")
    if dates is not None and not isinstance(dates, str):
        raise malformed(f"the form of the dates of {column!r} is not a text")
    mean, scale = (_number(value[name], f"the {name} of {column!r}") for name in ("mean", "scale"))
    words = None if categories is None else [str(word) for word in _list(categories, "list of categories")]
    return Written(column=column, mean=mean, scale=scale, categories=words, fill=fill, dates=dates)


def _setup(value: Plain) -> OwnSetup:
    if not isinstance(value, Mapping) or set(value) != SETUP:
        raise malformed(f"a setup has the fields {', '.join(sorted(SETUP))}")
    index, share = value["index"], _number(value["share"], "the share")
    heaviest = _number(value["heaviest"], "the largest share")
    if type(index) is not int:
        raise malformed("the index is not a whole number")
    recipe = [_written(one) for one in _list(value["recipe"], "recipe")]
    return OwnSetup(index=index, share=share, heaviest=heaviest, recipe=recipe, classes=_classes(value["classes"]))


def _classes(value: Plain) -> Classes:
    if value is None:
        return None
    found = [one for one in _list(value, "list of classes") if type(one) in (int, str)]
    if len(found) < len(_list(value, "list of classes")):
        raise malformed("a class is neither a whole number nor a text")
    return found  # type: ignore[return-value]
