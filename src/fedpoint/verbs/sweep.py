"""What if? Many values of hyper-parameters in one program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np

from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.record import stack, values_of
from fedpoint.engine.session import Session
from fedpoint.experiment.experiment import Experiment, Options
from fedpoint.problems.base import Problem
from fedpoint.results.run import begin, drive
from fedpoint.results.sweep import Sweep
from fedpoint.verbs.run import as_experiment


def sweep(
    algorithm: Algorithm | Experiment,
    problem: Problem | None = None,
    over: Mapping[str, Sequence[float]] | None = None,
    rounds: int = 100,
    **options: Unpack[Options],
) -> Sweep:
    """Run an algorithm for every combination of the values in `over`, all in one compiled program.

    Every point sees the same random numbers, so that differences are the hyper-parameters'. Any numeric field can be
    swept; a sweep over `local_steps` costs the largest of them at every point.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> fp.sweep(fp.FedAvg(step=0.1), quad, over={"step": [0.1, 0.5, 1.0]}, rounds=10).best()
    {'step': 0.5}
    """
    check_count("rounds", rounds, 0)
    experiment = as_experiment(algorithm, problem, options)
    method, problem = experiment.algorithm, experiment.problem
    fields, over = values_of(method), over or {}
    for name, values in over.items():
        if name not in fields:
            raise FedpointError(f"{type(method).__name__} has no field {name!r}: {nearest(name, fields)}")
        if np.ndim(values) != 1 or not len(values) or not np.issubdtype(np.asarray(values).dtype, np.number):
            raise FedpointError(f"sweep over {name} needs a list of numbers, got {values!r}")
    points = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    algorithms = [method.replace(**point) for point in points]
    # What sizes are chosen by: the most local steps of any point.
    largest = experiment.replace(algorithm=algorithms[int(np.argmax([p.get("local_steps", 0) for p in points]))])
    count = len(points) * experiment.repeats
    largest.check_repeats(count)
    bound = [bind_algorithm(a, problem) for a in algorithms]
    lanes = stack([a for a in bound for _ in range(experiment.repeats)], tuple(over))
    session = Session(largest.bind(), largest.every(rounds, count), swept=lanes)
    return Sweep(points, algorithms, drive(begin(session), rounds), experiment.repeats)
