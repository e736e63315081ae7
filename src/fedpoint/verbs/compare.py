"""Which one is better? `fp.compare` runs several algorithms on one problem: one table, one picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.numbers import counted
from fedpoint.engine.base import Stop
from fedpoint.experiment.experiment import Experiment, Options
from fedpoint.problems.base import Problem
from fedpoint.results.comparison import Comparison
from fedpoint.results.labels import labels_of, short, slug
from fedpoint.verbs.run import run

if TYPE_CHECKING:
    from fedpoint.core.types import Data
    from fedpoint.engine.base import Callback
    from fedpoint.results.follow import Following
    from fedpoint.verbs.processes.supervisor import Processes


class RunOptions(Options, total=False):
    """The arguments of `fp.run` beside method, problem and folder."""

    rounds: int
    losses_every: int | None
    evaluate: Data
    stop: Stop | None
    callbacks: Callback | Iterable[Callback | Following]
    processes: int | Processes | None


def compare(
    algorithms: Iterable[Algorithm | Experiment] | Mapping[str, Algorithm | Experiment],
    problem: Problem | None = None,
    labels: Sequence[str] | None = None,
    folder: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Run each algorithm on the problem, with the same seed and the same options of `fp.run`.

    algorithms: or experiments on one problem, without `problem` then; a dictionary gives them labels.
    labels: one for each; default: what differs between them, such as "FedAvg, local_steps=10".
    With `folder=` each run gets a folder in it, named by its label.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> both = fp.compare([fp.FedAvg(step=0.1, local_steps=5), fp.Scaffold(step=0.1, local_steps=5)], quad, rounds=99)
    >>> {row["method"]: row["error"] < 1e-10 for row in both.table()}
    {'FedAvg': False, 'SCAFFOLD': True}
    >>> fp.compare({"short": fp.FedAvg(step=0.1), "long": fp.FedAvg(step=0.5)}, quad, rounds=9)["long"].algorithm.step
    0.5
    """
    if isinstance(algorithms, Mapping):
        if labels is not None:
            raise FedpointError("the algorithms are a dictionary, whose keys are their labels: leave out labels=")
        given, labels = list(algorithms.values()), [str(label) for label in algorithms]
    else:
        given = list(algorithms)
    names = _labels(given, labels)
    if "callbacks" in options and not callable(options["callbacks"]):
        options["callbacks"] = list(options["callbacks"])  # an iterator would serve the first run only
    runs = []
    for i, (algorithm, name) in enumerate(zip(given, names, strict=True)):
        own = None if folder is None else Path(folder) / f"{i + 1}-{slug(name)}"
        try:
            runs.append(run(algorithm, problem, folder=own, **options))
        except Diverged as error:
            raise Diverged(f"{name}: {error}", error.round) from None
    return Comparison(runs, names)


def _labels(given: list[Algorithm | Experiment], labels: Sequence[str] | None) -> list[str]:
    if not given:
        raise FedpointError("nothing to compare: give at least one algorithm")
    for one in given:
        if not isinstance(one, Algorithm | Experiment):
            raise FedpointError(f"compare takes algorithms such as fp.FedAvg(step=0.1), got {one!r}")
    experiments = [one for one in given if isinstance(one, Experiment)]
    if any(e.problem is not experiments[0].problem for e in experiments):
        raise FedpointError("the experiments are on different problems: compare runs on one")
    if labels is None:
        notes = [short(e.timing) for e in experiments] if len(experiments) == len(given) else []
        return labels_of([one.algorithm if isinstance(one, Experiment) else one for one in given], notes)
    names = [str(label) for label in labels]
    if len(names) != len(given):
        raise FedpointError(f"{counted(len(names), 'label')} for {counted(len(given), 'algorithm')}: give one each")
    if len(set(names)) != len(names):
        raise FedpointError(f"two of the labels are the same: {', '.join(names)}")
    return names
