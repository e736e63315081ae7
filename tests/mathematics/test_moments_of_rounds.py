"""Moments of the weights v_k and of who is heard: exact formulas against many drawn rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedpoint as fp
from fedpoint.timing.moments import sampled_moments

P = np.array([0.1, 0.3, 0.15, 0.05, 0.25, 0.15])
SCHEMES = {
    "everyone": fp.Everyone(),
    "uniform": fp.Uniform(2),
    "one": fp.Uniform(1),
    "plain": fp.Uniform(3, plain=True),
    "by weight": fp.ByWeight(3),
    "importance": fp.Importance(4, probabilities=np.array([0.3, 0.1, 0.1, 0.2, 0.2, 0.1])),
    "answering": fp.Answering(fp.Everyone(), probability=0.5),
    "keep": fp.Answering(fp.Uniform(5), probability=0.6, keep=3, minimum=2),
}


def drawn(scheme, n=60_000):
    """(n, 2K): v and s of drawn rounds that merge, and how many merge."""
    K = len(P)

    def one(scheme, round):
        tick = scheme.at(fp.Key.of(7), jnp.asarray(P), round)
        agents = jnp.arange(K) if tick.agents is None else tick.agents
        v = jnp.zeros(K).at[agents].add(tick.weight)
        return jnp.concatenate([v, jnp.zeros(K).at[agents].add(tick.heard * 1.0)]), tick.merge

    with jax.enable_x64(True):
        x, merge = jax.jit(lambda s, r: lax.map(lambda i: one(s, i), r, batch_size=1024))(scheme, np.arange(n))
    return np.asarray(x)[np.asarray(merge)], float(np.asarray(merge).mean())


def covariance(m):
    K = len(P)
    k = np.arange(K)
    flat = m.factor.reshape(len(m.scale), 2 * K)
    cov = (flat.T * m.scale) @ flat
    vv, vs, ss = m.own
    cov[k, k] += vv
    cov[k, K + k] += vs
    cov[K + k, k] += vs
    cov[K + k, K + k] += ss
    return cov


@pytest.mark.parametrize("name", SCHEMES)
def test_moments_are_those_of_drawn_rounds(name):
    scheme = SCHEMES[name]
    m = scheme.moments(P)
    assert not m.sampled
    x, merged = drawn(scheme)
    n = len(x)
    mean = np.concatenate([m.mean, m.heard])
    assert abs(merged - m.merge) <= 5 * np.sqrt(m.merge * (1 - m.merge) / 60_000) + 1e-12
    assert (np.abs(x.mean(0) - mean) <= 5 * x.std(0) / np.sqrt(n) + 1e-9).all()
    centered = x - mean
    pairs = centered[:, :, None] * centered[:, None, :]
    # 144 pairs: five standard errors leave a chance of 1e-4
    assert (np.abs(pairs.mean(0) - covariance(m)) <= 5 * pairs.std(0) / np.sqrt(n) + 1e-9).all()
    K = len(P)
    second = np.stack([(x[:, :K] ** 2).mean(0), (x[:, :K] * x[:, K:]).mean(0), (x[:, K:] ** 2).mean(0)])
    assert np.allclose(m.second(), second, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("name", ["uniform", "by weight"])
def test_estimated_moments_agree_with_exact_ones(name):
    exact, rough = SCHEMES[name].moments(P), sampled_moments(SCHEMES[name], P, keep=12)
    assert rough.sampled
    assert np.array_equal(rough.mean, exact.mean)
    assert np.allclose(covariance(rough), covariance(exact), atol=0.01)


def test_estimated_moments_of_uneven_answers():
    scheme = fp.Answering(fp.Everyone(), probability=np.linspace(0.3, 0.9, 6))
    m = scheme.moments(P)
    assert m.sampled
    a = np.linspace(0.3, 0.9, 6)
    expected = P**2 * (1 - a) / a  # v_k = p_k s_k / a_k, independent
    assert np.allclose(m.mean, P)
    assert np.allclose(np.diag(covariance(m))[:6], expected, atol=6 / np.sqrt(1 << 15))


@pytest.mark.parametrize("name", SCHEMES)
def test_lineups_have_the_moments_of_their_scheme(name):
    """All that may be heard, one by one: the formulas' mean and covariance, to rounding."""
    found, m = SCHEMES[name].lineups(P), SCHEMES[name].moments(P)
    assert not found.drawn and found.chance.sum() == pytest.approx(1, abs=1e-12)
    x = np.concatenate([found.weight, found.heard], axis=1)
    mean = found.chance @ x
    np.testing.assert_allclose(mean, np.concatenate([m.mean, m.heard]), atol=1e-12)
    np.testing.assert_allclose((x - mean).T @ ((x - mean) * found.chance[:, None]), covariance(m), atol=1e-12)


def test_lineups_of_uneven_answers():
    a = np.linspace(0.3, 0.9, 6)
    found = fp.Answering(fp.Everyone(), probability=a).lineups(P)
    there = 1 - np.prod(1 - a)  # somebody answers: else the round is abandoned
    np.testing.assert_allclose(found.chance @ found.heard, a / there)
    np.testing.assert_allclose(found.chance @ found.weight, P / there)


def test_drawn_lineups_have_the_means_of_their_scheme():
    """Too many to be listed: a sample, in which weights and who is heard have their means exactly."""
    p = np.arange(1.0, 21) / 210
    found = fp.Uniform(7).lineups(p)
    assert found.drawn and len(found.chance) < 5000
    np.testing.assert_allclose(found.chance @ found.weight, p, atol=1e-14)
    np.testing.assert_allclose(found.chance @ found.heard, 0.35, atol=1e-14)
    assert found.chance.sum() == pytest.approx(1) and (found.chance > 0).all()


def test_a_subclass_with_other_draws_has_its_own_lineups():
    class Pair(fp.Uniform):
        """The first two agents, always."""

        def tick(self, key, p, round):
            return fp.Tick.of(jnp.arange(2), weight=jnp.full(2, 0.5))

    found = Pair(2).lineups(P)
    assert (found.heard[:, :2] == 1).all() and not found.heard[:, 2:].any()
