"""Moments of the weights v_k and of who is heard: exact formulas against many drawn rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedpoint as fp
from fedpoint.timing.participation import sampled_moments

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
