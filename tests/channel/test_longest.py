"""How long may a clipped message become behind its clip? Bounds that hold, are reached, and scale the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.channel import Cast, Clip, Erase, FixedPoint, Gaussian, Quantise, RandK, Sign, TopK
from fedpoint.channel.base import ChannelContext
from fedpoint.core.agent import Agent
from fedpoint.core.random import Key, Stream

SIZES = {"control": 3, "model": 8}
LONG = {  # with the part of its bound that a message of norm 1 at least comes to, so that the bound is not idle
    "bfloat16": (Cast("bfloat16"), 0.997),
    "float16": (Cast("float16"), 0.9997),
    "rand k": (RandK(0.5), 0.999),
    "levels": (Quantise(3), 0.55),
    "dithered": (Quantise(3, dither=True), 0.6),
    "lost": (Erase(0.4), 0.999),
    "whole numbers": (FixedPoint(8, range=1.0, agents=20), 0.8),
}
SHORT = {"largest": TopK(0.5, feedback=False), "signs": Sign(feedback=False), "again": Clip(2.0)}


def messages():
    """Of norm 1: drawn, along axes, and all numbers alike."""
    d = sum(SIZES.values())
    draw = np.random.default_rng(0).normal(size=(200, d))
    rows = np.concatenate([draw, np.eye(d), np.ones((1, d)), np.eye(d) + 1e-3])
    rows = rows / np.linalg.norm(rows, axis=1)[:, None]
    cut = SIZES["control"]
    return {"control": jnp.asarray(rows[:, :cut]), "model": jnp.asarray(rows[:, cut:])}


def longest_seen(channel):
    @jax.jit
    def arrived(i, message):
        agent = Agent(None, None, Stream(Key.of(3), i, 0), None, None, True, 0.5)
        return channel.decode(channel.encode(message, channel.init(message), agent)[0], message)

    sent = messages()
    lengths = []
    for luck in range(20):
        got = jax.vmap(arrived)(1000 * luck + jnp.arange(len(sent["model"])), sent)
        lengths.append(np.sqrt(sum((np.asarray(a) ** 2).sum(1) for a in got.values())).max())
    return max(lengths)


def bound_of(channel):
    like = {name: jnp.zeros(size) for name, size in SIZES.items()}
    return float(channel.longest_after(1.0, like))


@pytest.mark.parametrize("name", LONG)
def test_what_gets_longer_stays_within_its_bound_and_comes_near(name):
    channel, near = LONG[name]
    with jax.enable_x64(True):
        seen, bound = longest_seen(channel), bound_of(channel)
    assert 1 < seen <= bound * (1 + 1e-12)  # a bound of 1, as if nothing got longer, would be wrong
    assert seen >= near * bound


@pytest.mark.parametrize("name", SHORT)
def test_what_gets_no_longer(name):
    with jax.enable_x64(True):
        assert bound_of(SHORT[name]) == 1.0
        assert longest_seen(SHORT[name]) <= 1 + 1e-12


@pytest.mark.parametrize("channel", [TopK(0.5), Sign(), Gaussian(1.0, at="agents")])
def test_what_has_no_bound(channel):
    assert channel.longest_after(1.0, jnp.zeros(4)) is None


@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize("name", ["rand k", "lost", "bfloat16"])
def test_noise_at_the_hub_is_scaled_by_it(name, place):
    """Behind the clip, before or after the noise: an agent does the same to its message."""
    stage = LONG[name][0]
    links = [Clip(0.5), Gaussian(3.0)]
    links.insert(place, stage)
    bound = fp.channel.Chain(tuple(links)).bind(ChannelContext(np.array([0.25, 0.75]), 1.0, 2))
    noise = next(link for link in bound.links if link.noises())
    like = {name: jnp.zeros(size) for name, size in SIZES.items()}
    after = {"rand k": 0.5 * 2.0, "lost": 0.5 / 0.6, "bfloat16": 0.5 * (1 + 2.0**-8)}[name]
    assert float(noise.deviation(like, 0.0)) == pytest.approx(3.0 * 0.75 * after, rel=1e-6)


def test_noise_at_agents_meets_what_stands_before_it_alone():
    links = (Clip(0.5), Erase(0.5), Gaussian(3.0, at="agents"), RandK(0.5))
    noise = fp.channel.Chain(links).bind(ChannelContext(np.array([0.5, 0.5]), 1.0, 1)).links[2]
    assert float(noise.agent_deviation(jnp.zeros(8), 0.5)) == pytest.approx(3.0 * 0.5 / 0.5)


def test_an_overflow_says_so():
    far = fp.problems.Quadratic(1.0, [[5.0], [7.0]])
    with pytest.raises(fp.Diverged, match=r"FixedPoint carries numbers from -0\.01 to 0\.01, and a message"):
        fp.run(fp.FedAvg(step=0.1), far, rounds=3, channel=FixedPoint(16, range=0.01))
