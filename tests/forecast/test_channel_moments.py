"""Do channels tell the moments of what arrives? Against enumerations of what they draw, alone and in a chain."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.channel.base import by_part, scattered

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


class Kept(fp.Channel):
    """k numbers of every array, each set of them as likely as any other, times d/k."""

    lossless = False
    k: int

    def scatter(self, second, like, share):
        return by_part(self._one, second[1:, 1:], like)

    def _one(self, M):
        d = len(M)
        a = (self.k - 1) / (d - 1)
        return (d / self.k) * (a * M + (1 - a) * jnp.diag(jnp.diag(M))) - M

    def outcomes(self, message):
        """All that may arrive of one array."""
        d = len(message)
        for kept in itertools.combinations(range(d), self.k):
            mask = np.isin(np.arange(d), kept)
            yield (d / self.k) * mask * message, 1.0


class Lost(fp.Channel):
    """All or nothing."""

    lossless = False
    chance: float

    def scatter(self, second, like, share):
        return (1 / self.chance - 1) * second[1:, 1:]

    def outcomes(self, message):
        yield message / self.chance, self.chance
        yield 0 * message, 1 - self.chance


class Shortened(fp.Channel):
    lossless = False
    factor: float
    noise: float = 0.0

    def expected(self, message):
        return jax.tree.map(lambda a: self.factor * a + 0.1, message)

    def scatter(self, second, like, share):
        return self.noise**2 * second[0, 0] * jnp.eye(len(second) - 1)

    def outcomes(self, message):
        d = len(message)
        for i, sign in itertools.product(range(d), (-1, 1)):  # uncorrelated, of variance noise^2
            yield self.factor * message + 0.1 + sign * self.noise * np.sqrt(d) * np.eye(d)[i], 1.0


def enumerated(channels, law):
    """Mean and covariance around what is expected, of all that may arrive of a message with this law."""
    rows = [(m, m, w) for m, w in law]
    for channel in channels:
        found = []
        for sent, m, w in rows:
            each = list(channel.outcomes(m))
            whole = sum(v for _, v in each)
            found += [(sent, c, w * v / whole) for c, v in each]
        rows = found
    mean = {}
    for sent, c, w in rows:
        total, weight = mean.get(tuple(sent), (0.0, 0.0))
        mean[tuple(sent)] = total + w * c, weight + w
    return sum(w * np.outer(*2 * (c - mean[tuple(s)][0] / mean[tuple(s)][1],)) for s, c, w in rows)


LAW = [(np.array([1.0, -0.5, 2.0]), 0.3), (np.array([0.2, 0.4, -1.0]), 0.5), (np.array([0.0, 3.0, 0.7]), 0.2)]
CHAINS = {
    "rand-1": [Kept(1)],
    "rand-2": [Kept(2)],
    "lost": [Lost(0.7)],
    "noise": [Shortened(0.5, 0.3)],
    "noise, rand-2": [Shortened(0.5, 0.3), Kept(2)],
    "rand-2, noise": [Kept(2), Shortened(0.5, 0.3)],
    "lost, rand-2, noise": [Lost(0.7), Kept(2), Shortened(0.9, 0.1)],
}


def second_of(law):
    rows = [(np.concatenate([[1.0], m]), w) for m, w in law]
    return jnp.asarray(sum(w * np.outer(v, v) for v, w in rows))


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_what_arrives_scatters_as_told(chain):
    got = scattered(chain, second_of(LAW), jnp.zeros(3), 0.3)
    assert np.asarray(got) == pytest.approx(enumerated(chain, LAW), abs=1e-12)
    assert np.asarray(scattered(chain, 2.5 * second_of(LAW), jnp.zeros(3), 0.3)) == pytest.approx(2.5 * np.asarray(got))


def test_without_the_diagonal_it_would_not():
    class Wrong(Kept):
        def _one(self, M):
            return (len(M) / self.k) * ((self.k - 1) / (len(M) - 1)) * M - M

    got = scattered([Wrong(2)], second_of(LAW), jnp.zeros(3), 0.3)
    assert np.abs(np.asarray(got) - enumerated([Kept(2)], LAW)).max() > 0.1


def test_arrays_of_a_message_are_treated_apart():
    like = {"a": jnp.zeros(3), "count": jnp.zeros((), int), "b": jnp.zeros((1, 2))}
    law = [(np.concatenate([m, [w, 1.0]]), w) for m, w in LAW]
    got = np.asarray(Kept(2).scatter(second_of(law), like, 0.3))
    assert got[:3, :3] == pytest.approx(enumerated([Kept(2)], LAW), abs=1e-12)
    assert np.abs(got[:3, 3:]).max() == 0 and got[3:, 3:] == pytest.approx(np.zeros((2, 2)), abs=1e-12)


def test_what_is_not_told_is_not_known():
    class Silent(fp.Channel):
        lossless = False

        def release(self, inbox, hub):
            return inbox

    second = second_of(LAW)
    assert Silent().scatter(second, jnp.zeros(3), 0.3) is None
    assert scattered([Kept(2), Silent()], second, jnp.zeros(3), 0.3) is None
    assert Silent().scatter_hub(jnp.zeros(3), 1.0) is None
    plain = fp.Channel()
    assert not plain.scatter(second, jnp.zeros(3), 0.3).any() and not plain.scatter_hub(jnp.zeros(3), 1.0).any()
