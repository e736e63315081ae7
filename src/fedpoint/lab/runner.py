"""What do the lectures' experiments show? Reads them, runs each setting once, and predicts it exactly."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from fedpoint.algorithms import FedAvg
from fedpoint.errors import FedpointError, nearest
from fedpoint.problems import LinearStream
from fedpoint.theory import lms_floor, lms_msd
from fedpoint.verbs.run import check_count, run

DEFAULT = "lecture000"
WORKERS = min(2, os.cpu_count() or 1)
MODELS_SEED = 0  # of the agents' w_k: the same agents in every setting


@dataclass(frozen=True)
class Setting:
    """One curve's numbers. Equal settings are run once."""

    agents: int
    participants: int
    local_steps: int
    spread: float
    noise: float
    dim: int
    step: float
    rounds: int
    repeats: int
    seed: int

    def problem(self) -> LinearStream:
        return LinearStream.sample(self.agents, self.dim, self.spread, self.noise, seed=MODELS_SEED)

    def __str__(self) -> str:
        K, L, E = self.agents, self.participants, self.local_steps
        return f"K = {K}, L = {L}, E = {E}, spread {self.spread:g}"


@dataclass(frozen=True)
class Panel:
    """One observation: curves that are to be seen together, and what they say."""

    name: str
    title: str
    says: str
    curves: tuple[tuple[str, Setting], ...]


@dataclass(frozen=True)
class Lab:
    name: str
    title: str
    about: str
    panels: tuple[Panel, ...]

    @property
    def settings(self) -> list[Setting]:
        """All that is to be run, each once."""
        return list(dict.fromkeys(setting for panel in self.panels for _, setting in panel.curves))

    def change(self, **changes: int | None) -> Lab:
        """The same with other rounds or repeats, where they are not None."""
        given: Any = {name: value for name, value in changes.items() if value is not None}
        for name, value in given.items():
            check_count(name, value, 1)
        panels = [
            dataclasses.replace(p, curves=tuple((label, dataclasses.replace(s, **given)) for label, s in p.curves))
            for p in self.panels
        ]
        return dataclasses.replace(self, panels=tuple(panels))


@dataclass(frozen=True)
class Outcome:
    """A setting, simulated and predicted."""

    setting: Setting
    mean: np.ndarray  # (rounds + 1,) squared error, mean over repeats
    exact: np.ndarray  # (rounds + 1,) what it must be
    steady: float  # measured, mean over the last third of the rounds
    uncertainty: float | None  # its standard error over repeats; None for a single one
    predicted: float  # exact, mean over the same rounds
    floor: float  # exact, after infinitely many rounds

    @property
    def ratio(self) -> float:
        return self.steady / self.predicted

    @property
    def settled(self) -> bool:
        """Whether the last third is the steady state, to a percent."""
        return abs(self.predicted / self.floor - 1) < 0.01

    def to_json(self) -> dict[str, Any]:
        spread = self.uncertainty
        return {
            **dataclasses.asdict(self.setting),
            "steady": self.steady,
            "standard_error": spread,
            "exact": self.predicted,
            "exact_limit": self.floor,
            "ratio": self.ratio,
            "z": (self.steady - self.predicted) / spread if spread else None,
        }


def names() -> list[str]:
    """Labs, and single panels of them."""
    return [name for lab in _labs().values() for name in (lab.name, *(p.name for p in lab.panels))]


def find(name: str | None = None, quick: bool = False) -> Lab:
    """A lab by its name, or one panel of it by the panel's."""
    wanted = name or DEFAULT
    for lab in _labs(quick).values():
        if wanted == lab.name:
            return lab
        for panel in lab.panels:
            if wanted == panel.name:
                return dataclasses.replace(lab, name=panel.name, panels=(panel,))
    raise FedpointError(f"unknown lab {wanted!r}: {nearest(wanted, names())}")


@cache
def _labs(quick: bool = False) -> dict[str, Lab]:
    files = sorted(resources.files("fedpoint.lab").iterdir(), key=lambda f: f.name)
    found = [f for f in files if f.name.endswith(".toml")]
    return {f.name: _read(f.name.removesuffix(".toml"), tomllib.loads(f.read_text()), quick) for f in found}


def _read(name: str, data: dict[str, Any], quick: bool) -> Lab:
    common = {**data["setting"], **(data["quick"] if quick else {})}
    panels = []
    for panel in data["panel"]:
        curves = []
        for curve in panel["curves"]:
            numbers = {**common, **curve}
            curves.append((numbers.pop("label"), Setting(**numbers)))
        panels.append(Panel(panel["name"], panel["title"], panel["says"], tuple(curves)))
    return Lab(name, data["title"], data["about"], tuple(panels))


def perform(lab: Lab, progress: Callable[[Setting, int], Any] = lambda setting, round: None) -> Iterator[Outcome]:
    """Run the settings of a lab; progress(setting, round) is called on the way, from several threads.

    Two at a time: compilation, half of the work, uses one core. Settings that share a program are not neighbours in
    the queue, so that the second finds it compiled.
    """
    queue = sorted(lab.settings, key=lambda s: s.spread)
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            yield from pool.map(lambda setting: _perform(setting, progress), queue)
        finally:
            pool.shutdown(cancel_futures=True)


def _perform(s: Setting, progress: Callable[[Setting, int], Any]) -> Outcome:
    progress(s, 0)
    problem = s.problem()
    done = run(
        FedAvg(step=s.step, local_steps=s.local_steps),
        problem,
        rounds=s.rounds,
        participation=None if s.participants == s.agents else s.participants,
        seed=s.seed,
        repeats=s.repeats,
        record_every=1,
        callbacks=[lambda p: progress(s, p.round)],
    )
    error = done.error
    assert error is not None
    exact = lms_msd(problem, s.step, s.local_steps, s.participants, s.rounds)
    window = slice(s.rounds - s.rounds // 3, None)
    per_repeat = error[:, window].mean(1)
    spread = None if s.repeats == 1 else float(per_repeat.std(ddof=1) / math.sqrt(s.repeats))
    floor = lms_floor(problem, s.step, s.local_steps, s.participants)
    return Outcome(s, error.mean(0), exact, float(per_repeat.mean()), spread, float(exact[window].mean()), floor)


def sentence(panel: Panel, outcomes: dict[Setting, Outcome]) -> str:
    """What a panel says, with its factors as measured and as predicted."""

    def factor(match: re.Match[str]) -> str:
        over, under = (outcomes[panel.curves[int(i) - 1][1]] for i in match.groups())
        measured, predicted = over.steady / under.steady, over.predicted / under.predicted
        return f"{three_digits(measured)} (predicted {three_digits(predicted)})"

    return re.sub(r"\{(\d)/(\d)\}", factor, panel.says)


def three_digits(value: float) -> str:
    """
    >>> [three_digits(v) for v in (0.998, 1.8, 10.34, 1034)]
    ['0.998', '1.80', '10.3', '1034']
    """
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"
