"""What happened in a fit? The rounds, and at each the objective and the distance to its minimum."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.core.types import Model
from fedpoint.problems.base import Problem


class History:
    """The models of a fit, round by round.

    Attributes:
        problem: of the fit.
        rounds: (n,) the recorded rounds, from 0 on.
        models: (n, ...) the global models at these rounds, as the problem has them.
        loss: (n,) the objective, penalty included; computed when first asked for.
        error: (n,) the squared distance to the pooled solution, in the coordinates in which rounds are run; None where
            that is not known.
    """

    def __init__(self, problem: Problem, rounds: np.ndarray, models: Model):
        self._problem, self.rounds, self.models = problem, rounds, models

    @cached_property
    def loss(self) -> np.ndarray:
        return self._problem.objective(self.models)

    @cached_property
    def error(self) -> np.ndarray | None:
        solution = self._problem.solution()
        if solution is None:
            return None
        pairs = zip(jax.tree.leaves(self.models), jax.tree.leaves(solution), strict=True)
        return np.asarray(sum(((a - b) ** 2).reshape(len(a), -1).sum(1) for a, b in pairs))

    def __len__(self) -> int:
        return len(self.rounds)

    def __getstate__(self) -> dict[str, Any]:
        """Numbers, not rows: a saved model holds no data."""
        return {"rounds": self.rounds, "models": self.models, "loss": self.loss, "error": self.error, "_problem": None}

    def __repr__(self) -> str:
        return f"<History: {counted(int(self.rounds[-1]), 'round')}, loss {self.loss[0]:.6g} to {self.loss[-1]:.6g}>"
