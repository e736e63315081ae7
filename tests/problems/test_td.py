"""Temporal differences: A and b exact, samples from the stationary law or along the chain, values, worlds."""

import itertools
import sys

import jax
import numpy as np
import pytest
from test_noise import covariances, scatters
from zoo import sampled_fields, td

import fedpoint as fp
from fedpoint.core.random import Key
from fedpoint.problems import MDP, TD, Mine
from fedpoint.problems.mdp import alias_table
from fedpoint.problems.toy_text import mdp_of, slip


def outcomes(problem, mdp, k):
    """All (probability, phi(s), phi(s) - gamma phi(s'), r), one by one."""
    phi, found = problem.features, []
    for s in range(mdp.states):
        for a in range(mdp.actions):
            for t in range(mdp.states):
                q = problem.stationary[k, s] * problem.policy[s, a] * mdp.P[s, a, t]
                ahead = 0 * phi[t] if mdp.ends[s, a, t] else phi[t]
                found.append((q, phi[s], phi[s] - problem.gamma * ahead, mdp.rewards()[s, a, t]))
    return found


def zoo_mdps():
    rng = np.random.default_rng(6)
    return [
        MDP(rng.dirichlet(np.ones(5), (5, 2)), rng.normal(size=(5, 2)), [False] * 4 + [True], np.eye(5)[0])
        for _ in range(3)
    ]


def test_fields_and_their_noise_by_enumeration():
    problem, w = td(), np.array([0.3, -1.0, 2.0])
    P = np.array([[1.0, 0.2, 0.0], [0.2, -0.5, 0.1], [0.0, 0.1, 2.0]])
    C, S = covariances(problem, w), scatters(problem, w, P)
    for k, mdp in enumerate(zoo_mdps()):
        A, b, second, slopes = np.zeros((3, 3)), np.zeros(3), np.zeros((3, 3)), np.zeros((3, 3))
        for q, left, right, r in outcomes(problem, mdp, k):
            g = left * (right @ w - r)
            A, b = A + q * np.outer(left, right), b + q * r * left
            second = second + q * np.outer(g, g)
            slopes = slopes + q * np.outer(left, right) @ P @ np.outer(right, left)
        np.testing.assert_allclose(problem.A[k], A, atol=1e-13)
        np.testing.assert_allclose(problem.b[k], b, atol=1e-13)
        mean = A @ w - b
        np.testing.assert_allclose(C[k], second - np.outer(mean, mean), atol=1e-12)
        np.testing.assert_allclose(S[k], slopes - A @ P @ A.T, atol=1e-12)
        trace = [np.trace(scatters(problem, w, np.outer(e, e))[k]) for e in np.eye(3)]
        np.testing.assert_allclose(np.diag(problem.slope_noise()[k]), trace, atol=1e-12)


def walk(mdp, policy, walkers, steps, rng):
    """Plain simulation with restarts: states (steps, walkers), rewards, next states (S at an end)."""
    S, s, seen = mdp.states, np.zeros(walkers, int), []
    for _ in range(steps):
        a = (rng.random(walkers)[:, None] > policy[s].cumsum(1)).sum(1)
        t = np.minimum((rng.random(walkers)[:, None] > mdp.P[s, a].cumsum(1)).sum(1), S - 1)
        over = mdp.ends[s, a, t]
        seen.append((s, mdp.rewards()[s, a, t], np.where(over, S, t)))
        s = np.where(over, (rng.random(walkers)[:, None] > mdp.initial.cumsum()).sum(1), t)
    return [np.stack(part) for part in zip(*seen, strict=True)]


def test_A_and_b_are_long_averages():
    """2,000 walkers of 200 steps after 50: averages of each walker are independent, so errors are known."""
    problem, rng = td(), np.random.default_rng(0)
    phi = np.vstack([problem.features, np.zeros(3)])
    for k, mdp in enumerate(zoo_mdps()):
        s, r, t = (part[50:] for part in walk(mdp, problem.policy, 2000, 250, rng))
        each_A = np.einsum("twi,twj->wij", phi[s], phi[s] - 0.9 * phi[t]) / len(s)
        each_b = np.einsum("twi,tw->wi", phi[s], r) / len(s)
        for mean, each in ((problem.A[k], each_A), (problem.b[k], each_b)):
            assert (np.abs(each.mean(0) - mean) < 4.5 * each.std(0) / np.sqrt(2000)).all()


def trajectory(problem, steps, count):
    """(K, count, steps): the outcomes of so many rounds."""
    oracle = problem.prepare(fp.FedLSA(0.1, steps))
    with jax.enable_x64(True):
        own = jax.tree.map(jax.numpy.asarray, problem.own)

        def one(o, k):
            def round(r):
                mine, key = Mine(o, problem.common), Key.of(0).fold(r, k)
                return oracle.walk(mine, key, oracle.begin(mine, key)).outcomes

            return jax.vmap(round)(jax.numpy.arange(count))

        return np.asarray(jax.vmap(one)(own, jax.numpy.arange(problem.agents)))


def test_a_trajectory_follows_the_chain_and_is_stationary():
    problem, n = td("trajectory"), 4000
    z = trajectory(problem, 6, n)
    for k in range(problem.agents):
        state, after = problem.own.state[k][z[k]], problem.own.after[k][z[k]]
        expected = np.where(after == 5, 0, after)  # episodes begin in state 0
        assert (state[:, 1:] == expected[:, :-1]).all()
        for e in (0, 5):
            share = np.bincount(state[:, e], minlength=5) / n
            q = problem.stationary[k]
            assert (np.abs(share - q) <= 4.5 * np.sqrt(q * (1 - q) / n)).all()
    assert not problem.oracle.independent and td().oracle.independent
    with pytest.raises(fp.FedpointError, match="draws its number of local steps"):
        fp.run(fp.Scaffnew(0.1, probability=0.5), problem, rounds=1)


class Watch(fp.Algorithm):
    """An agent's memory: the fields it saw in its last round, at w = 0: -r phi(s)."""

    local_steps: int = 3

    def init(self, w):
        return w, jax.numpy.zeros((3, 3))

    def local(self, w, last, agent):
        return 0 * w, jax.numpy.stack([agent.field(w, e) for e in range(3)])

    def combine(self, w, inbox):
        return w


def one_way():
    """Two agents on a circle of 12 states with a reward of its own for each: a field tells the state."""
    P = np.zeros((12, 1, 12))
    P[np.arange(12), 0, (np.arange(12) + 1) % 12] = 1
    angle = 2 * np.pi * np.arange(12) / 12
    phi = np.stack([np.cos(angle), np.sin(angle), np.ones(12)], axis=1)
    return fp.problems.TD([fp.problems.MDP(P, np.ones(12))] * 2, phi, 0.5, sampling="trajectory")


@pytest.mark.parametrize("who", [None, 1])
def test_a_trajectory_goes_on_where_the_last_round_ended(who):
    """On a circle every step is known: 3 steps a round, none while an agent is not asked; starts differ by repeat."""
    problem = one_way()
    run, seen, asked = fp.run(Watch(), problem, rounds=0, participation=who, repeats=3), [], []
    for r in range(1, 9):
        run = run.extend(r)
        fields = run.memories  # (repeats, agents, 3, 3): -phi(s)
        states = np.rint(np.arctan2(-fields[..., 1], -fields[..., 0]) / (2 * np.pi) * 12).astype(int) % 12
        seen.append(np.where((fields == 0).all((-1, -2))[..., None], -1, states))
    seen = np.stack(seen)  # (rounds, repeats, agents, 3)
    for repeat in range(3):
        for agent in range(2):
            mine = seen[:, repeat, agent]
            rounds = [mine[0]] if mine[0, 0] >= 0 else []
            rounds += [b for a, b in itertools.pairwise(mine) if (a != b).any()]
            path = np.concatenate(rounds)
            assert (np.diff(path) % 12 == 1).all()
            asked.append(len(rounds))
    assert asked == [8] * 6 if who is None else sum(asked) == 24
    whole = fp.run(Watch(), problem, rounds=8, participation=who, repeats=3)
    np.testing.assert_array_equal(whole.memories, run.memories)
    assert len({tuple(a) for a in seen[0].reshape(-1, 3) if a[0] >= 0}) > 1


def test_samples_along_a_trajectory_are_correlated_and_iid_ones_are_not():
    w, n = np.ones(3), 4000
    for sampling in ("iid", "trajectory"):
        drawn = sampled_fields(td(sampling), w, n, steps=(0, 1))[..., 0]
        correlation = np.array([np.corrcoef(a.T)[0, 1] for a in drawn])
        assert (np.abs(correlation).max() > 5 / np.sqrt(n)) == (sampling == "trajectory")


def test_values_and_their_errors():
    """V = r + gamma P V; with one feature per state the solution of one agent is V; errors are weighted squares."""
    problem = td()
    V = problem.true_values()
    for k, chain in enumerate(problem.chains):
        np.testing.assert_allclose(V[k], chain.reward + 0.9 * chain.moves @ V[k], atol=1e-12)
        np.testing.assert_allclose(chain.stationary @ (chain.moves + np.outer(1 - chain.moves.sum(1), chain.initial)),
                                   chain.stationary, atol=1e-14)  # fmt: skip
    w = np.array([1.0, 2.0, -1.0])
    expected = [(q * (problem.features @ w - v) ** 2).sum() for q, v in zip(problem.stationary, V, strict=True)]
    np.testing.assert_allclose(problem.value_error(w), expected, rtol=1e-12)
    np.testing.assert_allclose(problem.values(np.stack([w, 2 * w])), [problem.values(w), 2 * problem.values(w)])
    tabular = TD(zoo_mdps(), np.eye(5)[:, :4], 0.9, problem.policy)  # the last state is never left
    np.testing.assert_allclose(tabular.value_error(tabular.local_solutions()), 0, atol=1e-20)
    np.testing.assert_allclose(tabular.local_values()[:, :4], tabular.true_values()[:, :4], atol=1e-12)
    metrics = problem.value_metrics(w)
    assert metrics["worst value error"] == pytest.approx(max(expected))
    run = fp.run(fp.FedLSA(0.1, 2), problem, rounds=4, evaluate=problem.value_metrics)
    assert run.evaluation["value error"].shape == (1, 5)


def test_undiscounted_values_where_episodes_end():
    """From state 0 to the end in two steps, each of which earns 1."""
    line = np.zeros((3, 1, 3))
    line[0, 0, 1] = line[1, 0, 2] = line[2, 0, 2] = 1
    problem = TD(MDP(line, [1.0, 1.0, 0.0], [False, False, True], [1.0, 0, 0]), np.eye(3)[:, :2], gamma=1.0)
    np.testing.assert_allclose(problem.solution(), [2.0, 1.0])
    np.testing.assert_allclose(problem.true_values(), [[2.0, 1.0, 0.0]])
    with pytest.raises(fp.FedpointError, match="agent 0: gamma = 1"):
        TD(MDP([[[1.0]]], [1.0]), [[1.0]], gamma=1.0)


def test_td_is_stable_and_a_constant_is_at_least_the_theory():
    """A + A' >= 2 (1 - gamma) Phi'D Phi: lecture 001's exponential stability."""
    problem = fp.problems.garnet(agents=5, heterogeneity=0.5, states=12, dim=4, gamma=0.8)
    for k, a in enumerate(problem.stability().a_k):
        gram = problem.features.T @ (problem.stationary[k][:, None] * problem.features)
        assert a >= 0.2 * np.linalg.eigvalsh(gram)[0] - 1e-12 > 0
    assert problem.convex


def test_garnet():
    same = fp.problems.garnet(agents=3, heterogeneity=0.0)
    assert same.A.shape == (3, 8, 8) and np.ptp(same.A, axis=0).max() == 0 and np.ptp(same.b, axis=0).max() == 0
    assert same.constants().heterogeneity < 1e-20
    other = fp.problems.garnet(agents=3, heterogeneity=0.2)
    far = fp.problems.garnet(agents=3, heterogeneity=0.8)
    assert 0 < other.constants().heterogeneity < far.constants().heterogeneity
    again = fp.problems.garnet(agents=3, heterogeneity=0.2)
    assert again.A.tobytes() == other.A.tobytes()
    assert fp.problems.garnet(agents=3, heterogeneity=0.2, seed=1).A.tobytes() != other.A.tobytes()
    assert (np.bincount(other.chains[0].outcomes.state) <= 2 * 2 * 2).all()
    assert (np.bincount(same.chains[0].outcomes.state) <= 2 * 2).all()
    f = fp.forecast(fp.FedLSA(0.2, 10), far)
    assert f.bias > 0 and fp.forecast(fp.FedLSA(0.2, 10), same).bias == 0


def test_alias_tables_are_exact(rng):
    for n in (1, 2, 7, 100):
        q = rng.dirichlet(0.2 * np.ones(n))
        q[rng.random(n) < 0.3] = 0.0
        q[0] += 1e-3
        cut, other = alias_table(q)
        np.testing.assert_allclose((cut + np.bincount(other, 1 - cut, n)) / n, q / q.sum(), atol=1e-15)


# Gymnasium's worlds.


def test_frozen_lake_is_gymnasiums():
    lake = pytest.importorskip("gymnasium.envs.toy_text.frozen_lake").FrozenLakeEnv(success_rate=0.8)
    mdp = mdp_of(lake)
    assert (mdp.states, mdp.actions) == (16, 4) and mdp.initial[0] == 1
    assert mdp.P[0, 2, 1] == pytest.approx(0.8) and mdp.P[0, 2, 0] == mdp.P[0, 2, 4] == pytest.approx(0.1)
    assert mdp.R[14, 2, 15] == 1 and mdp.ends[14, 2, 15] and not mdp.ends[0].any()
    problem = fp.problems.frozen_lake(agents=3, seed=2)
    assert np.ptp(problem.A, axis=0).max() > 0.01 and problem.solution() is not None
    again = fp.problems.frozen_lake(agents=3, seed=2)
    assert problem.A.tobytes() == again.A.tobytes()
    same = fp.problems.frozen_lake(agents=3, success=0.7, maps="same")
    assert np.ptp(same.A, axis=0).max() == 0
    run = fp.run(fp.ScaffLSA(0.5, 10), problem, rounds=3000, exact=True, record_every=3000)
    assert run.error[0, -1] < 1e-4 * run.error[0, 0]


def test_cliff_and_taxi():
    pytest.importorskip("gymnasium")
    cliff = fp.problems.cliff_walking(agents=2, success=[1.0, 1.0])
    assert cliff.features.shape == (48, 37) and np.ptp(cliff.A, axis=0).max() == 0
    np.testing.assert_allclose(cliff.value_error(cliff.solution()), 0, atol=1e-12)
    taxi = fp.problems.taxi(agents=2, features=6)
    assert taxi.A.shape == (2, 6, 6) and taxi.stability().stable.all() and np.ptp(taxi.A, axis=0).max() > 0


def test_slips_mix_actions_and_keep_what_they_earn():
    rng = np.random.default_rng(0)
    mdp = MDP(rng.dirichlet(np.ones(3), (3, 2)), rng.normal(size=(3, 2, 3)))
    mixed, mean = slip(mdp, 0.6), (mdp.P * mdp.rewards()).sum(2)
    np.testing.assert_allclose(mixed.P, 0.6 * mdp.P + 0.4 * mdp.P.mean(1, keepdims=True), atol=1e-15)
    earned = (mixed.P * mixed.rewards()).sum(2)
    np.testing.assert_allclose(earned, 0.6 * mean + 0.4 * mean.mean(1, keepdims=True), atol=1e-14)


def test_without_the_extra_there_is_a_clear_word(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium.envs.toy_text.frozen_lake", None)
    with pytest.raises(fp.FedpointError, match=r"pip install 'fedpoint\[rl\]'"):
        fp.problems.frozen_lake(agents=2)


STEP = [[[0.0, 1.0]], [[1.0, 0.0]]]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: MDP([[1.0]], [1.0]), "P must be"),
        (lambda: MDP([[[0.5, 0.4]], [[1.0, 0.0]]], [0, 0]), "P, state 0, action 0: .* the sum is 0.9"),
        (lambda: MDP([[[1.5, -0.5]], [[1.0, 0.0]]], [0, 0]), "at least 0"),
        (lambda: MDP(STEP, [1.0]), "R has shape"),
        (lambda: MDP(STEP, [1.0, 0.0], terminal=[False, True]), "initial="),
        (lambda: MDP(STEP, [1.0, 0.0], terminal=[0, 1]), "true or false"),
        (lambda: MDP(STEP, [1.0, 0.0], initial=[1.0]), "2 states"),
        (lambda: TD([MDP(STEP, [1.0, 0.0])], np.eye(3), 0.9), "for 2 states"),
        (lambda: TD([MDP(STEP, [1.0, 0.0])], np.eye(2), 1.1), "gamma must be"),
        (lambda: TD([MDP(STEP, [1.0, 0.0])], np.eye(2), 0.9, policy=[1, 0]), "names an action"),
        (lambda: TD([MDP(STEP, [1.0, 0.0])], np.eye(2), 0.9, policy=np.eye(2)), r"give \(2, 1\)"),
        (lambda: TD([MDP(STEP, [1.0, 0.0])], np.eye(2), 0.9, sampling="path"), "unknown sampling"),
        (lambda: TD([MDP(STEP, [1.0, 0.0]), MDP([[[1.0]]], [0.0])], np.eye(2), 0.9), "agent 1 has"),
        (lambda: TD([], np.eye(2), 0.9), "no agent"),
        (lambda: TD([MDP([[[1.0, 0.0]], [[0.0, 1.0]]], [0, 0])], np.eye(2), 0.9), "agent 0: .* 2 separate sets"),
        (lambda: fp.problems.garnet(heterogeneity=2.0), "between 0 and 1"),
        (lambda: fp.problems.garnet(branching=40), "branching"),
        (lambda: fp.problems.frozen_lake(success=1.5), "probability"),
        (lambda: fp.problems.frozen_lake(success=[0.1, 0.2, 0.3]), "one per agent"),
        (lambda: fp.problems.frozen_lake(maps="own"), "maps must be"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(fp.FedpointError, match=message):
        make()
