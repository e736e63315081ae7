"""Is epsilon what dp_accounting says of the right event, and what closed forms say where there are any?"""

import itertools
import math

import dp_accounting as dp
import jax
import numpy as np
import pytest
from dp_accounting import pld, rdp
from scipy.stats import binom, norm

import fedpoint as fp
from fedpoint.core.errors import FedpointError
from fedpoint.privacy.accounting import Account, gaussian_epsilon, sensitivity, with_lost_rounds

DELTA = 1e-5
Poisson = fp.participation.Poisson


def quad(agents=1000):
    return fp.problems.Quadratic(1.0, np.zeros((agents, 1)))


def private(multiplier=2.0, at="hub"):
    return [fp.channel.Clip(1.0), fp.channel.Gaussian(multiplier, at=at)]


def experiment(participation=None, agents=1000, multiplier=2.0, at="hub", **more):
    return fp.Experiment(
        fp.FedAvg(step=0.1), quad(agents), participation=participation, channel=private(multiplier, at), **more
    )


def spent(*arguments, rounds=100, delta=DELTA, **more):
    return fp.privacy.spent(experiment(*arguments, **more), rounds, delta)


# One Gaussian, in closed form.


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_one_gaussian_is_exact(z, delta):
    """Balle and Wang's formula holds at the epsilon found; dp_accounting's own solver agrees."""
    e = gaussian_epsilon(z, delta)
    assert norm.cdf(0.5 / z - e * z) - math.exp(e) * norm.cdf(-0.5 / z - e * z) == pytest.approx(delta, rel=1e-6)
    assert e == pytest.approx(dp.get_epsilon_gaussian(z, delta), rel=1e-5, abs=1e-6)


def test_an_epsilon_of_zero_where_delta_alone_is_enough():
    assert gaussian_epsilon(1e9, 1e-5) == 0.0


def test_everyone_is_one_gaussian_of_all_rounds():
    """T rounds of multiplier z are one of z / sqrt(T); the loss distribution of dp_accounting agrees, from above."""
    found = spent(agents=50, multiplier=20.0, rounds=100)
    assert found.epsilon == pytest.approx(dp.get_epsilon_gaussian(2.0, DELTA), rel=1e-5)
    accountant = pld.PLDAccountant()
    accountant.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(20.0), 100))
    assert found.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)
    assert found.epsilon <= accountant.get_epsilon(DELTA)
    assert found.epsilon_seen == found.epsilon and found.adjacency == "add or remove one agent"


# The three figures: K = 1000, 100 rounds, z = 2, delta 1e-5.


def test_uniform_replaces_one_agent():
    """Replacing moves the sum twice as far: 14.1; 5.4 is what comes of passing z itself."""
    found = spent(100)
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(
        dp.SelfComposedDpEvent(dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(1.0)), 100)
    )
    assert found.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
    assert round(found.epsilon, 1) == 14.1 and found.adjacency.startswith("replace one")
    assert found.epsilon_seen == pytest.approx(dp.get_epsilon_gaussian(0.1, DELTA), rel=1e-5)
    assert round(spent(100, multiplier=4.0).epsilon, 1) == 5.4


def test_poisson_adds_or_removes_one_agent():
    found = spent(Poisson(0.1))
    accountant = pld.PLDAccountant()
    accountant.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 100))
    assert found.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)
    assert round(found.epsilon, 1) == 2.3 and found.accountant == "PLD"
    assert found.epsilon_seen == pytest.approx(dp.get_epsilon_gaussian(0.2, DELTA), rel=1e-5)
    rounds, epsilons = found.by_round.T
    assert rounds[0] == 1 and rounds[-1] == 100 and (np.diff(epsilons) > 0).all() and epsilons[-1] == found.epsilon


def test_sampling_never_costs_more_than_being_seen():
    """One round of nearly everybody: the sampled event's bound is the worse one for Uniform, and is not used."""
    assert spent(999, rounds=1).epsilon <= gaussian_epsilon(1.0, DELTA)
    everyone, poisson = spent(rounds=3), spent(Poisson(1.0), rounds=3)
    assert poisson.epsilon == pytest.approx(everyone.epsilon, rel=1e-3)


def test_hardly_any_noise_has_a_large_epsilon_at_once():
    """z = 0.01: (T/2) / z^2 and more; a distribution of losses would take hours."""
    found = spent(Poisson(0.1), multiplier=0.01, rounds=10)
    assert 10 / 2 / 0.01**2 * 0.05 < found.epsilon <= dp.get_epsilon_gaussian(0.01 / math.sqrt(10), DELTA) * 1.0001


def told_by_one_round(epsilon, z, q, agents, places):
    """The exact delta of one round of which it is also seen who of the others is drawn: integral of
    max(0, p - exp(epsilon) r), both ways, over how many of the others are drawn. With fewer of them than places the
    agent takes part with q; with as many or more it may take part always (the worst case)."""
    x = np.linspace(-12 * z, 12 * z + 1, 20001)
    gap = x[1] - x[0]
    without, there = norm.pdf(x, 0, z), norm.pdf(x, 1, z)
    crowd = binom.sf(places - 1, agents - 1, q)

    def beyond(p, r):
        return float(np.maximum(p - math.exp(epsilon) * r, 0).sum() * gap)

    def delta(part):
        mixed = (1 - part) * without + part * there
        return max(beyond(mixed, without), beyond(without, mixed))

    return (1 - crowd) * delta(q) + crowd * max(delta(1.0), delta(0.0))


def test_places_that_are_too_few_are_paid_for():
    """A full round is as likely with an agent as without it, and costs its probability in delta, once."""

    def one(delta):
        return gaussian_epsilon(1.0, delta)

    assert with_lost_rounds(one, 0.0, DELTA) == one(DELTA)
    assert with_lost_rounds(one, 1e-6, DELTA) == one(DELTA - 1e-6) > one(DELTA)
    assert with_lost_rounds(one, DELTA, DELTA) == math.inf
    few = Account(2.0, Poisson(0.1, places=120), 1000)  # one round in 60 has more than 120 of 1000
    assert few.epsilon(100, DELTA) == (few.seen(100, DELTA), "analytic Gaussian")
    tight = Account(1.0, Poisson(0.2, places=9), 12)
    found, how = tight.epsilon(1, 1e-3)
    assert how == "PLD" and found > Account(1.0, Poisson(0.2), 12).epsilon(1, 1e-3)[0]
    assert told_by_one_round(found, 1.0, 0.2, 12, 9) <= 1e-3
    assert told_by_one_round(0.98 * found, 1.0, 0.2, 12, 9) > 0.95e-3  # and it is not far from the truth


def test_the_places_of_a_long_private_run_cost_nothing_that_is_seen():
    """400 rounds that spend more than 20: what one round in 1e16 may leave out must not be multiplied by exp(20)."""
    scheme = fp.Experiment(fp.FedAvg(0.1), quad(100), participation=Poisson(0.1)).bind().timing
    found, how = Account(0.8, scheme, 100).epsilon(400, DELTA)
    accountant = pld.PLDAccountant()
    accountant.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.8)), 400))
    assert how == "PLD" and found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


def test_noises_of_a_round_add_up():
    """A noisy count of multiplier b beside sums of multiplier z: one Gaussian of (1/z^2 + 1/b^2)^(-1/2)."""
    from fedpoint.channel.base import Noise

    class Counts(fp.channel.Clip):
        def noises(self):
            return (Noise(10.0),)

    e = fp.Experiment(fp.FedAvg(0.1), quad(20), channel=[Counts(1.0), fp.channel.Gaussian(5.0)])
    assert fp.privacy.spent(e, 1, DELTA).epsilon == pytest.approx(
        dp.get_epsilon_gaussian((1 / 25 + 1 / 100) ** -0.5, DELTA), rel=1e-5
    )


def test_noise_at_the_agents():
    """The sum has the hub's noise; one message alone has z / sqrt(L) of the heaviest agent."""
    found = spent(10, agents=100, multiplier=20.0, at="agents", rounds=5)
    assert found.epsilon == pytest.approx(spent(10, agents=100, multiplier=20.0, rounds=5).epsilon)
    assert found.epsilon_single == pytest.approx(dp.get_epsilon_gaussian(10 / math.sqrt(50), DELTA), rel=1e-5)
    assert spent(10, agents=100, rounds=5).epsilon_single == math.inf
    assert "single messages" in found.text() and "against the hub: nothing" in spent(10, agents=100, rounds=5).text()


# The run itself.


def test_a_run_tells_what_its_rounds_have_spent():
    run = fp.run(fp.FedAvg(step=0.1), quad(40), rounds=7, channel=private(30.0))
    assert run.is_private and run.privacy.rounds == 7 and run.privacy.delta == 1e-5
    assert run.privacy.epsilon == pytest.approx(dp.get_epsilon_gaussian(30 / math.sqrt(7), DELTA), rel=1e-5)
    assert run.extend(9).privacy.epsilon > run.privacy.epsilon
    plain = run.privacy.to_dict()
    assert plain["epsilon"] == run.privacy.epsilon and plain["epsilon_single"] is None
    assert dict(run.privacy.rows())["of whom"].startswith("whole agents, not rows")
    assert "seed" in run.privacy.text() and run.privacy.at(1e-3).epsilon < run.privacy.epsilon
    assert not fp.run(fp.FedAvg(step=0.1), quad(4), rounds=2).is_private


@pytest.mark.parametrize("participation", [None, pytest.param(4, marks=pytest.mark.slow), Poisson(0.4)])
def test_the_noise_of_a_round_is_what_is_accounted(participation):
    """What the hub hears of agents that all send zero is noise of standard deviation z C v_max: of 2,000 numbers."""
    scale = {None: 1.0, 4: 2.5}.get(participation, 2.5) if not isinstance(participation, Poisson) else 2.5
    zeros = fp.problems.Quadratic(1.0, np.zeros((10, 1)))
    run = fp.run(
        fp.FedAvg(step=1.0, normalise=False),
        zeros,
        rounds=1,
        repeats=2000,
        participation=participation,
        channel=[fp.channel.Clip(0.5), fp.channel.Gaussian(3.0)],
    )
    deviation = 3.0 * 0.5 * scale / 10
    assert abs(run.model.std() / deviation - 1) < 4.5 / math.sqrt(2 * 2000)


# What is refused.

UNCOVERED = {
    "no noise": (lambda: fp.Experiment(fp.FedAvg(0.1), quad(5)), "carry no noise"),
    "Poisson, at agents": (lambda: experiment(Poisson(0.5), agents=5, at="agents"), "a round may be empty"),
    "a user's own": (lambda: experiment(FirstOnes(2), agents=5), "no account of privacy covers"),
    "a clip that is none": (lambda: around(clip=LongerThanSaid(1.0)), "LongerThanSaid has no longest"),
    "less noise": (lambda: around(noise=LessThanSaid(3.0)), "LessThanSaid has no noises"),
    "liars": (lambda: around(attack=fp.attack.SignFlip([1])), "with SignFlip some agents neither clip"),
    "liars and noise of agents": (
        lambda: around(fp.channel.Gaussian(3.0, at="agents"), attack=fp.attack.InnerProduct([1])),
        "with InnerProduct some agents neither clip nor add noise",
    ),
}


def around(noise=None, clip=None, **options):
    noise = fp.channel.Gaussian(3.0) if noise is None else noise
    return fp.Experiment(fp.FedAvg(0.1), quad(5), channel=[clip or fp.channel.Clip(1.0), noise], **options)


def test_what_says_for_itself_is_accounted():
    assert fp.privacy.spent(around(clip=Twice(1.0)), 10).epsilon > 0
    false_data = fp.attack.FalseRows([1], 3.0)  # honest messages: what they are made of does not matter
    assert fp.privacy.spent(around(attack=false_data), 10).epsilon == fp.privacy.spent(around(), 10).epsilon


class LongerThanSaid(fp.channel.Clip):
    """A subclass that does not clip, of a channel that says how long its messages are."""

    def encode(self, message, memory, agent):
        return message, memory


class LessThanSaid(fp.channel.Gaussian):
    def bind(self, context):
        return super().bind(context).replace(multiplier=0.1)


class Twice(fp.channel.Clip):
    """The same, and it says so."""

    def encode(self, message, memory, agent):
        code, memory = super().encode(message, memory, agent)
        return jax.tree.map(lambda a: 2 * a, code), memory

    def longest(self, message):
        return 2 * super().longest(message)


class FirstOnes(fp.Uniform):
    """Claims to be uniform, and is not."""

    def tick(self, key, p, round):
        return super().tick(key, p, round)._replace(agents=np.arange(self.count, dtype=np.int32))


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_no_account_covers_is_refused(name):
    make, said = UNCOVERED[name]
    with pytest.raises(FedpointError, match=said):
        fp.privacy.spent(make(), 10)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fp.Privacy(0.0, 1e-5), "epsilon must be above 0"),
        (lambda: fp.Privacy(1.0, 0.0), "delta must lie between"),
        (lambda: spent(rounds=0), "rounds must be at least 1"),
        (lambda: spent(delta=2.0), "delta must lie between"),
        (lambda: fp.privacy.multiplier(fp.Privacy(1.0, 1e-5), 10, 5), "give agents="),
        (lambda: fp.privacy.multiplier(fp.Privacy(1.0, 1e-5), fp.ByWeight(2), 5, agents=9), "no account of privacy"),
    ],
)
def test_mistakes_are_told(make, said):
    with pytest.raises(FedpointError, match=said):
        make()


def test_a_delta_above_one_over_the_agents_is_warned_of():
    with pytest.warns(UserWarning, match="not below 1/K"):
        spent(agents=50, delta=0.02)


BEHIND = {
    "float32": lambda c: c.Cast("float32"),
    "a part": lambda c: c.RandK(0.5),
    "levels": lambda c: c.Quantise(4),
    "whole numbers": lambda c: c.FixedPoint(32, range=1.0),
    "lost": lambda c: c.Erase(0.2),
    "the largest": lambda c: c.TopK(0.5, feedback=False),
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_stands_behind_the_clip_changes_nothing_of_the_account(name):
    """Noise at the hub is scaled by how long messages may become, so that its multiplier says all."""
    zeros, c = fp.problems.Quadratic(1.0, np.zeros((6, 4))), fp.channel
    expected = dp.get_epsilon_gaussian(5 / math.sqrt(3), DELTA)
    stage = BEHIND[name](c)
    for channel in ([c.Clip(1.0), stage, c.Gaussian(5.0)], [c.Clip(1.0), c.Gaussian(5.0), stage]):
        found = fp.privacy.spent(fp.Experiment(fp.FedAvg(0.1), zeros, channel=channel), 3, DELTA)
        assert found.epsilon == pytest.approx(expected, rel=1e-5)


def test_messages_that_are_hidden_one_by_one():
    """Quantised after noise at the agents: a function of messages that are private one by one, and their sum is no more
    private than that, as far as is known."""
    zeros, c = fp.problems.Quadratic(1.0, np.zeros((6, 4))), fp.channel
    noise = c.Gaussian(5.0, at="agents")
    plain, after, before = (
        fp.privacy.spent(fp.Experiment(fp.FedAvg(0.1), zeros, participation=3, channel=channel), 3, DELTA)
        for channel in ([c.Clip(1.0), noise], [c.Clip(1.0), noise, c.Quantise(4)], [c.RandK(0.5), c.Clip(1.0), noise])
    )
    for found in (after, before):
        assert found.epsilon == found.epsilon_seen == plain.epsilon_single
        assert found.epsilon_single == pytest.approx(dp.get_epsilon_gaussian(2.5 / math.sqrt(9), DELTA), rel=1e-5)
        assert "one by one" in found.text() and "who takes part" not in found.text()
    assert plain.epsilon < after.epsilon


def test_which_numbers_are_sent_is_not_hidden_by_noise_at_the_agents():
    zeros, c = fp.problems.Quadratic(1.0, np.zeros((6, 4))), fp.channel
    with pytest.raises(FedpointError, match="TopK stands before Gaussian at the agents"):
        fp.Experiment(fp.FedAvg(0.1), zeros, channel=[c.TopK(0.5), c.Clip(1.0), c.Gaussian(5.0, at="agents")])


# How much noise a target needs.


def test_the_noise_for_everyone_is_the_closed_form():
    target = fp.Privacy(2.0, DELTA)
    z = fp.privacy.multiplier(target, None, 100)
    least = dp.get_sigma_gaussian(2.0, DELTA) * 10
    assert least <= z <= 1.0011 * least


@pytest.mark.slow
def test_the_noise_for_poisson_meets_the_target_and_a_little_less_does_not():
    target = fp.Privacy(2.0, DELTA)
    z = fp.privacy.multiplier(target, 0.1, 100)
    assert Account(z, Poisson(0.1), 2).epsilon(100, DELTA)[0] <= 2.0
    assert Account(z / 1.002, Poisson(0.1), 2).epsilon(100, DELTA)[0] > 2.0
    assert z < fp.privacy.multiplier(target, None, 100) / 5  # sampling helps


def test_an_unreachable_target_names_the_nearest():
    with pytest.raises(FedpointError, match=r"not reached in 100 rounds .* nearest is epsilon 33\.1"):
        fp.privacy.multiplier(fp.Privacy(1.0, DELTA), None, 100, largest=2.0)


# Noise that is correlated between rounds: the formulas for n_t = x_t - a x_(t-1).


@pytest.mark.parametrize("a", [0.3, 0.8])
def test_sensitivity_of_correlated_noise(a):
    c, T, b = (1.0, -a), 400, 7
    assert sensitivity(c, T, T) ** 2 == pytest.approx(1 / (1 - a**2), rel=1e-12)  # once
    assert sensitivity(c, T, T // 2) ** 2 == pytest.approx(2 * (1 + a ** (T // 2)) / (1 - a**2), rel=1e-12)  # twice
    every = sum(((1 - a ** (t + 1)) / (1 - a)) ** 2 for t in range(T))
    assert sensitivity(c, T, 1) ** 2 == pytest.approx(every, rel=1e-12)
    # The largest over all sets of rounds at least b apart, of a short run, with any signs.
    C = np.array([[a ** (i - j) if i >= j else 0.0 for j in range(12)] for i in range(12)])
    largest = 0.0
    for mask in range(1, 2**12):
        rounds = [t for t in range(12) if mask >> t & 1]
        if all(s - r >= b for r, s in itertools.pairwise(rounds)):
            largest = max(largest, *(np.linalg.norm(C[:, rounds] @ s) for s in _signs(len(rounds))))
    assert sensitivity(c, 12, b) == pytest.approx(largest, rel=1e-12)


def _signs(n):
    return [np.array([1 if m >> i & 1 else -1 for i in range(n)]) for m in range(2**n)]


def test_correlation_that_has_no_formula_is_refused():
    with pytest.raises(FedpointError, match="falling coefficients"):
        sensitivity((1.0, 0.5), 20, 20)


class Turns(fp.Participation):
    """Agents in turn, so many at a time: each of 12 takes part every third round."""

    size: int

    def slots(self, agents):
        return self.size

    def tick(self, key, p, round):
        agents = (np.arange(self.size) + round * self.size) % len(p)
        return fp.Tick.of(agents, weight=p[agents] * (len(p) / self.size))

    def weight_scale(self, p):
        return len(p) / self.size

    def rounds_apart(self, agents):
        return agents // self.size


def test_a_run_with_correlated_noise():
    """Once in 3 rounds: one Gaussian of z sqrt(1 - a^2) but for the end; in all rounds: of every column of C."""
    a, channel = 0.6, [fp.channel.Clip(1.0), fp.channel.Correlated(4.0, coefficients=0.6)]
    once = fp.privacy.spent(fp.Experiment(fp.FedAvg(0.1), quad(12), participation=Turns(4), channel=channel), 3, DELTA)
    shift = math.sqrt(1 + a**2 + a**4)
    assert once.epsilon == pytest.approx(dp.get_epsilon_gaussian(4.0 / shift, DELTA), rel=1e-5)
    every = fp.privacy.spent(fp.Experiment(fp.FedAvg(0.1), quad(12), channel=channel), 2, DELTA)
    assert every.epsilon == pytest.approx(dp.get_epsilon_gaussian(4.0 / math.sqrt(1 + (1 + a) ** 2), DELTA), rel=1e-5)
    assert "correlated" in every.text()


@pytest.mark.parametrize("participation", [Poisson(0.5), 3])
def test_correlated_noise_is_refused_where_participations_are_not_bounded(participation):
    channel = [fp.channel.Clip(1.0), fp.channel.Correlated(4.0, coefficients=0.6)]
    with pytest.raises(FedpointError, match="participations are bounded"):
        fp.Experiment(fp.FedAvg(0.1), quad(12), participation=participation, channel=channel)


def test_correlated_noise_takes_back_what_it_added():
    """Of agents that send zeros: w_t = sum of n_s, so that w_1 = x_0, w_2 - w_1 = x_1 - a x_0, and so on, to rounding;
    the x are Gaussian's own draws of the same seed."""
    zeros = fp.problems.Quadratic(0.0, np.zeros((3, 2)))
    how = {"rounds": 6, "seed": 5}
    clip = fp.channel.Clip(1.0)
    run = fp.run(fp.FedAvg(1.0), zeros, channel=[clip, fp.channel.Gaussian(2.0)], **how)
    fresh = np.diff(run.history[0], axis=0)
    coefficients = (1.0, -0.5, -0.2)
    series = fp.channel.Correlated(2.0, coefficients=coefficients)
    other = np.diff(fp.run(fp.FedAvg(1.0), zeros, channel=[clip, series], **how).history[0], axis=0)
    expected = np.stack([sum(c * fresh[t - j] for j, c in enumerate(coefficients) if t >= j) for t in range(6)])
    np.testing.assert_allclose(other, expected, atol=1e-12)
    assert abs(np.corrcoef(fresh.ravel(), other.ravel())[0, 1]) < 0.99


class NeverTakesBack(fp.channel.Correlated):
    """A mutant: accounted and forecast as correlated, and added afresh."""

    def bind(self, context):
        return fp.channel.Gaussian.bind(self, context)


def test_noise_that_is_never_taken_back_is_seen(monkeypatch):
    monkeypatch.setattr(fp.channel, "Correlated", NeverTakesBack)
    with pytest.raises(AssertionError):
        test_correlated_noise_takes_back_what_it_added()


def test_the_floor_with_correlated_noise():
    """w_t = r w_{t-1} + n_t at the minimum, n_t = x_t - a x_{t-1}: its variance is s^2 (1 + a^2 - 2 a r)/(1 - r^2)."""
    a, z, step = 0.6, 0.5, 0.3
    zeros = fp.problems.Quadratic(1.0, np.zeros((4, 1)))
    channel = [fp.channel.Clip(10.0), fp.channel.Correlated(z, coefficients=a)]
    run = fp.run(fp.FedAvg(step), zeros, rounds=40, repeats=3000, channel=channel)
    r, s2 = 1 - step, (z * 10 / 4) ** 2
    exact = s2 * (1 + a**2 - 2 * a * r) / (1 - r**2)
    found = run.error[:, -1]
    assert abs(found.mean() / exact - 1) < 4.5 * math.sqrt(2 / 3000)


@pytest.mark.parametrize("coefficients", [1.5, -0.3, (1.0,), (2.0, -0.5), (1.0, 0.5)])
def test_coefficients_that_hide_nobody_are_refused(coefficients):
    with pytest.raises(FedpointError, match="Correlated"):
        fp.channel.Correlated(1.0, coefficients=coefficients)
