"""How well are rows predicted that nobody trained on: all of them, and those of each agent?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arrays import array_of, told_apart
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import there_are
from fedpoint.core.types import Data, Model
from fedpoint.metrics.fairness import fairness

if TYPE_CHECKING:
    from fedpoint.problems.base import Problem

FEW = 20  # agents that are listed in a message
WORST = "worst_tenth"  # the mean loss of the tenth of the agents that is served worst
NEW = "new_"  # before the names of metrics of agents that do not take part


def agent_places(agents: Sequence[str], groups: ArrayLike, rows: int) -> np.ndarray:
    """(n,): the number of the agent whose row it is, from the names of the rows' agents."""
    given = array_of("groups", groups)
    if given.shape != (rows,):
        raise FedpointError(f"groups has shape {given.shape}, but {there_are(rows, 'row')}: one agent's name a row")
    place = {str(name): k for k, name in enumerate(agents)}
    names, at, _ = told_apart("groups", given)
    unknown = [str(name) for name in names if str(name) not in place]
    if unknown:
        raise FedpointError(
            f"rows of {unknown[0]!r}, which is not an agent of the problem: {nearest(unknown[0], place)}"
        )
    return np.array([place[str(name)] for name in names], int)[at]


def parts_of(data: Data) -> tuple[np.ndarray, np.ndarray, Data]:
    """X, y and groups of held-out data; no groups are None."""
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise FedpointError("evaluate= takes held-out data (X, y) or (X, y, groups), or a function of the model")
    X, y = array_of("held-out X", data[0]), array_of("held-out y", data[1])
    if y.ndim != 1:
        raise FedpointError(f"held-out y has shape {y.shape}: give one target a row")
    return X, y, data[2] if len(data) == 3 else None


class HeldOut:
    """Rows (X, y), or (X, y, groups) with the names of the agents whose they are.

    own: every agent has a model of its own, as on a network. Its rows are predicted by that; rows of nobody by each of
    the models in turn. new: the rows are those of agents that do not take part, and so have no model of their own.
    """

    def __init__(self, problem: Problem, data: Data, own: bool, new: bool = False):
        self.problem, self.own, self.new, self.names = problem, own, new, list(problem.names)
        self.X, self.y, groups = parts_of(data)
        if new and groups is not None:
            given = told_apart("groups of new agents", array_of("groups", groups))[0]
            known = sorted({str(name) for name in given} & {str(name) for name in self.names})
            if known:
                raise FedpointError(f"{known[0]!r} is an agent of the problem: its rows belong to data=, not to new=")
            self.names = [str(name) for name in given]
        self.agent = None if groups is None else agent_places(self.names, groups, len(self.y))

    def _rows(self, model: Model) -> dict[str, np.ndarray]:
        """Metrics of every row, (n,); with own models and rows of nobody the mean over the agents."""
        if not self.own:
            return self.problem.row_metrics(model, self.X, self.y)
        K = self.problem.agents
        models = [jax.tree.map(lambda a, k=k: np.asarray(a)[k], model) for k in range(K)]
        if self.agent is None or self.new:
            each = [self.problem.row_metrics(w, self.X, self.y) for w in models]
            return {name: np.mean([one[name] for one in each], axis=0) for name in each[0]}
        found: dict[str, np.ndarray] = {}
        for k in np.unique(self.agent):
            some = self.agent == k
            for name, values in self.problem.row_metrics(models[k], self.X[some], self.y[some]).items():
                found.setdefault(name, np.zeros(len(self.y)))[some] = values
        return found

    def _by_agent(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        K = len(self.names)
        assert self.agent is not None
        count = np.bincount(self.agent, minlength=K)
        with np.errstate(invalid="ignore"):
            return {name: np.bincount(self.agent, values, K) / count for name, values in rows.items()}

    def agents(self, model: Model) -> dict[str, np.ndarray] | None:
        """(K,) of every metric, nan for agents without held-out rows; None where nobody's rows are known."""
        return None if self.agent is None else self._by_agent(self._rows(model))

    def __call__(self, model: Model) -> dict[str, float]:
        """Means over all rows; with groups, the loss of the tenth of the agents that is served worst as well."""
        rows = self._rows(model)
        found = {name: float(values.mean()) for name, values in rows.items()}
        if self.agent is not None:
            loss = list(rows)[-1]
            losses = self._by_agent({loss: rows[loss]})[loss][np.unique(self.agent)]
            found[WORST] = fairness(losses).worst if np.isfinite(losses).all() else float("inf")
        return found
