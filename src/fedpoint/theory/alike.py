r"""How noisy are many local steps that are all alike? One affine step, raised to a power.

Write x = (1, y, ext) for what a loop holds: y around its start, ext what came from outside. On average a step maps x to
A x. Its field is asked for at a point that is affine in x, and the covariance of an affine field's noise is a quadratic
polynomial in that point: its mean needs the point's first two moments and nothing else. So the covariance W that noise
adds to y, and the second moment M = E[x x'] of the mean, go through a step as

$$ M^+ = A M A', \qquad W^+ = \Phi W + B M, $$

and through H of them by repeated squaring: log2(H) products instead of H steps, once instead of for every S. Here with
NumPy, for all agents together: there is nothing to compile. Symmetric matrices are the q = d (d + 1) / 2 numbers of
their upper triangles. Of ext only what enters every step is kept. Agents that differ only in where their noise is
least and their steps lead share a table, seen from there.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.types import Tree

LARGEST = 12  # numbers of a loop's state, up to which tables are small
ENTRIES = 1 << 24  # of the tables of all agents
ROUNDING = 1e-12  # by which agents that are alike may differ


class AlikeStep(NamedTuple):
    """y+ = drift + F y + T ext + N noise, y around the start of the loop; the field is asked for at H y + V ext.

    All arrays lead with agents, in as many axes as they like.
    """

    drift: np.ndarray  # (..., y)
    F: np.ndarray
    T: np.ndarray
    N: np.ndarray
    H: np.ndarray
    V: np.ndarray
    noise: (
        np.ndarray
    )  # (..., q, 1 + d + q): the covariance of a field, by mass, shift and spread of where it is asked for


class Table(NamedTuple):
    """What all steps of a loop add to the covariance of y: added @ packed(first Z first'), Z the second moments of
    (1, ext). `added` leads with agents as `first` does, or with ones where they share it."""

    first: Tree  # (..., x, 1 + ext)
    added: Tree  # (..., q, x (x + 1) / 2)


class Steps(NamedTuple):
    """Some steps in a row."""

    mean: np.ndarray  # (..., x, x): A
    kept: np.ndarray  # (..., q, q): Phi
    added: np.ndarray  # (..., q, x, x): B, symmetric in its last axes

    def after(self, first: Steps) -> Steps:
        moved = _times(_times(self.added, first.mean), first.mean)
        flat = first.added.reshape(*first.added.shape[:-2], -1)
        return Steps(
            self.mean @ first.mean, self.kept @ first.kept, moved + (self.kept @ flat).reshape(first.added.shape)
        )

    def power(self, counts: np.ndarray) -> Steps:
        """As many times these as `counts` says, (...)."""
        still = [np.broadcast_to(np.eye(a.shape[-1]), a.shape) for a in (self.mean, self.kept)]
        done = Steps(still[0], still[1], np.zeros_like(self.added))
        begun = False
        for bit in reversed(range(int(counts.max(initial=0)).bit_length())):
            done = done.after(done) if begun else done
            taken = (counts >> bit) & 1 == 1
            if taken.any():
                more = self.after(done) if begun else self
                done = Steps(*(np.where(_wide(taken, a), a, b) for a, b in zip(more, done, strict=True)))
                begun = True
        return done


def _times(B: np.ndarray, A: np.ndarray) -> np.ndarray:
    """(B A)', for all q at once: twice gives A'BA of symmetric B."""
    *agents, q, x, _ = B.shape
    return np.swapaxes((B.reshape(*agents, q * x, x) @ A).reshape(B.shape), -1, -2)


def _wide(which: np.ndarray, like: np.ndarray) -> np.ndarray:
    return which.reshape(which.shape + (1,) * (like.ndim - which.ndim))


def worthwhile(agents: int, state: int, ext: int) -> bool:
    """Whether the tables of a loop are small."""
    return state <= LARGEST and agents * state * (state + 1) // 2 * (1 + state + ext) ** 2 <= ENTRIES


def added_noise(step: AlikeStep, start: np.ndarray, counts: np.ndarray) -> Table:
    """What so many steps from `start` add to the covariance of y, by the second moments of (1, ext)."""
    *agents, n, ext = start.shape
    first = np.zeros((*agents, 1 + n, 1 + ext))
    first[..., 0, 0] = 1.0
    first[..., 1:, 1:] = start
    step, entering = _inputs(step)
    centred = _seen_alike(step, entering, counts) if int(np.prod(agents)) == max(agents, default=1) > 1 else None
    if centred is not None:
        step, counts, centre, entering = centred
        first[..., 1:, 0] = -centre
    first = np.concatenate([first, entering], axis=-2)
    return Table(first, _packed_twice(one_step(step).power(counts).added))


def _inputs(step: AlikeStep) -> tuple[AlikeStep, np.ndarray]:
    """The step with what enters it in as few numbers as tell it, and how they follow from (1, ext): the sum of what
    moves y from outside, where fields are asked for at y alone."""
    *agents, _, ext = step.T.shape
    d = step.H.shape[-2]
    if step.V.any():
        rows = _row_space(np.concatenate([step.T, step.V], axis=-2).reshape(-1, ext))
        entering = np.broadcast_to(np.column_stack([np.zeros(len(rows)), rows]), (*agents, len(rows), 1 + ext))
        return step._replace(T=step.T @ rows.T, V=step.V @ rows.T), entering
    if not step.T.any():
        return step._replace(T=step.T[..., :0], V=step.V[..., :0]), np.zeros((*agents, 0, 1 + ext))
    return _pushed(step, np.concatenate([step.drift[..., None], step.T], axis=-1), d)


def _pushed(step: AlikeStep, entering: np.ndarray, d: int) -> tuple[AlikeStep, np.ndarray]:
    *agents, n, _ = entering.shape
    T, V = np.broadcast_to(np.eye(n), (*agents, n, n)), np.zeros((*agents, d, n))
    return step._replace(drift=np.zeros_like(step.drift), T=T, V=V), entering


def _seen_alike(
    step: AlikeStep, entering: np.ndarray, counts: np.ndarray
) -> tuple[AlikeStep, np.ndarray, np.ndarray, np.ndarray] | None:
    """A step and a count that all agents have in common, the centre from which they are each agent's, and what enters
    the step; None where agents differ in more."""
    axes = counts.ndim
    n, d = step.F.shape[-1], step.H.shape[-2]
    quadratic, linear = step.noise[..., 1 + d :], step.noise[..., 1 : 1 + d]
    if not _all_equal((*step[1:6], quadratic, counts), axes):
        return None
    system = np.stack([(quadratic.reshape(-1, *quadratic.shape[-2:])[0] @ _tilt(e)).ravel() for e in np.eye(d)], axis=1)
    h = -linear.reshape(*linear.shape[:-2], -1) @ np.linalg.pinv(system, rcond=1e-10).T  # where it has no linear part
    centre = h @ np.linalg.pinv(step.H.reshape(-1, d, n)[0]).T
    seen = moved(step, centre)
    if not _all_equal((seen.noise,), axes):
        return None
    if not _all_equal((seen.drift,), axes):
        if step.V.any():
            return None
        pushed = entering.copy() if entering.shape[-2] else np.zeros((*entering.shape[:-2], n, entering.shape[-1]))
        pushed[..., 0] += seen.drift
        seen, entering = _pushed(seen, pushed, d)
    return AlikeStep(*(_one(a, axes) for a in seen)), _one(counts, axes), centre, entering


def _tilt(h: np.ndarray) -> np.ndarray:
    """(..., q, d): the upper triangle of (x + h)(x + h)' by x, without its part of second order."""
    d = h.shape[-1]
    i, j = np.triu_indices(d)
    return np.asarray(h[..., i, None] * np.eye(d)[j] + h[..., j, None] * np.eye(d)[i])


def moved(step: AlikeStep, centre: np.ndarray) -> AlikeStep:
    """The same with y around another point of each agent's."""
    d = step.H.shape[-2]
    i, j = np.triu_indices(d)
    h = np.einsum("...ij,...j->...i", step.H, centre)
    constant, linear, quadratic = np.split(step.noise, [1, 1 + d], axis=-1)
    constant = constant + linear @ h[..., None] + quadratic @ (h[..., i] * h[..., j])[..., None]
    drift = step.drift + np.einsum("...ij,...j->...i", step.F, centre) - centre
    return step._replace(
        drift=drift, noise=np.concatenate([constant, linear + quadratic @ _tilt(h), quadratic], axis=-1)
    )


def _row_space(rows: np.ndarray) -> np.ndarray:
    """(r, ext): an orthonormal basis of what rows span."""
    _, sizes, basis = np.linalg.svd(np.linalg.qr(rows, mode="r") if len(rows) > rows.shape[1] else rows)
    return basis[: int((sizes > 1e-13 * sizes.max(initial=1e-300)).sum())]


def _all_equal(arrays: tuple[np.ndarray, ...], axes: int) -> bool:
    """Whether arrays say the same of all agents, up to rounding."""
    for a in arrays:
        apart = np.abs(a - _one(a, axes)).max(initial=0.0)
        if not apart <= ROUNDING * (1e-3 + np.abs(a).max(initial=0.0)):
            return False
    return True


def _one(a: np.ndarray, axes: int) -> np.ndarray:
    """Of the first agent, with axes of ones in front."""
    return a[(slice(1),) * axes]


def one_step(step: AlikeStep) -> Steps:
    *agents, n, ext = step.T.shape
    d = step.H.shape[-2]
    mean = np.broadcast_to(np.eye(1 + n + ext), (*agents, 1 + n + ext, 1 + n + ext)).copy()
    mean[..., 1 : 1 + n, :] = np.concatenate([step.drift[..., None], step.F, step.T], axis=-1)
    asked = np.concatenate([np.zeros((*agents, d, 1)), step.H, step.V], axis=-1)
    constant, linear, quadratic = np.split(step.noise, [1, 1 + d], axis=-1)
    i, j = np.triu_indices(d)
    spread = asked[..., i, :, None] * asked[..., j, None, :]
    field = (quadratic @ spread.reshape(*agents, len(i), -1)).reshape(spread.shape)
    field[..., 0] += linear @ asked
    field[..., 0, 0] += constant[..., 0]
    field = (field + np.swapaxes(field, -1, -2)) / 2
    through = congruence(step.N)
    added = (through @ field.reshape(*agents, len(i), -1)).reshape(*agents, -1, *field.shape[-2:])
    return Steps(mean, congruence(step.F) + through @ quadratic @ congruence(step.H), added)


def _packed_twice(B: np.ndarray) -> np.ndarray:
    """(..., x (x + 1) / 2): symmetric maps <B, M> of symmetric M as maps of M's upper triangle."""
    i, j = np.triu_indices(B.shape[-1])
    return B[..., i, j] * np.where(i == j, 1.0, 2.0)


def congruence(X: np.ndarray) -> np.ndarray:
    """W -> X W X' for symmetric W, as a matrix."""
    (i, j), (k, m) = (np.triu_indices(size) for size in X.shape[-2:])

    def at(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return X[..., rows, :][..., columns]

    return at(i, k) * at(j, m) + np.where(k < m, at(i, m) * at(j, k), 0.0)


def congruences(X: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The sum of weights[k] times the congruence of X[k]."""
    K, rows, columns = X.shape
    if not weights.any():
        return np.zeros((rows * (rows + 1) // 2, columns * (columns + 1) // 2))
    flat = X.reshape(K, -1)
    products = ((weights[:, None] * flat).T @ flat).reshape(rows, columns, rows, columns)
    (i, j), (k, m) = np.triu_indices(rows), np.triu_indices(columns)
    i, j = i[:, None], j[:, None]
    return np.asarray(products[i, k, j, m] + np.where(k < m, products[i, m, j, k], 0.0))


def packed(C: Array) -> Array:
    """The upper triangle of a symmetric matrix."""
    return C[np.triu_indices(len(C))]


def unpacked(c: Array, size: int) -> Array:
    """(size, size): the symmetric matrix again."""
    place = np.zeros((size, size), int)
    place[np.triu_indices(size)] = np.arange(size * (size + 1) // 2)
    return jnp.asarray(c)[np.maximum(place, place.T)]
