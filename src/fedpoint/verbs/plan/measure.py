"""Does a choice keep its promise? Run it, and put the mean over repeats beside its forecast."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np

from fedpoint.core.errors import Diverged
from fedpoint.core.types import Model
from fedpoint.engine.base import Callback
from fedpoint.experiment import Experiment
from fedpoint.metrics.means import mean_and_error
from fedpoint.problems.base import Problem
from fedpoint.results.plan import Choice, Goal, Measure, Measured
from fedpoint.results.run import Run
from fedpoint.verbs.run import run


def measure_on(experiment: Experiment, goal: Goal) -> Measure:
    """What runs the choices of a plan."""

    def measure(choice: Choice, repeats: int, seed: int, callbacks: Sequence[Callback]) -> Measured:
        asked = experiment.replace(
            algorithm=choice.algorithm,
            participation=choice.participation,
            seed=seed,
            repeats=repeats,
            record_every=max(choice.rounds, 1),
        )
        if choice.channel is not None:
            asked = asked.replace(channel=choice.channel)
        try:
            done = run(asked, rounds=choice.rounds, callbacks=callbacks)
        except Diverged:
            return Measured(choice, repeats, math.inf, 0.0, goal.target, None, 0.0, goal.confidence)
        ends = _measured(done, goal.measure)[:, -1]
        mean, error = mean_and_error(ends)
        assert mean is not None and error is not None  # of two repeats at least
        share = float((ends <= goal.target).mean())
        return Measured(choice, repeats, mean, error, goal.target, done.cost, share, goal.confidence)

    return measure


def _measured(done: Run, measure: str) -> np.ndarray:
    """(repeats, n): what the goal is about."""
    if measure == "error":
        return done.error
    return done.loss - least_loss(done.problem)


def least_loss(problem: Problem) -> float:
    """What losses are measured from: that of the solution, where it is known."""
    solution = problem.solution()
    return 0.0 if solution is None else float(problem.objective(lead(solution))[0])


def start_loss(experiment: Experiment) -> float:
    """The loss where a run starts."""
    return float(experiment.problem.objective(lead(experiment.start_model))[0])


def lead(model: Model) -> Model:
    """With an axis in front, as one of many."""
    return jax.tree.map(lambda a: np.asarray(a)[None], model)
