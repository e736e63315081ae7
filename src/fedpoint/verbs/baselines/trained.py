"""The same question for models that rounds train, such as neural networks: alone, together, or one for each agent?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.algorithms.ditto import Ditto
from fedpoint.algorithms.fine_tuned import FineTuned
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arrays import array_of
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.kinds import shown
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling
from fedpoint.core.record import values_of
from fedpoint.core.types import Data
from fedpoint.experiment import Experiment
from fedpoint.results.baselines import Baselines, mean_of
from fedpoint.results.run import Run
from fedpoint.verbs.baselines.rows import GroupedRows, Splits
from fedpoint.verbs.run import run

Make: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], Experiment]  # of rows to train on, and whose they are
Change: TypeAlias = Callable[[Experiment], Experiment]
Way: TypeAlias = Callable[["Training"], Run]

ROUNDS = 100
KEPT = ("step", "local_steps", "optimiser", "normalise")  # of the experiment's method


class TrainedOptions(TypedDict, total=False):
    """What belongs to models that rounds train."""

    experiment: Make | None
    rounds: int


@dataclass
class Training:
    """One split: the experiment on its training rows, and what was run of it."""

    experiment: Experiment
    rounds: int
    evaluate: tuple[np.ndarray, ...]  # held-out rows: inputs, targets, whose they are
    together: Run | None = None

    def run(self, experiment: Experiment, rounds: int | None = None) -> Run:
        return run(experiment, rounds=self.rounds if rounds is None else rounds, evaluate=self.evaluate)

    def common(self) -> Run:
        """The experiment as it is."""
        if self.together is None:
            self.together = self.run(self.experiment)
        return self.together

    def beside(self, kind: Callable[..., Algorithm], **own: float) -> Experiment:
        """With a method whose agents have a model of their own, which takes the same steps."""
        given = values_of(self.experiment.algorithm)
        if "step" not in given or "local_steps" not in given:
            raise FedpointError(
                f"agents' own models take the experiment's local steps, and {self.experiment.algorithm.card.title} has "
                "none: give an experiment with fp.FedAvg(step=..., local_steps=...), or methods="
            )
        return self.experiment.replace(algorithm=kind(**{n: given[n] for n in KEPT if n in given}, **own))

    def tuned(self) -> Run:
        """Everybody's own steps from the final common model, in one round."""
        experiment = self.beside(FineTuned).replace(participation=None, start=self.common().final())
        return self.run(experiment, 1)


WAYS: dict[str, Way] = {
    "local": lambda training: training.run(training.beside(Ditto, pull=0.0)),
    "global": Training.common,
    "personalised": lambda training: training.run(training.beside(Ditto)),
    "fine-tuned": Training.tuned,
}


@dataclass(frozen=True)
class Trained(Splits):
    """The options of `fp.baselines` with an experiment, checked."""

    of_others: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("validation", "folds", "task", "ridge", "couplings", "neighbours", "local_steps", "step"),
        "linear models of a table, without experiment=",
    )

    seeds: int | Iterable[int] = 1
    methods: Sequence[str] | Mapping[str, Change] | None = None
    experiment: Make | None = None
    rounds: int = ROUNDS

    def compare(self, X: Data, y: ArrayLike, groups: ArrayLike) -> Baselines:
        inputs, targets = array_of("X", X), array_of("y", y)
        if targets.ndim != 1 or len(inputs) != len(targets):
            shapes = f"X of shape {inputs.shape} and y of shape {targets.shape}"
            raise FedpointError(f"{shapes}: give (rows, ...) and (rows,)")
        check_count("rounds", self.rounds, 1)
        table, ways = GroupedRows(groups, len(targets)), self._ways()
        rows = tuple(a[table.order] for a in (inputs, targets, np.asarray(groups)))
        errors: dict[str, list[np.ndarray]] = {name: [] for name in ways}
        right: dict[str, list[np.ndarray]] = {name: [] for name in ways}
        title = ""
        for test in self.tests(table):
            table.check_fitted(~test)
            made = self._made(table, *(a[~test] for a in rows))
            training = Training(made, self.rounds, tuple(a[test] for a in rows))
            title = made.algorithm.card.title
            for name, way in ways.items():
                found = dict(way(training).held_out)
                errors[name].append(mean_of(found[list(found)[-1]]))  # the loss
                if "accuracy" in found:
                    right[name].append(mean_of(found["accuracy"]))
        return Baselines(
            errors={name: np.array(each) for name, each in errors.items()},
            accuracies={name: np.array(each) for name, each in right.items() if each},
            chosen={name: [{} for _ in each] for name, each in errors.items()},
            weights=self.weights(table),
            names=table.names,
            kind="trained",
            weighed=self.weighed(table),
            how=f"{self.describe(len(next(iter(errors.values()))))}; {counted(self.rounds, 'round')} of {title}",
        )

    def _made(self, table: GroupedRows, X: np.ndarray, y: np.ndarray, whose: np.ndarray) -> Experiment:
        """The experiment on these rows."""
        if not callable(self.experiment):
            raise FedpointError(
                "experiment must be a function of the rows to train on, (X, y, groups) -> fp.Experiment(...); got "
                f"{shown(self.experiment)}"
            )
        with calling("experiment(X, y, groups)"):
            made = self.experiment(X, y, whose)
        if not isinstance(made, Experiment):
            raise FedpointError(f"experiment(X, y, groups) must return an fp.Experiment; it returned {shown(made)}")
        if list(made.problem.names) != table.names:
            raise FedpointError(
                f"experiment(X, y, groups) has {counted(made.problem.agents, 'agent')}, and the rows it was given "
                f"belong to {len(table.names)}: give its problem groups=groups"
            )
        return made

    def _ways(self) -> dict[str, Way]:
        """What is compared, by name: those that are known, and what somebody makes of the experiment beside them."""
        if isinstance(self.methods, Mapping):
            return WAYS | {name: partial(_changed, name, change) for name, change in self.methods.items()}
        asked = [*WAYS] if self.methods is None else [self.methods] if isinstance(self.methods, str) else self.methods
        for name in asked:
            if name not in WAYS:
                raise FedpointError(
                    f"unknown method {name!r}: {nearest(str(name), WAYS)} Others are given by name, as functions of "
                    'the experiment: {"FedPer": lambda e: e.replace(share="body")}'
                )
        if not asked:
            raise FedpointError(f"methods: give some of {', '.join(WAYS)}")
        return {name: way for name, way in WAYS.items() if name in asked}


def _changed(name: str, change: Change, training: Training) -> Run:
    """The experiment as somebody changes it."""
    if not callable(change):
        raise FedpointError(
            f"methods[{name!r}] must be a function of the experiment that returns another one, such as "
            f"lambda e: e.replace(algorithm=...); got {shown(change)}"
        )
    with calling(f"methods[{name!r}](experiment)"):
        made = change(training.experiment)
    if not isinstance(made, Experiment):
        raise FedpointError(f"methods[{name!r}](experiment) must return an fp.Experiment; it returned {shown(made)}")
    return training.run(made)
