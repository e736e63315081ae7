"""Compressors: moments by enumeration and by drawing, what is held back, what is packed."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.channel import Cast, Chain, Clip, Erase, FixedPoint, Quantise, RandK, Sign, TopK
from fedpoint.channel.parts import packed, unpacked
from fedpoint.channel.top_k import largest
from fedpoint.core.agent import Agent
from fedpoint.core.random import Key, Stream

QUAD = fp.problems.Quadratic([1.0, 2.0, 0.5], [[0.0, 1.0, 2.0], [1.0, 0.0, -1.0], [3.0, -2.0, 0.5]])
SCAFFOLD = fp.Scaffold(step=0.1, local_steps=3)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def agent(round=0, number=0):
    return Agent(None, None, Stream(Key.of(5), round, number), None, None, True, 1.0)


def drawn(channel, x, count):
    """What arrives of x in so many rounds, each by its own luck."""
    memory = channel.init(x)

    def one(round):
        return channel.transfer(x, memory, agent(round))[0]

    return np.asarray(jax.jit(jax.vmap(one))(jnp.arange(count)))


CHANNELS = {
    "clip": Clip(0.7),
    "cast": Cast("bfloat16"),
    "rand k": RandK(0.4),
    "top k, by bits": TopK(0.4),
    "top k, by places": TopK(0.01),
    "sign": Sign(),
    "quantise": Quantise(5),
    "dither": Quantise(3, dither=True),
    "erase": Erase(0.3),
    "fixed point": FixedPoint(16, range=10.0, agents=3),
    "a chain": Chain((Clip(2.0), TopK(0.1), Quantise(7), Cast("float32"))),
    "a chain that is decoded twice": Chain((RandK(0.5), Quantise(6, dither=True))),
}


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHANNELS)
def test_what_is_packed_arrives_as_in_simulation(name, dtype):
    """encode and decode, as sites use them, give the bits that `transfer` gives; and so are the memories."""
    channel = CHANNELS[name]
    draw = np.random.default_rng(1)
    message = {"w": jnp.asarray(draw.normal(size=(9, 50)), dtype), "c": jnp.asarray(draw.normal(size=3), dtype)}
    memory = channel.init(message)

    @jax.jit
    def both(memory, round):
        code, kept = channel.encode(message, memory, agent(round))
        return code, (channel.decode(code, message), kept), channel.transfer(message, memory, agent(round))

    for round in range(2):
        code, (arrived, kept), at_once = both(memory, round)
        for a, b in zip(*map(jax.tree.leaves, ((arrived, kept), at_once)), strict=True):
            np.testing.assert_array_equal(a, b)
        assert jax.tree.map(lambda a: (a.shape, a.dtype), arrived) == jax.tree.map(
            lambda a: (a.shape, a.dtype), message
        )
        assert channel.bits(message) == 8 * sum(np.asarray(a).nbytes for a in jax.tree.leaves(code))
        memory = kept


def masks_of(draws, x):
    return {tuple(row) for row in (draws != 0).tolist()}


def enumerated(x, k, gain):
    """Mean and covariance over all sets of k places, each as likely as any other."""
    d = len(x)
    outcomes = [gain * np.isin(np.arange(d), kept) * x for kept in itertools.combinations(range(d), k)]
    mean = np.mean(outcomes, axis=0)
    return mean, np.mean([np.outer(o - mean, o - mean) for o in outcomes], axis=0)


@pytest.mark.parametrize("k", [1, 2])
def test_rand_k_has_the_moments_of_all_its_masks(k):
    x, count = np.array([1.0, -2.0, 0.5]), 6000
    mean, covariance = enumerated(x, k, 3 / k)
    np.testing.assert_allclose(mean, x, rtol=1e-14)
    a = (k - 1) / 2  # 10.3: E[CC'] = (d/k)(a xx' + (1-a) diag xx')
    second = (3 / k) * (a * np.outer(x, x) + (1 - a) * np.diag(x**2))
    np.testing.assert_allclose(covariance, second - np.outer(x, x), atol=1e-14)
    assert np.trace(covariance) == pytest.approx(RandK(k / 3).omega(jnp.asarray(x)) * x @ x)
    got = drawn(RandK(k / 3), jnp.asarray(x), count)
    assert len(masks_of(got, x)) == 3
    wrong_mean, _ = enumerated(x, k, 1.0)  # the mutant without d/k
    error = np.sqrt(np.diag(covariance) / count)
    assert (np.abs(got.mean(0) - x) < 4 * error).all() and (np.abs(wrong_mean - x) > 4 * error).all()
    # Products of two bounded numbers: their standard error from their own fourth moments.
    products = (got - x)[:, :, None] * (got - x)[:, None, :]
    spread = products.std(0) / np.sqrt(count) + 1e-12
    assert (np.abs(products.mean(0) - covariance) < 4.5 * spread).all()


def test_erased_messages_have_the_moments_of_a_coin():
    x, q, count = np.array([1.0, -2.0, 0.5]), 0.7, 4000
    got = drawn(Erase(1 - q), jnp.asarray(x), count)
    arrived = (got != 0).all(1)
    assert ((got == 0).all(1) | arrived).all()  # all or nothing
    np.testing.assert_allclose(got[arrived], np.broadcast_to(x / q, (arrived.sum(), 3)), rtol=1e-14)
    assert arrived.mean() == pytest.approx(q, abs=4 * np.sqrt(q * (1 - q) / count))


@pytest.mark.parametrize("dither", [False, True])
@pytest.mark.parametrize("width", [2, 4])
def test_rounding_at_random_has_its_mean_and_variance(dither, width):
    x, count = np.array([1.0, -0.31, 0.02, 0.0, 0.77, -1.0]), 20000
    delta = 1.0 / (2 ** (width - 1) - 1)
    f = x / delta - np.floor(x / delta)
    variance = np.full(6, delta**2 / 12) if dither else delta**2 * f * (1 - f)
    got = drawn(Quantise(width, dither=dither), jnp.asarray(x), count)
    assert (np.abs(got.mean(0) - x) <= 4 * np.sqrt(variance / count) + 1e-7).all()  # 24 bits of luck
    squares = (got - x) ** 2
    assert (np.abs(squares.mean(0) - variance) <= 4 * squares.std(0) / np.sqrt(count) + 1e-7).all()
    # The mutant that rounds to the nearest level is off by more than that.
    nearest = delta * np.round(x / delta)
    assert np.abs(nearest - x).max() > 4 * np.sqrt(variance.max() / count)
    assert squares.sum(1).mean() <= Quantise(width, dither=dither).omega(jnp.asarray(x)) * x @ x


@pytest.mark.parametrize("channel", [TopK(0.3), Sign(), Chain((Clip(1.5), TopK(0.3)))], ids=["top k", "sign", "chain"])
def test_what_was_sent_and_what_is_owed_is_what_was_meant(channel):
    """Error feedback conserves the sum: of all that arrived, and of what is still owed."""
    draw = np.random.default_rng(0)
    message = jnp.zeros((7, 3))
    memory, arrived, meant = channel.init(message), np.zeros((7, 3)), np.zeros((7, 3))
    limit = Clip(1.5) if isinstance(channel, Chain) else None
    pass_on = jax.jit(lambda message, memory, round: channel.transfer(message, memory, agent(round)))
    for round in range(30):
        message = jnp.asarray(draw.normal(size=(7, 3)))
        got, memory = pass_on(message, memory, round)
        arrived, meant = arrived + got, meant + (message if limit is None else limit.expected(message))
        owed = channel.owed(memory, message)
        np.testing.assert_allclose(arrived + owed, meant, atol=1e-12)
    assert np.abs(owed).max() > 0.1  # a memory that was dropped would not be seen otherwise


@pytest.mark.parametrize("k", [1, 5, 50, 499, 500])
def test_the_largest_numbers_are_found_without_a_sort(k):
    draw = np.random.default_rng(k)
    for x in (
        draw.normal(size=500),
        np.round(draw.normal(size=500), 1),  # many equal ones
        np.zeros(500),
        np.r_[1e-30 * draw.normal(size=300), np.zeros(200)],
        np.ones(500),
    ):
        mask = np.asarray(jax.jit(largest, static_argnums=1)(jnp.asarray(x), k))
        assert mask.sum() == k
        assert k == 500 or np.abs(x[mask]).min() >= np.abs(x[~mask]).max() * (1 - 1e-6)
        order = np.lexsort((np.arange(500), -(np.abs(x) / max(np.abs(x).max(), 1e-300)).astype(np.float32)))
        np.testing.assert_array_equal(np.flatnonzero(mask), np.sort(order[:k]))  # of equal ones the first


def test_whole_numbers_are_packed():
    for bits in (1, 3, 8, 13):
        whole = np.random.default_rng(bits).integers(0, 2**bits, 77)
        code = packed(jnp.asarray(whole), bits)
        assert code.dtype == jnp.uint8 and code.size == -(-77 * bits // 8)
        np.testing.assert_array_equal(unpacked(code, bits, 77), whole)


ENDS = {  # squared distance from w*, with exact fields, as small as the recursion allows in double precision
    "rand k": RandK(0.67),
    "top k": TopK(0.34),
    "sign": Sign(),
    "quantise": Quantise(4),
    "dithered": Quantise(4, dither=True),
    "erase": Erase(0.3),
    "cast": Cast("float16"),
    "chain": [Clip(0.5), TopK(0.67), Quantise(8)],
}


@pytest.mark.parametrize("name", ENDS)
def test_scaffold_ends_at_the_solution(name):
    run = fp.run(SCAFFOLD, QUAD, rounds=1500, participation=2, channel=ENDS[name], record_every=1500, seed=3)
    assert run.error[0, -1] < (1e-12 if name in ("cast", "sign") else 1e-20)


class Forgetful(TopK):
    """Nothing is held back for later."""

    def transfer(self, message, memory, agent):
        arrived, _ = super().transfer(message, memory, agent)
        return arrived, memory


def test_without_its_memory_top_k_ends_elsewhere():
    ends = [
        fp.run(fp.FedAvg(step=0.02), QUAD, 4000, channel=channel, record_every=4000).error[0, -1]
        for channel in (TopK(0.34), Forgetful(0.34), TopK(0.34, feedback=False))
    ]
    assert ends[0] < 1e-3 < 1e-2 < min(ends[1:])  # with it, off by the order of the step: 4e-4


def test_sums_of_whole_numbers_do_not_wrap_around():
    """The sum of what agents send, modulo 2^b, is the sum of what arrives of each; at the edge of the range too."""
    channel, edge = FixedPoint(12, range=3.0, agents=20), np.array([3.0, -3.0, 2.9, 0.0])
    messages = [jnp.asarray(edge * (1 if k < 20 else 0)) for k in range(20)]
    codes = [channel.encode(m, (), agent(0, k))[0][0] for k, m in enumerate(messages)]
    arrived = sum(np.asarray(channel.decode([c], m)) for c, m in zip(codes, messages, strict=True))
    whole = sum(np.asarray(c, np.int64) for c in codes)
    masks = np.random.default_rng(0).integers(0, 2**12, size=(20, 4))
    masked = (whole + masks.sum(0)) % 2**12 - masks.sum(0)  # masks that cancel
    np.testing.assert_allclose(channel.decode_sum(jnp.asarray(masked)), arrived, atol=1e-12)
    assert np.abs(arrived - 20 * edge).max() <= 20 * 3.0 / ((2**11 - 1) // 20)
    tight = FixedPoint(12, range=3.0, agents=10)  # the mutant with room for half of them wraps
    sums = sum(np.asarray(tight.encode(m, (), agent(0, k))[0][0], np.int64) for k, m in enumerate(messages))
    assert np.abs(np.asarray(tight.decode_sum(jnp.asarray(sums))) - 20 * edge).max() > 50


def test_overflow_is_refused_or_seen():
    with pytest.raises(fp.FedpointError, match="8 bits cannot hold the sum of 300 agents"):
        FixedPoint(8, range=1.0, agents=300)
    with pytest.raises(fp.FedpointError, match="room for the sum of 2 agents, but there are 3"):
        fp.run(fp.FedAvg(step=0.1), QUAD, 1, channel=FixedPoint(16, range=1.0, agents=2))
    with pytest.raises(fp.FedpointError):  # changes of more than 0.01, which are not wrapped in silence
        fp.run(fp.FedAvg(step=0.1), QUAD, 5, channel=FixedPoint(16, range=0.01))


REFUSED = {
    "a memory behind a code": (fp.FedAvg(step=0.1), [Quantise(4), TopK(0.5)], "TopK stands after Quantise"),
    "what is owed behind the clip": (
        fp.FedAvg(step=0.1),
        [Clip(1.0), TopK(0.5), fp.channel.Gaussian(1.0)],
        "TopK stands behind Clip, and nothing bounds",
    ),
    "the same behind the noise of a hub": (
        fp.FedAvg(step=0.1),
        [Clip(1.0), fp.channel.Gaussian(1.0), Sign()],
        "Sign stands behind Clip, and nothing bounds",
    ),
    "a part of what is packed": (
        fp.FedAvg(step=0.1),
        [TopK(0.5), Clip(1.0), RandK(0.5), fp.channel.Gaussian(1.0)],
        "RandK stands behind Clip, and nothing bounds",
    ),
    "decoded behind the clip": (
        fp.FedAvg(step=0.1),
        [Quantise(4), Clip(1.0), fp.channel.Gaussian(1.0)],
        "Quantise stands before Clip",
    ),
    "places that tell": (
        fp.FedAvg(step=0.1),
        [TopK(0.5), Clip(1.0), fp.channel.Gaussian(1.0, at="agents")],
        "TopK stands before Gaussian at the agents",
    ),
    "memories that grow": (SCAFFOLD, RandK(0.5), "its memories grow without bound"),
    "memories that grow together": (SCAFFOLD, [RandK(0.7), Erase(0.3)], "its memories grow without bound"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together(name):
    method, channel, message = REFUSED[name]
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(method, QUAD, 1, channel=channel)


def test_what_may_stand_around_noise():
    noise = fp.channel.Gaussian(0.5, at="agents")
    for channel in ([RandK(0.5), Clip(1.0), noise], [Clip(1.0), noise, TopK(0.5)], [Clip(1.0), noise, Quantise(8)]):
        run = fp.run(fp.FedAvg(step=0.1), QUAD, 5, channel=channel)
        assert np.isfinite(run.error).all()


def test_memories_do_grow_where_that_is_refused(monkeypatch):
    """The reason is true: with a gain of 2.5 SCAFFOLD leaves the finite numbers."""
    monkeypatch.setattr("fedpoint.experiment.experiment.check_channel", lambda *of: None)
    with pytest.raises(fp.Diverged):
        fp.run(SCAFFOLD, QUAD, rounds=3000, channel=Erase(0.6), record_every=3000)


# Mutants: each is caught by a test above.


class StandsForNobody(Erase):
    """What arrives is not divided by the chance that it does."""

    def encode(self, message, memory, agent):
        code, memory = super().encode(message, memory, agent)
        return jax.tree.map(lambda a: a * (1.0 - self.probability), code), memory


class RoundsDown(Quantise):
    def _levels(self, a, luck):
        return super()._levels(a, 0 * luck)


class LeavesTheDither(Quantise):
    """The hub does not take it away again."""

    def _value(self, level, longest, luck):
        return super()._value(level, longest, None)


class OwesNothing(Sign):
    def _kept(self, whole):
        return jnp.zeros_like(whole)


class ForgetsTheSeed(RandK):
    """Bytes of the numbers alone."""

    def bits(self, message):
        return super().bits(message) - 64


class DecodesOtherwise(Cast):
    """Sites would hear something else than the simulation."""

    def transfer(self, message, memory, agent):
        return message, memory


MUTANTS = {
    "erase": ("Erase", StandsForNobody, lambda: test_erased_messages_have_the_moments_of_a_coin()),
    "quantise": ("Quantise", RoundsDown, lambda: test_rounding_at_random_has_its_mean_and_variance(False, 2)),
    "dither": ("Quantise", LeavesTheDither, lambda: test_rounding_at_random_has_its_mean_and_variance(True, 2)),
    "sign": (None, None, lambda: test_what_was_sent_and_what_is_owed_is_what_was_meant(OwesNothing())),
    "rand k": ("rand k", ForgetsTheSeed(0.4), lambda: packs("rand k")),
    "cast": ("cast", DecodesOtherwise("bfloat16"), lambda: packs("cast")),
}


def packs(name):
    test_what_is_packed_arrives_as_in_simulation(name, np.float32)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail(name, monkeypatch):
    what, mutant, test = MUTANTS[name]
    if what in CHANNELS:
        monkeypatch.setitem(CHANNELS, what, mutant)
    elif what is not None:
        monkeypatch.setattr(sys.modules[__name__], what, mutant)
    with pytest.raises(AssertionError):
        test()
