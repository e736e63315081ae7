"""Where would more rounds of a fit end, and how fast do they get there? Told for no more work than the fit took.

Nothing is compiled. The method's own `local` and `combine` run on NumPy arrays that hold a state and its derivatives
side by side: a round is arithmetic, so what it does to a state it does to each derivative, where fields are replaced by
Hessians times the derivative. `fp.forecast` tells more (noise, curves, bounds) in its own time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from threadpoolctl import threadpool_limits

from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.steps import most_steps
from fedpoint.core.types import State
from fedpoint.estimators import small
from fedpoint.problems.penalised import DENSE, Penalised
from fedpoint.theory.steady import rate_of
from fedpoint.timing.base import Context
from fedpoint.timing.participation import as_participation
from fedpoint.timing.schemes import Participation

AT_SOLUTION = "w*"  # the limit on the card of a method without bias
FAST = 2e-10  # seconds of a multiplication in a product of matrices
NEWTON = 12  # steps to w* from where the fit ended, and to the limit of a method with a bias
EIGENVALUES = 40  # times n^3: what the eigenvalues of a matrix take, and what is conserved
SHARED_OUT = 40  # rows of a matrix, from which on NumPy uses several threads
READING = 3e-3  # seconds that a fit takes beside its rounds, at least
LONGER = "it would take longer than the fit"
RANDOM = "rounds are random, and their noise takes longer than the fit"


@dataclass(frozen=True)
class FitForecast:
    """Where the rounds of a fit lead. Print it for a summary.

    Attributes:
        title: the method's title.
        limit: the model where the rounds end without noise, in the coordinates in which they are run.
        bias: its distance to the pooled solution.
        rate: the factor per round of what is left, asymptotically.
        floor: the squared distance to the solution once settled, bias^2 where nothing is random.
        left_out: what is None, by name, with the reason; `fp.forecast` computes it in its own time.
        work: about how many seconds the forecast took, counted from its multiplications.
        fit_work: the same of the fit.
    """

    title: str
    limit: np.ndarray | None
    bias: float | None
    rate: float | None
    floor: float | None
    left_out: Mapping[str, str]
    work: float
    fit_work: float

    def __str__(self) -> str:
        ends = "not known" if self.bias is None else "the pooled solution, w*"
        lines = {
            "ends at": f"{self.bias:.4g} from w*" if self.bias else ends,
            "rate": "not known" if self.rate is None else f"{self.rate:.6g} per round",
            "floor": "not known" if self.floor is None else f"{self.floor:.4g}",
        }
        told = [f"{self.title}, as this fit runs it", *(f"  {name:<10}  {said}" for name, said in lines.items())]
        told += [f"  {'left out':<10}  {name}: {why}" for name, why in self.left_out.items()]
        if self.left_out:
            told.append("  fp.forecast(model.algorithm_, model.problem_) tells more, in its own time")
        return "\n".join(told)

    __repr__ = __str__


@dataclass
class Budget:
    """Seconds of work, by count."""

    allowed: float
    spent: float = 0.0

    def afford(self, seconds: float) -> bool:
        if self.spent + seconds > self.allowed:
            return False
        self.spent += seconds
        return True


def ends_at_solution(algorithm: Algorithm, agents: int) -> bool:
    """Whether more rounds lead to w*, however different the agents."""
    one_step = algorithm.averages_descent() and bool((most_steps(algorithm.local_steps) == 1).all())
    return algorithm.card.limit == AT_SOLUTION or one_step or agents == 1


def heard_by_weight(algorithm: Algorithm, task: Penalised, participation: Participation | int | None) -> bool:
    """Whether agents are heard by their weights, on average."""
    scheme = as_participation(participation).bind(Context(task, bind_algorithm(algorithm, task)))
    told = scheme.moments(task.weights)
    return not told.sampled and np.allclose(told.mean, task.weights, rtol=1e-9, atol=0)


@dataclass
class FitForecaster:
    """What is told of one fit, piece by piece, as long as the budget lasts."""

    algorithm: Algorithm
    task: Penalised
    participation: Participation | int | None
    model: np.ndarray  # where the fit ended
    budget: Budget

    @property
    def size(self) -> int:
        return self.model.size

    def unbiased(self) -> bool:
        return heard_by_weight(self.algorithm, self.task, self.participation)

    @cached_property
    def at_solution(self) -> bool:
        return self.unbiased() and ends_at_solution(self.algorithm, self.task.agents)

    def solution(self) -> np.ndarray | str:
        """w*, by Newton's method from where the fit ended; or why it is not known."""
        one = (5 + len(np.atleast_2d(self.model))) * small.CALL + FAST * (self.task.hessian_work + self.size**3)
        steps = int(min(NEWTON, (self.budget.allowed - self.budget.spent) // one))
        if self.size > DENSE or steps < 2 or not self.budget.afford(steps * one):
            return LONGER
        found = self.task.solution_near(self.model, steps)
        return "w* was not found within the work of the fit, or there is none" if found is None else found

    def limit(self) -> np.ndarray | str:
        """Where rounds stop moving the model, or why that is not known."""
        if self.at_solution:
            return self.solution()
        return self._fixed_point() if self.unbiased() else "agents are not heard in proportion to their weights"

    def _fixed_point(self) -> np.ndarray | str:
        """Of a round without memories, by Newton's method from where the fit ended."""
        x = self.model
        for _ in range(NEWTON):
            if (after := self.derivative(x)) is None:
                return LONGER
            there, M = after
            gap = there - x
            if np.linalg.norm(gap) <= 1e-11 * (1 + np.linalg.norm(x)):
                return x
            try:
                x = x + np.linalg.solve(np.eye(len(M)) - M, gap.ravel()).reshape(x.shape)
            except np.linalg.LinAlgError:
                return "rounds leave some directions of the model alone"
        return "no point was found at which rounds stop moving the model"

    def derivative(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The model after a round from w, and that round's matrix; for methods without memories."""
        hub, memory = small.begin(self.algorithm, self.task)
        if jax.tree.leaves(memory) or not self._afford_matrix(self.size + 1, moving=True):
            return None
        K, task, like = self.task.agents, self.task, w.shape

        def fields(W: np.ndarray) -> np.ndarray:
            at, along = W[..., 0], W[..., 1:]
            turned = task.hessians_at(at) @ along.reshape(K, w.size, -1)
            return np.concatenate([task.slopes_at(at)[..., None], turned.reshape(along.shape)], axis=-1)

        start = np.concatenate([w[..., None], np.eye(w.size).reshape(*like, -1)], axis=-1)
        hub = jax.tree.map(lambda a: start if a.shape == like else a, hub)
        hub, memory = small.one_round(self.algorithm, hub, memory, fields, task.weights, 0)
        end = self.algorithm.read(hub, memory)
        return end[..., 0], end[..., 1:].reshape(w.size, w.size)

    def _afford_matrix(self, columns: int, moving: bool) -> bool:
        """moving: Hessians change from local step to local step."""
        steps, task = self.algorithm.local_steps, self.task
        assert isinstance(steps, int)
        product, times = task.agents * self.size**2 * columns, steps + 1 if moving and not task.linear else 1
        calls = 2 * (steps + 1) + times * task.agents * len(np.atleast_2d(self.model))  # a Hessian is made in pieces
        return self.budget.afford(calls * small.CALL + FAST * (times * task.hessian_work + (steps + 1) * product))

    def rate(self, limit: np.ndarray) -> float | str:
        """The spectral radius of a round near its limit, conserved directions left out; or why it is not known."""
        hub, memory = small.begin(self.algorithm, self.task)
        M: np.ndarray | None = None
        if not jax.tree.leaves(memory):
            M = None if (after := self.derivative(limit)) is None else after[1]
        elif not as_participation(self.participation).everyone:
            return "it depends on how often agents are asked, which takes longer than the fit"
        elif self._afford_matrix(_floats((hub, memory)), moving=False):
            M = self._with_memories(limit, hub, memory)
        if M is None or not self.budget.afford(FAST * EIGENVALUES * len(M) ** 3):
            return LONGER
        return rate_of(M)

    def _with_memories(self, limit: np.ndarray, hub: State, memory: State) -> np.ndarray:
        """The matrix of a round at w*, where local steps stay: memories cancel the agents' fields."""
        K, D = self.task.agents, self.size
        H = self.task.hessians_at(np.broadcast_to(limit, (K, *limit.shape)))

        def fields(W: np.ndarray) -> np.ndarray:
            return (H @ W.reshape(K, D, -1)).reshape(W.shape)

        leaves, tree = jax.tree.flatten((hub, memory))
        rows = np.split(np.eye(_floats(leaves)), np.cumsum([_floats(a) for a in leaves])[:-1])
        moved = [row.reshape(*a.shape, -1) if _floats(a) else a for a, row in zip(leaves, rows, strict=True)]
        hub, memory = jax.tree.unflatten(tree, moved)
        after = small.one_round(self.algorithm, hub, memory, fields, self.task.weights, 0)
        return np.concatenate([a.reshape(-1, a.shape[-1]) for a in jax.tree.leaves(after) if _floats(a)])

    def told(self) -> FitForecast:
        # For matrices of a few hundred rows several threads wait for each other longer than they work.
        small_ones = _floats(small.begin(self.algorithm, self.task)) < SHARED_OUT
        with contextlib.nullcontext() if small_ones else threadpool_limits(1, user_api="blas"):
            return self._told()

    def _told(self) -> FitForecast:
        limit = self.limit()
        bias = self._bias(limit)
        rate = limit if isinstance(limit, str) else self.rate(limit)
        floor = self._floor(bias, rate)
        told = {"limit": limit, "bias": bias, "rate": rate, "floor": floor}
        return FitForecast(
            self.algorithm.card.title,
            None if isinstance(limit, str) else limit,
            None if isinstance(bias, str) else bias,
            None if isinstance(rate, str) else rate,
            None if isinstance(floor, str) else floor,
            left_out={name: why for name, why in told.items() if isinstance(why, str)},
            work=self.budget.spent,
            fit_work=self.budget.allowed,
        )

    def _bias(self, limit: np.ndarray | str) -> float | str:
        if self.at_solution:
            return 0.0
        if isinstance(limit, str):
            return limit
        solution = self.solution()
        if isinstance(solution, str):
            return solution
        size = float(np.linalg.norm(limit - solution))
        return size if size > 1e-10 * (1 + np.linalg.norm(solution)) else 0.0

    def _floor(self, bias: float | str, rate: float | str) -> float | str:
        if self.task.batch is not None or not as_participation(self.participation).everyone:
            return RANDOM
        if isinstance(bias, str):
            return bias
        return math.inf if not isinstance(rate, str) and rate >= 1 else bias**2


def _floats(state: State) -> int:
    return sum(a.size for a in jax.tree.leaves(state) if np.asarray(a).dtype.kind == "f")


def forecast_fit(
    algorithm: Algorithm,
    task: Penalised,
    participation: Participation | int | None,
    rounds: int,
    model: np.ndarray,
    share: float = 1.0,
) -> FitForecaster:
    """What can be told of a fit of so many rounds that ended at this model, with this share of its work."""
    budget = Budget(READING + share * small.work_of(algorithm, task, rounds))
    return FitForecaster(algorithm, task, participation, model, budget)
