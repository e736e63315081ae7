"""How well does a run in progress do on held-out rows, and is that still getting better?"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.types import Model
from fedpoint.engine.base import Engine, measured
from fedpoint.metrics.evaluation import Evaluation
from fedpoint.metrics.held_out import NEW
from fedpoint.store.records import RoundRecords

Metrics = Mapping[str, np.ndarray]  # (repeats,) of each name


class Evaluator:
    """An evaluation at work: each round of its own is measured once, whoever asks.

    evaluation: what is asked for. before: what was recorded so far.
    """

    def __init__(self, evaluation: Evaluation, session: Engine, before: RoundRecords | None = None):
        self.evaluation = evaluation
        if evaluation.every % session.every:
            raise FedpointError(
                f"Evaluation(every={evaluation.every}) must be a multiple of the {counted(session.every, 'round')} "
                "between records: change it, or give record_every="
            )
        self._own = session.measure(evaluation.data)
        self._new = None if evaluation.new is None else session.measure(evaluation.new, new=True)
        self._known = {} if before is None else _known(before)
        if before is not None:
            asked = [int(round) for round in before.rounds if not round % evaluation.every]
            if asked != sorted(self._known):
                begun = "with an evaluation at other rounds" if self._known else "without an fp.Evaluation"
                raise FedpointError(
                    f"this run was begun {begun}, and its records are written: an evaluation every "
                    f"{counted(evaluation.every, 'round')} needs a new run"
                )

    @property
    def latest(self) -> Metrics:
        """The last metrics."""
        return self._known[max(self._known)] if self._known else {}

    def at(self, round: int, model: Model) -> Metrics:
        """The metrics of the models of a recorded round, which lead with the repeats."""
        if round not in self._known:
            repeats = len(jax.tree.leaves(model)[0])
            rows = [self._of(jax.tree.map(lambda a, r=r: a[r], model)) for r in range(repeats)]
            self._known[round] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return self._known[round]

    def _of(self, model: Model) -> dict[str, float]:
        new = {} if self._new is None else measured(self._new, model)
        return measured(self._own, model) | {f"{NEW}{name}": value for name, value in new.items()}

    def take(self, rounds: np.ndarray, models: Model) -> dict[str, np.ndarray]:
        """(repeats, n) of each metric at recorded rounds, nan where these are passed over."""
        leaf = jax.tree.leaves(models)[0]
        found: dict[str, np.ndarray] = {}
        for i, round in enumerate(map(int, rounds)):
            if not round % self.evaluation.every:
                self.at(round, jax.tree.map(lambda a, i=i: a[:, i], models))
        for name in self.latest:
            found[name] = np.full((leaf.shape[0], len(rounds)), np.nan)
            for i, round in enumerate(map(int, rounds)):
                if round in self._known:
                    found[name][:, i] = self._known[round][name]
        return found

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """(repeats,) the rounds of the best models so far, and whether each repeat's patience has run out."""
        rounds = sorted(self._known)
        values = {name: np.stack([self._known[r][name] for r in rounds], axis=1) for name in self._known[rounds[0]]}
        places, over = self.evaluation.best(values)
        return np.array(rounds)[places], over

    def enough(self, round: int, model: Model, error: np.ndarray | None) -> bool:
        """Whether the patience of every repeat has run out."""
        if self.evaluation.patience is None or round % self.evaluation.every:
            return False
        self.at(round, model)
        return bool(self.best()[1].all())


def check_continued(before: RoundRecords, evaluator: Evaluator | None) -> None:
    """Refuse to go on with an evaluated run without its evaluation: its records would have gaps."""
    if before.evaluation and evaluator is None:
        raise FedpointError(
            "this run is evaluated while it goes on: give evaluate=fp.Evaluation(...) again, as it was begun with"
        )


def evaluator_of(given: object, session: Engine, before: RoundRecords | None = None) -> Evaluator | None:
    """What evaluates while a run goes on; None where held-out rows are looked at when it has ended, or never."""
    return Evaluator(given, session, before) if isinstance(given, Evaluation) else None


def evaluated(records: RoundRecords) -> np.ndarray:
    """The places of the records that were evaluated."""
    if not records.evaluation:
        return np.zeros(0, int)
    there = [~np.isnan(values).all(axis=0) for values in records.evaluation.values()]
    return np.flatnonzero(np.any(there, axis=0))


def _known(records: RoundRecords) -> dict[int, Metrics]:
    return {
        int(records.rounds[i]): {name: values[:, i] for name, values in records.evaluation.items()}
        for i in evaluated(records)
    }
