"""What do the lectures' experiments show? Reads them, runs each setting once, and predicts it exactly."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from fedpoint.algorithms import FedAvg, FedLSA, ScaffLSA
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.lab.study import studies
from fedpoint.metrics.means import mean_and_error
from fedpoint.problems import LinearStream
from fedpoint.problems.base import Problem
from fedpoint.theory import lms_floor, lms_msd
from fedpoint.verbs.forecast import forecast
from fedpoint.verbs.run import run

DEFAULT = "lecture000"
WORKERS = min(2, os.cpu_count() or 1)
MODELS_SEED = 0  # of the agents' w_k: the same agents in every setting


@dataclass(frozen=True)
class Setting(ABC):
    """One curve's numbers. Equal settings are run once."""

    agents: int
    local_steps: int
    step: float
    rounds: int
    repeats: int
    seed: int

    @abstractmethod
    def problem(self) -> Problem: ...

    @abstractmethod
    def algorithm(self) -> Any: ...

    @property
    def participation(self) -> int | None:
        return None

    @abstractmethod
    def predict(self, problem: Any) -> Prediction:
        """What must happen."""

    @abstractmethod
    def cells(self) -> dict[str, str]:
        """What tells it from others: headings and texts of a table."""

    @abstractmethod
    def explain(self, others: list[Any]) -> str:
        """The setting of a whole picture, in a few short lines."""


class Prediction(NamedTuple):
    """The expected error at every round, where it settles, and what a bias contributes to that."""

    curve: np.ndarray
    floor: float
    bias2: float = 0.0


@dataclass(frozen=True)
class Lms(Setting):
    """Lecture 000: federated averaging on streams of linear regressions."""

    participants: int
    spread: float
    noise: float
    dim: int

    def problem(self) -> LinearStream:
        return LinearStream.sample(self.agents, self.dim, self.spread, self.noise, seed=MODELS_SEED)

    def algorithm(self) -> Any:
        return FedAvg(step=self.step, local_steps=self.local_steps, normalise=True)

    @property
    def participation(self) -> int | None:
        return None if self.participants == self.agents else self.participants

    def predict(self, problem: Any) -> Prediction:
        return Prediction(
            lms_msd(problem, self.step, self.local_steps, self.participants, self.rounds, normalise=True),
            lms_floor(problem, self.step, self.local_steps, self.participants, normalise=True),
        )

    def cells(self) -> dict[str, str]:
        K, L, E = self.agents, self.participants, self.local_steps
        return {"K": str(K), "L": str(L), "E": str(E), "spread": f"{self.spread:g}"}

    def explain(self, others: list[Any]) -> str:
        spread = max(setting.spread for setting in others)
        return (
            "$K$ agents see data $\\gamma = h^T w_k + v$ in "
            f"{self.dim} dimensions.\n"
            "Every round $L$ of them take $E$ steps on fresh\nsamples, and the hub averages.\n\n"
            f"same: all $w_k$ equal;  different: variance {spread:g}\n"
            f"$K$ = {self.agents}, $L$ = {self.participants}, $E$ = {self.local_steps} unless it says otherwise\n"
            f"noise variance {self.noise:g},  step {self.step:g} a round\n"
        )

    def __str__(self) -> str:
        K, L, E = self.agents, self.participants, self.local_steps
        return f"K = {K}, L = {L}, E = {E}, spread {self.spread:g}"


@dataclass(frozen=True)
class Lsa(Setting):
    """Lecture 001: FedLSA and SCAFFLSA on temporal differences."""

    method: str  # "fedlsa", "scafflsa"
    source: str  # "garnet", "frozen_lake"
    heterogeneity: float
    gamma: float
    states: int = 30
    dim: int = 8

    def problem(self) -> Any:
        from fedpoint import problems

        common: dict[str, Any] = {"agents": self.agents, "gamma": self.gamma, "seed": MODELS_SEED}
        if self.source == "garnet":
            return problems.garnet(states=self.states, dim=self.dim, heterogeneity=self.heterogeneity, **common)
        # The ice is slippery in its own way at every agent.
        return problems.frozen_lake(success=(1 / 3, 1 / 3 + self.heterogeneity), features=self.dim, **common)

    def algorithm(self) -> Any:
        make = FedLSA if self.method == "fedlsa" else ScaffLSA
        return make(step=self.step, local_steps=self.local_steps)

    def predict(self, problem: Any) -> Prediction:
        f = forecast(self.algorithm(), problem)
        assert f.floor is not None
        return Prediction(f.curve(self.rounds), f.floor, (f.bias or 0.0) ** 2)

    def cells(self) -> dict[str, str]:
        name = {"fedlsa": "FedLSA", "scafflsa": "SCAFFLSA"}[self.method]
        return {"method": name, "N": str(self.agents), "H": str(self.local_steps), "het.": f"{self.heterogeneity:g}"}

    def explain(self, others: list[Any]) -> str:
        where = f"random MDPs of {self.states} states" if self.source == "garnet" else "slippery frozen lakes"
        return (
            f"$N$ agents evaluate one policy, each in its own of\n{where}, by TD(0) with discount "
            f"{self.gamma:g}.\nEvery round all take $H$ steps of length {self.step:g}\non fresh transitions, and the "
            "hub averages.\nSCAFFLSA corrects each agent's drift.\n"
        )

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {text}" if len(name) > 1 else f"{name} = {text}" for name, text in self.cells().items()
        )


KINDS: dict[str, type[Setting]] = {"lms": Lms, "lsa": Lsa}


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
    bias2: float = 0.0  # the part of it that more agents or shorter noise cannot lower

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
    curves = [name for lab in _labs().values() for name in (lab.name, *(p.name for p in lab.panels))]
    return [*curves, *studies()]


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
    found = {f.name.removesuffix(".toml"): tomllib.loads(f.read_text()) for f in files if f.name.endswith(".toml")}
    return {name: _read(name, data, quick) for name, data in found.items() if data["kind"] in KINDS}


def _read(name: str, data: dict[str, Any], quick: bool) -> Lab:
    common = {**data["setting"], **(data["quick"] if quick else {})}
    kind = KINDS[data["kind"]]
    panels = []
    for panel in data["panel"]:
        curves = []
        for curve in panel["curves"]:
            numbers = {**common, **curve}
            curves.append((numbers.pop("label"), kind(**numbers)))
        panels.append(Panel(panel["name"], panel["title"], panel["says"], tuple(curves)))
    return Lab(name, data["title"], data["about"], tuple(panels))


def perform(lab: Lab, progress: Callable[[Setting, int], Any] = lambda setting, round: None) -> Iterator[Outcome]:
    """Run the settings of a lab; progress(setting, round) is called on the way, from several threads.

    Two at a time: compilation, half of the work, uses one core. Settings that share a program are not neighbours in
    the queue, so that the second finds it compiled.
    """
    # A stable order by name puts settings apart that differ only in their numbers.
    queue = sorted(lab.settings, key=lambda s: list(s.cells().values())[::-1])
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            yield from pool.map(lambda setting: _perform(setting, progress), queue)
        finally:
            pool.shutdown(cancel_futures=True)


def _perform(s: Setting, progress: Callable[[Setting, int], Any]) -> Outcome:
    progress(s, 0)
    problem = s.problem()
    done = run(
        s.algorithm(),
        problem,
        rounds=s.rounds,
        participation=s.participation,
        seed=s.seed,
        repeats=s.repeats,
        record_every=1,
        callbacks=[lambda p: progress(s, p.round)],
    )
    error = done.error
    assert error is not None
    exact, floor, bias2 = s.predict(problem)
    window = slice(s.rounds - s.rounds // 3, None)
    steady, spread = mean_and_error(error[:, window].mean(1))
    assert steady is not None
    return Outcome(s, error.mean(0), exact, steady, spread, float(exact[window].mean()), floor, bias2)


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
