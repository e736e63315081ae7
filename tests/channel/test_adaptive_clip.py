"""Does the norm of an adaptive clip follow its quantile, by its formula, and is its bit as private as the rest?"""

import math

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.channel.adaptive_clip import InNorms

RNG = np.random.default_rng(5)
NORM = {"norm": lambda state: state.hub.norm}
PLACES, WEIGHTS = RNG.normal(size=(4, 3)), np.array([0.4, 0.3, 0.2, 0.1])


def by_hand(rounds, norm, quantile, rate, step=0.2):
    """Andrew et al.'s recursion, written out: gradients at w, clipped to C, and C by the weighted part below it."""
    w, norms = np.zeros(3), [norm]
    for _ in range(rounds):
        changes = step * (PLACES - w)
        lengths = np.linalg.norm(changes, axis=1)
        w = w + WEIGHTS @ (changes * np.minimum(1, norm / lengths)[:, None])
        norm = norm * math.exp(-rate * (WEIGHTS @ (lengths <= norm) - quantile))
        norms.append(norm)
    return w, norms


class Around(fp.channel.AdaptiveClip):
    """An adaptive clip around which another class keeps the norm: for mutants."""

    kept_by = InNorms

    def around(self, algorithm):
        return self.kept_by(algorithm, norm=self.norm, quantile=self.quantile, rate=self.rate, bit=self.bit)


def adapted(kind=fp.channel.AdaptiveClip):
    problem = fp.problems.Quadratic(1.0, PLACES, weights=WEIGHTS)
    channel = kind(2.0, quantile=0.6, rate=0.3, bit=0.5)
    return fp.run(fp.FedAvg(step=0.2), problem, rounds=60, channel=channel, metrics=NORM)


def follows_the_recursion(run):
    w, norms = by_hand(60, 2.0, 0.6, 0.3)
    np.testing.assert_allclose(run.metrics["norm"][0], norms, rtol=1e-12)
    np.testing.assert_allclose(run.model[0], w, rtol=1e-12)


def test_the_norm_and_the_model_follow_the_recursion():
    follows_the_recursion(adapted())


class WrongTail(InNorms):
    def combine(self, hub, inbox):
        return InNorms(self.inner, norm=1.0, quantile=0.4, rate=self.rate, bit=self.bit).combine(hub, inbox)


class NeverMoves(InNorms):
    def combine(self, hub, inbox):
        return super().combine(hub, inbox)._replace(norm=hub.norm)


class HalfAsLong(InNorms):
    def combine(self, hub, inbox):
        return super().combine(hub._replace(norm=hub.norm / 2), inbox)


@pytest.mark.parametrize("mutant", [WrongTail, NeverMoves, HalfAsLong])
def test_mutants_do_not(mutant):
    broken = type(f"Around{mutant.__name__}", (Around,), {"kept_by": mutant, "__module__": __name__})
    with pytest.raises(AssertionError):
        follows_the_recursion(adapted(broken))


class BitNotCounted(fp.channel.AdaptiveClip):
    def longest(self, message):
        return 1.0


def spread(kind=fp.channel.AdaptiveClip, bit=2.0, multiplier=0.5, repeats=4000):
    """Deviations of the model and of the logarithm of the norm after a round of messages that are zero."""
    problem = fp.problems.Quadratic(1.0, np.zeros((5, 1)))
    channel = [kind(3.0, bit=bit, rate=0.3), fp.channel.Gaussian(multiplier)]
    run = fp.run(fp.FedAvg(step=0.1), problem, rounds=1, repeats=repeats, channel=channel, metrics=NORM)
    return run.model[:, 0].std(), np.log(run.metrics["norm"][:, -1]).std()


def test_noise_covers_the_message_and_its_bit_together():
    """Deviation z sqrt(1 + bit^2/4) / K on both: that of messages over the norm, and of bits over `bit`. A standard
    deviation of 4000 normal numbers has a relative standard error of 1.1 %."""
    w, log_norm = spread()
    sigma = 0.5 * math.sqrt(2.0) / 5
    assert w == pytest.approx(3.0 * sigma, rel=0.045)
    assert log_norm == pytest.approx(0.3 * sigma / 2.0, rel=0.045)


def test_a_bit_that_is_not_counted_is_seen():
    assert spread(BitNotCounted)[0] < 0.9 * 3.0 * 0.5 * math.sqrt(2.0) / 5


def test_the_part_that_is_not_clipped_is_the_quantile():
    """In the long run the norm stands still, so that the mean of b_t is the quantile: to log(C_T/C_0) / (rate T)."""
    problem = fp.problems.Quadratic(1.0, RNG.normal(size=(40, 2)), noise=0.5)
    channel = fp.channel.AdaptiveClip(50.0, quantile=0.8)
    run = fp.run(fp.FedAvg(step=0.1), problem, rounds=400, participation=10, channel=channel, metrics=NORM)
    norms = run.metrics["norm"][0, 200:]
    shorter = 0.8 - np.diff(np.log(norms)) / 0.2
    assert abs(shorter.mean() - 0.8) < 0.02 and norms.max() < 0.5


class Forgetful(InNorms):
    def acknowledge(self, memory, sent, credited):
        return memory


class AroundForgetful(Around):
    kept_by = Forgetful


def scaffold(kind):
    problem = fp.problems.Quadratic([1.0, 2.0, 3.0], PLACES[:3])
    method = fp.Scaffold(step=0.1, local_steps=2)
    return fp.run(method, problem, rounds=800, participation=2, channel=kind(0.05, quantile=0.9)).error[0, -1]


def test_memories_count_what_was_left_after_the_clip():
    assert scaffold(fp.channel.AdaptiveClip) < 1e-20
    assert scaffold(AroundForgetful) > 1e-6


def test_it_is_accounted_as_a_clip_is():
    """The noise has its multiplier over all that an agent sends: nothing is left to be counted besides."""
    e = fp.Experiment(
        fp.FedAvg(0.1),
        fp.problems.Quadratic(1.0, np.zeros((20, 1))),
        channel=[fp.channel.AdaptiveClip(1.0), fp.channel.Gaussian(5.0)],
    )
    plain = e.replace(channel=[fp.channel.Clip(1.0), fp.channel.Gaussian(5.0)])
    assert fp.privacy.spent(e, 10, 1e-5).epsilon == fp.privacy.spent(plain, 10, 1e-5).epsilon


QUAD = fp.problems.Quadratic(1.0, np.zeros((4, 2)))
REFUSED = {
    "put it first in the channel": lambda: [fp.channel.TopK(0.5), fp.channel.AdaptiveClip(1.0)],
    "quantile must lie between 0 and 1": lambda: fp.channel.AdaptiveClip(1.0, quantile=1.0),
    "norm must be above 0": lambda: fp.channel.AdaptiveClip(0.0),
    "bit must be above 0": lambda: fp.channel.AdaptiveClip(1.0, bit=0.0),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refused(said):
    with pytest.raises(fp.FedpointError, match=said):
        fp.Experiment(fp.FedAvg(0.1), QUAD, channel=REFUSED[said]())


def test_where_it_has_no_place():
    clip = fp.channel.AdaptiveClip(1.0)
    with pytest.raises(fp.FedpointError, match="has no forecast"):
        fp.forecast(fp.FedAvg(0.1), QUAD, channel=clip)
    with pytest.raises(fp.FedpointError, match="which a network lacks"):
        fp.Experiment(fp.FedGD(0.1, coupling=1.0), QUAD, network=fp.Network.ring(4), channel=clip)
    with pytest.raises(fp.FedpointError, match=r"examine fp\.channel\.Clip"):
        fp.privacy.certify(fp.channel.Chain((clip, fp.channel.Gaussian(1.0))), fp.Privacy(1.0, 1e-5))
