"""Is Poisson participation what its accounts of privacy assume? Every subset with q^n (1-q)^(K-n), weights p_k/q.

Frequencies over N = 40,000 drawn rounds, as z-scores; at most 64 at a time, so that 4.5 is passed by chance in one of
2,000 suites, and then always, because seeds are fixed.
"""

import itertools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy.stats import binom

import fedpoint as fp
from fedpoint.core.errors import FedpointError
from fedpoint.timing.base import Context
from fedpoint.timing.schemes import OVERFLOW, enough_places

sys.path.append(str(Path(__file__).parents[1] / "contract"))
from instances import ALL, ENGINE, INSTANCES, STEP

P = np.array([0.1, 0.3, 0.15, 0.05, 0.25, 0.15])
K, N = len(P), 40_000


class FirstOnes(fp.participation.Poisson):
    """The mistake that these tests must see: as many agents as Poisson draws, but always the first ones."""

    def tick(self, key, p, round):
        tick = super().tick(key, p, round)
        agents = jnp.arange(len(tick.heard))
        share = jnp.where(tick.heard, p[agents], 0.0)
        return tick._replace(agents=agents, weight=share / self.probability, share=share)


def drawn(scheme, p=P, rounds=N):
    """(rounds, K): weights, and who is heard."""

    def one(scheme, round):
        tick = scheme.at(fp.Key.of(11), jnp.asarray(p), round)
        empty = jnp.zeros(len(p))
        heard = empty.at[tick.agents].add(tick.heard * 1.0)
        return empty.at[tick.agents].add(tick.weight), heard, tick.asked, tick.merge

    with jax.enable_x64(True):
        draw = jax.jit(lambda s, r: lax.map(lambda i: one(s, i), r, batch_size=1024))
        v, s, asked, merge = (np.asarray(a) for a in draw(scheme, np.arange(rounds)))
    assert merge.all() and (asked == s.sum(1)).all()  # empty rounds are rounds
    return v, s


def z_of_subsets(s, q):
    """Of the frequency of each of the 2^K subsets."""
    seen = np.bincount((s @ 2 ** np.arange(K)).astype(int), minlength=2**K) / len(s)
    size = np.array([bin(i).count("1") for i in range(2**K)])
    chance = q**size * (1 - q) ** (K - size)
    return (seen - chance) / np.sqrt(chance * (1 - chance) / len(s))


@pytest.mark.parametrize("q", [0.3, pytest.param(0.7, marks=pytest.mark.slow)])
def test_every_subset_has_its_probability(q):
    v, s = drawn(fp.participation.Poisson(q))
    assert set(np.unique(s)) == {0.0, 1.0}
    np.testing.assert_allclose(v, s * P / q, rtol=1e-15)
    assert np.abs(z_of_subsets(s, q)).max() < 4.5
    assert np.abs(z_of_subsets(drawn(FirstOnes(q))[1], q)).max() > 50


def test_everyone_with_probability_one():
    v, s = drawn(fp.participation.Poisson(1.0), rounds=100)
    assert (s == 1).all()
    np.testing.assert_array_equal(v, np.broadcast_to(P, v.shape))


@pytest.mark.parametrize(("agents", "q"), [(1000, 0.01), (1000, 0.1), (200, 0.5), (10**6, 1e-4), (30, 0.9)])
def test_places_are_as_few_as_may_be(agents, q):
    """One more than enough_places is never needed, one fewer would be too few: against scipy's binomial law."""
    places = enough_places(agents, q)
    scheme = fp.participation.Poisson(q, places)
    assert binom.sf(places, agents, q) <= OVERFLOW * (1 + 1e-6)
    assert places == agents or binom.sf(places - 1, agents, q) > OVERFLOW * (1 - 1e-6)
    assert scheme.overflow(agents) == pytest.approx(binom.sf(places, agents, q), rel=1e-6, abs=1e-300)
    assert scheme.slots(agents) == places


def test_a_bound_scheme_has_few_places_and_the_same_law():
    p = np.full(500, 1 / 500)
    bound = fp.participation.Poisson(0.02).bind(Context(fp.problems.Quadratic(1.0, np.zeros((500, 1)))))
    assert bound.slots(500) == enough_places(500, 0.02) < 60
    v, s = drawn(bound, p, 10_000)
    count = s.sum(1)
    for n in range(16):
        chance = binom.pmf(n, 500, 0.02)
        assert abs((count == n).mean() - chance) < 4.5 * np.sqrt(chance * (1 - chance) / len(count))
    # The last agents are drawn as often as the first: 500 z-scores.
    z = (s.mean(0) - 0.02) / np.sqrt(0.02 * 0.98 / len(s))
    assert np.abs(z).max() < 5 and abs(z.mean()) < 4.5 / np.sqrt(500)
    np.testing.assert_allclose(v, s * p / 0.02, rtol=1e-15)


def test_too_few_places_leave_agents_out_and_say_how_often():
    scheme = fp.participation.Poisson(0.5, places=4)
    _, s = drawn(scheme)
    assert s.sum(1).max() == 4
    full = (s.sum(1) == 4).mean()
    chance = binom.pmf(4, K, 0.5) + scheme.overflow(K)
    assert scheme.overflow(K) == pytest.approx(7 / 64)
    assert abs(full - chance) < 4.5 * np.sqrt(chance * (1 - chance) / N)


def test_moments_by_enumeration():
    """Cov v = ((1-q)/q) diag p^2; with who is heard, over all 64 lineups."""
    q = 0.3
    scheme = fp.participation.Poisson(q)
    m, found = scheme.moments(P), scheme.lineups(P)
    assert not m.sampled and not found.drawn and len(found.chance) == 2**K and m.merge == 1
    mean, second = np.zeros(2 * K), np.zeros((2 * K, 2 * K))
    for there in itertools.product((0, 1), repeat=K):
        s = np.array(there)
        x, chance = np.concatenate([s * P / q, s]), q ** s.sum() * (1 - q) ** (K - s.sum())
        mean, second = mean + chance * x, second + chance * np.outer(x, x)
    cov = second - np.outer(mean, mean)
    np.testing.assert_allclose(np.concatenate([m.mean, m.heard]), mean, atol=1e-15)
    np.testing.assert_allclose(np.diag(cov)[:K], (1 - q) / q * P**2, atol=1e-15)
    np.testing.assert_allclose(m.own, [np.diag(cov)[:K], np.diag(cov[:K, K:]), np.diag(cov)[K:]], atol=1e-15)
    assert not m.scale.size
    x = np.concatenate([found.weight, found.heard], axis=1)
    np.testing.assert_allclose(found.chance @ x, mean, atol=1e-14)
    np.testing.assert_allclose((x * found.chance[:, None]).T @ x, second, atol=1e-14)


def test_the_floor_of_a_forecast_is_that_of_the_exact_recursion():
    """FedAvg with one step s on f_k = h/2 |w - c_k|^2: w+ = w - s h sum v_k (w - c_k), so that with A = sum v_k,
    Var w = (E(1 - s h A)^2) Var w + s^2 h^2 Var(sum v_k (c_k - w*)), from the moments of independent v_k."""
    q, s, h, c = 0.4, 0.5, 1.3, np.array([0.0, 1.0, 2.0, -1.0, 0.5, 3.0])
    quad = fp.problems.Quadratic(h, c[:, None], weights=P)
    f = fp.forecast(fp.FedAvg(step=s, local_steps=1), quad, participation=fp.participation.Poisson(q), exact=True)
    star, spread = P @ c, (1 - q) / q * P**2
    cross = spread @ (c - star)  # Cov(sum v_k (c_k - w*), A): it multiplies E(w - w*) = 0
    square = (1 - s * h) ** 2 + (s * h) ** 2 * spread.sum()
    assert cross != 0
    floor = (s * h) ** 2 * (spread @ (c - star) ** 2) / (1 - square)
    assert float(f.floor) == pytest.approx(floor, rel=1e-9)
    uniform = fp.forecast(fp.FedAvg(step=s, local_steps=1), quad, participation=2, exact=True)
    assert abs(float(uniform.floor) / floor - 1) > 0.05


def test_runs_are_the_same_in_any_layout_and_cost_what_is_drawn():
    quad = fp.problems.Quadratic(1.0, np.arange(40.0)[:, None])
    scheme = fp.participation.Poisson(0.1)
    run = fp.run(fp.FedAvg(step=0.5), quad, rounds=50, participation=scheme, exact=True)
    whole = fp.run(fp.FedAvg(step=0.5), quad, rounds=50, participation=scheme.replace(places=40), exact=True)
    np.testing.assert_allclose(run.history, whole.history, rtol=1e-12)  # more places: the same who
    assert run.cost.messages_up == whole.cost.messages_up
    assert abs(run.cost.messages_up - 200) < 4.5 * np.sqrt(50 * 40 * 0.09)


def test_a_file_says_it():
    from fedpoint.config.schemes import scheme_of

    assert scheme_of({"scheme": "poisson", "probability": 0.1}) == fp.participation.Poisson(0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fp.participation.Poisson(0.0), "above 0"),
        (lambda: fp.participation.Poisson(1.5), "at most 1"),
        (lambda: fp.participation.Poisson(0.5, places=0), "places must be at least 1"),
        (
            lambda: fp.Experiment(fp.FedAvg(0.1), fp.problems.Quadratic(1.0, [[0.0]]), participation="poisson"),
            "fp.part",
        ),
    ],
)
def test_mistakes_are_told(make, said):
    with pytest.raises(FedpointError, match=said):
        make()


def test_methods_that_need_everyone_refuse_it():
    quad = fp.problems.Quadratic(1.0, [[0.0], [1.0]])
    with pytest.raises(FedpointError, match="cannot run with participation Poisson"):
        fp.Experiment(fp.Scaffnew(0.1, probability=0.5), quad, participation=fp.participation.Poisson(0.5))


# Rounds in which nobody takes part.

KEEP_MOVING = ("FedAdam", "Averaged")  # by what their hubs remember
FEW = ("FedNova", "SCAFFOLD", "q-FedAvg")


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in ENGINE])
def test_nothing_happens_in_an_empty_round(name):
    """Of 4 agents with q = 0.1 two thirds of the rounds are empty; nobody divides by what was not heard."""
    method, rounds, who = INSTANCES[name].make(STEP, np.asarray(ALL), 1.0), 40, fp.participation.Poisson(0.1)
    problem = fp.problems.Quadratic(1.0, np.arange(12.0).reshape(4, 3), noise=0.2, weights=[4, 1, 3, 2.0])
    if method.card.restriction:
        with pytest.raises(fp.FedpointError, match="cannot run with participation Poisson"):
            fp.Experiment(method, problem, participation=who)
        return
    run = fp.run(method, problem, rounds=rounds, participation=who)
    assert np.isfinite(run.history).all()
    moved = np.abs(np.diff(run.history, axis=1)).max(axis=(0, 2))
    plain = fp.run(fp.FedAvg(step=0.1), problem, rounds=rounds, participation=who)
    still = np.abs(np.diff(plain.history, axis=1)).max(axis=(0, 2)) == 0
    assert 15 <= still.sum() <= 36  # 26, give or take 3.6 standard deviations
    if name not in KEEP_MOVING:
        assert (moved[still] == 0).all() and (moved[~still] > 0).all()
