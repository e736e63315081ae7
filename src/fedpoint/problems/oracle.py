"""What an agent's data answers: fields, samples, losses and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedpoint.core.errors import FedpointError
from fedpoint.core.random import Key, Row, Stream
from fedpoint.core.record import owner_of
from fedpoint.core.types import Data, Model, Number

Numbers: TypeAlias = np.ndarray | Array  # NumPy's where a problem holds them, of all agents; JAX's in a round, of one


class Mine(NamedTuple):
    """What one agent holds: its own slice of the agents' arrays, and the arrays that all share.

    Attributes:
        own: the agent's slice of the agents' arrays.
        common: the arrays that all share.
    """

    own: Data
    common: Data


class Jumps(NamedTuple):
    """A world that goes on as a finite Markov chain, of S states and Z things that a step may bring."""

    first: np.ndarray  # (S,): the probability of every state at the beginning
    state: np.ndarray  # (Z,): in which state this may happen
    chance: np.ndarray  # (Z,): its probability there
    after: np.ndarray  # (Z, S): where the world goes on then
    sample: np.ndarray  # (Z,): the sample that `field` is asked with


class Oracle:
    """How one agent answers. Pure functions; a frozen dataclass whose fields are structure, not numbers.

    Drawing is apart from using, so that samples can be drawn ahead for many rounds: `draw` never sees a model.

    Arguments of methods:
        mine: what the agent holds: its own slice of the data, and what all share.
        w, v: models.
        z: a sample.
        P: (d, d) a matrix, for instance the covariance of a deviation.
        key: the agent's random stream in this round.
        plan: what was drawn once for the round.
    """

    predraw = True  # samples are worth drawing ahead; False: they are only looked up in the plan
    fetches = False  # samples are indices whose rows are worth fetching ahead
    known_noise = False  # `covariance` and `scatter` describe the samples; False: they are the base's zeros
    independent = True  # samples of different steps of a round are independent; False: for instance an order of rows

    def plan(self, mine: Mine, key: Key | Stream) -> Data:
        """What is drawn once a round, for instance an order of the rows."""
        return ()

    def plan_shape(self, mine: Mine, key: Key | Stream) -> Data:
        """Shapes of a plan: by tracing, where an oracle does not know them."""
        return _plan.eval_shape(self, mine, key)

    def draw(self, mine: Mine, plan: Data, row: Row, e: Number) -> Data:
        """The e-th sample of a round.

        Args:
            row: the randomness of this sample.
            e: its number in the round.
        """
        return ()

    derivatives = ""  # why a round of it cannot be differentiated; empty: it can
    ways = ""  # how fields are computed, where that is not as they are written
    noisy = True  # False: fields are exact, whatever is drawn
    buckets: tuple[int, ...] = ()  # sizes by which rows are ordered
    gram = False  # full fields cost the same for every agent, however many rows it has
    moves = False  # samples come from a world that goes on between rounds: `begin`, `walk`, `moved` instead of `plan`

    def begin(self, mine: Mine, key: Key | Stream) -> Data:
        """Where an agent's world is before the first round."""
        return ()

    def walk(self, mine: Mine, key: Key | Stream, world: Data) -> Data:
        """What `plan` is to a world that goes on: what may be seen in a round that begins here.

        Args:
            world: where the agent's world is.
        """
        return self.plan(mine, key)

    def moved(self, plan: Data, samples: Data) -> Data:
        """Where the world is after so many samples of a plan.

        Args:
            samples: those that the round used.
        """
        return ()

    def jumps(self, mine: Mine) -> Jumps | None:
        """The chain behind a world that goes on, where it is finite and known; for forecasts."""
        return None

    def fetch(self, common: Data, z: Data) -> Data:
        """What a sample names, where `fetches` says that it names something in the shared arrays.

        Args:
            common: the arrays that all agents share.
        """
        return z

    def field(self, mine: Mine, w: Model, z: Data) -> Model:
        """g(w; z)."""
        raise FedpointError(f"{type(self).__name__} has no field")

    def mean_field(self, mine: Mine, w: Model) -> Model:
        """g_k(w) = E g(w; z)."""
        return jax.grad(lambda v: self.loss(mine, v))(w)

    def loss(self, mine: Mine, w: Model) -> Array:
        raise FedpointError(f"{type(self).__name__} has no loss: its field is not a gradient")

    def hessian(self, mine: Mine, w: Model) -> Array:
        """(d, d): the derivative of g_k at w, in the order of `ravel_pytree`."""
        flat, unravel = ravel_pytree(w)
        return jax.jacfwd(lambda v: ravel_pytree(self.mean_field(mine, unravel(v)))[0])(flat)

    def hessian_times(self, mine: Mine, w: Model, v: Model) -> Model:
        """The derivative of g_k at w along v, built as a model."""
        return jax.jvp(lambda u: self.mean_field(mine, u), (w,), (v,))[1]

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        """argmin_v loss(v) + weight |v - center|^2.

        Args:
            center: the model that the answer is drawn to.
            weight: how strongly.
        """
        return newton(lambda v: self.mean_field(mine, v), center, weight)

    def covariance(self, mine: Mine, w: Model) -> Array:
        """(d, d): the covariance of one sampled field g(w; z), in the order of `ravel_pytree`.

        Zeros unless one of the two is written, which is right for an oracle that draws nothing; `known_noise` says
        whether to believe them.
        """
        return self.cross_covariance(mine, w, w)

    def scatter(self, mine: Mine, w: Model, P: Array) -> Array:
        """(d, d): E[(A(z) - A) P (A(z) - A)'], A(z) = dg(w; z)/dw with mean A, for a symmetric P.

        How much noise a deviation of covariance P adds to the field, because its slope is sampled too.
        """
        return self.cross_scatter(mine, w, w, P)

    # The same of two fields that are asked for with the same sample: what chains side by side share.

    def cross_covariance(self, mine: Mine, w: Model, v: Model) -> Array:
        """(d, d): E[n(w; z) n(v; z)'] with the noise n(w; z) = g(w; z) - E g(w; z)."""
        return no_noise(w)

    def cross_scatter(self, mine: Mine, w: Model, v: Model, P: Array) -> Array:
        """(d, d): E[n'(w; z) P n'(v; z)'], for any P."""
        return no_noise(w)

    @property
    def known_cross_noise(self) -> bool:
        """Whether these describe the samples too: where `covariance` and `scatter` are made of them."""
        return self.known_noise and all(owner_of(type(self), name) is Oracle for name in ("covariance", "scatter"))


@partial(jax.jit, static_argnums=0)  # traced once for all runs of its kind
def _plan(oracle: Oracle, mine: Mine, key: Key | Stream) -> Data:
    return oracle.plan(mine, key)


def no_noise(w: Model) -> Array:
    """(d, d) zeros."""
    d = sum(np.size(a) for a in jax.tree.leaves(w))
    return jnp.zeros((d, d))


DENSE = 256  # numbers of a model, up to which the derivative of a prox solves a dense system


def newton(
    gradient: Callable[[Model], Model], center: Model, weight: Number, tolerance: float = 1e-13, most: int = 50
) -> Model:
    """Newton's method with conjugate gradients for gradient(v) + 2 weight (v - center) = 0, halving where needed.

    Its derivative (forward mode) is that of the solution, by the implicit function theorem, not that of the iterations.
    """
    origin, unravel = ravel_pytree(center)

    def equation(v: Array) -> Array:
        return ravel_pytree(gradient(unravel(v)))[0] + 2 * weight * (v - origin)

    def slope(linear: Callable[[Array], Array], right: Array) -> Array:
        if right.size > DENSE:
            return jax.scipy.sparse.linalg.cg(linear, right, tol=1e-14, maxiter=10 * right.size)[0]
        return jnp.linalg.solve(jax.vmap(linear, out_axes=1)(jnp.eye(right.size, dtype=right.dtype)), right)

    return unravel(lax.custom_root(equation, origin, lambda f, v: _newton(f, v, tolerance, most), slope))


Improving: TypeAlias = tuple[Array, Array, Number, Array]  # a point, what is left there, steps so far, and no way on


def _newton(residual: Callable[[Array], Array], origin: Array, tolerance: float, most: int) -> Array:
    def improve(state: Improving) -> Improving:
        v, r, i, _ = state
        step, _ = jax.scipy.sparse.linalg.cg(lambda d: jax.jvp(residual, (v,), (d,))[1], -r, tol=1e-14, maxiter=200)
        size = jnp.linalg.norm(r)

        def shorter(s: Array) -> Array:
            return (s > 1e-4) & ~(jnp.linalg.norm(residual(v + s * step)) < (1 - 1e-4 * s) * size)

        s = lax.while_loop(shorter, lambda s: s / 2, jnp.ones((), v.dtype))
        better = v + s * step
        left = residual(better)
        stuck = ~(jnp.linalg.norm(left) < size)
        return jnp.where(stuck, v, better), jnp.where(stuck, r, left), i + 1, stuck

    def unfinished(state: Improving) -> Array:
        v, r, i, stuck = state
        return (i < most) & ~stuck & (jnp.linalg.norm(r) > tolerance * (1 + jnp.linalg.norm(v)))

    start: Improving = (origin, residual(origin), 0, jnp.asarray(False))
    return lax.while_loop(unfinished, improve, start)[0]
