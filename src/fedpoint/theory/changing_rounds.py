r"""What do runs do whose rounds change? Mean and covariance along the path, linearised anew in every round.

$$ x_{t+1} = F_t(x_t), \qquad \Sigma_{t+1} = E[J_t \Sigma_t J_t'] + Q_t, $$

with the slopes J_t of drawn rounds at the mean x_t, and Q_t their noise there. Nothing settles: there is no floor.
"""

from __future__ import annotations

from functools import cached_property, partial

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.errors import FedpointError
from fedpoint.core.precision import double
from fedpoint.theory.expected_round import Numbers
from fedpoint.theory.moments import Moving, Spread, linearise, move, spread_of
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law
from fedpoint.theory.round_maps import models_at
from fedpoint.theory.space import Space

LARGEST = 200  # numbers of a state, up to which its covariance is followed
ALONG = 64  # rounds of a program


class ChangingRounds:
    """Runs from the state `origin` whose rounds change; reading: R with |R x|^2 what is measured of a deviation x."""

    def __init__(self, setting: Setting, origin: np.ndarray, reading: np.ndarray, gauge: Gauge):
        self.setting, self.origin, self.reading, self.gauge = setting, origin, reading, gauge
        if setting.lossy and not setting.known_channel:
            raise FedpointError("no curve of rounds that change: what the channel does is known from drawn rounds only")
        if setting.size > LARGEST or not (setting.exact or setting.oracle.known_noise):
            raise FedpointError(
                f"the curve of rounds that change is forecast for states up to {LARGEST} numbers and problems "
                f"that tell the covariance of their samples; this one has {setting.size}"
            )

    def path(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): the expected error."""
        gap, variance, _ = self._followed(rounds)
        return (gap**2).sum(1) + variance

    def law(self, round: int) -> Law:
        """Of the error of a single run."""
        gap, _, covariance = self._followed(round)
        return Law.of(gap[-1], covariance)

    @double
    def _followed(self, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rounds + 1, r): what is measured of the mean's distance to its aim; (rounds + 1,): the trace of the
        covariance of what is measured; (r, r): that covariance at the end."""
        s, R = self.setting, jnp.asarray(self.reading)
        state = (jnp.asarray(self.origin), jnp.zeros((len(self.origin),) * 2))
        means, variances, last, first = [s.read(self.origin)[None]], [np.zeros(1)], np.zeros((len(R),) * 2), 0
        while first < rounds:
            state, found = _along(s.space, s.numbers, self._spread, R, state, jnp.int32(first))
            mean, covariance = (np.asarray(a)[: rounds - first] for a in found)
            means.append(mean)
            variances.append(np.trace(covariance, axis1=1, axis2=2))
            last, first = covariance[-1], first + ALONG
        return self.gauge(np.concatenate(means) - self.gauge.target), np.concatenate(variances), last

    @cached_property
    def _spread(self) -> Spread:
        return spread_of(self.setting)


@partial(fairly_quickly, static_argnums=0)
def _along(
    space: Space,
    numbers: Numbers,
    spread: Spread,
    R: Array,
    state: tuple[Array, Array],
    first: Array,
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The state after so many rounds, and the model's mean and R Sigma R' after each of them."""

    def go(state: tuple[Array, Array], round: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        x, sigma = state
        linear = linearise(space, numbers, spread, x, round)
        S = jnp.zeros((1 + x.size,) * 2).at[0, 0].set(1.0).at[1:, 1:].set(sigma)
        S = move(space, Moving(numbers, spread, linear), S)
        shift = S[0, 1:]
        x, sigma = x + shift, S[1:, 1:] - jnp.outer(shift, shift)
        return (x, sigma), (models_at(space, numbers, x), R @ sigma @ R.T)

    return lax.scan(go, state, first + jnp.arange(ALONG))
