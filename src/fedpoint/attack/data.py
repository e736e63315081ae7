"""What can agents lie about before anything is computed? Their labels, and how many rows they have."""

from __future__ import annotations

import numpy as np

from fedpoint.attack.base import Attack
from fedpoint.core.errors import check_number
from fedpoint.problems.base import Problem


class LabelFlip(Attack):
    """Labels of these agents are turned round: class c of C becomes C - 1 - c, a number y becomes -y. They work
    honestly on that."""

    def data(self, problem: Problem) -> Problem:
        return problem.flipped(np.isin(np.arange(problem.agents), self.agents))


class FalseRows(Attack):
    """Claims `factor` times the rows that the agent has: weights p are made of claims. Nothing else is false, so that
    no gather sees it; count rows where they are, or weigh agents alike (`fp.Uniform(..., plain=True)`).

    Args:
        factor: by which the number of rows is multiplied.
    """

    factor: float

    def check(self) -> None:
        check_number("FalseRows: factor", self.factor, 0.0, strict=True)

    def claimed(self, weights: np.ndarray) -> np.ndarray:
        claims = np.where(np.isin(np.arange(len(weights)), self.agents), self.factor, 1.0) * weights
        return claims * (weights.sum() / claims.sum())
