"""Which one is better? `fp.compare` runs several algorithms on one problem: one table, one picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.problems.base import Problem
from fedpoint.results.comparison import Comparison
from fedpoint.results.labels import labels_of, slug
from fedpoint.verbs.run import run


def compare(
    algorithms: Iterable[Algorithm], problem: Problem, labels: Sequence[str] | None = None, **options: Any
) -> Comparison:
    """Run each algorithm on the problem, with the same seed and the same options of `fp.run`.

    labels: one for each; default: what differs between them, such as "FedAvg, local_steps=10".
    With `folder=` each run gets a folder in it, named by its label.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> both = fp.compare([fp.FedAvg(step=0.5, local_steps=5), fp.Scaffold(step=0.1, local_steps=5)], quad, rounds=99)
    >>> {row["method"]: row["error"] < 1e-10 for row in both.table()}
    {'FedAvg': False, 'SCAFFOLD': True}
    """
    algorithms = list(algorithms)
    if not algorithms:
        raise FedpointError("nothing to compare: give at least one algorithm")
    for given in algorithms:
        if not isinstance(given, Algorithm):
            raise FedpointError(f"compare takes algorithms such as fp.FedAvg(step=0.1), got {given!r}")
    names = labels_of(algorithms) if labels is None else [str(label) for label in labels]
    if len(names) != len(algorithms):
        raise FedpointError(f"{len(names)} labels for {len(algorithms)} algorithms: give one each")
    if len(set(names)) != len(names):
        raise FedpointError(f"two of the labels are the same: {', '.join(names)}")
    options["callbacks"] = list(options.get("callbacks", ()))  # an iterator would serve the first run only
    folder = options.pop("folder", None)
    runs = []
    for i, (algorithm, name) in enumerate(zip(algorithms, names, strict=True)):
        own = None if folder is None else Path(folder) / f"{i + 1}-{slug(name)}"
        try:
            runs.append(run(algorithm, problem, folder=own, **options))
        except Diverged as error:
            raise Diverged(f"{name}: {error}", error.round) from None
    return Comparison(runs, names)
