"""Stored rows: very different counts, blocks, orders, and every way to sample them."""

import tracemalloc
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import agent, flat, mean_loss, network_loss, rows, sampled_fields, table

import fedpoint as fp
from fedpoint.core.random import Key
from fedpoint.problems import least_squares as least_squares_module
from fedpoint.problems.rows import BLOCK

UNEVEN = (1, 1000, 2, 300, 256, 257)


def plain_least_squares(A, b, w, mean, half):
    factor = np.array([(1.0 if half else 2.0) / (len(a) if mean else 1) for a in A])
    fields = np.stack([f * a.T @ (a @ w - y) for f, a, y in zip(factor, A, b, strict=True)])
    losses = np.array([0.5 * f * ((a @ w - y) ** 2).sum() for f, a, y in zip(factor, A, b, strict=True)])
    return fields, losses


def plain_logistic(X, y, groups, w, ridge):
    fields, losses = [], []
    for name in np.unique(groups):
        h, gamma = X[groups == name], y[groups == name]
        margin = gamma * (h @ w)
        fields.append(ridge * w - (gamma / (1 + np.exp(margin))) @ h / len(h))
        losses.append(0.5 * ridge * w @ w + np.log1p(np.exp(-margin)).mean())
    return np.stack(fields), np.array(losses)


def plain_softmax(X, label, groups, w, ridge):
    fields, losses = [], []
    for name in np.unique(groups):
        h, c = X[groups == name], label[groups == name]
        z = np.exp(h @ w.T)
        p = z / z.sum(1, keepdims=True)
        fields.append((ridge * w + (p - np.eye(len(w))[c]).T @ h / len(h)).ravel())
        losses.append(0.5 * ridge * (w**2).sum() - np.log(p[np.arange(len(h)), c]).mean())
    return np.stack(fields), np.array(losses)


@pytest.mark.parametrize("sizes", [UNEVEN, (40, 40, 40), (300, 300), (5, 200)], ids=str)
@pytest.mark.parametrize("gram", [True, False])
def test_full_least_squares_is_that_of_numpy(monkeypatch, gram, sizes):
    """By normal equations, and by rows when they would not fit: in blocks, or at once when sizes are equal."""
    assert max(UNEVEN) > BLOCK > 200
    if not gram:
        monkeypatch.setattr(least_squares_module, "GRAM_BYTES", 0)
    A, b = rows(sizes=sizes)
    w = np.array([0.3, -1.0, 2.0])
    for mean, half in ((False, True), (True, False)):
        problem = fp.problems.LeastSquares(A, b, mean=mean, half=half)
        fields, losses = plain_least_squares(A, b, w, mean, half)
        np.testing.assert_allclose(problem.fields(w), fields, rtol=1e-12)
        np.testing.assert_allclose(problem.losses(w), losses, rtol=1e-12)
        np.testing.assert_allclose(problem.objective(w[None]), [problem.weights @ losses], rtol=1e-12)
        assert np.abs(problem.weights @ problem.fields(problem.solution())).max() < 1e-9


def test_without_normal_equations_constants_and_prox_are_the_same(monkeypatch):
    A, b = rows()
    with_gram = fp.problems.LeastSquares(A, b, mean=True, batch=2)
    monkeypatch.setattr(least_squares_module, "GRAM_BYTES", 0)
    without = fp.problems.LeastSquares(A, b, mean=True, batch=2)
    assert without.H is None and with_gram.H is not None
    for name in ("nu", "delta", "nu_k", "delta_k", "beta2_k", "sigma2_k", "heterogeneity", "gamma"):
        ours, theirs = getattr(without.constants(), name), getattr(with_gram.constants(), name)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    with jax.enable_x64(True):
        prox = jax.jit(lambda k: [p.oracle.prox(agent(p, k), jnp.ones(3), 0.7) for p in (with_gram, without)])
        for k in range(4):
            np.testing.assert_allclose(*prox(k), rtol=1e-9)


@pytest.mark.parametrize("sizes", [UNEVEN, (30, 30), (7, 1)], ids=str)
def test_full_logistic_and_softmax_are_those_of_numpy(sizes):
    X, y, groups = table(sizes=sizes)
    w = np.array([0.5, -2.0, 1.0])
    problem = fp.problems.Logistic(X, y, groups=groups, ridge=0.3)
    fields, losses = plain_logistic(X, y, groups, w, 0.3)
    np.testing.assert_allclose(problem.fields(w), fields, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(problem.losses(w), losses, rtol=1e-12)
    X, label, groups = table(sizes=sizes, classes=(0, 1, 2, 3))
    W = np.random.default_rng(0).normal(size=(4, 3))
    problem = fp.problems.Logistic(X, label, groups=groups, ridge=0.3)
    fields, losses = plain_softmax(X, label, groups, W, 0.3)
    np.testing.assert_allclose(problem.fields(W), fields, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(problem.losses(W), losses, rtol=1e-12)


@pytest.mark.parametrize("loss", [network_loss, mean_loss])
@pytest.mark.parametrize("sizes", [(1, 600, 3), (9, 9)], ids=str)
def test_a_loss_of_ones_own_is_the_mean_over_each_agents_rows(loss, sizes):
    X, y, groups = table(sizes=sizes)
    data = {"x": X, "y": y.astype(float)}
    rng = np.random.default_rng(0)
    params = {"V": rng.normal(size=(3, 2)), "b": rng.normal(size=2), "u": rng.normal(size=2)}
    problem = fp.problems.Loss(loss, params, data, groups=groups)
    with jax.enable_x64(True):
        for k, name in enumerate(np.unique(groups)):
            own = jax.tree.map(lambda a, name=name: jnp.asarray(a[groups == name]), data)
            value, slope = jax.value_and_grad(mean_loss)(jax.tree.map(jnp.asarray, params), own)
            np.testing.assert_allclose(problem.losses(params)[k], value, rtol=1e-12)
            np.testing.assert_allclose(problem.fields(params)[k], flat(slope), rtol=1e-10, atol=1e-14)


def test_a_shuffled_epoch_uses_every_row_once():
    """Batches of an epoch, also of agents with fewer rows than a batch, partition the rows; epochs differ."""
    sizes, batch = (1, 4, 6, 13), 4
    X, _, groups = table(sizes=sizes)

    def loss(w, batch):  # its gradient says which rows were seen, and how much they weighed
        return jnp.mean(batch["unit"] @ w)

    n = len(X)
    units = np.eye(n)[np.argsort(np.argsort(groups, kind="stable"), kind="stable")]
    problem = fp.problems.Loss(loss, np.zeros(n), {"unit": units}, groups=groups, batch=batch, sampling="shuffle")
    drawn = sampled_fields(problem, np.zeros(n), 20, steps=tuple(range(8)))  # (K, 20, 8, n)
    start = 0
    for k, m in enumerate(sizes):
        own = drawn[k][..., start : start + m]
        start += m
        assert np.allclose(drawn[k].sum(-1), 1) and np.allclose(own.sum(-1), 1)  # nobody else's rows
        batches = -(-m // batch)
        for first in range(0, 8 - batches + 1, batches):
            seen = own[:, first : first + batches]
            assert ((seen > 0).sum(1) == 1).all()
            last = m - batch * (batches - 1)
            np.testing.assert_array_equal((seen > 0).sum(2)[:, -1], last)
            np.testing.assert_allclose(seen.max(2)[:, -1], 1 / last, rtol=1e-15)
        if m > batch:  # another order in the next epoch and in the next round
            assert not (own[:, 0] == own[:, batches]).all(1).all()
            assert not (own[0, 0] == own[1, 0]).all() or not (own[0, 0] == own[2, 0]).all()


def test_sizes_that_differ_much_order_the_same_rows():
    """Size buckets save work; they do not change the order of anybody's rows."""
    sizes = (2, 3, 900, 5)
    A, b = rows(sizes=sizes)
    problem = fp.problems.LeastSquares(A, b, mean=True, batch=2, sampling="shuffle")
    oracle = problem.prepare(fp.FedAvg(0.1, local_steps=fp.steps.Stragglers(3, 0.5), normalise=True))

    @jax.jit
    def orders(k):
        mine, key = agent(problem, k), Key.of(0).fold(1, k)
        return [replace(oracle, buckets=buckets).plan(mine, key) for buckets in ((), (4, 16), (8, 256))]

    assert oracle.buckets
    with jax.enable_x64(True):
        for k, m in enumerate(sizes):
            plain, *others = (np.asarray(plan) for plan in orders(k))
            shape = oracle.plan_shape(None, None)  # told without tracing
            assert (plain.shape, plain.dtype) == (shape.shape, shape.dtype)
            for used in plain:
                np.testing.assert_array_equal(np.sort(used[used >= 0]), np.arange(m))
            for plan in others:
                np.testing.assert_array_equal(plan, plain)


def test_a_control_variate_sees_a_fresh_batch_after_whole_epochs():
    """SCAFFOLD's option 1 draws one sample more than it takes steps: it must not be the round's first again."""
    A, b = rows(sizes=(8, 8))
    problem = fp.problems.LeastSquares(A, b, mean=True, batch=2, sampling="shuffle")
    oracle = problem.prepare(fp.Scaffold(0.1, local_steps=4, option=1))

    @jax.jit
    def draw(r):
        mine, key = agent(problem, 0), Key.of(0).fold(r, 0)
        plan = oracle.plan(mine, key)
        return [oracle.draw(mine, plan, key.row(e), e).at for e in (0, 4)]

    with jax.enable_x64(True):
        pairs = [[set(np.asarray(a).tolist()) for a in draw(r)] for r in range(20)]
    assert sum(first == extra for first, extra in pairs) < 10


@pytest.mark.parametrize("sampling", ["iid", "shuffle"])
def test_a_batch_of_all_rows_in_order_is_the_full_gradient(sampling):
    """Shuffled, a batch of all rows is all rows, in double precision also where 1/rows is no binary fraction."""
    A, b = rows(sizes=(3, 3, 3))
    start = np.array([1.0, 2.0, 3.0])
    full, batched = (
        fp.run(
            fp.FedAvg(0.3, local_steps=E, normalise=True),
            fp.problems.LeastSquares(A, b, mean=True, **options),
            rounds=5,
            start=start,
        )
        for E, options in ((3, {}), (3, {"batch": 3, "sampling": sampling}))
    )
    gap = np.abs(full.history - batched.history).max()
    assert gap < 1e-13 if sampling == "shuffle" else gap > 1e-3


def test_a_mean_and_a_sum_over_rows():
    """A sum with p = 1/K and a mean with p_k = m_k/m share w*; a mean with p = 1/K has another."""
    A, b = rows()
    counts = [len(a) for a in A]
    whole = np.linalg.lstsq(np.concatenate(A), np.concatenate(b), rcond=None)[0]
    total = fp.problems.LeastSquares(A, b)
    mean = fp.problems.LeastSquares(A, b, mean=True, weights=counts)
    other = fp.problems.LeastSquares(A, b, mean=True)
    np.testing.assert_allclose(total.solution(), whole, rtol=1e-10)
    np.testing.assert_allclose(mean.solution(), whole, rtol=1e-10)
    assert np.abs(other.solution() - whole).max() > 0.01


def test_weights_default_to_rows_with_groups_and_to_equal_shares_with_lists():
    A, b = rows()
    X, y, groups = table()
    share = np.array([1, 3, 7, 12]) / 23
    flat_A, flat_b, ids = np.concatenate(A), np.concatenate(b), np.repeat(list("abcd"), [1, 3, 7, 12])
    assert fp.problems.LeastSquares(A, b).weights == pytest.approx([0.25] * 4)
    assert fp.problems.LeastSquares(flat_A, flat_b, groups=ids).weights == pytest.approx(share)
    assert fp.problems.Logistic(X, y, groups=groups).weights == pytest.approx(share)
    assert fp.problems.Logistic(X, y).weights == pytest.approx([1.0])
    assert fp.problems.Loss(lambda w, b: jnp.mean(b @ w), np.zeros(3), X, groups=groups).weights == pytest.approx(share)
    assert fp.problems.LeastSquares(A, b, weights=[1, 1, 2, 4]).weights == pytest.approx([0.125, 0.125, 0.25, 0.5])


def test_groups_in_any_order_are_lists_sorted_by_name():
    A, b = rows()
    ids = np.repeat(["delta", "alpha", "gamma", "beta"], [1, 3, 7, 12])
    order = np.random.default_rng(0).permutation(23)
    problem = fp.problems.LeastSquares(np.concatenate(A)[order], np.concatenate(b)[order], groups=ids[order])
    assert problem.names == ["alpha", "beta", "delta", "gamma"]
    lists = fp.problems.LeastSquares([A[i] for i in (1, 3, 0, 2)], [b[i] for i in (1, 3, 0, 2)])
    w = np.ones(3)
    np.testing.assert_allclose(problem.fields(w), lists.fields(w), rtol=1e-12)


@pytest.mark.parametrize(
    "labels",
    [(-1, 1), (0, 1), (3, 8), ("no", "yes"), (False, True), (-1.0, 1.0)],
    ids=str,
)
def test_two_classes_by_any_name_are_one_problem(labels):
    X, y, groups = table(classes=(-1, 1))
    named = np.asarray(labels)[(y + 1) // 2]
    problem = fp.problems.Logistic(X, named, groups=groups, ridge=0.2)
    w = np.array([1.0, -0.5, 0.2])
    np.testing.assert_allclose(problem.fields(w), plain_logistic(X, y, groups, w, 0.2)[0], rtol=1e-11)
    assert list(problem.classes) == sorted(labels)


def test_more_classes_by_any_name_are_a_softmax():
    X, label, groups = table(classes=(0, 1, 2))
    named = np.array(["ash", "birch", "cedar"])[label]
    problem = fp.problems.Logistic(X, named, groups=groups, ridge=0.2)
    assert problem.start().shape == (3, 3)
    W = np.arange(9.0).reshape(3, 3) / 9
    np.testing.assert_allclose(problem.fields(W), plain_softmax(X, label, groups, W, 0.2)[0], rtol=1e-11)


def test_an_intercept_is_a_column_of_ones():
    X, y, groups = table()
    one = fp.problems.Logistic(X, y, groups=groups, intercept=True)
    two = fp.problems.Logistic(np.column_stack([X, np.ones(len(X))]), y, groups=groups)
    np.testing.assert_allclose(one.solution(), two.solution(), rtol=1e-10)


def test_separable_classes_without_a_ridge_have_no_solution():
    X = np.array([[1.0], [2.0], [-1.0], [-2.0]])
    problem = fp.problems.Logistic(X, [1, 1, -1, -1], ridge=0.0)
    assert problem.solution() is None and problem.local_solutions() is None
    run = fp.run(fp.GradientExchange(0.1), problem, rounds=3)
    assert not run.has_error
    with pytest.raises(fp.FedpointError, match="the classes can be separated, and without a ridge the minimum is at"):
        _ = run.error


def test_a_solution_that_is_not_separable_needs_no_ridge():
    X, y, groups = table(sizes=(40, 40))
    problem = fp.problems.Logistic(X, y, groups=groups, ridge=0.0)
    assert np.abs(problem.weights @ problem.fields(problem.solution())).max() < 1e-9


def test_importance_draws_rows_by_the_size_of_their_gradients():
    """And at the solution it is less noisy than uniform draws: that is what it is for."""
    A, b = rows(sizes=(40, 60))
    A[0][:3] *= 10
    even = fp.problems.LeastSquares(A, b, batch=1)
    by_size = fp.problems.LeastSquares(A, b, batch=1, sampling="importance")
    w = even.solution()
    assert (by_size.noise(w) < even.noise(w)).all()
    sizes = np.abs(A[1] @ w - b[1]) * np.linalg.norm(A[1], axis=1)
    np.testing.assert_allclose(by_size._chances(1), sizes / sizes.sum(), rtol=0.05, atol=1e-4)


def test_held_out_rows_are_measured():
    X, y, groups = table()
    logit = fp.problems.Logistic(X, y, groups=groups, intercept=True)
    w = np.array([1.0, -1.0, 0.5, 0.2])
    score = X @ w[:3] + w[3]
    got = logit.evaluate(w, X, y)
    assert got["accuracy"] == pytest.approx(np.mean(np.sign(score) == y))
    assert got["log_loss"] == pytest.approx(np.log1p(np.exp(-y * score)).mean(), rel=1e-12)
    X3, label, g3 = table(classes=("a", "b", "c"))
    soft, W = fp.problems.Logistic(X3, label, groups=g3), np.random.default_rng(1).normal(size=(3, 3))
    z = np.exp(X3 @ W.T)
    p = z / z.sum(1, keepdims=True)
    code = np.searchsorted(["a", "b", "c"], label)
    got = soft.evaluate(W, X3, label)
    assert got["accuracy"] == pytest.approx(np.mean(p.argmax(1) == code))
    assert got["log_loss"] == pytest.approx(-np.log(p[np.arange(len(code)), code]).mean(), rel=1e-12)
    A, b = rows()
    ls = fp.problems.LeastSquares(A, b)
    got = ls.evaluate(np.ones(3), A[2], b[2])
    assert got["mse"] == pytest.approx(np.mean((A[2] @ np.ones(3) - b[2]) ** 2))
    with pytest.raises(fp.FedpointError, match="do not occur in the training data"):
        soft.evaluate(W, X3, np.full(len(X3), "d"))
    with pytest.raises(fp.FedpointError, match="held-out"):
        ls.evaluate(np.ones(3), np.ones((2, 5)), np.ones(2))
    with pytest.raises(fp.FedpointError, match="evaluate= a function"):
        fp.problems.Quadratic(1.0, [[0.0]]).evaluate([0.0], [[1.0]], [1.0])


def test_floats_of_single_precision_are_kept_where_asked():
    X, y, groups = table()
    problem = fp.problems.Logistic(X, y, groups=groups, dtype=np.float32)
    assert problem.start().dtype == np.float32 and jax.tree.leaves(problem.common.rows)[0].dtype == np.float32
    exact = fp.problems.Logistic(X, y, groups=groups).solution()
    np.testing.assert_allclose(problem.solution(), exact, rtol=1e-5)


def test_constants_of_a_wide_table_need_no_square_of_its_columns():
    """A million columns would make a matrix of terabytes: the largest eigenvalue is that of the few rows' products."""
    d, rng = 1500, np.random.default_rng(0)
    X = rng.normal(size=(12, d)) / np.sqrt(d)
    problem = fp.problems.Logistic(X, np.arange(12) % 2, groups=np.arange(12) // 4, ridge=0.3)
    tracemalloc.start()
    found = problem.constants()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < d * d * 8 / 2
    largest = [np.linalg.svd(x, compute_uv=False)[0] ** 2 / 4 for x in np.split(X, 3)]
    assert found.delta_k == pytest.approx(0.25 * np.array(largest) + 0.3, rel=1e-12)
    assert found.delta == pytest.approx(0.25 * np.linalg.svd(X, compute_uv=False)[0] ** 2 / 12 + 0.3, rel=1e-12)
