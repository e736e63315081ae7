"""What if? Many values of hyper-parameters in one program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Unpack

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.kinds import Whole
from fedpoint.core.memory_limits import check_memory
from fedpoint.core.record import values_of, with_leaves
from fedpoint.core.wrapped import Wrapped
from fedpoint.engine.memory import check_records
from fedpoint.engine.session import Session
from fedpoint.experiment.bound import method_of
from fedpoint.experiment.experiment import Experiment
from fedpoint.problems.base import Problem
from fedpoint.results.drive import begin, drive
from fedpoint.results.sweep import Sweep
from fedpoint.verbs.run import MethodOptions, as_experiment


@checked
def sweep(
    algorithm: Algorithm | Experiment | str,
    problem: Problem | None = None,
    over: Mapping[str, Sequence[float]] | None = None,
    rounds: Whole = 100,
    **options: Unpack[MethodOptions],
) -> Sweep:
    """Run an algorithm for every combination of the values in `over`, all in one compiled program.

    Every point sees the same random numbers, so that differences are the hyper-parameters'. Any numeric field can be
    swept; a sweep over `local_steps` costs the largest of them at every point. A method may be given by its name, with
    the hyper-parameters that are not swept.

    Args:
        algorithm: a method with the values of what is not swept, its name in the catalogue, or an `fp.Experiment`, then
            without a problem.
        problem: from `fp.problems`, or your own.
        over: the values to combine, by hyper-parameter: `{"step": [0.1, 0.5], "local_steps": [1, 10]}`.
        rounds: of every run.
        options: the other arguments of `fp.Experiment`, and hyper-parameters of a method that is given by its name.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> fp.sweep(fp.FedAvg(step=0.1), quad, over={"step": [0.1, 0.5, 1.0]}, rounds=10).best()
    {'step': 0.5}
    >>> fp.sweep("fedavg", quad, over={"step": [0.1, 0.5, 1.0]}, local_steps=2, rounds=10).best()
    {'step': 0.1}
    """
    over = over or {}
    _check_values(over)
    repeats = options.pop("repeats", None)
    if isinstance(algorithm, str):  # what is swept over need not be given too
        options = {**{name: values[0] for name, values in over.items()}, **options}  # type: ignore[typeddict-item]
    experiment = as_experiment(algorithm, problem, options)
    repeats = experiment.repeats if repeats is None else repeats
    method = experiment.algorithm
    _check(method, over)
    points = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    algorithms = [_replaced(method, point) for point in points]
    # What sizes are chosen by: the most local steps of any point.
    largest = experiment.replace(algorithm=algorithms[int(np.argmax([p.get("local_steps", 0) for p in points]))])
    check_count("repeats", repeats, 1)
    count = len(points) * repeats
    largest = largest.replace(repeats=repeats)
    check_memory(count, f"{count:,} runs at once", "take fewer values or repeats")
    check_records(largest, rounds, count)
    whole = largest.bind()
    bound = [traced(method_of(experiment.replace(algorithm=a)), over) for a in algorithms]
    lanes = jax.tree.map(lambda *a: np.repeat(np.stack(a), repeats, axis=0), *bound)
    session = Session(whole, largest.every(rounds, count), swept=lanes)
    return Sweep(points, algorithms, drive(begin(session), rounds), repeats)


def _check(method: Algorithm, over: Mapping[str, Sequence[float]]) -> None:
    known = list(names_of(method))
    for name in over:
        if name not in known:
            raise FedpointError(f"{type(method).__name__} has no field {name!r}: {nearest(name, known)}")


def _check_values(over: Mapping[str, Sequence[float]]) -> None:
    for name, values in over.items():
        if np.ndim(values) != 1 or not len(values) or not np.issubdtype(np.asarray(values).dtype, np.number):
            raise FedpointError(f"sweep over {name} needs a list of numbers, got {values!r}")


# A wrapper is swept over its own fields and those of the method inside, at any depth.


def names_of(method: Algorithm) -> Iterator[str]:
    yield from values_of(method)
    if isinstance(method, Wrapped):
        yield from names_of(method.inner)


def _split(method: Algorithm, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Fields of its own, and those of what it wraps."""
    own = values_of(method)
    return [n for n in names if n in own], [n for n in names if n not in own]


def _replaced(method: Algorithm, point: Mapping[str, float]) -> Algorithm:
    """The method at a point."""
    own, inner = _split(method, point)
    values: dict[str, float | Algorithm] = {name: point[name] for name in own}
    if inner and isinstance(method, Wrapped):
        values["inner"] = _replaced(method.inner, {name: point[name] for name in inner})
    return method.replace(**values)


def traced(method: Algorithm, names: Iterable[str]) -> Algorithm:
    """With these fields traced, whole numbers too."""
    own, inner = _split(method, names)
    values = {name: values_of(method)[name] for name in own}
    if inner and isinstance(method, Wrapped):
        values["inner"] = traced(method.inner, inner)
    return with_leaves(method, values)
