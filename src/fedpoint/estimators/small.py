"""How does a tiny fit not wait for the compiler? By the method's own code on NumPy arrays, all agents at once.

Compiling a run takes a second or two, for each shape of table anew; 2,000 steps on a few hundred rows take a tenth of
that in NumPy. An algorithm is arithmetic on models, so its own `local` and `combine` do for NumPy what they do for JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import jax
import numpy as np
from jax import Array

from fedpoint.algorithms import FedAvg, FedNewton, FedProx, GradientExchange, Scaffnew, Scaffold
from fedpoint.core.agent import Advance, Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import Diverged
from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Model, Number, State
from fedpoint.engine.session import TOO_FAR
from fedpoint.problems.penalised import Penalised
from fedpoint.timing.schemes import Participation

CALCULATING = (FedAvg, FedProx, GradientExchange, Scaffnew, Scaffold)  # all they do is arithmetic on models
PATIENCE = 1.0  # seconds up to which NumPy is preferred: about what compiling takes
NEWTON, HESSIANS = 15, 10**7  # rounds that Newton's method may take, numbers of all agents' Hessians
CALL, MULTIPLICATION = 3e-5, 1.5e-9  # seconds of one local step beside its multiplications, and of one of these


class AllAgents(Agent):
    """All agents in one: models have a leading axis, (K, ...)."""

    def __init__(self, fields: Callable[[np.ndarray], np.ndarray], round: int, task: Penalised | None = None):
        self._fields, self.round, self.evaluations, self._task = fields, round, 0, task

    def field(self, w: Model, e: Number = 0) -> Model:
        return self._fields(w)

    def hessian(self, w: Model) -> Array:
        assert self._task is not None
        return cast(Array, self._task.hessians_at(w))

    def losses_along(self, w: Model, move: Model, fractions: Array) -> Array:
        assert self._task is not None
        return cast(Array, np.stack([self._task.losses_at(w + s * move) for s in np.asarray(fractions)], axis=-1))

    def steps(self, local_steps: LocalSteps) -> Number:
        assert isinstance(local_steps, int)  # or it would not suit
        return local_steps

    def loop(self, start: State, steps: Number, advance: Advance) -> State:
        y = start
        for e in range(int(steps)):
            y = advance(y, e)
        return y


def calculates(algorithm: Algorithm) -> bool:
    """Whether a round is arithmetic on models, with equal local steps of one length for all."""
    if type(algorithm.local_steps) is not int or not isinstance(algorithm.step, float):
        return False
    if not isinstance(algorithm, CALCULATING) or algorithm.own_kind() or algorithm.proximal:
        return False
    return not (isinstance(algorithm, FedAvg) and algorithm.optimiser is not None)


def work_of(algorithm: Algorithm, task: Penalised, rounds: int) -> float:
    """Seconds that so many rounds of a method that only calculates take in NumPy, about; on every machine the same."""
    assert isinstance(algorithm.local_steps, int)
    return rounds * (algorithm.local_steps + 1) * (CALL + MULTIPLICATION * task.work)


def suits(algorithm: Algorithm, task: Penalised, rounds: int, participation: Participation | int | None) -> bool:
    """Whether a run is small enough: full fields, everyone, equal local steps, a method that only calculates."""
    if task.batch is not None or participation is not None:
        return False
    if type(algorithm) is FedNewton:  # a subclass may do what NumPy cannot
        hessians = task.agents * task.start().size ** 2
        return hessians <= HESSIANS and NEWTON * MULTIPLICATION * task.hessian_work <= PATIENCE
    if not calculates(algorithm):
        return False
    return work_of(algorithm, task, rounds) <= PATIENCE


def one_round(
    algorithm: Algorithm,
    hub: State,
    memory: State,
    fields: Callable[[np.ndarray], np.ndarray],
    p: np.ndarray,
    at: int,
    task: Penalised | None = None,
) -> tuple[State, State]:
    """Hub and memories after the round number `at`; fields: of all agents, each at its own model."""
    heard = jax.tree.map(lambda a: _spread(a, len(p)), algorithm.say(hub, None))  # type: ignore[arg-type]
    message, memory = algorithm.local(heard, memory, AllAgents(fields, at, task))
    mean = jax.tree.map(lambda m: np.tensordot(p, m, axes=1), message)
    return algorithm.combine(hub, Inbox(mean, mean, np.float64(1.0), np.float64(1.0))), memory  # type: ignore[arg-type]


def begin(algorithm: Algorithm, task: Penalised) -> tuple[State, State]:
    """The hub and all agents' memories before the first round."""
    hub, memory = jax.tree.map(np.asarray, double(algorithm.init)(task.start()))
    return hub, jax.tree.map(lambda a: np.repeat(a[None], task.agents, axis=0), memory)


def walk(
    algorithm: Algorithm, task: Penalised, rounds: int, enough: Callable[[Model], bool]
) -> tuple[np.ndarray, np.ndarray]:
    """The rounds and the global model at each, from the start on; `enough(model)` ends it.

    >>> import fedpoint as fp
    >>> from fedpoint.problems.ridge_task import RidgeTask
    >>> task = RidgeTask([[[1.0]], [[2.0]]], [[1.0], [4.0]], ridge=[0.0])
    >>> walk(fp.GradientExchange(step=0.2), task, 2, lambda w: False)[1].round(3)
    array([[0.  ],
           [0.9 ],
           [1.35]])
    """
    hub, memory = begin(algorithm, task)
    p = task.weights
    models = [np.asarray(algorithm.read(hub, memory))]
    limit = TOO_FAR * (1 + np.abs(models[0]).max(initial=0))
    with np.errstate(all="ignore"):
        for round in range(rounds):
            hub, memory = one_round(algorithm, hub, memory, task.fields_at, p, round, task)
            w = algorithm.read(hub, memory)
            if not (np.abs(w) <= limit).all():
                raise Diverged(f"{type(algorithm).card.title} diverged by round {round + 1}", round + 1)
            models.append(w)
            if enough(w):
                break
    return np.arange(len(models)), np.stack(models)


def _spread(a: State, agents: int) -> State:
    """What goes down, once for every agent; counts stay as they are."""
    return np.broadcast_to(a, (agents, *a.shape)) if isinstance(a, np.ndarray) and a.ndim else a
