"""The generator: known answers, distributions, independence of its coordinates."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from fedpoint.core.random import Key, _cos_turn, _log, _log_single, _uniform, threefry
from fedpoint.engine.cpu import cache

ALMOST_SURELY = 1e-5  # the smallest p-value a right generator may show here; seeds are fixed


@pytest.fixture(autouse=True)
def double():
    cache.enable()
    with jax.enable_x64(True):
        yield


def word(x):
    return jnp.uint32(x)


def normals(row, shape):
    """Compiled as a whole, as in a run."""
    return np.asarray(jax.jit(lambda row: row.normal(shape))(row))


def many(draw, rows, seed=0):
    """draw(row) of so many rows of a stream."""
    return np.asarray(jax.jit(jax.vmap(lambda e: draw(Key.of(seed).row(e))))(jnp.arange(rows)))


def z_score(sample, mean, variance):
    return (np.mean(sample) - mean) / math.sqrt(variance / np.size(sample))


# Threefry-2x32, 20 rounds: kat_vectors of Random123.
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(counter, key, answer):
    got = threefry(tuple(map(word, key)), tuple(map(word, counter)))
    assert tuple(int(x) for x in got) == answer


def test_threefry_is_that_of_jax(rng):
    key, counter = (rng.integers(0, 2**32, (2, 500), dtype=np.uint64).astype(np.uint32) for _ in range(2))
    ours = threefry(tuple(jnp.asarray(key)), tuple(jnp.asarray(counter)))
    theirs = jax.jit(jax.vmap(threefry_2x32))(jnp.asarray(key.T), jnp.asarray(counter.T))
    np.testing.assert_array_equal(np.stack(ours, axis=1), np.asarray(theirs))


def test_log_is_accurate_to_its_bound(rng):
    words = np.concatenate([np.arange(3000), 2**32 - 1 - np.arange(3000), rng.integers(0, 2**32, 500_000)])
    x = np.concatenate([(words + 0.5) * 2.0**-32, rng.random(100_000), np.sqrt(0.5) + np.arange(-50, 50) * 1e-16])
    assert np.abs(np.asarray(_log(jnp.asarray(x))) - np.log(x)).max() < 1e-13


def test_cosine_is_accurate_to_its_bound(rng):
    edges = (np.arange(9)[:, None] * 2**29 + np.arange(-2000, 2000)).ravel() % 2**32
    words = np.concatenate([edges, rng.integers(0, 2**32, 500_000)])
    exact = np.cos(2 * np.pi * words / 2.0**32)
    assert np.abs(np.asarray(_cos_turn(jnp.asarray(words, jnp.uint32))) - exact).max() < 1e-11


def test_normal_has_the_moments_of_a_normal():
    x = normals(Key.of(1).row(), (500_000,))
    moments = {1: 0, 2: 1, 3: 0, 4: 3, 5: 0, 6: 15}
    eighth = {n: math.prod(range(2 * n - 1, 0, -2)) for n in moments}  # E x^(2n)
    for n, value in moments.items():
        assert abs(z_score(x**n, value, eighth[n] - value**2)) < 4, n


def test_normals_in_single_precision_are_box_and_mullers_formula():
    """Of the same words, the radius from 31 bits of the first: to rounding, which near a radius of 0 is its root."""
    row = Key.of(7).row(3)
    found = np.asarray(row.normal_single((200_000,)))
    a, b = (np.asarray(w).astype(np.float64) for w in row.words((200_000,)))
    u = (np.floor(a / 2) + 0.5) / 2**31
    expected = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * b / 2**32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[u < 0.999], expected[u < 0.999], atol=2e-5)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert stats.kstest(found, "norm").pvalue > ALMOST_SURELY


def test_the_logarithm_in_single_precision_is_never_above_zero():
    ends = np.float32([2.0**-32, 0.5, np.sqrt(0.5), np.nextafter(np.float32(1), np.float32(0)), 1.0])
    found = np.asarray(_log_single(jnp.asarray(ends)))
    np.testing.assert_allclose(found, np.log(ends.astype(float)), rtol=3e-7)
    assert (found <= 0).all()


def test_normal_passes_kolmogorov_smirnov():
    for seed in range(3):
        x = normals(Key.of(seed, purpose=7).row(3), (200_000,))
        assert stats.kstest(x, "norm").pvalue > ALMOST_SURELY


def test_normal_has_the_tails_of_a_normal():
    x = np.abs(normals(Key.of(5).row(), (2_000_000,)))
    for t in (1.0, 2.0, 3.0, 4.0, 4.5):
        p = 2 * stats.norm.sf(t)
        assert abs((x > t).sum() - p * x.size) < 5 * math.sqrt(p * x.size), t
    # The smallest word gives the largest radius: 6.76, beyond which a normal goes once in 10^11 draws.
    assert 4.9 < x.max() <= math.sqrt(66 * math.log(2))


def test_normal_pairs_are_round():
    """No angle is preferred: neighbours of a row fill the plane evenly."""
    x, y = normals(Key.of(2).row(), (2, 100_000))
    counts = np.histogram(np.arctan2(y, x), bins=64, range=(-np.pi, np.pi))[0]
    assert stats.chisquare(counts).pvalue > ALMOST_SURELY
    assert stats.kstest(x**2 + y**2, "chi2", args=(2,)).pvalue > ALMOST_SURELY


def test_coordinates_name_independent_streams():
    """Numbers that differ in one coordinate only (seed, repeat, purpose, round, agent, step) are uncorrelated."""
    n = 100_000
    streams = {
        "base": Key.of(3).fold(4, 5).row(6),
        "seed": Key.of(4).fold(4, 5).row(6),
        "high seed": Key.of(3 + 2**32).fold(4, 5).row(6),
        "repeat": Key.of(3, 1).fold(4, 5).row(6),
        "purpose": Key.of(3, 0, 1).fold(4, 5).row(6),
        "round": Key.of(3).fold(5, 5).row(6),
        "agent": Key.of(3).fold(4, 6).row(6),
        "swapped": Key.of(3).fold(5, 4).row(6),
        "step": Key.of(3).fold(4, 5).row(7),
    }
    drawn = np.stack([normals(row, (n,)) for row in streams.values()])
    for power in (1, 2):  # also no dependence of the variances
        r = np.corrcoef(drawn**power)[np.triu_indices(len(drawn), 1)]
        assert np.abs(r).max() * math.sqrt(n) < 4.5
    for lag in (1, 2, 3, 64):  # and along the row
        assert abs(np.corrcoef(drawn[0][:-lag], drawn[0][lag:])[0, 1]) * math.sqrt(n) < 4.5


def test_many_keys_give_one_distribution():
    """The first number of many streams, as agents draw them, is as random as many numbers of one stream."""
    rounds, agents = np.meshgrid(np.arange(500), np.arange(400), indexing="ij")
    keys = Key.of(0).fold(rounds, agents)
    x = np.asarray(jax.jit(jax.vmap(lambda k: k.row().normal()))(Key(keys.low.ravel(), keys.high.ravel())))
    assert stats.kstest(x, "norm").pvalue > ALMOST_SURELY
    table = x.reshape(500, 400)
    assert abs(table.mean(0).std() * math.sqrt(500) - 1) < 0.2
    assert abs(table.mean(1).std() * math.sqrt(400) - 1) < 0.2


def test_a_number_is_a_function_of_its_coordinates():
    """However it is drawn: alone, in a vector, batched over rows, or further on in the row."""
    key = Key.of(9).fold(2, 3)

    @jax.jit
    def draw(key):
        row = key.row(1)
        rows = jax.vmap(lambda e: key.row(e).normal((4, 5)))(jnp.arange(3))
        uniform = row.uniform((6,))[jnp.array([4, 2])], row.uniform_at(jnp.array([4, 2]))
        return row.normal((4, 5)), row.normal((13,), first=7), row.normal(first=7), rows[1], uniform

    whole, later, one, batched, uniform = jax.tree.map(np.asarray, draw(key))
    np.testing.assert_array_equal(whole.ravel()[7:], later)
    np.testing.assert_array_equal(whole[1, 2], one)
    np.testing.assert_array_equal(whole, batched)
    np.testing.assert_array_equal(*uniform)


def test_seeds_beyond_32_bits_and_below_zero_are_told_apart():
    seeds = (0, 1, -1, 2**32, 2**32 + 1, 2**40)
    assert len({tuple(int(x) for x in Key.of(s)) for s in seeds}) == len(seeds)


def test_uniform_is_uniform_on_the_open_interval():
    x = np.asarray(Key.of(8).row().uniform((1_000_000,)))
    assert stats.kstest(x, "uniform").pvalue > ALMOST_SURELY
    assert stats.chisquare(np.histogram(x, bins=1000, range=(0, 1))[0]).pvalue > ALMOST_SURELY
    ends = np.asarray(_uniform(jnp.asarray([0, 0xFFFFFFFF], jnp.uint32), jnp.asarray([0, 0xFFFFFFFF], jnp.uint32)))
    assert 0 < ends[0] < 1e-15 and 1 - 1e-15 < ends[1] < 1


@pytest.mark.parametrize("bound", [1, 2, 7, 100])
def test_integers_are_uniform_and_in_range(bound):
    x = np.asarray(Key.of(11).row().integers(bound, (200_000,)))
    assert x.dtype == np.int32
    counts = np.bincount(x, minlength=bound)
    assert len(counts) == bound
    assert bound == 1 or stats.chisquare(counts).pvalue > ALMOST_SURELY


@pytest.mark.parametrize("bound", [2**31 - 1, 3 * 2**29 + 1])
def test_integers_of_large_bounds(bound):
    x = np.asarray(Key.of(12).row().integers(bound, (200_000,)))
    assert x.min() >= 0 and x.max() < bound
    assert stats.kstest((x + 0.5) / bound, "uniform").pvalue > ALMOST_SURELY
    assert stats.chisquare(np.bincount(x % 16)).pvalue > ALMOST_SURELY


def test_integers_take_a_bound_for_each_element_and_reach_both_ends():
    bounds = jnp.array([1, 2, 3, 1000])
    x = many(lambda row: row.integers(bounds, (4,)), 20_000)
    np.testing.assert_array_equal(x.min(0), 0)
    np.testing.assert_array_equal(x.max(0), np.asarray(bounds) - 1)


def test_permutations_are_uniform():
    orders = many(lambda row: row.permutation(4, 4), 24_000)
    index = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    counts = np.bincount([index[tuple(o)] for o in orders.tolist()], minlength=24)
    assert stats.chisquare(counts).pvalue > ALMOST_SURELY


@pytest.mark.parametrize(("length", "size"), [(1, 5), (4, 7), (7, 7), (0, 3)])
def test_a_padded_permutation_starts_with_the_permutation(length, size):
    orders = many(lambda row: row.permutation(jnp.int32(length), size), 200)
    assert orders.shape == (200, size)
    np.testing.assert_array_equal(np.sort(orders[:, :length], axis=1), np.tile(np.arange(length), (200, 1)))
    if length == 4:
        assert len(np.unique(orders[:, :4], axis=0)) == 24


def test_subsets_are_uniform():
    drawn = many(lambda row: row.subset(3, 6), 20_000)
    index = {s: i for i, s in enumerate(itertools.combinations(range(6), 3))}
    counts = np.bincount([index[tuple(s)] for s in np.sort(drawn, axis=1).tolist()], minlength=20)
    assert stats.chisquare(counts).pvalue > ALMOST_SURELY


@pytest.mark.parametrize(("count", "population"), [(1, 1), (5, 5), (1, 10**6), (200, 100_000), (64, 2**31 - 1)])
def test_subsets_are_distinct_and_in_range(count, population):
    drawn = many(lambda row: row.subset(count, population), 40)
    assert drawn.min() >= 0 and drawn.max() < population
    assert all(len(set(row)) == count for row in drawn.tolist())


def test_every_agent_is_as_likely_in_a_large_population():
    drawn = many(lambda row: row.subset(10, 500), 5_000, seed=10)
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=500)).pvalue > ALMOST_SURELY


def test_a_stream_as_a_jax_key():
    rows = [Key.of(0).row(0), Key.of(0).row(1), Key.of(1).row(0)]
    draw = jax.jit(lambda row: jax.random.normal(row.jax(), (50_000,)))
    drawn = np.stack([np.asarray(draw(row)) for row in rows])
    assert stats.kstest(drawn[0], "norm").pvalue > ALMOST_SURELY
    own = normals(rows[0], (50_000,))
    r = np.corrcoef(np.vstack([drawn, own]))[np.triu_indices(4, 1)]
    assert np.abs(r).max() < 0.02
    np.testing.assert_array_equal(drawn[0], np.asarray(draw(rows[0])))
