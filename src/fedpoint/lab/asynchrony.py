"""Lecture 003: what is gained by not waiting, what it costs at worst, and where a printed bound fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedpoint.algorithms import FedAvg, FedRelax, Scaffold
from fedpoint.config import generate
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.numbers import counted
from fedpoint.experiment import Experiment
from fedpoint.graphs.network import Network
from fedpoint.lab.study import Findings, LabStudy, Tell
from fedpoint.problems import LeastSquares, Quadratic
from fedpoint.theory import asynchronous, contraction
from fedpoint.theory.asynchronous import Bounds
from fedpoint.timing.clock import Clock
from fedpoint.timing.schedule import WorstCase
from fedpoint.timing.timed import Arrivals, Waiting
from fedpoint.timing.turns import InStep, OwnPace
from fedpoint.verbs.run import run

Clocked = Waiting | Arrivals | InStep | OwnPace
TARGET = 1e-6  # of the squared error, at which methods are compared


class Course(NamedTuple):
    """A run, as curves over what it used."""

    label: str
    error: np.ndarray  # (n,)
    time: np.ndarray
    messages: np.ndarray
    bytes: np.ndarray

    def first(self, used: str) -> float | None:
        """How much of `used` it took to the target; None where it never came there."""
        there = self.error <= TARGET
        return float(self.used(used)[there.argmax()]) if there.any() else None

    def used(self, what: str) -> np.ndarray:
        """Time, messages or bytes so far."""
        return {"time": self.time, "messages": self.messages, "bytes": self.bytes}[what]


class Worst(NamedTuple):
    """The largest distance of a node under the worst schedule, over that at the start, and two bounds of it."""

    measured: np.ndarray
    bounds: Bounds


@dataclass(frozen=True)
class Asynchrony(LabStudy):
    agents: int
    rows: int
    dim: int
    heterogeneity: float
    spread: float
    world: int
    seed: int
    step: float
    local_steps: int
    buffer: int
    rounds: int
    degree: int
    coupling: float
    ticks: int
    bounded: int

    changes: ClassVar[dict[str, str]] = {"rounds": "rounds"}

    def task(self) -> LeastSquares:
        A, b = generate.regression(self.agents, self.rows, self.dim, self.heterogeneity, 0.01, self.world)
        return LeastSquares(A, b, mean=True)

    def clock(self) -> Clock:
        return Clock.sample(self.agents, self.spread, self.world, travel=0.05)

    def network(self) -> Network:
        return Network.random(self.agents, self.degree, seed=self.world)

    def perform(self, tell: Tell) -> Findings:
        clock, network = self.clock(), self.network()
        tell("with a fusion center")
        scaffold = Scaffold(step=self.step, local_steps=self.local_steps)
        average = FedAvg(step=self.step, local_steps=self.local_steps, normalise=False)
        waiting, coming = Waiting(clock), Arrivals(clock)
        longest = self._run(scaffold, self.rounds, waiting)
        span = longest.time[-1]
        hub = [
            ("waits for all", longest),
            ("as answers come", self._until(scaffold, span, coming)),
            (
                f"{counted(self.buffer, 'answer')} a merge",
                self._until(scaffold, span, Arrivals(clock, buffer=self.buffer)),
            ),
            ("FedAvg, as they come", self._until(average, span, coming)),
        ]
        tell("on a network")
        relax = FedRelax(coupling=self.coupling)
        in_step = self._run(relax, self.ticks, InStep(clock), network)
        pace = self._until(relax, in_step.time[-1], OwnPace(clock), network)
        nets = [("in step", in_step), ("own pace", pace)]
        tell("the worst schedule")
        return self._findings(
            [one._replace(label=label) for label, one in hub],
            [one._replace(label=label) for label, one in nets],
            self._worst(),
        )

    def _run(self, algorithm: Algorithm, rounds: int, schedule: Clocked, network: Network | None = None) -> Course:
        e = Experiment(algorithm, self.task(), schedule=schedule, network=network, exact=True, seed=self.seed)
        done = run(e, rounds=rounds, record_every=1)
        used = done.used[0].astype(float)
        message = done.session.message
        size = (used[:, 0] * message.down + used[:, 1] * message.up) * message.width
        return Course("", done.error[0], done.time[0], used[:, 0] + used[:, 1], size)

    def _until(self, algorithm: Algorithm, span: float, schedule: Clocked, network: Network | None = None) -> Course:
        """As many merges or updates as fit into a time."""
        often = float((1 / np.asarray(schedule.clock.work)).sum())  # answers a second, at most
        merged = schedule.buffer if isinstance(schedule, Arrivals) else 1
        rounds = int(1.1 * span * often / merged) + 100
        path = self._run(algorithm, rounds, schedule, network)
        inside = path.time <= span
        return Course("", *(values[inside] for values in path[1:]))

    def _worst(self) -> Worst:
        """FedRelax on a ring of equal quadratics, where every node's factor is kappa itself."""
        ring, task = Network.ring(self.agents), Quadratic(np.ones(self.agents), np.zeros((self.agents, 1)))
        method = FedRelax(coupling=self.coupling)
        ticks = 12 * self.bounded
        done = run(
            method, task, rounds=ticks, network=ring, schedule=WorstCase(self.bounded), start=[1.0], record_every=1
        )
        measured = np.abs(done.history[0]).max(axis=(1, 2))
        return Worst(measured, asynchronous(contraction(method, task, ring), self.bounded, ticks))

    def _findings(self, hub: list[Course], nets: list[Course], worst: Worst) -> Findings:
        from fedpoint.lab.async_picture import async_picture

        rows = [
            [
                f"{place}: {p.label}",
                *(_said(p.first(used)) for used in ("time", "messages", "bytes")),
                f"{p.error[-1]:.1e}",
            ]
            for place, paths in (("hub", hub), ("network", nets))
            for p in paths
        ]
        times = [p.first("time") for p in (*hub[:3], *nets)]
        above = worst.bounds.fails
        violated = int((worst.measured > worst.bounds.printed * (1 + 1e-12)).sum())
        gap = float(np.abs(worst.measured[self.bounded :] / worst.bounds.safe[self.bounded :] - 1).max())
        says = [
            ("fusion center", _faster(times[0], times[1], "not waiting", "waiting for all")),
            ("network", _faster(times[3], times[4], "every node at its own pace", "in step")),
            (
                "heterogeneity",
                "FedAvg that merges answers as they come ends at a point that favours the fast: "
                f"{hub[3].error[-1]:.2g} from w* (squared). SCAFFOLD ends at w* ({hub[1].error[-1]:.1g}).",
            ),
            (
                "worst case",
                f"with bound B = {self.bounded} the safe bound is attained to {gap:.0e}; the lecture's exponent is "
                f"violated at {violated} of {counted(len(worst.measured), 'tick')}, the last of them {above[-1]}."
                if len(above)
                else f"with bound B = {self.bounded} the safe bound is attained to {gap:.0e}.",
            ),
        ]
        numbers = {
            "target": TARGET,
            "paths": [
                {
                    "place": place,
                    "label": p.label,
                    **{used: p.first(used) for used in ("time", "messages", "bytes")},
                    "final_error": float(p.error[-1]),
                }
                for place, paths in (("hub", hub), ("network", nets))
                for p in paths
            ],
            "worst": {
                "bound": self.bounded,
                "kappa": worst.bounds.kappa,
                "measured": worst.measured.tolist(),
                "safe": worst.bounds.safe.tolist(),
                "printed": worst.bounds.printed.tolist(),
            },
        }
        return Findings(
            ["method", "seconds", "messages", "bytes", "error at the end"],
            rows,
            says,
            numbers,
            f"Virtual seconds, messages and bytes until the squared error is {TARGET:g}; exact fields.",
            lambda: async_picture(self, hub, nets, worst),
        )


def _faster(slow: float | None, quick: float | None, one: str, other: str) -> str:
    if slow is None or quick is None:
        return f"{one} and {other} did not both reach {TARGET:g}."
    return (
        f"{one} reaches {TARGET:g} in {quick:,.0f} virtual seconds, {other} in {slow:,.0f}: {slow / quick:.1f} times."
    )


def _said(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"


STUDY = Asynchrony
