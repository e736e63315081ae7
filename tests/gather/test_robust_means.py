"""Robust means against formulas and solvers written here anew, their breakdown, and mutants that must fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

import fedpoint as fp
from fedpoint.core.precision import double

RNG = np.random.default_rng(0)
SHAPES = {"control": (2, 2), "model": (3,)}


@jax.jit  # once for each kind of gather and shape
def inbox_of(gather, messages, weights):
    return gather.inbox(messages, weights, weights)


@double
def middle(gather, messages, weights=None):
    """The middle of a dictionary of stacked messages, or of one array."""
    L = len(jax.tree.leaves(messages)[0])
    weights = np.ones(L) if weights is None else np.asarray(weights, float)
    found = inbox_of(gather, messages, weights)
    return jax.tree.map(lambda a: np.asarray(a) / weights.sum(), found.mean)


def drawn(L, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(L, *shape)) for name, shape in SHAPES.items()}


def flat(messages):
    return np.concatenate([a.reshape(len(a), -1) for a in messages.values()], axis=1)


def one(found):
    return np.concatenate([a.ravel() for a in found.values()])


# Each mean by itself.


@pytest.mark.parametrize("L", [1, 2, 5, 8, 60])
def test_median_without_weights_is_numpys(L):
    messages = drawn(L)
    np.testing.assert_allclose(one(middle(fp.gather.Median(), messages)), np.median(flat(messages), axis=0), atol=1e-12)


@pytest.mark.parametrize("L", [7, 60])
def test_weighted_median_is_the_median_of_repeated_messages(L):
    """Whole weights: each message as many times as it weighs, zero: not at all."""
    times = np.resize([1, 9, 0, 2, 1, 4, 1], L)
    messages = np.round(np.random.default_rng(1).normal(size=(L, 5)), 1)  # with ties
    expected = np.median(np.repeat(messages, times, axis=0), axis=0)
    np.testing.assert_allclose(middle(fp.gather.Median(), messages, times), expected, atol=1e-12)


@pytest.mark.parametrize(("L", "count"), [(5, 0), (5, 1), (5, 2), (20, 4), (60, 3)])
def test_trimmed_mean_is_scipys(L, count):
    messages = drawn(L)
    expected = stats.trim_mean(flat(messages), count / L + 1e-9, axis=0)
    np.testing.assert_allclose(one(middle(fp.gather.TrimmedMean(count), messages)), expected, atol=1e-12)


def sorted_trim(messages, weights, count):
    """A weighted trimmed mean, coordinate by coordinate, by sorting; of equal values each is kept in part."""
    heard = np.flatnonzero(weights)
    count = min(count, (len(heard) - 1) // 2)
    found = []
    for values in messages[heard].T:
        kept = np.zeros(len(heard))
        kept[np.argsort(values, kind="stable")[count : len(heard) - count]] = 1.0
        kept = np.array([kept[values == value].mean() for value in values])
        found.append(np.average(values, weights=weights[heard] * kept))
    return np.array(found)


@pytest.mark.parametrize("zeros", [0, 3, 6])
@pytest.mark.parametrize("digits", [0, 12])
def test_trimmed_mean_with_weights_ties_and_fewer_heard_than_it_trims(zeros, digits):
    rng = np.random.default_rng(zeros)
    messages, weights = rng.normal(size=(9, 4)).round(digits), rng.uniform(0.5, 2.0, 9)
    weights[rng.permutation(9)[:zeros]] = 0.0
    expected = sorted_trim(messages, weights, 2)
    np.testing.assert_allclose(middle(fp.gather.TrimmedMean(2), messages, weights), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_geometric_median_is_the_solvers(seed):
    """Within 1e-4 of the messages' spread, as its docstring says; the solver is scipy's, the weights uneven."""
    messages, weights = drawn(9, seed), np.random.default_rng(seed).uniform(0.5, 2.0, 9)
    points = flat(messages)

    def total(z):
        return weights @ np.linalg.norm(points - z, axis=1)

    solved = optimize.minimize(total, points.mean(axis=0), method="BFGS", options={"gtol": 1e-10}).x
    assert np.abs(one(middle(fp.gather.GeometricMedian(), messages, weights)) - solved).max() < 1e-4


def test_geometric_median_at_a_message_and_with_a_liar_very_far_away():
    """On a line it is the median, here one of the messages: smoothing rounds the corner off."""
    for liar in (1e3, 1e12, 1e30):
        assert abs(middle(fp.gather.GeometricMedian(), np.array([[0.0], [1.0], [2.0], [3.0], [liar]]))[0] - 2) < 1e-3


def krum_scores(points, liars):
    """Written out: the sum over the n - liars - 2 nearest others of the squared distance."""
    n = len(points)
    return np.array([np.sort([((a - b) ** 2).sum() for b in points])[1 : n - liars - 1].sum() for a in points])


@pytest.mark.parametrize("seed", range(3))
def test_krum_and_multi_krum_by_enumeration(seed):
    messages, weights = drawn(9, seed), np.random.default_rng(seed).uniform(0.5, 2.0, 9)
    points, liars, keep = flat(messages), 2, 3
    order = np.argsort(krum_scores(points, liars))
    np.testing.assert_allclose(one(middle(fp.gather.Krum(liars), messages, weights)), points[order[0]], atol=1e-12)
    best = order[:keep]
    expected = np.average(points[best], axis=0, weights=weights[best])
    found = one(middle(fp.gather.MultiKrum(liars, keep=keep), messages, weights))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def clipped(points, weights, radius, iterations):
    z = np.zeros(points.shape[1])
    for _ in range(iterations):
        apart = points - z
        z = z + weights @ (apart * np.minimum(1, radius / np.linalg.norm(apart, axis=1))[:, None]) / weights.sum()
    return z


@pytest.mark.parametrize("radius", [0.3, 2.0, 100.0])
def test_centred_clipping_is_its_formula_and_the_mean_for_a_large_radius(radius):
    messages, weights = drawn(6), np.random.default_rng(5).uniform(0.5, 2.0, 6)
    found = one(middle(fp.gather.CentredClipping(radius, iterations=4), messages, weights))
    np.testing.assert_allclose(found, clipped(flat(messages), weights, radius, 4), atol=1e-12)
    if radius == 100.0:
        np.testing.assert_allclose(found, np.average(flat(messages), axis=0, weights=weights), atol=1e-12)


def test_nearest_neighbour_mixing_by_enumeration():
    messages, weights = drawn(7), np.random.default_rng(2).uniform(0.5, 2.0, 7)
    points, liars = flat(messages), 2
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    nearest = np.argsort(distances, axis=1)[:, : 7 - liars]
    mixed = np.stack([np.average(points[near], axis=0, weights=weights[near]) for near in nearest])
    gather = fp.gather.NearestNeighbourMixing(liars, then=fp.gather.CentredClipping(0.5))
    np.testing.assert_allclose(one(middle(gather, messages, weights)), clipped(mixed, weights, 0.5, 3), atol=1e-12)


# What all of them share.

ROBUST = {
    "median": fp.gather.Median(),
    "trimmed": fp.gather.TrimmedMean(2),
    "geometric": fp.gather.GeometricMedian(),
    "krum": fp.gather.Krum(2),
    "multi-krum": fp.gather.MultiKrum(2, keep=3),
    "clipping": fp.gather.CentredClipping(0.5),
    "mixing": fp.gather.NearestNeighbourMixing(2, then=fp.gather.Median()),
    "mixing then geometric": fp.gather.NearestNeighbourMixing(2, then=fp.gather.GeometricMedian()),
}
each = pytest.mark.parametrize("gather", ROBUST.values(), ids=ROBUST)


@each
def test_who_is_not_heard_does_not_count(gather):
    """Messages of weight zero, whatever they hold, and messages that are not finite: as if they were not there."""
    messages, weights = drawn(9), np.random.default_rng(4).uniform(0.5, 2.0, 9)
    silent = {k: np.concatenate([np.full((2, *a.shape[1:]), 1e9), a]) for k, a in messages.items()}
    expected = one(middle(gather, messages, weights))
    np.testing.assert_allclose(one(middle(gather, silent, [0.0, 0.0, *weights])), expected, atol=1e-12)
    broken = {k: np.concatenate([np.full((2, *a.shape[1:]), np.nan), a]) for k, a in messages.items()}
    np.testing.assert_allclose(one(middle(gather, broken, [1.0, 1.0, *weights])), expected, atol=1e-12)


@each
@double
def test_inbox_is_weight_and_mass_times_one_middle(gather):
    messages, weights, shares = drawn(9), np.linspace(1.0, 2.0, 9), np.linspace(0.1, 0.2, 9)
    inbox = gather.inbox(messages, jnp.asarray(weights), jnp.asarray(shares))
    for name in SHAPES:
        np.testing.assert_allclose(inbox.mean[name] / weights.sum(), inbox.total[name] / shares.sum(), atol=1e-14)
    assert float(inbox.weight) == pytest.approx(weights.sum())
    assert float(inbox.mass) == pytest.approx(shares.sum())


@each
@double
def test_no_messages_at_all_move_nothing(gather):
    inbox = gather.inbox(drawn(9), jnp.zeros(9), jnp.zeros(9))
    assert all((np.asarray(a) == 0).all() for a in (*inbox.mean.values(), *inbox.total.values()))


@each
def test_order_does_not_matter(gather):
    messages, weights = drawn(9), np.random.default_rng(6).uniform(0.5, 2.0, 9)
    order = np.random.default_rng(7).permutation(9)
    turned = {k: a[order] for k, a in messages.items()}
    found = one(middle(gather, turned, weights[order]))
    np.testing.assert_allclose(found, one(middle(gather, messages, weights)), atol=1e-11)


@pytest.mark.parametrize("name", [n for n in ROBUST if n != "clipping"])
def test_moves_with_the_messages(name):
    """m -> a m + b moves the middle likewise (centred clipping has a radius, and starts at zero)."""
    messages, shift = drawn(9), {k: np.random.default_rng(8).normal(size=s) for k, s in SHAPES.items()}
    moved = {k: -3.0 * a + shift[k] for k, a in messages.items()}
    expected = {k: -3.0 * a + shift[k] for k, a in middle(ROBUST[name], messages).items()}
    np.testing.assert_allclose(one(middle(ROBUST[name], moved)), one(expected), atol=1e-5)


def out_of_range(found, honest):
    """How far a point lies outside of the box of the honest ones, in their largest extent."""
    low, high = honest.min(axis=0), honest.max(axis=0)
    return np.maximum(np.maximum(low - found, found - high), 0).max() / max((high - low).max(), 1e-9)


BOUND = {  # liars of nine, and how far outside of the honest box the result may be
    "median": (4, 1e-9),
    "trimmed": (2, 1e-9),
    "geometric": (
        4,
        30.0,
    ),  # it may leave the box: bounded by the honest spread times 2 (n - f) / (n - 2 f) = 10 sqrt d
    "krum": (2, 3.0),
    "multi-krum": (2, 3.0),
    "mixing": (2, 1.0),
    "mixing then geometric": (2, 3.0),
}


@pytest.mark.parametrize("name", BOUND)
@given(data=st.data())
@settings(max_examples=25)
def test_liars_up_to_the_bound_cannot_move_it_far(name, data):
    """The honest lie in a box, liars say anything: the middle stays in the box (coordinate by coordinate), or near."""
    liars, most = BOUND[name]
    seed = data.draw(st.integers(0, 10_000))
    honest = np.random.default_rng(seed).normal(size=(9 - liars, 3))
    sizes = st.sampled_from([-1e12, -50.0, -2.0, 0.0, 1.0, 3.0, 1e6, 1e25])
    said = np.array(data.draw(st.lists(st.lists(sizes, min_size=3, max_size=3), min_size=liars, max_size=liars)))
    found = middle(ROBUST[name], np.concatenate([said.reshape(liars, 3), honest]))
    assert out_of_range(found, honest) <= most


def test_a_mean_without_protection_is_moved():
    honest = np.random.default_rng(0).normal(size=(8, 3))
    assert out_of_range(np.concatenate([honest, np.full((1, 3), 1e6)]).mean(axis=0), honest) > 1e3


@given(scale=st.floats(1e-3, 1e20), seed=st.integers(0, 1000))
@settings(max_examples=25)
def test_a_liar_moves_centred_clipping_by_its_weight_times_the_radius(scale, seed):
    """From z = 0, one iteration: |with the liar - with zero in its place| <= v radius."""
    points = np.random.default_rng(seed).normal(size=(5, 3))
    gather = fp.gather.CentredClipping(0.7, iterations=1)
    moved = middle(gather, np.concatenate([points, scale * points[:1]]))
    still = middle(gather, np.concatenate([points, np.zeros((1, 3))]))
    assert np.linalg.norm(moved - still) <= 0.7 / 6 + 1e-12


# Mutants: each is caught by a test above.


class MedianWithoutWeights(fp.gather.Median):
    def location(self, messages, weights):
        return super().location(messages, jnp.where(weights > 0, 1.0, 0.0) / (weights > 0).sum())


class TrimsOneSide(fp.gather.TrimmedMean):
    def location(self, messages, weights):
        return jnp.sort(messages, axis=0)[: len(messages) - 2 * self.count].mean(axis=0)


class KrumOfTheFarthest(fp.gather.Krum):
    def middle(self, messages, weights):
        from fedpoint.gather.krum import scores

        return {k: a[jnp.argmax(scores(messages, weights, self.liars))] for k, a in messages.items()}


class KrumOfTheFirstPart(fp.gather.Krum):
    def middle(self, messages, weights):
        from fedpoint.gather.krum import scores

        return {k: a[jnp.argmin(scores(messages["model"], weights, self.liars))] for k, a in messages.items()}


class HearsTheSilent(fp.gather.GeometricMedian):
    def middle(self, messages, weights):
        return super().middle(messages, jnp.ones_like(weights) / len(weights))


MULTI, CENTRED, MIXING = fp.gather.MultiKrum, fp.gather.CentredClipping, fp.gather.NearestNeighbourMixing


class KeepsOneMore(MULTI):
    def middle(self, messages, weights):
        return MULTI(self.liars, keep=self.keep + 1).middle(messages, weights)


class ClipsOnce(CENTRED):
    def middle(self, messages, weights):
        return CENTRED(self.radius, iterations=1).middle(messages, weights)


class MixesTooMany(MIXING):
    def middle(self, messages, weights):
        return MIXING(self.liars - 1, then=self.then).middle(messages, weights)


OTHERS = {
    "MultiKrum": (KeepsOneMore, lambda: test_krum_and_multi_krum_by_enumeration(0)),
    "CentredClipping": (
        ClipsOnce,
        lambda: test_centred_clipping_is_its_formula_and_the_mean_for_a_large_radius(0.3),
    ),
    "NearestNeighbourMixing": (MixesTooMany, lambda: test_nearest_neighbour_mixing_by_enumeration()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_mutants_of_several_messages_fail(name, monkeypatch):
    mutant, test = OTHERS[name]
    monkeypatch.setattr(fp.gather, name, mutant)
    with pytest.raises(AssertionError):
        test()


def test_mutants_fail(monkeypatch):
    def fails(test, *arguments):
        with pytest.raises(AssertionError):
            test(*arguments)

    fails(test_who_is_not_heard_does_not_count, HearsTheSilent())
    monkeypatch.setattr(fp.gather, "Median", MedianWithoutWeights)
    fails(test_weighted_median_is_the_median_of_repeated_messages, 7)
    monkeypatch.setattr(fp.gather, "TrimmedMean", TrimsOneSide)
    fails(test_trimmed_mean_is_scipys, 5, 1)
    for mutant in (KrumOfTheFarthest, KrumOfTheFirstPart):
        monkeypatch.setattr(fp.gather, "Krum", mutant)
        fails(lambda: [test_krum_and_multi_krum_by_enumeration(seed) for seed in range(3)])


# What is refused.


def test_too_few_messages_are_refused_beforehand():
    quad = fp.problems.Quadratic(1.0, np.arange(6.0)[:, None])

    def refused(match, gather, **options):
        with pytest.raises(fp.FedpointError, match=match):
            fp.run(fp.FedAvg(step=0.1), quad, rounds=1, gather=gather, **options)

    refused(r"TrimmedMean\(3\) trims 6 messages.*hears at most 6", fp.gather.TrimmedMean(3))
    refused(r"TrimmedMean\(2\) trims 4 messages.*hears at most 4", fp.gather.TrimmedMean(2), participation=4)
    refused(r"Krum\(liars=2\) needs 7 messages, and a round hears at most 6", fp.gather.Krum(2))
    refused(r"keep=4\) needs liars \+ keep \+ 2 = 7 messages", fp.gather.MultiKrum(1, keep=4))
    mixing = fp.gather.NearestNeighbourMixing(1, then=fp.gather.TrimmedMean(3))
    refused(r"TrimmedMean\(3\) trims 6", mixing)
    refused(r"NearestNeighbourMixing\(liars=3\) needs 7", mixing.replace(liars=3))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: fp.gather.TrimmedMean(-1), "TrimmedMean: count must be a whole number, at least 0"),
        (lambda: fp.gather.Krum(-1), "Krum: liars must be a whole number, at least 0"),
        (lambda: fp.gather.MultiKrum(1, keep=0), "MultiKrum: keep must be a whole number, at least 1"),
        (lambda: fp.gather.CentredClipping(0.0), "CentredClipping: radius must be above 0"),
        (lambda: fp.gather.CentredClipping(1.0, iterations=0), "CentredClipping: iterations must be"),
        (lambda: fp.gather.GeometricMedian(smoothing=0.0), "GeometricMedian: smoothing must be above 0"),
        (lambda: fp.gather.NearestNeighbourMixing(1, then=fp.gather.WeightedSums()), "then must be a robust gather"),
    ],
)
def test_senseless_numbers_are_refused(make, match):
    with pytest.raises(fp.FedpointError, match=match):
        make()
