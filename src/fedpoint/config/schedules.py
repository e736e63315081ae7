"""When agents work, as a file says it: a name, or a table whose keys are the fields of the schedule's class.

    schedule = "synchronous"                                  the default on a network
    schedule = {kind = "random_activation", count = 3}
    schedule = {kind = "partially_asynchronous", bounded = 5, activity = 0.5, loss = 0.1}
    schedule = {kind = "totally_asynchronous", growth = 0.5}
    schedule = {kind = "worst_case", bounded = 5}
    schedule = {kind = "own_pace", clock = {work = 1.0, law = "exponential", travel = 0.1}}     also "in_step"
    schedule = {kind = "replay", file = "trace.csv"}
    schedule = {kind = "arrivals", clock = {work = [1.0, 5.0]}, buffer = 5, staleness = {polynomial = 0.5}}
    schedule = {kind = "waiting", clock = {work = 1.0}, count = 10, deadline = 3.0, dropout = 0.1}

The last two are with a fusion center. staleness is "constant", {polynomial = power} or {hinge = [slope, after]}.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import Mistake, of_table
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.timing import schedule, timed, turns
from fedpoint.timing.clock import Clock
from fedpoint.timing.staleness import Constant, Hinge, Polynomial
from fedpoint.timing.turns import Replay

CLASSES: tuple[Any, ...] = (
    schedule.Synchronous,
    schedule.RandomActivation,
    schedule.PartiallyAsynchronous,
    schedule.TotallyAsynchronous,
    schedule.WorstCase,
    turns.InStep,
    turns.OwnPace,
    turns.Replay,
    timed.Waiting,
    timed.Arrivals,
)
KINDS = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower(): cls for cls in CLASSES}
STALENESS = ("constant", "polynomial", "hinge")


def mistakes(text: Any, where: Where, base: Path | None) -> list[Mistake]:
    """What is wrong with a schedule by itself: every unknown key, and what its class says of the rest."""
    return of_table(
        text, where, lambda table: ["kind", *_names(_class_of(table))], lambda table: scheme_of(table, base)
    )


def _names(cls: Any) -> list[str]:
    return ["file"] if cls is Replay else [f.name for f in dataclasses.fields(cls)]


def _class_of(text: Any) -> Any:
    if not isinstance(text, str | Mapping):
        raise FedpointError("must be the name of a schedule, or a table with its kind")
    kind = text if isinstance(text, str) else text.get("kind")
    if kind is None:
        raise FedpointError(f"say its kind: {', '.join(KINDS)}")
    found = KINDS.get(str(kind).lower().replace("-", "_"))
    if found is None:
        raise FedpointError(f"unknown kind {kind!r}; {nearest(str(kind), KINDS)}")
    return found


def scheme_of(text: Any, base: Path | None = None) -> Any:
    """The schedule that a file's text stands for; a trace is read relative to `base`."""
    cls = _class_of(text)
    table = {} if isinstance(text, str) else {key: item for key, item in text.items() if key != "kind"}
    if cls is Replay:
        if not isinstance(table.get("file"), str):
            raise FedpointError('replay needs file = "...", the path of a trace')
        return Replay.read((base or Path()) / table["file"])
    missing = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in table]
    if missing:
        raise FedpointError(f"{cls.__name__} needs {', '.join(missing)}")
    if "clock" in table:
        table["clock"] = _clock(table["clock"])
    if "staleness" in table:
        table["staleness"] = staleness_of(table["staleness"])
    for key, item in table.items():
        if isinstance(item, str | list):
            raise FedpointError(f"{cls.__name__}: {key} must be a number, got {item!r}")
    try:
        return cls(**{key: _number(cls, key, item) for key, item in table.items()})
    except TypeError as error:
        raise FedpointError(f"{cls.__name__}: {error}") from None


def _number(cls: Any, key: str, item: Any) -> Any:
    """Whole numbers where a number with a point is meant."""
    kind = {f.name: str(f.type) for f in dataclasses.fields(cls)}.get(key, "")
    return float(item) if "float" in kind and isinstance(item, int) and not isinstance(item, bool) else item


def _clock(text: Any) -> Clock:
    if not isinstance(text, Mapping):
        raise FedpointError(f"clock must be a table such as {{work = 1.0}}, got {text!r}")
    known = [f.name for f in dataclasses.fields(Clock)]
    for key in text:
        if key not in known:
            raise FedpointError(f"clock has no {key!r}; {nearest(key, known)}")
    numbers = {key: item for key, item in text.items() if key != "law"}
    for key, item in numbers.items():
        each = item if isinstance(item, list) and key == "work" and item else [item]
        if any(isinstance(x, bool) or not isinstance(x, int | float) for x in each):
            raise FedpointError(f"clock: {key} must be a number, got {item!r}")
    as_floats: dict[str, Any] = {
        k: [float(x) for x in i] if isinstance(i, list) else float(i) for k, i in numbers.items()
    }
    return Clock(**as_floats, **({"law": text["law"]} if "law" in text else {}))


def staleness_of(text: Any) -> Any:
    if text == "constant":
        return Constant()
    if isinstance(text, Mapping) and len(text) == 1:
        ((kind, item),) = text.items()
        numbers = item if isinstance(item, list) else [item]
        if all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers):
            if kind == "polynomial" and len(numbers) == 1:
                return Polynomial(float(numbers[0]))
            if kind == "hinge" and len(numbers) == 2:
                return Hinge(*map(float, numbers))
    raise FedpointError(f'staleness must be "constant", {{polynomial = 0.5}} or {{hinge = [10.0, 4.0]}}, got {text!r}')
