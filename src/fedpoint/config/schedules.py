"""When agents work, as a file says it: a name, or a table whose keys are the fields of the schedule's class.

    schedule = "synchronous"                                  the default on a network
    schedule = {kind = "random_activation", count = 3}
    schedule = {kind = "random_links", loss = 0.2}            all work in every tick, links fail
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

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, JsonValue, ValidationInfo, WithJsonSchema

from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import FileMistake, validated
from fedpoint.config.records import Family, Kind, RecordTable, only, snake, table_of
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Plain
from fedpoint.timing import schedule, timed, turns
from fedpoint.timing.base import Timing
from fedpoint.timing.clock import Clock
from fedpoint.timing.staleness import Constant, Hinge, Polynomial, Staleness
from fedpoint.timing.turns import Replay

CLASSES: tuple[type[Timing], ...] = (
    schedule.Synchronous,
    schedule.RandomActivation,
    schedule.RandomLinks,
    schedule.PartiallyAsynchronous,
    schedule.TotallyAsynchronous,
    schedule.WorstCase,
    turns.InStep,
    turns.OwnPace,
    turns.Replay,
    timed.Waiting,
    timed.Arrivals,
)
KINDS = {snake(cls.__name__): cls for cls in CLASSES}


def _events(text: str, info: ValidationInfo) -> Replay:
    return Replay.read(((info.context or {}).get("base") or Path()) / text)


class ReplayTable(RecordTable):
    """A measured run again.

    Args:
        kind: "replay".
        file: the path of the events, as `fp.Replay.read` takes it.
    """

    owner = "Replay"
    kind: str
    file: Annotated[str, AfterValidator(_events)]

    def build(self, cls: type[Kind]) -> Kind:
        return self.file  # type: ignore[return-value] # which was read to be checked


def clock_of(text: Plain) -> Clock:
    """How long agents take, from its table."""
    if not isinstance(text, Mapping):
        raise FedpointError(f"clock must be a table such as {{work = 1.0}}, got {text!r}")
    table, wrong = validated(CLOCK, text, ("clock",))
    if table is None:
        raise FedpointError("; ".join(m.text({}) for m in wrong))
    return table.build(Clock)


def staleness_of(text: Plain) -> Staleness:
    """The weight of old answers, from its name or table."""
    if text == "constant":
        return Constant()
    if isinstance(text, Mapping) and len(text) == 1:
        ((kind, item),) = text.items()
        numbers = [x for x in (item if isinstance(item, list) else [item]) if type(x) in (int, float)]
        if kind == "polynomial" and len(numbers) == 1:
            return Polynomial(float(numbers[0]))  # type: ignore[arg-type]
        if kind == "hinge" and len(numbers) == 2:
            return Hinge(float(numbers[0]), float(numbers[1]))  # type: ignore[arg-type]
    raise FedpointError(f'staleness must be "constant", {{polynomial = 0.5}} or {{hinge = [10.0, 4.0]}}, got {text!r}')


CLOCK = table_of(Clock, "kind")
FAMILY = Family(
    "a schedule",
    KINDS,
    keys={
        "clock": Annotated[JsonValue, AfterValidator(clock_of), WithJsonSchema(CLOCK.model_json_schema())],
        "staleness": Annotated[JsonValue, AfterValidator(staleness_of), WithJsonSchema({"type": ["string", "object"]})],
    },
    tables={Replay: ReplayTable},
)


def mistakes(text: Plain, where: Where, base: Path | None) -> list[FileMistake]:
    """What is wrong with a schedule by itself."""
    return FAMILY.read(text, where, base)[1]


def scheme_of(text: Plain, base: Path | None = None) -> Timing:
    """The schedule that a file's text stands for; a trace is read relative to `base`."""
    return only(FAMILY.read(text, ("schedule",), base))
