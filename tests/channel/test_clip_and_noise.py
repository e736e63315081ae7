"""Clips and noise: norms, laws, what an inbox holds, and what is refused."""

import sys

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.channel import AdaptiveClip, Cast, Clip, FixedPoint, Gaussian
from fedpoint.channel.adaptive_clip import Scaled
from fedpoint.channel.base import ChannelContext, Hub, nobody
from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK

QUAD = fp.problems.Quadratic([1.0, 2.0, 0.5, 1.0], [[0.0, 1.0], [1.0, 0.0], [3.0, -2.0], [5.0, 4.0]])
FEDAVG = fp.FedAvg(step=0.3, local_steps=2)


def norm(tree):
    return float(np.sqrt(sum((np.asarray(a, float) ** 2).sum() for a in jax.tree.leaves(tree))))


@double
def test_no_message_is_longer_than_its_clip():
    draw = np.random.default_rng(0)
    for size in (1e-3, 1.0, 1e3):
        message = {"w": size * draw.normal(size=(5, 2)), "c": size * draw.normal(size=7), "n": np.int32(3)}
        message = jax.tree.map(jax.numpy.asarray, message)
        whole, _ = Clip(0.7).encode(message, (), nobody())
        each, _ = Clip(0.7, each=True).encode(message, (), nobody())
        real = {name: whole[name] for name in ("w", "c")}
        was = norm({name: message[name] for name in ("w", "c")})
        assert norm(real) == pytest.approx(min(was, 0.7), rel=1e-14)
        assert whole["n"] == 3
        for name in ("w", "c"):
            assert norm(each[name]) == pytest.approx(min(norm(message[name]), 0.7), rel=1e-14)
            np.testing.assert_allclose(whole[name] * was, message[name] * norm(real), rtol=1e-12)
        assert Clip(0.7, each=True).longest(message) == pytest.approx(0.7 * np.sqrt(2))


class PartByPart(Clip):
    """A mutant: a message of several arrays may be longer than the norm."""

    def expected(self, message):
        return jax.tree.map(lambda a: a * min(1.0, self.norm / norm(a)) if a.ndim else a, message)


def test_a_clip_of_every_part_is_seen(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Clip", PartByPart)
    with pytest.raises(AssertionError):
        test_no_message_is_longer_than_its_clip()


@double
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])  # of the last one the square is not finite
def test_a_message_that_is_not_finite_counts_as_zero(bad):
    """NaN times any factor is NaN: clipped as usual, one agent would be seen in every sum, through any noise."""
    array = np.array([1.0, bad, 2.0])
    message = {"w": jax.numpy.asarray(array), "c": jax.numpy.ones(2)}
    whole, _ = Clip(0.7).encode(message, (), nobody())
    each, _ = Clip(0.7, each=True).encode(message, (), nobody())
    adapted, _ = AdaptiveClip(0.7).encode(Scaled(message, jax.numpy.zeros(())), (), nobody())
    assert norm(whole) == norm(adapted.change) == norm(each["w"]) == 0.0
    assert norm(each["c"]) == pytest.approx(0.7)
    assert adapted.shorter == -0.1  # longer than the norm
    with np.errstate(all="ignore"):  # the mutant: the formula as it stands
        mutant = array * (0.7 / max(0.7, np.sqrt((array**2).sum())))
    assert not np.isfinite(mutant).all() or bad == 1e200


@double
def test_noise_at_agents_does_not_tell_who_was_heard():
    """With weights that differ, their sum over a round would name its agents, whose sampling is counted as privacy."""
    context = ChannelContext(np.array([0.1, 0.4, 0.2, 0.3]), scale=2.0, least=2, clip=Clip(1.0))
    noise, hub = Gaussian(1.0, at="agents").bind(context), Hub(NO_LUCK.row(), np.int32(0), np.float64(0.8))
    for heard in (0.0, 0.3, 0.7):  # p of those who were heard
        mean = jax.numpy.full(3, heard)
        used = noise.release(Inbox(mean, mean / 2, jax.numpy.float64(heard), jax.numpy.float64(2 * heard)), hub)
        assert (float(used.mass), float(used.weight)) == (pytest.approx(0.5), 1.0)
        np.testing.assert_array_equal(used.total, mean / 2)


def test_a_clip_that_is_never_reached_changes_nothing():
    plain = fp.run(FEDAVG, QUAD, rounds=20)
    clipped = fp.run(FEDAVG, QUAD, rounds=20, channel=Clip(1e6))
    np.testing.assert_allclose(clipped.history, plain.history, rtol=1e-14, atol=1e-300)


def test_scaffold_remembers_what_was_left_after_the_clip():
    """c = sum p_k c_k stays, and it ends at w*: had the memory kept what was clipped away, c would be off."""
    run = fp.run(fp.Scaffold(step=0.2, local_steps=3), QUAD, rounds=2000, participation=2, channel=Clip(0.05), seed=1)
    assert run.error[0, -1] < 1e-20


@pytest.mark.parametrize("at", ["hub", "agents"])
@pytest.mark.parametrize("who", [None, 2])
def test_the_sum_has_noise_of_the_multiplier_times_norm_times_largest_weight(at, who):
    """One round from the solution of a problem without noise and without differences: what is left is the noise."""
    p = np.array([0.1, 0.4, 0.2, 0.3])
    same = fp.problems.Quadratic(1.0, np.zeros((4, 3)), weights=p)
    z, norm_, repeats = 1.5, 0.2, 4000
    run = fp.run(
        fp.FedAvg(step=0.5), same, 1, participation=who, repeats=repeats, channel=[Clip(norm_), Gaussian(z, at=at)]
    )
    scale = 1.0 if who is None else 4 / who
    deviation = z * norm_ * scale * p.max()
    measured = np.sqrt((run.model**2).mean())
    # The mean of 12,000 squares of normals: a standard error of sqrt(2/12000)/2 = 0.65 % of the deviation.
    assert measured == pytest.approx(deviation, rel=4 * 0.0065)


class Unweighted(Gaussian):
    """A mutant: noise as if the largest weight were 1."""

    def bind(self, context):
        return super().bind(context._replace(weights=np.ones_like(context.weights)))


def test_noise_without_the_weight_is_seen():
    """The mutant fails what the test above asks for: its noise is 1 / 0.4 times as large."""
    p = np.array([0.1, 0.2, 0.3, 0.4])
    same = fp.problems.Quadratic(1.0, np.zeros((4, 3)), weights=p)
    run = fp.run(fp.FedAvg(step=0.5), same, 1, repeats=4000, channel=[Clip(0.2), Unweighted(1.5)])
    assert abs(np.sqrt((run.model**2).mean()) / (1.5 * 0.2 * 0.4) - 1) > 4 * 0.0065


def test_noise_at_agents_is_credited_to_memories():
    """SCAFFOLD's sum is conserved with noise at the agents; with noise at the hub it would walk, and is refused."""
    channel = [Clip(1.0), Gaussian(0.5, at="agents")]
    run = fp.run(fp.Scaffold(step=0.2, local_steps=3), QUAD, rounds=400, participation=2, channel=channel, repeats=50)
    early, late = (run.error[:, i].mean() for i in (200, 400))
    assert late < 2 * early
    with pytest.raises(fp.FedpointError, match="would drift away"):
        fp.run(fp.Scaffold(step=0.2), QUAD, 1, channel=[Clip(1.0), Gaussian(0.5)])


class Doubled(fp.Channel):
    """A user's own, which does not say how long a message becomes."""

    def encode(self, message, memory, agent):
        return jax.tree.map(lambda a: 2 * a, message), memory


REFUSED = {
    "no clip": ([Gaussian(1.0)], {}, "Gaussian needs a clip before it"),
    "alone": (Gaussian(1.0), {}, "Gaussian needs a clip before it"),
    "noise first": ([Clip(1.0), Gaussian(1.0), Clip(1.0)], {}, "Clip stands after Gaussian"),
    "twice": ([Clip(1.0), Gaussian(1.0), Gaussian(1.0)], {}, "appears twice"),
    "noise alone before": ([Gaussian(1.0), Clip(1.0)], {}, "Now it stands behind the noise"),
    "weights that vary": ([Clip(1.0), Gaussian(1.0)], {"participation": fp.ByWeight(2)}, "depends on who else"),
    "a network": ([Clip(1.0), Gaussian(1.0)], {"network": fp.Network.ring(4)}, 'use fp.channel.Gaussian(..., at="age'),
    "no room behind the clip": (
        [Clip(1.0), FixedPoint(32, range=0.9), Gaussian(1.0)],
        {},
        "FixedPoint carries numbers up to 0.9, and one behind Clip may be as large as 1",
    ),
    "the same in 16 bits": ([Clip(1e5), Gaussian(1.0), Cast("float16")], {}, "Cast carries numbers up to 65504"),
    "rounded up and out": (
        [Clip(1.003), Cast("bfloat16"), FixedPoint(32, range=1.003), Gaussian(1.0)],
        {},
        "FixedPoint carries numbers up to 1.003",
    ),
    "one's own": ([Clip(1.0), Doubled(), Gaussian(1.0)], {}, "nothing bounds the norm of the message"),
    "a median": ([Clip(1.0), Gaussian(1.0)], {"gather": fp.gather.Median()}, "which Median is not"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    channel, options, message = REFUSED[name]
    if "network" in options:
        options = {"network": options["network"].mixing()}
    with pytest.raises(fp.FedpointError) as error:
        fp.run(FEDAVG, QUAD, 1, channel=channel, **options)
    assert message in str(error.value)


def test_weights_by_rows_are_refused():
    draw = np.random.default_rng(0)
    X, y, groups = draw.normal(size=(9, 2)), draw.normal(size=9), [0] * 2 + [1] * 3 + [2] * 4
    by_rows = fp.problems.LeastSquares(X, y, groups=groups)
    with pytest.raises(fp.FedpointError, match="weighted by their numbers of rows"):
        fp.run(FEDAVG, by_rows, 1, channel=[Clip(1.0), Gaussian(1.0)])
    fp.run(
        FEDAVG, fp.problems.LeastSquares(X, y, groups=groups, weights=[1, 1, 1]), 1, channel=[Clip(1.0), Gaussian(1.0)]
    )


@pytest.mark.parametrize(
    "make", [lambda: Clip(0.0), lambda: Clip(-1.0), lambda: Gaussian(0.0), lambda: Gaussian(1.0, at="home")]
)
def test_numbers_out_of_range(make):
    with pytest.raises(fp.FedpointError):
        make()
