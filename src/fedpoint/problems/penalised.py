"""Which problem does a fit solve? The pooled objective of a scikit-learn model, shared out to the agents.

    f_k(w) = mean over agent k's rows of the loss + 1/2 sum_j ridge_j w_j^2,   p_k = n_k / n

so that sum_k p_k f_k is the pooled objective over n: Ridge's with ridge = alpha/n, LogisticRegression's with 1/(C n). A
number per column, because intercepts are not penalised, and because a penalty can be carried to other coordinates.
Rows that count s_i times make weighted means, p_k the sum of an agent's s_i over that of all, and n the latter.

What a fit needs of the agents is NumPy: nothing is compiled for tables of every new shape.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.types import Data
from fedpoint.problems.rows import RowsProblem

DENSE = 800  # numbers of a model whose Hessian is written down
DENSE_SPEED = 8  # columns of it that are written down in the time of a product with it
PRODUCTS = 100
FLAT = 1e-13  # curvature, over the largest, below which a direction is none


def masses(sample_weight: ArrayLike, groups: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """(n,) what each row counts in its agent's mean, 1 on average; and (K,) the sum of each agent's weights.

    >>> masses([1.0, 3.0, 1.0], ["a", "a", "b"])
    (array([0.5, 1.5, 1. ]), array([4., 1.]))
    """
    weight, agent = np.asarray(sample_weight, dtype=float), np.unique(groups, return_inverse=True)[1]
    total = np.bincount(agent, weight)
    return weight * (np.bincount(agent) / total)[agent], total


class NewtonStep(NamedTuple):
    """From a model towards the minimum; not `whole` where it was cut short, and is then shorter than it should be."""

    change: np.ndarray
    whole: bool


class Penalised(RowsProblem):
    """What a fit asks of its problem. While a run goes on nobody needs w*, and a fit does not wait for it: `unseen`."""

    ridge: Data  # (d,), of each column: where the base class has one number
    mass: np.ndarray | float = 1.0  # (n,) what rows count in their agent's mean, where they differ
    blind = False

    @property
    @abstractmethod
    def work(self) -> int:
        """Multiplications of one pass over all agents."""

    @property
    @abstractmethod
    def hessian_work(self) -> int:
        """Multiplications that make the Hessians of all agents."""

    @abstractmethod
    def solution_near(self, w: np.ndarray, steps: int) -> np.ndarray | None:
        """w*, where it is known or found from w by at most so many of Newton's steps."""

    @abstractmethod
    def fields_at(self, W: np.ndarray) -> np.ndarray:
        """(K, ...): each agent's field at its own model."""

    @abstractmethod
    def losses_at(self, W: np.ndarray) -> np.ndarray:
        """(K,): each agent's loss at its own model."""

    @abstractmethod
    def slopes_at(self, W: np.ndarray) -> np.ndarray:
        """The same as `fields_at`, for agents whose numbers of rows differ: nothing is padded."""

    @abstractmethod
    def hessians_at(self, W: np.ndarray) -> np.ndarray:
        """(K, D, D): the Hessian of each agent's loss, of the flattened model."""

    @abstractmethod
    def products_at(self, W: np.ndarray, U: np.ndarray) -> np.ndarray:
        """(K, ...): these Hessians times each agent's vector, without writing them down."""

    @abstractmethod
    def smoothness(self) -> tuple[float, np.ndarray]:
        """Of the aggregate and (K,) of the agents; with a batch, of what batches are expected to have."""

    @abstractmethod
    def row_losses(self, w: np.ndarray) -> np.ndarray:
        """(n,): the loss of every row times what it counts, without the penalty."""

    @abstractmethod
    def derivatives(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(D,) and (D, D): the gradient and the Hessian of the objective, flattened."""

    def newton_step(self, w: np.ndarray, products: int = PRODUCTS) -> NewtonStep:
        """To the minimum, where the loss is a square; else to that of its square approximation at w.

        A minimum that is not unique is that nearest to w. products: how many with the Hessian the step may take. Where
        writing it down would take longer, it is made by conjugate gradients, whose steps only grow (Steihaug, 1983):
        one that is cut short is too short.
        """
        if w.size > min(DENSE, DENSE_SPEED * products):
            return self._conjugate_gradients(w, products)
        slope, H = self.derivatives(w)
        curvature, axes = np.linalg.eigh(H)
        bent = curvature > FLAT * curvature[-1]
        change = axes[:, bent] @ ((axes[:, bent].T @ -slope) / curvature[bent])
        return NewtonStep(change.reshape(w.shape), True)

    def _conjugate_gradients(self, w: np.ndarray, products: int) -> NewtonStep:
        from scipy.sparse.linalg import LinearOperator, cg

        W = np.broadcast_to(w, (self.agents, *w.shape))

        def product(u: np.ndarray) -> np.ndarray:
            U = np.broadcast_to(u.reshape(w.shape), W.shape)
            return np.tensordot(self.weights, self.products_at(W, U), 1).ravel()

        slope = np.tensordot(self.weights, self.slopes_at(W), 1).ravel()
        change, left = cg(LinearOperator((w.size, w.size), product), -slope, rtol=1e-3, maxiter=products)
        return NewtonStep(change.reshape(w.shape), left == 0)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        self.blind = True
        try:
            yield
        finally:
            self.blind = False


def expected_smoothness(whole: np.ndarray, row: np.ndarray, rows: np.ndarray, batch: int) -> np.ndarray:
    """2 (L (b-1)/b + L_max/b): of a mean over b rows drawn independently, twice what a batch is expected to have.

    References: Gower et al., SGD: general analysis and improved rates (2019).
    """
    return 2 * (whole * (batch - 1) + row) / batch
