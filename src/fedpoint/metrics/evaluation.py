"""When is a model held against rows that nobody trains on, and when is it good enough?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.kinds import Count
from fedpoint.core.types import Data
from fedpoint.metrics.held_out import NEW, WORST

HIGHER = ("accuracy", "auc", "r2", "f1", "precision", "recall", "score")  # better when they are higher


@checked_methods
@dataclass(frozen=True)
class Evaluation:
    """Held-out rows to evaluate while a run goes on; `evaluate=` of `fp.run` takes it instead of the rows themselves.

    The metrics stand in `run.evaluation`, at `run.evaluated_rounds`, and in the folder beside the records, so that a
    resumed run has the same ones. `run.best` is the model of the round at which the watched metric was best,
    `run.best_rounds` says when that was.

    Args:
        data: held-out rows (X, y), or (X, y, groups) with the names of the agents whose they are; or a function model
            -> {name: number}.
        every: rounds between evaluations; a multiple of the rounds between records.
        patience: end the run after so many evaluations without a better one than the best so far. Of several repeats
            each has a patience of its own, and the run ends with the last one. None: never.
        on: the metric that is watched. Default: the loss.
        higher: whether a higher value of it is better. Default: of an accuracy and its like it is, else it is not.
        new: rows (X, y, groups) of agents that do not take part, or (X, y): their metrics are `new_loss` and so on.

    >>> import fedpoint as fp, numpy as np
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> problem = fp.problems.LeastSquares(X[::2], 3 * X[::2, 0], groups=np.arange(20) % 4)
    >>> watched = fp.Evaluation((X[1::2], 3 * X[1::2, 0]), every=5, patience=2)
    >>> done = fp.run("fedavg", problem, step=0.5, local_steps=1, rounds=20, evaluate=watched)
    >>> done.evaluated_rounds, done.best_rounds
    (array([ 0,  5, 10, 15, 20]), array([20]))
    """

    data: Data
    every: Count = 1
    patience: Count | None = None
    on: str | None = None
    higher: bool | None = None
    new: Data = None

    def __post_init__(self) -> None:
        if self.data is None:
            raise FedpointError("Evaluation needs held-out rows: give (X, y), or (X, y, groups)")
        check_count("every", self.every, 1)
        if self.patience is not None:
            check_count("patience", self.patience, 1)

    def watched(self, names: Sequence[str]) -> str:
        """The metric by which models are judged.

        Args:
            names: of the metrics there are.
        """
        if self.on is not None:
            if self.on not in names:
                raise FedpointError(f"Evaluation: on={self.on!r} is not a metric here: {nearest(self.on, names)}")
            return self.on
        own = [name for name in names if name != WORST and not name.startswith(NEW)]
        if len(own) == 1:
            return own[0]
        losses = [name for name in own if name == "loss"] or [name for name in own if name.endswith("loss")]
        if len(losses) != 1:
            raise FedpointError(f"Evaluation: name the metric to watch with on=...: {', '.join(own)}")
        return losses[0]

    def best(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(repeats,) each: the place of the best value of the watched metric, and whether patience has run out.

        Args:
            values: (repeats, m) of each metric, in the order of the rounds.
        """
        name = self.watched(list(values))
        higher = name.removeprefix(NEW) in HIGHER if self.higher is None else self.higher
        found = [_best(row if higher else -row, self.patience) for row in values[name]]
        return np.array([place for place, _ in found], int), np.array([over for _, over in found], bool)


def _best(values: np.ndarray, patience: int | None) -> tuple[int, bool]:
    """The first place of the greatest value, looked for until `patience` others have not exceeded it."""
    values = np.where(np.isnan(values), -np.inf, values)
    best = 0
    for i, value in enumerate(values):
        if value > values[best]:
            best = i
        elif patience is not None and i - best >= patience:
            return best, True
    return best, False
