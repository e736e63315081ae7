"""What do the lectures' experiments show? Runs each of a lab's experiments once, and predicts it exactly.

A lab is a file of experiments, which `fp.read` reads too, with a table [lab] that says how they are shown.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce
from importlib import resources
from typing import Annotated, NamedTuple, cast

import numpy as np
from pydantic import Field

from fedpoint.algorithms import FedAvg
from fedpoint.algorithms.catalogue import title_of
from fedpoint.closed.lms import lms_floor, lms_msd
from fedpoint.config import Entry, parse
from fedpoint.config.kinds import Table
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.numbers import counted
from fedpoint.core.types import Plain, Tree
from fedpoint.experiment import Experiment
from fedpoint.lab.study import studies
from fedpoint.metrics.means import mean_and_error
from fedpoint.problems import LinearStream
from fedpoint.store import disk
from fedpoint.verbs.forecast import forecast
from fedpoint.verbs.run import run

DEFAULT = "lecture000"
WORKERS = min(2, os.cpu_count() or 1)
CLOSE = 0.01  # a curve this near to its limit has arrived

Progress = Callable[["LabSetting", int], object]  # an experiment, and the round that it has reached


class PanelTable(Table):
    """One observation: curves that are to be seen together, by label, and what they say."""

    name: str
    title: str
    says: str
    curves: dict[str, str]


class LabTable(Table):
    """How a file's experiments are shown. columns: by heading, the key of an experiment that tells it from others."""

    title: str
    about: str
    explain: str
    columns: dict[str, str]
    quick: dict[str, int]
    panel: Annotated[list[PanelTable], Field(min_length=1)]


class Prediction(NamedTuple):
    """The expected error at every round, where it settles, and what a bias contributes to that."""

    curve: np.ndarray
    floor: float
    bias2: float = 0.0


@dataclass(frozen=True)
class LabSetting:
    """An experiment of a lab. Equal ones are run once."""

    name: str
    rounds: int
    key: str  # all that the file says of it
    entry: Entry = field(compare=False, repr=False)
    cells: Mapping[str, float | str] = field(compare=False, repr=False)  # what tells it from others, by heading

    @property
    def experiment(self) -> Experiment:
        return self.entry.experiment

    def predict(self) -> Prediction:
        """What must happen."""
        e = self.experiment
        a, p = e.algorithm, e.problem
        if isinstance(p, LinearStream) and isinstance(a, FedAvg) and isinstance(a.local_steps, int):
            numbers = p, float(cast(float, a.step)), a.local_steps, e.timing.slots(p.agents)  # lecture 000's recursion
            floor = lms_floor(*numbers, normalise=a.normalise)
            return Prediction(lms_msd(*numbers, self.rounds, normalise=a.normalise), floor)
        f = forecast(e)
        if f.floor is None:
            raise FedpointError(f"the forecast of {self.name} has no floor: {f.text()}")
        return Prediction(f.curve(self.rounds), f.floor, (f.bias or 0.0) ** 2)

    def __str__(self) -> str:
        texts = {name: shown(value) for name, value in self.cells.items()}
        return ", ".join(f"{name} {text}" if len(name) > 1 else f"{name} = {text}" for name, text in texts.items())


def shown(value: float | str) -> str:
    """A cell of a table."""
    return value if isinstance(value, str) else f"{value:g}"


@dataclass(frozen=True)
class Panel:
    """One observation: curves that are to be seen together, and what they say."""

    name: str
    title: str
    says: str
    curves: tuple[tuple[str, LabSetting], ...]


@dataclass(frozen=True)
class Lab:
    """A file of experiments, and how they are shown. Problems are built when they are asked for."""

    name: str
    content: disk.Table = field(repr=False)
    table: LabTable = field(repr=False)

    @property
    def title(self) -> str:
        return self.table.title

    @property
    def about(self) -> str:
        return self.table.about

    @cached_property
    def settings(self) -> list[LabSetting]:
        """All that is to be run, each once."""
        return [self._setting(entry) for entry in parse(self.content, self.name)]

    def _setting(self, entry: Entry) -> LabSetting:
        cells = {name: look_up(entry, key) for name, key in self.table.columns.items()}
        return LabSetting(entry.name, entry.rounds, json.dumps(entry.content, sort_keys=True), entry, cells)

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        found = {setting.name: setting for setting in self.settings}
        return tuple(
            Panel(p.name, p.title, p.says, tuple((label, found[name]) for label, name in p.curves.items()))
            for p in self.table.panel
        )

    def explain(self) -> str:
        """The setting of a whole picture, in a few short lines."""
        first = self.settings[0].entry
        return re.sub(r"\{([a-z_.]+)\}", lambda m: shown(look_up(first, m.group(1))), self.table.explain.strip()) + "\n"

    def change(self, **changes: int | None) -> Lab:
        """The same with other rounds or repeats of every experiment, where they are not None."""
        given = {name: value for name, value in changes.items() if value is not None}
        for name, value in given.items():
            check_count(name, value, 1)
        common = [{key: item for key, item in e.items() if key not in given} for e in self.content["experiment"]]
        return replace(self, content={**self.content, **given, "experiment": common})

    def only(self, panel: PanelTable) -> Lab:
        """One of its panels, and no experiment but this one's."""
        wanted = [e for e in self.content["experiment"] if e["name"] in panel.curves.values()]
        table = self.table.model_copy(update={"panel": [panel]})
        return Lab(panel.name, {**self.content, "experiment": wanted}, table)


def look_up(entry: Entry, key: str) -> float | str:
    """What a file says of an experiment, by a dotted key; participation is a number of agents."""
    if key == "participation":
        return entry.experiment.timing.slots(entry.experiment.problem.agents)
    found: Tree = reduce(lambda table, part: table[part], key.split("."), entry.content)
    return title_of(str(found)).replace("ScaffLSA", "SCAFFLSA") if key == "algorithm.name" else found


@dataclass(frozen=True)
class LabOutcome:
    """A setting, simulated and predicted."""

    setting: LabSetting
    mean: np.ndarray  # (rounds + 1,) squared error, mean over repeats
    exact: np.ndarray  # (rounds + 1,) what it must be
    steady_from: int  # the first round of the steady state
    steady: float  # measured, mean over these rounds
    uncertainty: float | None  # its standard error over repeats; None for a single one
    predicted: float  # exact, mean over the same rounds
    floor: float  # exact, after infinitely many rounds
    bias2: float = 0.0  # the part of it that more agents or less noise cannot lower

    @property
    def ratio(self) -> float:
        return self.steady / self.predicted

    @property
    def apart(self) -> float | None:
        """How many standard errors the measured value is above the exact one; None without a standard error."""
        return (self.steady - self.predicted) / self.uncertainty if self.uncertainty else None

    @property
    def settled(self) -> bool:
        """Whether what is measured is the steady state, to a percent."""
        return abs(self.predicted / self.floor - 1) < CLOSE

    def to_json(self) -> dict[str, Plain]:
        e = self.setting.experiment
        return {
            **self.setting.cells,
            "rounds": self.setting.rounds,
            "repeats": e.repeats,
            "seed": e.seed,
            "steady_from": self.steady_from,
            "steady": self.steady,
            "standard_error": self.uncertainty,
            "exact": self.predicted,
            "exact_limit": self.floor,
            "ratio": self.ratio,
            "z": self.apart,
        }


def names() -> list[str]:
    """Labs, and single panels of them."""
    curves = [name for lab in labs().values() for name in (lab.name, *(p.name for p in lab.table.panel))]
    return [*curves, *studies()]


@cache
def find(name: str | None = None, quick: bool = False) -> Lab:
    """A lab by its name, or one panel of it by the panel's."""
    wanted = name or DEFAULT
    for lab in labs().values():
        faster = lab.change(**lab.table.quick) if quick else lab
        if wanted == lab.name:
            return faster
        for panel in lab.table.panel:
            if wanted == panel.name:
                return faster.only(panel)
    raise FedpointError(f"unknown lab {wanted!r}: {nearest(wanted, names())}")


@cache
def labs() -> dict[str, Lab]:
    """Every file of experiments with a table [lab], by its name; the default first."""
    files = sorted(resources.files("fedpoint.lab").iterdir(), key=lambda f: (f.name != f"{DEFAULT}.toml", f.name))
    found = {f.name.removesuffix(".toml"): tomllib.loads(f.read_text()) for f in files if f.name.endswith(".toml")}
    return {
        name: Lab(name, {key: item for key, item in data.items() if key != "lab"}, LabTable.model_validate(data["lab"]))
        for name, data in found.items()
        if "lab" in data
    }


def perform(lab: Lab, progress: Progress = lambda setting, round: None) -> Iterator[LabOutcome]:
    """Run the settings of a lab; progress(setting, round) is called on the way, from several threads.

    Two at a time: compilation, half of the work, uses one core. Settings that share a program are not neighbours in
    the queue, so that the second finds it compiled.
    """
    # A stable order by name puts settings apart that differ only in their numbers.
    queue = sorted(lab.settings, key=lambda s: [shown(cell) for cell in s.cells.values()][::-1])
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            yield from pool.map(lambda setting: _perform(setting, progress), queue)
        finally:
            pool.shutdown(cancel_futures=True)


def _perform(s: LabSetting, progress: Progress) -> LabOutcome:
    progress(s, 0)
    done = run(s.experiment, rounds=s.rounds, callbacks=[lambda p: progress(s, p.round)])
    error = done.error
    exact, floor, bias2 = s.predict()
    begin = steady_from(exact, floor)
    steady, spread = mean_and_error(error[:, begin:].mean(1))
    return LabOutcome(s, error.mean(0), exact, begin, float(steady), spread, float(exact[begin:].mean()), floor, bias2)  # type: ignore[arg-type]


def steady_from(exact: np.ndarray, floor: float) -> int:
    """The round from which the exact curve stays within a percent of its limit, and the last third at the latest.

    >>> steady_from(1 + 0.5 ** np.arange(31), 1.0), steady_from(np.ones(31), 2.0)
    (7, 20)
    """
    away = np.flatnonzero(np.abs(exact / floor - 1) >= CLOSE)
    return min(int(away[-1]) + 1 if len(away) else 0, len(exact) - 1 - len(exact) // 3)


def sentence(panel: Panel, outcomes: Mapping[LabSetting, LabOutcome]) -> str:
    """What a panel says, with its factors as measured and as predicted."""

    def factor(match: re.Match[str]) -> str:
        over, under = (outcomes[panel.curves[int(i) - 1][1]] for i in match.groups())
        measured, predicted = over.steady / under.steady, over.predicted / under.predicted
        return f"{three_digits(measured)} (predicted {three_digits(predicted)})"

    return re.sub(r"\{(\d)/(\d)\}", factor, panel.says)


def runs_of(settings: Iterable[LabSetting]) -> str:
    """How many runs are behind a mean: of cheap settings more."""
    repeats = [s.experiment.repeats for s in settings]
    least, most = min(repeats), max(repeats)
    return counted(most, "run") if least == most else f"{least:,} to {counted(most, 'run')}"


def three_digits(value: float) -> str:
    """
    >>> [three_digits(v) for v in (0.998, 1.8, 10.34, 1034)]
    ['0.998', '1.80', '10.3', '1034']
    """
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"
