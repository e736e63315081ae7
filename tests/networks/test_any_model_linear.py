"""FedRelax of any model where they are linear: parametric FedRelax, round by round and under every schedule.

Predictions on points with P'P/m' = I differ by |w_i - w_j|^2.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from any_model_world import LINEAR, D, Least, local_solutions, relax
from sklearn.linear_model import Ridge

import fedpoint as fp
from fedpoint.core.random import Key
from fedpoint.engine.exchange import Exchange
from fedpoint.engine.state import SCHEDULE
from fedpoint.graphs.network import Network
from fedpoint.problems.any_model import AnyModel
from fedpoint.timing.base import Context
from fedpoint.timing.clock import Clock
from fedpoint.timing.schedule import (
    PartiallyAsynchronous,
    RandomActivation,
    Synchronous,
    TotallyAsynchronous,
    WorstCase,
)
from fedpoint.timing.turns import OwnPace


def relaxed(X, y, gram, A, coupling, i, heard):
    """argmin (1/m_i)|y_i - X_i v|^2 + coupling sum_j A_ij (v - w_j)' G_ij (v - w_j), w_j = heard[j]."""
    m = len(y[i])
    H, g = X[i].T @ X[i] / m, X[i].T @ y[i] / m
    for j in np.flatnonzero(A[i]):
        H, g = H + coupling * A[i, j] * gram(i, j), g + coupling * A[i, j] * gram(i, j) @ heard[j]
    return np.linalg.solve(H, g)


def iterate(X, y, net, coupling, rounds, gram=lambda i, j: np.eye(D)):
    """(rounds + 1, K, d): all nodes in every round, from separate fits."""
    A, path = net.adjacency.toarray(), [local_solutions(X, y)]
    for _ in range(rounds):
        w = path[-1]
        path.append(np.stack([relaxed(X, y, gram, A, coupling, i, w) for i in range(len(X))]))
    return np.stack(path)


def closed_form(X, y, net, coupling):
    K = len(X)
    Q = coupling * np.kron(net.laplacian.toarray(), np.eye(D))
    for i, x in enumerate(X):
        Q[i * D : (i + 1) * D, i * D : (i + 1) * D] += x.T @ x / len(x)
    b = np.concatenate([x.T @ t / len(x) for x, t in zip(X, y, strict=True)])
    return np.linalg.solve(Q, b).reshape(K, D)


@pytest.mark.parametrize("coupling", [0.1, 1.0, 10.0])
def test_with_linear_models_it_is_parametric_fedrelax(rows, points, net, coupling):
    run = relax(AnyModel(*rows, models=LINEAR, shared=points), net, coupling, rounds=6)
    path = iterate(*rows, net, coupling, 6)
    assert run.history.shape == (1, 7, 5, 8)
    assert np.abs(run.history[0] - path @ points.T).max() < 1e-10
    assert np.abs(np.stack([m.coef_ for m in run.models]) - path[-1]).max() < 1e-10
    assert not run.has_error
    with pytest.raises(fp.FedpointError, match="models that only fit and predict have no parameters"):
        _ = run.error
    # Objective: local losses plus coupling times total variation.
    local = [sum(((x @ w - t) ** 2).mean() for x, t, w in zip(*rows, v, strict=True)) for v in path]
    variation = [net.total_variation(v) for v in path]
    assert np.allclose(run.variation[0], variation, rtol=1e-9, atol=1e-12)
    assert np.allclose(run.loss[0], np.array(local) + coupling * np.array(variation), rtol=1e-9)


def test_it_ends_at_the_closed_form_of_gtvmin(rows, points, net):
    run = relax(AnyModel(*rows, models=Least(), shared=points), net, 1.0, rounds=2000, stop=1e-24)
    assert 10 < run.rounds[-1] < 2000
    assert np.abs(np.stack([m.coef_ for m in run.models]) - closed_form(*rows, net, 1.0)).max() < 1e-9


def broken_points(self, i):
    """Points count whole: not divided by m'."""
    return right(self, i) * len(self.points[i])


def broken_rows(self, i):
    """Own rows count whole: not divided by m_i."""
    return right(self, i) / len(self.problem.y[i])


right = Exchange.weights


@pytest.mark.parametrize("broken", [broken_points, broken_rows])
def test_a_broken_weight_is_noticed(rows, points, net, monkeypatch, broken):
    monkeypatch.setattr(Exchange, "weights", broken)
    run = relax(AnyModel(*rows, models=LINEAR, shared=points), net, rounds=6)
    assert np.abs(run.history[0] - iterate(*rows, net, 1.0, 6) @ points.T).max() > 1e-3


@pytest.mark.parametrize("numbered", [True, False])
def test_points_of_each_edge(rows, net, numbered):
    """Gram matrices of the edges' own points take the place of the identity."""
    rng = np.random.default_rng(2)
    names = list("vwxyz")
    X, y = rows
    sets = {(int(i), int(j)): rng.normal(size=(4 + 2 * int(i + j), D)) for i, j in net.edges}
    keys = sets if numbered else {(names[j], names[i]): p for (i, j), p in sets.items()}  # in either direction
    groups = np.repeat(names, [len(t) for t in y])
    task = AnyModel(np.concatenate(X), np.concatenate(y), groups=groups, models=LINEAR, shared=keys)
    run = relax(task, net, 0.7, rounds=5)

    def gram(i, j):
        p = sets[min(i, j), max(i, j)]
        return p.T @ p / len(p)

    path = iterate(X, y, net, 0.7, 5, gram)
    assert np.abs(np.stack([m.coef_ for m in run.models]) - path[-1]).max() < 1e-10
    said = [np.concatenate([sets[min(i, j), max(i, j)] @ w[i] for j in np.flatnonzero(net.adjacency.toarray()[i])])
            for w in path for i in range(5)]  # fmt: skip
    assert np.abs(run.history[0].ravel() - np.concatenate(said)).max() < 1e-10
    variation = [
        sum(a * (w[i] - w[j]) @ gram(i, j) @ (w[i] - w[j]) for (i, j), a in zip(net.edges, net.weights, strict=True))
        for w in path
    ]
    assert np.allclose(run.variation[0], variation, rtol=1e-9, atol=1e-12)
    per_message = sum(len(p) for p in sets.values())
    assert run.cost.floats_up == 6 * 2 * per_message


@pytest.mark.parametrize("model", [LINEAR, Ridge(alpha=0.5)])
def test_equal_sets_by_edge_are_one_common_set(rows, points, net, model):
    one = relax(AnyModel(*rows, models=model, shared=points), net, rounds=4)
    sets = {tuple(map(int, e)): points for e in net.edges}
    each = relax(AnyModel(*rows, models=model, shared=sets), net, rounds=4)
    gaps = [a.coef_ - b.coef_ for a, b in zip(one.models, each.models, strict=True)]
    assert np.abs(gaps).max() < 1e-10
    assert np.allclose(one.loss, each.loss, rtol=1e-10)


@pytest.mark.parametrize("model", [LINEAR, Ridge(alpha=0.5)])
def test_the_mean_label_is_a_row_for_each_neighbour(rows, points, net, model):
    """Weighted ERM in the lecture's form: own rows 1/m_i, each neighbour's points alpha A_ij/m'."""
    X, y = rows
    run = relax(AnyModel(X, y, models=model, shared=points), net, 2.0, rounds=1)
    alone = run.history[0, 0]
    for i in range(5):
        near = np.flatnonzero(net.adjacency.toarray()[i])
        all_X = np.concatenate([X[i]] + [points] * len(near))
        all_y = np.concatenate([y[i]] + [alone[j] for j in near])
        m, weights = len(y[i]), [np.full(len(points), 2.0 * net.adjacency[i, j] / len(points)) for j in near]
        w = np.concatenate([np.full(m, 1 / m), *weights]) * m  # times m_i: a penalty stays what it is without coupling
        by_hand = type(model)(**model.get_params()).fit(all_X, all_y, sample_weight=w)
        assert np.abs(by_hand.coef_ - run.models[i].coef_).max() < 1e-10


# Schedules


def by_schedule(X, y, net, coupling, ticks, schedule, seed=0):
    """The lecture's asynchronous iteration in NumPy: node i works when it is its turn, with version tick - age."""
    A, arcs, path = net.adjacency.toarray(), net.arcs, [local_solutions(X, y)]
    arc = np.arange(len(arcs.says))
    with jax.enable_x64(True):
        key = Key.of(seed, 0, SCHEDULE)
        every = jax.jit(
            jax.vmap(lambda k: (schedule.tick(key, jnp.ones(net.nodes), k), schedule.age(key, k, arc, arcs.says)))
        )
        turns, ages = every(jnp.arange(ticks))
        for k in range(ticks):
            age = np.zeros(len(arcs.says), int) if ages is None else np.asarray(ages[k])
            who = np.arange(net.nodes) if turns.agents is None else np.asarray(turns.agents[k])
            new = path[-1].copy()
            for i in who[np.asarray(turns.heard[k])]:
                heard = {int(arcs.says[a]): path[k - age[a]][arcs.says[a]] for a in range(*arcs.first[i : i + 2])}
                new[i] = relaxed(X, y, lambda i, j: np.eye(D), A, coupling, i, heard)
            path.append(new)
    return np.stack(path)


SCHEDULES = [
    Synchronous(),
    RandomActivation(2),
    PartiallyAsynchronous(2, loss=0.2),
    TotallyAsynchronous(growth=0.3),
    WorstCase(2),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_schedules(rows, points, net, schedule):
    task = AnyModel(*rows, models=Least(), shared=points)
    run = relax(task, net, 0.02, rounds=400, schedule=schedule, stop=1e-26)
    path = by_schedule(*rows, net, 0.02, 12, schedule)
    assert np.abs(run.history[0, :13] - path @ points.T).max() < 1e-10
    assert np.abs(np.stack([m.coef_ for m in run.models]) - closed_form(*rows, net, 0.02)).max() < 1e-9


def test_a_timetable(rows, points, net):
    """Nodes at their own pace: a tick is one node's update, and messages travel longer than some work."""
    pace = OwnPace(Clock(travel=0.7), loss=0.1)
    task = AnyModel(*rows, models=Least(), shared=points)
    run = relax(task, net, 0.02, rounds=20, schedule=pace, repeats=2).extend(40)
    table, arcs, A = pace.bind(Context(network=net, repeats=2, rounds=40)), net.arcs, net.adjacency.toarray()
    for r in range(2):
        path = [local_solutions(*rows)]
        for k in range(40):
            i, new = table.agents[r, k, 0], path[-1].copy()
            near = arcs.says[arcs.first[i] : arcs.first[i + 1]]
            heard = {j: path[k - age][j] for j, age in zip(near, table.ages[r, k, 0], strict=False)}
            new[i] = relaxed(*rows, lambda i, j: np.eye(D), A, 0.02, i, heard)
            path.append(new)
        assert np.abs(run.history[r] - np.stack(path) @ points.T).max() < 1e-10
    assert run.cost.evaluations == 45 and (np.diff(run.time, axis=1) > 0).all()


def test_stopping_waits_for_answers(rows, points, net):
    """Ticks without work, or with old news only, change nothing: that is no reason to stop."""
    task = AnyModel(*rows, models=Least(), shared=points)
    run = relax(task, net, rounds=60, schedule=WorstCase(5), stop=1e-3)
    assert run.rounds[-1] > 10


def test_messages_are_counted(rows, points, net):
    """Whoever has fitted, in round 0 alone, sends its m' predictions to each neighbour."""
    task = AnyModel(*rows, models=Least(), shared=points)
    cost = relax(task, net, rounds=7).cost
    assert (cost.rounds, cost.messages_up, cost.floats_up, cost.bytes_up, cost.evaluations) == (7, 80, 640, 5120, 40)
    ring = Network.ring(5)
    cost = relax(task, ring, rounds=7, schedule=RandomActivation(2)).cost
    assert (cost.messages_up, cost.floats_up, cost.evaluations) == (10 + 7 * 4, 8 * 38, 5 + 14)
