"""Which one is better? `fp.compare` runs several algorithms on one problem: one table, one picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from fedpoint.algorithms.catalogue import Hyperparameters, find_maker, make_method, parameters
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.kinds import Count, Whole, shown
from fedpoint.core.numbers import counted
from fedpoint.engine.base import Stop
from fedpoint.experiment.experiment import Experiment
from fedpoint.problems.any_model import AnyModel
from fedpoint.problems.base import Problem
from fedpoint.results.comparison import Comparison
from fedpoint.results.follow import Callbacks, as_callbacks
from fedpoint.results.labels import labels_of, short, slug
from fedpoint.verbs.run import MethodOptions, run

if TYPE_CHECKING:
    from fedpoint.core.types import Data
    from fedpoint.verbs.processes.supervisor import Processes


class RunOptions(MethodOptions, total=False):
    """The arguments of `fp.run` beside method, problem and folder."""

    rounds: Whole
    losses_every: Count | None
    evaluate: Data
    stop: Stop | None
    callbacks: Callbacks
    processes: int | Processes | None


@checked
def compare(
    algorithms: Iterable[Algorithm | Experiment | str] | Mapping[str, Algorithm | Experiment | str],
    problem: Problem | AnyModel | None = None,
    labels: Sequence[str] | None = None,
    folder: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Run each algorithm on the problem, with the same seed and the same options of `fp.run`.

    Args:
        algorithms: methods, or their names in the catalogue, each with those of the hyper-parameters among the options
            that it has; or experiments on one problem, then without `problem`. A dictionary gives them labels.
        problem: from `fp.problems`, or your own.
        labels: one for each; default: what differs between them, such as "FedAvg, local_steps=10".
        folder: a folder in which each run gets a run folder, named by its label; None: nothing is written.
        options: the other arguments of `fp.run`.

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
        some, labels = list(algorithms.values()), [str(label) for label in algorithms]
    else:
        some = list(algorithms)
    given = _methods(some, options)
    names = _labels(given, labels)
    options["callbacks"] = as_callbacks(options.get("callbacks", ()))  # an iterator would serve the first run only
    runs = []
    for i, (algorithm, name) in enumerate(zip(given, names, strict=True)):
        own = None if folder is None else Path(folder) / f"{i + 1}-{slug(name)}"
        try:
            runs.append(run(algorithm, problem, folder=own, **options))
        except Diverged as error:
            raise Diverged(f"{name}: {error}", error.round) from None
    return Comparison(runs, names)


def _methods(given: Sequence[Algorithm | Experiment | str], options: RunOptions) -> list[Algorithm | Experiment]:
    """The methods, those among them that are names made with the options that they have, which are taken out."""
    names = [one for one in given if isinstance(one, str)]
    own = {name: options.pop(name) for name in list(options) if name in Hyperparameters.__annotations__}  # type: ignore[misc]
    known = {name: parameters(find_maker(name)[1]) for name in names}
    for name in own:
        if not any(name in parameters for parameters in known.values()):
            raise FedpointError(f"none of the methods is given by its name and has {name}=: write it into the methods")
    return [
        make_method(one, {name: value for name, value in own.items() if name in known[one]})
        if isinstance(one, str)
        else one
        for one in given
    ]


def _labels(given: list[Algorithm | Experiment], labels: Sequence[str] | None) -> list[str]:
    if not given:
        raise FedpointError("nothing to compare: give at least one algorithm")
    for one in given:
        if not isinstance(one, Algorithm | Experiment):
            raise FedpointError(f"compare takes algorithms such as fp.FedAvg(step=0.1); got {shown(one)}")
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
