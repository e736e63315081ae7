"""Noise at the hub that is partly taken back in the next rounds: less of it stays in a model that adds up changes."""

from __future__ import annotations

from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.channel.base import Channel, ChannelContext, Hub, Noise
from fedpoint.channel.gaussian import Gaussian, ScaledGaussian, normal
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Message

CHECKED = 256  # terms of 1/c(x) that are looked at


class Correlated(Gaussian):
    r"""Noise $n_t = \xi_t + c_1 \xi_{t-1} + c_2 \xi_{t-2} + \dots$ on the sum, $\xi_t$ normal as of `Gaussian`.

    Args:
        multiplier: $z$ of the fresh $\xi_t$, whose standard deviation is $z\, C\, v_{\max}$.
        coefficients: $1, c_1, c_2, \dots$; a number $a$ stands for $1, -a$: what was added is taken back by the part
            $a$ a round later. $1/c(x)$ must have falling coefficients that are not negative, as for $0 < a < 1$.

    All rounds together are one Gaussian mechanism: nobody is hidden by not being drawn, and an agent that takes part
    often tells more than with fresh noise. Schemes that do not bound how soon an agent takes part again are refused.
    Nothing is kept at the hub: $\xi_{t-1}$ is drawn again.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [0.0]])
    >>> def floor(noise):
    ...     return fp.run(fp.FedAvg(0.1), quad, rounds=30, repeats=1000, channel=[fp.channel.Clip(1.0), noise]).error
    >>> fresh, taken_back = floor(fp.channel.Gaussian(0.5)), floor(fp.channel.Correlated(0.5, coefficients=0.8))
    >>> bool(taken_back[:, -1].mean() < 0.4 * fresh[:, -1].mean())
    True
    """

    coefficients: tuple[float, ...] | float = field(kw_only=True)

    def check(self) -> None:
        if self.at != "hub":
            raise FedpointError('Correlated: noise that is taken back later must be added by the hub: use at="hub"')
        c = np.asarray(self.series, float)
        if c.ndim != 1 or len(c) < 2 or c[0] != 1:
            raise FedpointError(f"Correlated: coefficients must be a number, or 1 and at least one more; got {list(c)}")
        h = inverse_series(c, CHECKED)
        if not np.isfinite(h).all() or (h < -1e-12).any() or (np.diff(h) > 1e-12).any():
            raise FedpointError(
                "Correlated: 1/c(x) must have non-negative, decreasing coefficients, as with a number between 0 and "
                "1; got {self.coefficients!r}"
            )

    @property
    def series(self) -> tuple[float, ...]:
        """1, c_1, c_2, ..."""
        given = self.coefficients
        return (1.0, -given) if isinstance(given, int | float) else tuple(given)

    def noise_coefficients(self) -> np.ndarray:
        return np.asarray(self.series, float)

    def noises(self) -> tuple[Noise, ...]:
        return (Noise(self.multiplier, self.at, tuple(float(c) for c in self.series)),)

    def bind(self, context: ChannelContext) -> Channel:
        bound = super().bind(context)
        assert isinstance(bound, ScaledGaussian)
        return ScaledCorrelated(
            self.multiplier,
            self.at,
            clip=bound.clip,
            behind=bound.behind,
            heaviest=bound.heaviest,
            scale=bound.scale,
            least=bound.least,
            series=self.series,
        )


class ScaledCorrelated(ScaledGaussian):
    """The same with what it is scaled by."""

    series: tuple[float, ...] = field(kw_only=True)

    def noise_coefficients(self) -> np.ndarray:
        return np.asarray(self.series, float)

    def noises(self) -> tuple[Noise, ...]:
        return (Noise(self.multiplier, self.at, tuple(float(c) for c in self.series)),)

    def noise(self, like: Message, hub: Hub) -> Message:
        total = normal(like, hub.luck)
        for ago, c in enumerate(self.series[1:], 1):
            part = jnp.where(hub.round >= ago, c, 0.0)  # before the first round there was nothing
            total = jax.tree.map(lambda t, x, part=part: t + part * x, total, normal(like, hub.earlier(ago)))
        return total


def inverse_series(coefficients: np.ndarray, terms: int) -> np.ndarray:
    """h with 1/c(x) = sum_j h_j x^j, so many terms: h_0 = 1, h_j = -sum_i c_i h_{j-i}."""
    h, c = np.zeros(terms), np.asarray(coefficients, float)
    h[0] = 1.0
    for j in range(1, terms):
        n = min(j, len(c) - 1)
        h[j] = -(c[1 : n + 1] @ h[j - n : j][::-1])
    return h
