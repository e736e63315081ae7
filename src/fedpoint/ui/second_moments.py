"""What is the expected squared error of FedLSA and SCAFFLSA, round by round? Exactly, and as fast as a slider asks.

`fp.forecast` says the same for any algorithm, by differentiating its program; this is the recursion written out for
two of them on TD with independent samples. A local step of agent c on an outcome z, with u = w - w*, is

    u <- u - eta (A_z u - b_z) + eta xi,      b_z taken at w*,

so that (1, u, xi) goes through a random matrix G_z, and its second moments through E[G_z (x) G_z]: H steps are the H-th
power. Agents are independent given the hub's model and their corrections xi_c.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpoint.problems import TD


class Outcomes(NamedTuple):
    """The fields A_z u - b_z of the agents' outcomes, with their probabilities."""

    A: np.ndarray  # (N, n, d, d)
    b: np.ndarray  # (N, n, d)
    chance: np.ndarray  # (N, n)


def outcomes_of(problem: TD) -> Outcomes:
    """Those of a TD problem, in coordinates around its solution."""
    (phi, gamma), own = problem.common, problem.own
    left = phi[own.state]
    A = left[..., :, None] * (left - gamma * phi[own.after])[..., None, :]
    return Outcomes(A, left * own.reward[..., None] - A @ problem.solution(), own.chance)


def squared_error(
    outcomes: Outcomes, p: np.ndarray, step: float, local_steps: int, rounds: int, first: np.ndarray, corrected: bool
) -> np.ndarray:
    """(rounds + 1,): E|w_t - w*|^2 from w_0 - w* = `first`, of SCAFFLSA (`corrected`) or FedLSA; inf where it grows."""
    N, d = len(p), len(first)
    with np.errstate(all="ignore"):  # a step that is too long: infinity is the answer
        mean, noise = _local(outcomes, step, local_steps, corrected)
        size = 1 + d * (1 + N * corrected)  # the state: 1, w - w*, and xi_c of every agent
        w = slice(1, 1 + d)
        ends = [np.arange(1 + d * (1 + c), 1 + d * (2 + c)) if corrected else np.arange(0) for c in range(N)]
        own = np.stack([np.concatenate([np.arange(1 + d), xi]) for xi in ends])  # what agent c works with
        F, B = np.zeros((size, size)), np.zeros((N, size, d))  # B: where the noise of agent c's model goes
        F[0, 0] = 1.0
        for c in range(N):
            F[w, own[c]] += p[c] * mean[c]
        B[:, w] = p[:, None, None] * np.eye(d)
        if corrected:
            gain = 1 / (step * local_steps)
            for c, xi in enumerate(ends):
                F[xi] = gain * F[w]
                F[xi, xi] += 1.0
                F[xi[:, None], own[c]] -= gain * mean[c]
                B[:, xi] = gain * B[:, w]
                B[c, xi] -= gain * np.eye(d)
        S, curve = np.zeros((size, size)), np.empty(rounds + 1)
        S[: 1 + d, : 1 + d] = np.outer(np.append(1.0, first), np.append(1.0, first))
        rows, columns = own[:, :, None], own[:, None, :]
        back = np.swapaxes(B, 0, 1).reshape(size, N * d).T
        for t in range(rounds + 1):
            curve[t] = np.trace(S[w, w])
            added = (noise @ S[rows, columns].reshape(N, -1, 1)).reshape(N, d, d)
            S = F @ S @ F.T + np.swapaxes(B @ added, 0, 1).reshape(size, N * d) @ back
        return np.where(np.isfinite(curve), curve, np.inf)


def _local(outcomes: Outcomes, step: float, local_steps: int, corrected: bool) -> tuple[np.ndarray, np.ndarray]:
    """H local steps of every agent from v = (1, u, xi): E u = mean v, and Cov u = noise vec(E v v')."""
    A, b, chance = outcomes
    N, n, d = b.shape
    size = 1 + d * (1 + corrected)
    w = slice(1, 1 + d)
    G = np.broadcast_to(np.eye(size), (N, n, size, size)).copy()
    G[..., w, 0] = step * b
    G[..., w, w] -= step * A
    if corrected:
        G[..., w, 1 + d :] = step * np.eye(d)
    flat = G.reshape(N, n, -1)
    pairs = np.swapaxes(chance[:, :, None] * flat, 1, 2) @ flat
    spread = pairs.reshape(N, *(size,) * 4).swapaxes(2, 3)  # E G_ij G_kl, as (i, k) from (j, l)
    # Second moments are symmetric: a power of the map between lower triangles is four to eight times cheaper.
    low = np.tril_indices(size)
    number = np.zeros((size, size), int)
    number[low] = np.arange(len(low[0]))
    number = np.maximum(number, number.T)
    twice = np.zeros((size * size, len(low[0])))
    twice[np.arange(size * size), number.ravel()] = 1.0
    narrow = spread[:, low[0], low[1]].reshape(N, len(low[0]), -1) @ twice
    power = np.linalg.matrix_power(narrow, local_steps)[:, number[w, w].ravel()]
    whole = np.zeros((N, d * d, size * size))
    whole[..., low[0] * size + low[1]] = power
    mean = np.linalg.matrix_power((chance[:, None] @ flat).reshape(N, size, size), local_steps)[:, w]
    product = mean[:, :, None, :, None] * mean[:, None, :, None, :]
    return mean, whole - product.reshape(N, d * d, -1)
