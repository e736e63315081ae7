"""Data for files that describe a problem and have none: drawn, or bundled with scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpoint.core.errors import FedpointError


def row_counts(agents: int, rows: int | Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """(K,): the same number for all, or uniform in [least, most]."""
    if isinstance(rows, int):
        return np.full(agents, rows)
    return rng.integers(rows[0], rows[1] + 1, size=agents)


def regression(
    agents: int, rows: int | Sequence[int], dim: int, heterogeneity: float, noise: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """A_k ~ N(0, I), b_k = A_k w_k + v, w_k ~ N(1, heterogeneity I), v ~ N(0, noise): views of two arrays."""
    rng = np.random.default_rng(seed)
    counts = row_counts(agents, rows, rng)
    cuts = np.cumsum(counts)[:-1]
    models = 1.0 + np.sqrt(heterogeneity) * rng.standard_normal((agents, dim))
    A = np.split(rng.standard_normal((counts.sum(), dim)), cuts)
    b = np.split(np.sqrt(noise) * rng.standard_normal(counts.sum()), cuts)
    for a, target, w in zip(A, b, models, strict=True):
        target += a @ w
    return A, b


def classification(
    agents: int, rows: int | Sequence[int], dim: int, heterogeneity: float, classes: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X ~ N(0, I), y = argmax of X W_k plus Gumbel noise: softmax by the agent's own W_k about a common W."""
    rng = np.random.default_rng(seed)
    counts = row_counts(agents, rows, rng)
    groups = np.repeat(np.arange(agents), counts)
    common = rng.standard_normal((dim, classes))
    own = common + np.sqrt(heterogeneity) * rng.standard_normal((agents, dim, classes))
    X = rng.standard_normal((len(groups), dim))
    scores = np.einsum("ni,nic->nc", X, own[groups]) + rng.gumbel(size=(len(groups), classes))
    return X, scores.argmax(axis=1), groups


def bowls(agents: int, dim: int, curvature: Sequence[float], spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """H_k with eigenvalues log-uniform in [low, high] and random axes; c_k ~ N(0, spread I)."""
    rng = np.random.default_rng(seed)
    low, high = np.log(curvature[0]), np.log(curvature[1])
    if low > high:
        raise FedpointError(f"curvature = {list(curvature)}: the least comes first, then the most")
    eigenvalues = np.exp(rng.uniform(low, high, (agents, dim)))
    axes = np.linalg.qr(rng.standard_normal((agents, dim, dim)))[0]
    H = np.einsum("kij,kj,klj->kil", axes, eigenvalues, axes)
    centers = np.sqrt(spread) * rng.standard_normal((agents, dim))
    return (H + np.swapaxes(H, 1, 2)) / 2, centers


def systems(
    agents: int, dim: int, curvature: Sequence[float], rotation: float, heterogeneity: float, spread: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """A_k = S_k + rotation W_k, b_k = A_k w_k: S_k symmetric with eigenvalues log-uniform in [low, high], W_k skew.

    S_k and W_k are common up to heterogeneity, a share from 0 to 1 of the agent's own; w_k ~ N(1, spread I).
    """
    H, shift = bowls(agents + 1, dim, curvature, 1.0, seed)
    rng = np.random.default_rng([seed, 1])
    skew = rng.standard_normal((agents + 1, dim, dim)) / np.sqrt(2 * dim)
    A = H + rotation * (skew - np.swapaxes(skew, 1, 2))
    A = A[0] + heterogeneity * (A[1:] - A[0])
    return A, np.einsum("kij,kj->ki", A, 1.0 + np.sqrt(spread) * shift[1:])


def digits(test: float, seed: int) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    """The digits with pixels in [0, 1], and a share of them held out."""
    from sklearn.datasets import load_digits  # only here: it is slow to import

    X, y = load_digits(return_X_y=True)
    X = X / 16.0
    order = np.random.default_rng(seed).permutation(len(y))
    out, kept = order[: int(test * len(y))], np.sort(order[int(test * len(y)) :])
    return X[kept], y[kept], (X[out], y[out]) if len(out) else None
