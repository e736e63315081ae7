"""How many rounds and samples does lecture 001's table promise for a linear system, and what do forecasts find?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpoint.algorithms import FedLSA, ScaffLSA, Scaffnew
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Positive
from fedpoint.core.types import Model
from fedpoint.experiment.experiment import Experiment
from fedpoint.problems.base import Problem
from fedpoint.problems.linear_system import LinearFields
from fedpoint.problems.models import check_one
from fedpoint.theory.planning import LONGEST, Trial, attempt, best_step
from fedpoint.verbs.forecast import prepare

LOCAL_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_DRAWN = 8  # mean of a random H in the search: its forecast goes through all of some 28 times as many values


@dataclass(frozen=True)
class ComplexitySetting:
    """A step, local steps H, rounds T, and local steps of an agent in all, TH."""

    step: float
    local_steps: float
    rounds: float

    @property
    def samples(self) -> float:
        return self.local_steps * self.rounds


@dataclass(frozen=True)
class ComplexityRow:
    """A method: what the lecture's orders say with constants 1, and what a search with forecasts finds (or why not)."""

    method: str
    says: ComplexitySetting
    finds: ComplexitySetting | None = None
    why: str = ""


@dataclass(frozen=True)
class Complexity:
    """Lecture 001's table, with the constants of a problem.

    a: the stability constant. sigma2: the largest agent's noise at its own solution. drift: sum_c p_c |th_c* - th*|.
    norm2: the largest |A_c|^2. distance: |th_0 - th*|.
    """

    target: float
    agents: int
    a: float
    sigma2: float
    drift: float
    norm2: float
    distance: float
    rows: Sequence[ComplexityRow]

    def __getitem__(self, method: str) -> ComplexityRow:
        return {row.method: row for row in self.rows}[method]

    def __str__(self) -> str:
        head = ["", "eta", "H", "T", "TH", "found: eta", "H", "T", "TH"]
        cells = [[r.method, *_cells(r.says), *(_cells(r.finds) if r.finds else (r.why, "", "", ""))] for r in self.rows]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in [head, *cells]]
        constants = (
            f"E|th - th*|^2 <= {self.target:g} with N = {self.agents}, a = {self.a:.3g}, sigma^2 = {self.sigma2:.3g}, "
            f"mean |th_c* - th*| = {self.drift:.3g}, max |A_c|^2 = {self.norm2:.3g}; orders, constants set to 1"
        )
        return "\n".join([constants, *lines])

    __repr__ = __str__


def _cells(s: ComplexitySetting) -> tuple[str, str, str, str]:
    return f"{s.step:.3g}", f"{s.local_steps:.4g}", f"{s.rounds:.4g}", f"{s.samples:.4g}"


@checked
def complexity(
    problem: Problem,
    target: Positive,
    start: Model | None = None,
    search: bool = True,
    local_steps: Iterable[int] = LOCAL_STEPS,
) -> Complexity:
    """Lecture 001's table for a linear problem: eta, H, T and TH of each method to reach E|th - th*|^2 <= target.

    The lecture's are orders: here with all constants 1, H and T rounded up, and H at most what is needed in all. Beside
    them is the setting with the fewest rounds that a search with exact forecasts finds, everyone taking part.

    Args:
        problem: `LinearSystem` or `TD`, every agent stable with a > 0.
        target: of E|th - th*|^2, the lecture's eps^2.
        start: the model to start from.
        search: False: the lecture's numbers only.
        local_steps: what the search chooses from; up to 8 for Scaffnew's random number, whose forecasts take longer.

    >>> import fedpoint as fp
    >>> A, b = [[[1.0, 1.0], [-1.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]], [[1, 0], [0, 1]]
    >>> table = complexity(fp.problems.LinearSystem(A, b, noise=0.5), target=1e-4, search=False)
    >>> table["SCAFFLSA"].says.rounds < table["FedLSA"].says.rounds
    True
    """
    if not isinstance(problem, LinearFields):
        raise FedpointError("complexity is lecture 001's: give a problem with a linear field, LinearSystem or TD")
    if not target > 0:
        raise FedpointError(f"target must be above 0, got {target}")
    th, stability = problem.solution(), problem.stability()
    if th is None:
        raise FedpointError("the systems' mean is singular: there is no one solution to reach")
    stability.require()
    if not stability.a > 0:
        worst = problem.names[int(stability.a_k.argmin())]
        raise FedpointError(f"agent {worst} has a = {stability.a:.3g}: the lecture's bounds need A + A' > 0")
    origin = problem.start() if start is None else check_one("start", problem.start(), start)
    N, a, eps = problem.agents, stability.a, math.sqrt(target)
    sigma2, norm2 = float(problem.sigma2().max()), float(stability.norm.max() ** 2)
    drift = float(problem.weights @ np.linalg.norm(problem.local_solutions() - th, axis=1))
    distance = float(np.linalg.norm(origin - th))
    log = max(math.log(distance / eps), 0.0) if distance > 0 else 0.0

    def setting(step: float, H: float, T: float) -> ComplexitySetting:
        """Whole numbers, at least 1; a step without noise in its way is limited by stability."""
        total = max(H * T, 1.0) if math.isfinite(H * T) else max(log / (step * a), 1.0)
        H = max(1, math.ceil(min(H, total) * (1 - 1e-12)))
        return ComplexitySetting(step, H, max(1, math.ceil(total / H * (1 - 1e-12))))

    def over(above: float, below: float) -> float:
        return above / below if below > 0 else math.inf

    eta = min(over(N * a * target, sigma2), stability.step)
    says = {
        "FedLSA (Doan)": setting(a * target / N**2, 1, N**2 / (a**2 * target) * log),
        "FedLSA": setting(eta, over(sigma2, N * eps * drift), drift / (a**2 * eps) * log),
        "Scaffnew": setting(a * target, 1 / (a * eps), 1 / (a * eps) * log),
        "SCAFFLSA": setting(eta, sigma2 / (N * target * norm2), norm2 / a**2 * log),
    }
    found = _search(problem, target, start, list(local_steps)) if search else {}
    rows = [ComplexityRow(name, says, *found.get(name, (None, ""))) for name, says in says.items()]
    return Complexity(float(target), N, a, sigma2, drift, norm2, distance, rows)


def _search(
    problem: LinearFields, target: float, start: Model | None, steps: list[int]
) -> dict[str, tuple[ComplexitySetting | None, str]]:
    """The fewest rounds of each method by exact forecasts."""

    def scaffnew(step: float, local_steps: int) -> Scaffnew:
        return Scaffnew(step, probability=1.0 / local_steps)

    methods: dict[str, tuple[Any, list[int]]] = {
        "FedLSA (Doan)": (FedLSA, [1]),
        "FedLSA": (FedLSA, steps),
        "Scaffnew": (scaffnew, [H for H in steps if H <= MOST_DRAWN] or [min(steps)]),
        "SCAFFLSA": (ScaffLSA, steps),
    }
    found: dict[str, tuple[ComplexitySetting | None, str]] = {}
    for name, (make, choices) in methods.items():
        best, why, guess, fewest = None, "", problem.stability().step, LONGEST
        for H in sorted(choices):

            def evaluate(step: float, make=make, H=H, limit=fewest) -> Trial:
                f = prepare(Experiment(make(step, H), problem, start=start), coarse=8)
                return attempt(f, step, target, limit)

            try:
                trial, _ = best_step(evaluate, guess, target)
            except FedpointError as error:
                why = str(error)
                break
            if not trial.why and trial.rounds < fewest:
                best, fewest, guess = (
                    ComplexitySetting(trial.step, float(H), trial.rounds),
                    int(trial.rounds),
                    trial.step,
                )
        found[name] = (best, "" if best else why or "not reached")
    return found
