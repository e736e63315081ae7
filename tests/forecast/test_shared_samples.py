"""Forecasts of chains that share samples and participants: enumerated outcomes, closed forms, long runs.

Enumerations are held to the tolerance of test_enumeration.py, runs to 4 standard errors over independent repeats.
"""

import math

import enumerate_rounds as every
import jax.numpy as jnp
import numpy as np
import pytest
from test_enumeration import RELATIVE, STEP, even, off, setting_of

import fedpoint as fp

# Second moments of one round, by all its outcomes.


def chains(make, *options):
    """The enumerated method with its step and with half of it."""
    return every.side_by_side(make(STEP, *options), make(STEP / 2, *options))


def extrapolated(make, *options, **named):
    return fp.Extrapolated(make(STEP, *options, **named))


@pytest.mark.parametrize("who", ["everyone", "uniform", *(pytest.param(w, marks=pytest.mark.slow) for w in every.WHO)])
def test_fedavg(who):
    scheme, outcomes = every.WHO[who]
    setting = setting_of(extrapolated(fp.FedAvg, 2), scheme)
    assert off(setting, chains(every.fedavg), outcomes, even(2)) <= RELATIVE


@pytest.mark.parametrize(
    ("who", "steps", "option"),
    [
        ("uniform", 1, 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("uniform", 2, 2), ("importance", 2, 2), ("answering", 1, 2), ("everyone", 1, 1))
        ),
    ],
)
def test_scaffold(who, steps, option):
    """Option 1 asks for a sample behind the loop: of both chains at once."""
    scheme, outcomes = every.WHO[who]
    setting = setting_of(extrapolated(fp.Scaffold, steps, server_step=0.8, option=option), scheme)
    assert off(setting, chains(every.scaffold, 0.8, option), outcomes, even(steps)) <= RELATIVE


@pytest.mark.slow
def test_scaffnew():
    setting = setting_of(extrapolated(fp.Scaffnew, local_steps=2), fp.Everyone())
    assert off(setting, chains(every.scaffnew, 0.5), every.everyone(), even(2)) <= RELATIVE


@pytest.mark.parametrize("tables", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_stragglers_stop_in_both_chains(tables, monkeypatch):
    """By the tables of steps that are alike, and step by step."""
    if not tables:
        monkeypatch.setattr("fedpoint.theory.alike.LARGEST", 0)
    steps = 2 if tables else 3  # another program
    late = fp.steps.Stragglers(steps, 0.6)
    setting = setting_of(extrapolated(fp.FedAvg, late), fp.Everyone())
    short = 0.6 / steps
    counts = [[*((short, n) for n in range(1, steps)), (1 - 0.6 + short, steps)]] * every.K
    assert off(setting, chains(every.fedavg), every.everyone(), counts) <= RELATIVE


@pytest.mark.slow
def test_lengths_that_are_multiplied():
    """FedNova of unequal lengths: over all lineups, in both chains the same."""
    scheme, outcomes = every.WHO["uniform"]
    setting = setting_of(extrapolated(fp.FedNova, (1, 3, 2)), scheme)
    counts = [[(1.0, 1)], [(1.0, 3)], [(1.0, 2)]]
    assert off(setting, chains(every.heard_fednova), outcomes, counts) <= RELATIVE


@pytest.mark.slow
def test_chains_of_chains():
    setting = setting_of(fp.Extrapolated(fp.Extrapolated(fp.FedAvg(STEP, 2))), fp.Everyone())
    half = every.side_by_side(every.fedavg(STEP / 2), every.fedavg(STEP / 4))
    plain = every.side_by_side(chains(every.fedavg), half)
    assert off(setting, plain, every.everyone(), even(2)) <= RELATIVE


ORACLE = type(every.problem().oracle)


class Independent(ORACLE):
    """As if chains had samples of their own."""

    def cross_covariance(self, mine, w, v):
        return super().cross_covariance(mine, w, v) * (1.0 if v is w else 0.0)


class SamePoint(ORACLE):
    def cross_covariance(self, mine, w, v):
        return super().cross_covariance(mine, w, w)


class NoScatter(ORACLE):
    """As if only the noise at the points were shared, and not that of slopes."""

    def cross_scatter(self, mine, w, v, P):
        return super().cross_scatter(mine, w, v, P) * (1.0 if v is w else 0.0)


@pytest.mark.parametrize(
    "wrong", [Independent, *(pytest.param(c, marks=pytest.mark.slow) for c in (SamePoint, NoScatter))]
)
def test_a_wrong_cross_covariance_is_seen(wrong):
    problem = every.problem()
    problem.oracle = wrong(**vars(problem.oracle))
    scheme, outcomes = every.WHO["uniform"]
    setting = setting_of(extrapolated(fp.FedAvg, 2), scheme, problem)
    assert off(setting, chains(every.fedavg), outcomes, even(2)) > 1e-3


# Closed forms: w+ = (1 - s h) w - s n in both chains, with the same n.


def variance(step, h=1.0):
    """Of 2 w(s/2) - w(s) and of w(s), for unit noise."""
    a, b = 1 - step * h, 1 - step * h / 2
    whole, half, both = step**2 / (1 - a * a), step**2 / 4 / (1 - b * b), step**2 / 2 / (1 - a * b)
    return whole + 4 * half - 4 * both, whole


@pytest.mark.parametrize("step", [0.02, 0.5])
def test_the_variance_of_a_quadratic(step):
    problem = fp.problems.Quadratic(1.0, [[0.0], [0.0]], noise=2.0)
    f, plain = (fp.forecast(m, problem) for m in (fp.Extrapolated(fp.FedAvg(step)), fp.FedAvg(step)))
    shared, alone = variance(step)
    assert f.noise_by == "exact" and f.exact and any(note.startswith("exact") for note in f.notes)
    assert f.variance == pytest.approx(2.0 / 2 * shared, rel=1e-9)  # two agents
    assert plain.variance == pytest.approx(2.0 / 2 * alone, rel=1e-9)
    if step == 0.02:  # a third, where samples of their own would make it three times as much
        assert f.variance / plain.variance == pytest.approx(1 / 3, rel=0.02)
        assert (variance(step)[1] + 4 * variance(step / 2)[1]) / alone == pytest.approx(3, rel=0.02)


class Dithered(fp.FedAvg):
    """Agents add noise of their own to what they send."""

    def local(self, w, memory, agent):
        change, memory = super().local(w, memory, agent)
        return change + agent.normal(change), memory


def test_an_agents_own_luck_is_the_same_in_both_chains():
    """w+ = (1 - s) w + n: not scaled by the step, so that 2 w(s/2) - w(s) has 4/(1-b^2) + 1/(1-a^2) - 4/(1-ab)."""
    step, a, b = 0.2, 0.8, 0.9
    problem = fp.problems.Quadratic(1.0, [[0.0]])
    f = fp.forecast(fp.Extrapolated(Dithered(step)), problem, floor="exact")
    assert f.variance == pytest.approx(4 / (1 - b * b) + 1 / (1 - a * a) - 4 / (1 - a * b), rel=1e-9)


def test_the_bias_left_is_of_second_order():
    """18 to 170 times less on quadratics; with half the step a half of the one and a quarter of the other."""
    problem = fp.problems.Quadratic([1.0, 3.0], [[0.0], [1.0]], noise=0.5)

    def bias(step, wrap=fp.Extrapolated):
        return fp.forecast(wrap(fp.FedAvg(step, 4)), problem).bias

    assert 18 < bias(0.02, lambda method: method) / bias(0.02) < 170
    assert bias(0.005) / bias(0.0025) == pytest.approx(4, rel=0.05)


# Runs.


def scores(f, method, problem, rounds=240, repeats=400, **options):
    """The forecast curve against a run: after 10 and 30 rounds, and over its second half, which is near the floor; in
    standard errors over independent repeats."""
    run = fp.run(method, problem, rounds=rounds, repeats=repeats, seed=5, record_every=10, **options)
    curve, half = f.curve(rounds)[run.rounds], len(run.rounds) // 2
    assert curve[half:].mean() == pytest.approx(f.floor, rel=0.2)
    seen = [run.error[:, 1], run.error[:, 3], run.error[:, half:].mean(1)]
    expected = [curve[1], curve[3], curve[half:].mean()]
    return [(s.mean() - e) / (s.std(ddof=1) / math.sqrt(repeats)) for s, e in zip(seen, expected, strict=True)]


def stream():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 3, 3))
    R = root @ np.swapaxes(root, 1, 2) / 3 + 0.5 * np.eye(3)
    return fp.problems.LinearStream(rng.normal(size=(4, 3)), noise=0.3, covariance=R)


def system():
    rng = np.random.default_rng(4)
    A = np.eye(3) + 0.5 * rng.normal(size=(4, 3, 3))
    return fp.problems.LinearSystem(A, rng.normal(size=(4, 3)), noise=fp.problems.Noise(b=0.3, A=0.1))


def outcomes():
    return fp.problems.garnet(states=4, dim=2, agents=3, heterogeneity=0.3, gamma=0.5, seed=3)


CASES = {
    "stream": (fp.Scaffold(0.1, 3), stream, {"participation": 2}),
    "system": (fp.FedAvg(0.1, 3), system, {"participation": 2}),
    "TD": (fp.FedAvg(0.4, 2), outcomes, {}),
    "network": (fp.FedSGD(0.1, 0.5), stream, {"network": fp.Network.ring(4)}),
    "server momentum": (fp.FedAvgM(0.05, 2, momentum=0.5), stream, {"participation": 3}),
}


@pytest.mark.parametrize("name", ["system", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "system")])
def test_forecasts_are_what_runs_do(name):
    method, make, options = CASES[name]
    f = fp.forecast(fp.Extrapolated(method), make(), **options)
    assert f.noise_by == "exact"
    assert np.abs(scores(f, fp.Extrapolated(method), make(), **options)).max() < 4


@pytest.mark.slow
def test_runs_with_samples_of_their_own_are_seen():
    """What the forecast says of shared samples is not true of others: three times the variance against a third."""
    problem = system()
    f = fp.forecast(fp.Extrapolated(fp.FedAvg(0.1, 3)), problem)
    whole, half = (
        fp.run(fp.FedAvg(s, 3), problem, rounds=240, repeats=400, seed=seed, record_every=240).model
        for s, seed in ((0.1, 1), (0.05, 2))
    )
    error = ((2 * half - whole - problem.solution()) ** 2).sum(1)
    assert error.mean() > 5 * f.floor


# Problems that do not tell what two fields have in common.


class Noise(fp.problems.Oracle):
    known_noise = True

    def draw(self, mine, plan, row, e):
        return row.normal((2,))

    def field(self, mine, w, z):
        return w - mine.own + z

    def mean_field(self, mine, w):
        return w - mine.own


class Alone(Noise):
    """Additive noise, said for one field only."""

    def covariance(self, mine, w):
        return jnp.eye(2)


class Together(Noise):
    """And for two."""

    def cross_covariance(self, mine, w, v):
        return jnp.eye(2)


class Points(fp.problems.Problem):
    linear = True
    convex = True

    def __init__(self, oracle):
        self.oracle, self.own, self.common = oracle, np.array([[0.0, 1.0], [2.0, 1.0]]), ()
        self.weights, self.names = np.array([0.5, 0.5]), ["a", "b"]

    def start(self):
        return np.zeros(2)

    def solution(self):
        return self.own.mean(0)


def test_what_an_oracle_does_not_tell_is_drawn():
    method, plain = fp.Extrapolated(fp.FedAvg(0.2)), fp.FedAvg(0.2)
    alone, forced = (fp.forecast(method, Points(Alone()), floor=how) for how in ("auto", "exact"))
    assert fp.forecast(plain, Points(Alone())).noise_by == "exact"
    assert alone.noise_by == "sampled" and forced.floor is None and "two fields with the same sample" in forced.noise_by
    told = fp.forecast(method, Points(Together()))
    exact = variance(0.2)[0]  # two coordinates, two agents
    assert told.noise_by == "exact" and told.variance == pytest.approx(exact, rel=1e-9)
    assert abs(alone.variance - exact) < 4 * alone.standard_error


def test_chains_that_ask_for_different_samples_have_no_exact_floor():
    class Uneven(fp.Extrapolated):
        exact_moments = True

        def local(self, heard, memory, agent):
            def one(agent):
                return self.inner.local(heard.whole, memory.whole, agent)

            def two(agent):
                agent.field(heard.half)
                return self.inner.local(heard.half, memory.half, agent)

            (a, b), (c, d) = agent.side_by_side(one, two)
            return type(heard)(a, c), type(heard)(b, d)

    problem = fp.problems.Quadratic(1.0, [[0.0], [1.0]], noise=1.0)
    with pytest.raises(fp.FedpointError, match="do not ask for the same samples in the same order"):
        print(fp.forecast(Uneven(fp.FedAvg(0.1)), problem, floor="exact").floor)
