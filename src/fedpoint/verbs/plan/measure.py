"""Does a choice keep its promise? Run it, and put the mean over repeats beside its forecast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedpoint.core.errors import Diverged
from fedpoint.metrics.means import mean_and_error
from fedpoint.problems.base import Problem
from fedpoint.results.plan import Callback, Choice, Measure, Measured, Options
from fedpoint.verbs.run import run


def measure_on(problem: Problem, target: float, options: Options) -> Measure:
    """What runs the choices of a plan."""

    def measure(choice: Choice, repeats: int, seed: int, callbacks: Sequence[Callback]) -> Measured:
        try:
            done = run(
                choice.algorithm,
                problem,
                rounds=choice.rounds,
                participation=choice.participation,
                start=options.start,
                exact=options.exact,
                seed=seed,
                repeats=repeats,
                record_every=max(choice.rounds, 1),
                callbacks=callbacks,
            )
        except Diverged:
            return Measured(choice, repeats, math.inf, 0.0, target)
        values = done.error
        if options.measure == "loss":
            values = done.loss - problem.objective(lead(problem.solution()))[0]
        mean, error = mean_and_error(values[:, -1])  # type: ignore[index]
        assert mean is not None and error is not None  # of two repeats at least
        return Measured(choice, repeats, mean, error, target, done.cost)

    return measure


def lead(model: Any) -> Any:
    """With an axis in front, as one of many."""
    return jax.tree.map(lambda a: np.asarray(a)[None], model)
