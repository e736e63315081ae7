r"""How noisy are many local steps that are all alike? One affine step, raised to a power.

Write x = (1, y, ext) for what a loop holds: y around its start, ext what came from outside. On average a step maps x to
A x. Its field is asked for at a point that is affine in x, and the covariance of an affine field's noise is a quadratic
polynomial in that point: its mean needs the point's first two moments and nothing else. So the covariance W that noise
adds to y, and the second moment M = E[x x'] of the mean, go through a step as

$$ M^+ = A M A', \qquad W^+ = \Phi W + B M, $$

and through H of them by repeated squaring: log2(H) products instead of H steps, once instead of for every S.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

LARGEST = 12  # numbers of a loop's state, up to which this is cheaper than going through the steps
ENTRIES = 1 << 24  # of the tables of all agents

# The covariance of a field asked for at p = point + x, with E 1, E x and E x x' in this order: linear in all three.
FieldNoise = Callable[[Array, Array, Array], Array]


class AlikeStep(NamedTuple):
    """y+ = drift + F y + T ext + N noise, y around the start of the loop; the field is asked for at H y + V ext."""

    drift: Array  # (y,)
    F: Array
    T: Array
    N: Array
    H: Array
    V: Array


class Steps(NamedTuple):
    """Some steps in a row. Covariances are the q = y (y + 1) / 2 numbers of a symmetric matrix's upper triangle."""

    mean: Array  # (x, x): A
    kept: Array  # (q, q): Phi
    added: Array  # (q, x, x): B

    def after(self, first: Steps) -> Steps:
        moved = jnp.einsum("qab,ac,bd->qcd", self.added, first.mean, first.mean)
        return Steps(
            self.mean @ first.mean, self.kept @ first.kept, moved + jnp.tensordot(self.kept, first.added, axes=1)
        )

    def power(self, count: Array, most: int) -> Steps:
        """`count` times these, at most `most`."""
        none = Steps(jnp.eye(len(self.mean)), jnp.eye(len(self.kept)), jnp.zeros_like(self.added))

        def bit(i: Array, carry: tuple[Steps, Steps]) -> tuple[Steps, Steps]:
            done, more = carry
            taken = (count >> i) & 1 == 1
            done = jax.tree.map(lambda a, b: jnp.where(taken, a, b), more.after(done), done)
            return done, more.after(more)

        return lax.fori_loop(0, most.bit_length(), bit, (none, self))[0]


def worthwhile(agents: int, state: int, ext: int) -> bool:
    """Whether the tables of a loop are small."""
    return state <= LARGEST and agents * state * (state + 1) // 2 * (1 + state + ext) ** 2 <= ENTRIES


def added_noise(step: AlikeStep, start: Array, noise: FieldNoise, count: Array, most: int) -> Array:
    """(y, y, 1 + ext, 1 + ext): what `count` steps from `start` add to the covariance of y, by the second moments of
    (1, ext)."""
    n, ext = start.shape
    first = jnp.zeros((1 + n + ext, 1 + ext)).at[0, 0].set(1.0).at[1 : 1 + n, 1:].set(start)
    first = first.at[1 + n :, 1:].set(jnp.eye(ext))
    table = one_step(step, noise).power(count, most).added
    return unpacked(jnp.einsum("qab,ac,bd->cdq", table, first, first), n).transpose(2, 3, 0, 1)


def one_step(step: AlikeStep, noise: FieldNoise) -> Steps:
    n, d, ext = len(step.F), len(step.H), step.T.shape[1]
    mean = jnp.eye(1 + n + ext).at[1 : 1 + n].set(jnp.column_stack([step.drift, step.F, step.T]))
    asked = jnp.column_stack([jnp.zeros(d), step.H, step.V])

    def tabulated(mass: Array, shift: Array, spread: Array) -> Array:
        return packed(noise(mass, shift, unpacked(spread, d)))

    size = d * (d + 1) // 2
    constant, linear, quadratic = jax.jacfwd(tabulated, argnums=(0, 1, 2))(jnp.zeros(()), jnp.zeros(d), jnp.zeros(size))

    def covariance(W: Array, M: Array) -> Array:
        W = unpacked(W, n)
        spread = packed(asked @ M @ asked.T + step.H @ W @ step.H.T)
        C = unpacked(constant * M[0, 0] + linear @ (asked @ M[:, 0]) + quadratic @ spread, d)
        return packed(step.F @ W @ step.F.T + step.N @ C @ step.N.T)

    kept, added = jax.jacrev(covariance, argnums=(0, 1))(jnp.zeros(n * (n + 1) // 2), jnp.zeros_like(mean))
    return Steps(mean, kept, added)


def packed(C: Array) -> Array:
    """The upper triangle of a symmetric matrix."""
    return C[jnp.triu_indices(len(C))]


def unpacked(c: Array, size: int) -> Array:
    """(..., size, size): the symmetric matrix again."""
    i, j = jnp.triu_indices(size)
    place = jnp.zeros((size, size), int).at[i, j].set(jnp.arange(len(i)))
    return c[..., place + place.T - jnp.diag(jnp.diag(place))]
