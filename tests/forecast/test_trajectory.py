"""TD along trajectories: joint moments of model and chains, against enumeration of all ways and against runs."""

import itertools
import math

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge
from fedpoint.theory.steady import fixed_point
from fedpoint.theory.trajectory import Joint, OwnChains, Trajectory, unclosed, unsuited
from fedpoint.theory.trajectory_work import NotJoint

Z = 4.0  # standard errors that a measured number may be off


def mdp(states, seed, stay=0.8, ends=False):
    """A chain that stays where it is most of the time, so that samples depend strongly on each other."""
    rng = np.random.default_rng(seed)
    P = (1 - stay) * rng.dirichlet(np.ones(states), size=states) + stay * np.eye(states)
    if not ends:
        return fp.problems.MDP(P[:, None, :], rng.normal(size=states))
    P[0] = np.eye(states)[0]
    return fp.problems.MDP(
        P[:, None, :], rng.normal(size=states), terminal=np.arange(states) == 0, initial=np.eye(states)[1]
    )


def td(states=(3,), gamma=0.5, sampling="trajectory", **options):
    """Features nearly of their own for every state; two numbers."""
    S = max(states)
    phi = np.column_stack([np.ones(S), np.linspace(-1, 1, S)])
    worlds = [mdp(S, seed, **options) for seed in range(len(states))]
    return fp.problems.TD(worlds, phi, gamma=gamma, sampling=sampling)


def outlook(method, problem, kind=Trajectory, **options):
    s = Setting(fp.Experiment(method, problem, **options).bind())
    assert unsuited(s) == ""
    return kind(s, fixed_point(s, s.origin), s.origin, Gauge(s.flatten(s.bound.solution)))


# Every way that all chains may go.


def ways(chain, steps):
    """(probability, outcomes) of every trajectory from a stationary start; outcomes are (s, s', r) or without s'."""
    found = [(q, s, []) for s, q in enumerate(chain.stationary) if q > 0]
    out, S = chain.outcomes, len(chain.stationary)
    for _ in range(steps):
        longer = []
        for q, s, seen in found:
            for i in np.flatnonzero(out.state == s):
                brought, t = (s, out.after[i], out.reward[i]), out.after[i]
                nexts = [(t, 1.0)] if t < S else [(u, c) for u, c in enumerate(chain.initial) if c > 0]
                longer += [(q * out.chance[i] * c, u, [*seen, brought]) for u, c in nexts]
        found = longer
    return [(q, seen) for q, _, seen in found]


def enumerated(problem, local_steps, rounds, after_rounds):
    """Mean and second moment of the model: after_rounds(outcomes of every agent and round, field) -> model."""
    phi = np.vstack([problem.features, np.zeros(problem.features.shape[1])])

    def field(w, brought):
        s, t, r = brought
        return phi[s] * ((phi[s] - problem.gamma * phi[t]) @ w - r)

    total, mean, second = 0.0, 0.0, 0.0
    for each in itertools.product(*(ways(chain, local_steps * rounds) for chain in problem.chains)):
        q = math.prod(way[0] for way in each)
        w = after_rounds([way[1] for way in each], field)
        total, mean, second = total + q, mean + q * w, second + q * np.outer(w, w)
    assert total == pytest.approx(1, abs=1e-12)
    return mean, second


def fedlsa(step, H, rounds):
    def after(trajectories, field):
        w = np.zeros(2)
        for t in range(rounds):
            ends = []
            for seen in trajectories:
                y = w
                for brought in seen[t * H : (t + 1) * H]:
                    y = y - step * field(y, brought)
                ends.append(y)
            w = np.mean(ends, axis=0)
        return w

    return after


def scafflsa(step, H, rounds):
    def after(trajectories, field):
        w, xi = np.zeros(2), np.zeros((len(trajectories), 2))
        for t in range(rounds):
            ends = []
            for k, seen in enumerate(trajectories):
                y = w
                for brought in seen[t * H : (t + 1) * H]:
                    y = y - step * (field(y, brought) - xi[k])
                ends.append(y)
            w = np.mean(ends, axis=0)
            xi = xi + (w - np.array(ends)) / (step * H)
        return w

    return after


def scaffold(step, H, rounds):
    """Option 1: one more sample a round, at the end of the trajectory."""

    def after(trajectories, field):
        w, c, c_k = np.zeros(2), np.zeros(2), np.zeros((len(trajectories), 2))
        for t in range(rounds):
            ends, new = [], []
            for k, seen in enumerate(trajectories):
                y = w
                mine = seen[t * (H + 1) : (t + 1) * (H + 1)]
                for brought in mine[:H]:
                    y = y - step * (field(y, brought) - c_k[k] + c)
                ends.append(y)
                new.append(field(w, mine[H]))
            w = np.mean(ends, axis=0)
            c_k, c = np.array(new), np.mean(new, axis=0)
        return w

    return after


METHODS = {  # method, samples a round, rounds, worlds, what it does by hand
    "fedlsa, one agent": (fp.FedLSA(0.4, 2), 2, 3, {"states": (3,)}, fedlsa(0.4, 2, 3)),
    "fedlsa, episodes": (fp.FedLSA(0.4, 2), 2, 3, {"states": (3,), "ends": True}, fedlsa(0.4, 2, 3)),
    "fedlsa, two agents": (fp.FedLSA(0.4, 2), 2, 2, {"states": (2, 2)}, fedlsa(0.4, 2, 2)),
    "scafflsa": (fp.ScaffLSA(0.3, 2), 2, 2, {"states": (2, 2)}, scafflsa(0.3, 2, 2)),
    "scaffold": (fp.Scaffold(0.3, 1, option=1), 2, 2, {"states": (2, 2)}, scaffold(0.3, 1, 2)),
}


@pytest.mark.parametrize("name", METHODS)
def test_moments_are_those_of_all_ways(name):
    """Exactly: the mean and the mean square of the model over every way that the chains may go."""
    method, samples, rounds, worlds, by_hand = METHODS[name]
    problem = td(**worlds)
    mean, second = enumerated(problem, samples, rounds, by_hand)
    found = outlook(method, problem)
    away = mean - problem.solution()
    path = found.path(rounds)
    assert path.mean[rounds] == pytest.approx(away @ away, rel=1e-9)
    assert path.variance[rounds] == pytest.approx(np.trace(second) - mean @ mean, rel=1e-9)
    law = found.law(rounds)
    covariance = second - np.outer(mean, mean)
    assert np.sort(law.weights) == pytest.approx(np.linalg.eigvalsh(covariance), rel=1e-8)
    assert law.mean == pytest.approx(path.total[rounds], rel=1e-9)


class Marginal(Joint):
    """Broken: moments beside each of two chains alone, put together as if what they do to the model did not mix."""

    def __call__(self, S):
        new, (first, second) = super().__call__(S), (c.first[:, None, None] for c in self.chains)
        by_first, by_second, all_ = new.sum(1), new.sum(0), new.sum((0, 1))
        return by_first[:, None] * second[None] + first[:, None] * (by_second[None] - second[None] * all_)


class Forgetful(Joint):
    """Broken: chains begin anew in every round."""

    def __call__(self, S):
        new = super().__call__(S)
        return np.multiply.outer(self.first, new.reshape(-1, *new.shape[-2:]).sum(0))


def broken(move):
    class Broken(Trajectory):
        def __init__(self, setting, x, origin, gauge):
            super().__init__(setting, x, origin, gauge)
            self.move = move(setting, x)

    return Broken


class Elsewhere(Trajectory):
    """Broken: every chain begins in its first state."""

    @property
    def begun(self):
        whole, found = super().begun, np.zeros_like(super().begun)
        found[(0,) * len(self.move.shape)] = whole.reshape(-1, self.n, self.n).sum(0)
        return found


def off(found, run, at):
    """By how many standard errors mean and variance of runs differ from the forecast, at worst of recorded rounds."""
    worst = 0.0
    for i in at:
        e, t = np.asarray(run.history)[:, i] - found.gauge.target, int(run.rounds[i])
        mean, path = e.mean(0), found.path(t)
        squares = ((e - mean) ** 2).sum(1)
        spread = math.sqrt(np.linalg.eigvalsh(np.cov(e.T)).max())
        of_mean = abs(np.linalg.norm(mean) - math.sqrt(path.mean[t])) / spread
        of_variance = abs(squares.mean() - path.variance[t]) / squares.std()
        worst = max(worst, of_mean * math.sqrt(len(e)), of_variance * math.sqrt(len(e)))
    return worst


@pytest.mark.parametrize("burn_in", [0, 2])
def test_a_mean_of_models_is_that_of_all_ways(burn_in):
    problem, step, H, rounds = td((2, 2)), 0.4, 1, 4

    def after(trajectories, field):
        models = [fedlsa(step, H, t)([seen[: t * H] for seen in trajectories], field) for t in range(1, rounds + 1)]
        return np.mean(models[burn_in:], axis=0)

    mean, second = enumerated(problem, H, rounds, after)
    f = fp.forecast(fp.Averaged(fp.FedLSA(step, H), burn_in), problem)
    assert f.noise_by == "trajectory" and f.exact
    error = np.trace(second) - 2 * mean @ f.optimum + f.optimum @ f.optimum
    assert f.curve(rounds)[-1] == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize(
    "states", [(2, 2), *(pytest.param(states, marks=pytest.mark.slow) for states in ((3,), (4, 4)))]
)
def test_runs_go_where_their_trajectories_lead(states):
    """20,000 repeats, on the way and settled. Samples taken as independent, chains begun anew each round or elsewhere,
    and marginal states where there are two chains, are all convicted."""
    problem, method = td(states, stay=0.9), fp.FedLSA(0.5, 2)
    run = fp.run(method, problem, rounds=64, repeats=20_000, record_every=2, seed=3)
    found = outlook(method, problem)
    at = (1, 4, 32)
    assert off(found, run, at) <= Z
    assert found.path(2000).variance[-1] == pytest.approx(found.variance, rel=1e-6)
    settled = found.gauge(found.limit - found.gauge.target)
    assert found.path(2000).mean[-1] == pytest.approx(settled @ settled, rel=1e-6)
    for mutant in [broken(Forgetful), Elsewhere, *([broken(Marginal)] if len(states) == 2 else [])]:
        assert off(outlook(method, problem, mutant), run, at) > Z, mutant
    independent = fp.forecast(method, td(states, stay=0.9, sampling="iid"))
    squares = run.error[:, 32]
    assert abs(squares.mean() - independent.curve(64)[-1]) > Z * squares.std() / math.sqrt(len(squares))


@pytest.mark.parametrize("method", [fp.FedLSA(0.3, 3), fp.ScaffLSA(0.3, 3), fp.Scaffold(0.3, 3)])
def test_a_chain_of_equal_rows_gives_independent_samples(method):
    """Every state is drawn afresh; with gamma = 0 a sample does not see the next one."""
    rng = np.random.default_rng(0)
    worlds = [
        fp.problems.MDP(np.tile(rng.dirichlet(np.ones(3)), (3, 1))[:, None, :], rng.normal(size=3)) for _ in range(2)
    ]
    along, apart = (
        fp.problems.TD(worlds, [[1.0, -1.0], [1.0, 0.0], [1.0, 1.0]], gamma=0.0, sampling=sampling)
        for sampling in ("trajectory", "iid")
    )
    found, f = outlook(method, along), fp.forecast(method, apart)
    assert found.limit == pytest.approx(f.limit, abs=1e-9)
    assert found.variance == pytest.approx(f.variance, rel=1e-7)
    assert found.rate == pytest.approx(f.rate_ms, rel=1e-6) and found.own_rate == pytest.approx(f.rate, rel=1e-6)
    assert found.path(40).total == pytest.approx(f.curve(40), rel=1e-7)


def test_those_who_do_not_take_part_stay_where_they_are():
    """One of two agents a round: over all lineups of three rounds and all ways of the chains of those who work."""
    problem, step, rounds = td((2, 2)), 0.5, 3
    found = outlook(fp.FedLSA(step, 1), problem, participation=fp.Uniform(1))
    means, seconds = [], []
    for lineup in itertools.product((0, 1), repeat=rounds):

        def after(trajectories, field, lineup=lineup):
            w, used = np.zeros(2), [0, 0]
            for k in lineup:
                w = w - step * field(w, trajectories[k][used[k]])
                used[k] += 1
            return w

        mean, second = enumerated(problem, 1, rounds, after)
        means.append(mean)
        seconds.append(second)
    mean, second = np.mean(means, axis=0), np.mean(seconds, axis=0)
    away, path = mean - problem.solution(), found.path(rounds)
    assert path.mean[-1] == pytest.approx(away @ away, rel=1e-9)
    assert path.variance[-1] == pytest.approx(np.trace(second) - mean @ mean, rel=1e-9)


@pytest.mark.parametrize(
    ("states", "method"),
    [
        ((3,), fp.FedLSA(0.4, 2)),
        pytest.param((3, 3), fp.FedLSA(0.4, 1), marks=pytest.mark.slow),
        ((2, 2, 2), fp.ScaffLSA(0.3, 3)),
        ((3, 3, 3), fp.FedLSA(0.4, 1)),  # the worst found: 19 % off
    ],
)
def test_the_closure_of_each_chain_alone_says_how_far_off_it_is(states, method):
    """Beside exact joint moments: not at all for one chain, else less than it says, and far less than without them."""
    problem = td(states, stay=0.9)
    exact, closed = outlook(method, problem), outlook(method, problem, OwnChains)
    off = abs(closed.variance / exact.variance - 1)
    assert off <= (1e-9 if len(states) == 1 else closed.doubt)
    forgetful = outlook(method, problem, broken(Forgetful))
    assert len(states) == 1 or off < abs(forgetful.variance / exact.variance - 1) / 3
    independent = exact.setting.read(exact.x)  # where independent samples end
    assert np.linalg.norm(closed.limit - exact.limit) < np.linalg.norm(independent - exact.limit) / 3
    assert closed.law(None).mean == pytest.approx(closed.path(3000).total[-1], rel=1e-6)


@pytest.mark.slow
def test_many_chains_go_where_their_closure_says():
    """Eight agents, 2,000 repeats: mean square once settled within 4 standard errors and what the closure says."""
    problem, method = td((4,) * 8, stay=0.8), fp.FedLSA(0.2, 3)
    s = Setting(fp.Experiment(method, problem).bind())
    assert unsuited(s) and not unclosed(s)
    found = OwnChains(s, fixed_point(s, s.origin), s.origin, Gauge(s.flatten(s.bound.solution)))
    squares = fp.run(method, problem, rounds=80, repeats=2000, record_every=80, seed=2).error[:, -1]
    forecast = found.path(80).total[-1]
    allowed = Z * squares.std() / math.sqrt(len(squares)) + found.doubt * forecast
    assert abs(squares.mean() - forecast) <= allowed
    independent = fp.forecast(method, td((4,) * 8, stay=0.8, sampling="iid")).curve(80)[-1]
    assert abs(squares.mean() - independent) > allowed


def test_steps_too_long_for_a_trajectory_grow():
    problem = td((3,), gamma=0.9)
    found = outlook(fp.FedLSA(2.5, 2), problem)
    assert found.rate > 1 and found.variance == math.inf and found.law(None) is None
    assert found.path(200).variance[-1] > 1e3 * found.path(20).variance[-1]


class Twice(fp.FedAvg):
    """Asks for the first sample once more."""

    def local(self, heard, memory, agent):
        message, memory = super().local(heard, memory, agent)
        extra = agent.field(heard, 0)
        return message + 0 * extra, memory


def test_what_cannot_be_followed_is_told():
    twice = Setting(fp.Experiment(Twice(0.1, 2), td((3,))).bind())
    assert "order of their samples" in unsuited(twice)
    with pytest.raises(NotJoint, match="order of their samples"):
        Joint(twice, twice.origin)
    many = fp.problems.garnet(states=10, agents=8, dim=3, sampling="trajectory")
    s = Setting(fp.Experiment(fp.FedLSA(0.1, 2), many).bind())
    assert "joint states" in unsuited(s) and unclosed(s) == ""
    few = Setting(fp.Experiment(fp.FedLSA(0.1, 2), many, participation=fp.Uniform(2)).bind())
    assert "joint states" in unclosed(few)


def test_a_verdict_names_the_limit_along_trajectories():
    """Samples that depend on each other move the mean from the fixed point of independent ones."""
    problem, method = td((3, 3), 0.5), fp.FedAvg(0.3, 2)
    f = fp.forecast(method, problem)
    assert f.along_trajectories and f.noise_bias > 0 and "samples that depend on each other" in f.text()
    verdict = fp.check(fp.run(method, problem, rounds=400, repeats=16))
    assert verdict.outcome == "as forecast"
    assert "ends at FedAvg's limit along trajectories" in verdict.words and "fixed point" not in verdict.words
    independent = td((3, 3), 0.5, sampling="iid")
    plain = fp.check(fp.run(method, independent, rounds=400, repeats=16))
    assert "FedAvg's fixed point" in plain.words or "ends at w*" in plain.words
