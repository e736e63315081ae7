"""Is the noise of a sampled field what its oracle says? Covariance and scatter, against draws and against all rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from zoo import SAMPLED, build, flat, least_squares, logistic, network, random_model, sampled_fields, table

import fedpoint as fp
from fedpoint.problems import Mine
from fedpoint.problems import least_squares as least_squares_module
from fedpoint.problems.oracle import newton
from fedpoint.problems.rows import BLOCK

LINEAR = [name for name in SAMPLED if name.startswith(("quadratic", "stream", "least", "system", "TD"))]


@partial(jax.jit, static_argnums=0)
def _covariances(oracle, own, common, w):
    return jax.vmap(lambda o: oracle.covariance(Mine(o, common), w))(own)


@partial(jax.jit, static_argnums=0)
def _scatters(oracle, own, common, w, P):
    return jax.lax.map(lambda o: oracle.scatter(Mine(o, common), w, P), own)


def covariances(problem, w):
    with jax.enable_x64(True):
        found = _covariances(problem.oracle, problem.own, problem.common, w)
    assert found.dtype == np.float64
    return np.asarray(found)


def scatters(problem, w, P):
    with jax.enable_x64(True):
        found = _scatters(problem.oracle, problem.own, problem.common, w, P)
    assert found.dtype == np.float64
    return np.asarray(found)


def symmetric(d, seed=0):
    S = np.random.default_rng(seed).normal(size=(d, d))
    return S + S.T  # not definite: the scatter is linear in P


@partial(jax.jit, static_argnums=0)
def _slopes(oracle, rows, extra, w):
    """Gradient (n, d) and Hessian (n, d, d) of every row's loss."""
    vector, unravel = ravel_pytree(w)

    def loss(v, row):
        return oracle.weighted_loss(unravel(v), jax.tree.map(lambda a: a[None], row), jnp.ones(1), extra)

    return [jax.vmap(f(loss), (None, 0))(vector, rows) for f in (jax.grad, jax.hessian)]


def terms(problem, k, w):
    """(m, d) terms and (m, d, d) slopes of agent k whose mean over a draw q is the field without penalty; and q."""
    own = slice(problem.own.offset[k], problem.own.offset[k] + problem.counts[k])
    with jax.enable_x64(True):
        g, H = (np.asarray(a)[own] for a in _slopes(problem.oracle, problem.all_rows(), problem.common.extra, w))
    q = problem._chances(k)
    scale = (1 / len(q) if problem.oracle.mean else 1.0) / q
    return scale[:, None] * g, scale[:, None, None] * H, q


def kept(problem, m):
    """Of one row's covariance by a batch: 1/B with replacement, (m - B)/(B (m - 1)) without."""
    if problem.oracle.sampling != "shuffle":
        return 1 / problem.batch
    size = min(problem.batch, m)
    return (m - size) / (size * max(m - 1, 1))


def test_covariance_is_that_of_draws(sampled):
    """Every entry within five standard errors over 4,000 draws; with noise, to about 3 % of the diagonal."""
    w, n = random_model(sampled, 2), 4000
    claimed = covariances(sampled, w)
    gap = sampled_fields(sampled, w, n)[:, :, 0] - sampled.fields(w)[:, None]
    products = gap[..., :, None] * gap[..., None, :]
    error = products.std(1) / np.sqrt(n) + 1e-13 * (1 + np.abs(sampled.fields(w)).max() ** 2)
    assert (np.abs(products.mean(1) - claimed) < 5 * error).all()
    assert sampled.oracle.known_noise


# Two fields with the same sample.


@partial(jax.jit, static_argnums=0)
def _cross(oracle, own, common, w, v):
    return jax.vmap(lambda o: oracle.cross_covariance(Mine(o, common), w, v))(own)


@partial(jax.jit, static_argnums=0)
def _cross_scatters(oracle, own, common, w, v, P):
    return jax.lax.map(lambda o: oracle.cross_scatter(Mine(o, common), w, v, P), own)


def cross(problem, w, v, P=None):
    with jax.enable_x64(True):
        parts = (problem.oracle, problem.own, problem.common, w, v)
        return np.asarray(_cross(*parts) if P is None else _cross_scatters(*parts, P))


def draws_together(problem, claimed, w, v, n=4000):
    """Every entry of E[n(w; z) n(v; z)'] within five standard errors over as many draws as above."""
    gaps = [sampled_fields(problem, u, n)[:, :, 0] - problem.fields(u)[:, None] for u in (w, v)]
    products = gaps[0][..., :, None] * gaps[1][..., None, :]
    error = products.std(1) / np.sqrt(n) + 1e-13 * (1 + np.abs(problem.fields(w)).max() ** 2)
    assert (np.abs(products.mean(1) - claimed) < 5 * error).all()


DRAWN = [
    "quadratic",
    "stream, covariances",
    "least squares, shuffled",
    "system, variances",
    "system, covariances",
    "TD",
]


@pytest.mark.parametrize("name", DRAWN)
def test_cross_covariance_is_that_of_draws_with_the_same_sample(name):
    problem = build(name, True)
    w, v = (random_model(problem, seed) for seed in (2, 3))
    assert problem.oracle.known_cross_noise
    draws_together(problem, cross(problem, w, v), w, v)
    np.testing.assert_allclose(cross(problem, w, v), np.swapaxes(cross(problem, v, w), 1, 2), rtol=1e-11, atol=1e-13)


def test_what_is_not_symmetric_shows():
    """R x y'R in place of R y x'R has the same symmetric part, which is all that C(w) tells by polarisation."""
    problem = build("stream, covariances", True)
    w, v = (random_model(problem, seed) for seed in (2, 3))
    right = cross(problem, w, v)
    with pytest.raises(AssertionError):
        draws_together(problem, np.swapaxes(right, 1, 2), w, v, n=40000)
    with pytest.raises(AssertionError):  # nor is it the covariance half way
        draws_together(problem, covariances(problem, (w + v) / 2), w, v, n=40000)


@pytest.mark.parametrize("name", LINEAR)
def test_cross_scatter_is_the_mixed_difference_of_the_cross_covariance(name):
    """Linear fields: C(w, v) is affine in each, and the mixed difference along s and t is scatter(s t') exactly."""
    problem = build(name, True)
    w, v, s, t = (flat(random_model(problem, seed)) for seed in (4, 5, 6, 7))
    corners = cross(problem, w + s, v + t) - cross(problem, w + s, v) - cross(problem, w, v + t) + cross(problem, w, v)
    size = np.abs(cross(problem, w + s, v + t)).max()
    np.testing.assert_allclose(cross(problem, w, v, np.outer(s, t)), corners, rtol=1e-11, atol=1e-12 * size)


@pytest.mark.parametrize("name", ["logistic, importance", "softmax, iid", "network, iid"])
def test_two_fields_of_a_row_against_the_enumeration_of_all(name):
    problem = build(name, True)
    w, v = (random_model(problem, seed) for seed in (5, 6))
    d = len(flat(w))
    P = np.random.default_rng(1).normal(size=(d, d))
    C, S = cross(problem, w, v), cross(problem, w, v, P)
    for k, m in enumerate(problem.counts):
        (g, H, q), (h, G, _) = terms(problem, k, w), terms(problem, k, v)
        one, two = g - q @ g, h - q @ h
        exact = kept(problem, m) * np.einsum("n,ni,nj->ij", q, one, two)
        np.testing.assert_allclose(C[k], exact, rtol=1e-11, atol=1e-12 * (1 + np.abs(exact).max()))
        one, two = H - np.tensordot(q, H, 1), G - np.tensordot(q, G, 1)
        exact = kept(problem, m) * np.einsum("n,nij,jk,nkl->il", q, one, P, two)
        np.testing.assert_allclose(S[k], exact, rtol=1e-10, atol=1e-12 * (1 + np.abs(exact).max()))


def test_trace_is_the_noise_of_the_problem(sampled):
    w = random_model(sampled, 4)
    np.testing.assert_allclose(
        np.trace(covariances(sampled, w), axis1=1, axis2=2), sampled.noise(w), rtol=1e-11, atol=1e-13
    )


@pytest.mark.parametrize(
    "name", [name for name in SAMPLED if name.startswith(("least", "logistic", "softmax", "network"))]
)
def test_rows_against_the_enumeration_of_all(name):
    problem = build(name, True)
    w = random_model(problem, 5)
    d = len(flat(w))
    P = symmetric(d)
    C, S = covariances(problem, w), scatters(problem, w, P)
    for k, m in enumerate(problem.counts):
        g, H, q = terms(problem, k, w)
        gap, bend = g - q @ g, H - np.tensordot(q, H, 1)
        np.testing.assert_allclose(
            C[k], kept(problem, m) * np.einsum("n,ni,nj->ij", q, gap, gap), rtol=1e-12, atol=1e-12 * (1 + C[k].max())
        )
        exact = kept(problem, m) * np.einsum("n,nij,jk,nkl->il", q, bend, P, bend)
        np.testing.assert_allclose(S[k], exact, rtol=1e-11, atol=1e-12 * (1 + np.abs(exact).max()))


@pytest.mark.parametrize("name", LINEAR)
def test_scatter_is_the_curvature_of_the_covariance(name):
    """Linear fields: C is quadratic in w, so (C(w + s) + C(w - s))/2 - C(w) = scatter(s s') exactly."""
    problem = build(name, True)
    w, s = (flat(random_model(problem, seed)) for seed in (6, 7))
    difference = (covariances(problem, w + s) + covariances(problem, w - s)) / 2 - covariances(problem, w)
    size = np.abs(covariances(problem, w + s)).max()
    np.testing.assert_allclose(scatters(problem, w, np.outer(s, s)), difference, rtol=1e-11, atol=1e-12 * size)


def test_scatter_of_a_curved_loss_is_the_noise_of_its_slope():
    """Any field: for small s, the covariance of g(w + s; z) - g(w; z) is scatter(s s') to second order."""
    problem = build("logistic, importance", True)
    w, s = (random_model(problem, seed) for seed in (6, 7))
    for k, m in enumerate(problem.counts):
        steps = []
        for h in (1e-4, -1e-4):
            (a, _, q), (b, _, _) = terms(problem, k, w + h * s), terms(problem, k, w)
            steps.append((a - b) / h)
        slope = (steps[0] + steps[1]) / 2
        gap = slope - q @ slope
        exact = kept(problem, m) * np.einsum("n,ni,nj->ij", q, gap, gap)
        np.testing.assert_allclose(scatters(problem, w, np.outer(s, s))[k], exact, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("sampling", ["iid", "importance"])
@pytest.mark.parametrize("gram", [True, False])
def test_rows_in_blocks_of_very_different_counts(monkeypatch, sampling, gram):
    sizes = (1, 1000, 2, 257)
    assert max(sizes) > BLOCK
    if not gram:
        monkeypatch.setattr(least_squares_module, "GRAM_BYTES", 0)
    X, y, groups = table(sizes=sizes)
    problem = fp.problems.LeastSquares(X, y.astype(float), groups=groups, mean=True, batch=2, sampling=sampling)
    w, P = np.array([0.3, -1.0, 2.0]), symmetric(3)
    C, S = covariances(problem, w), scatters(problem, w, P)
    for k in range(len(sizes)):
        g, H, q = terms(problem, k, w)
        gap, bend = g - q @ g, H - np.tensordot(q, H, 1)
        np.testing.assert_allclose(C[k], np.einsum("n,ni,nj->ij", q, gap, gap) / 2, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(S[k], np.einsum("n,nij,jk,nkl->il", q, bend, P, bend) / 2, rtol=1e-11, atol=1e-11)


def test_full_fields_have_no_noise(problem):
    if isinstance(problem, fp.problems.LinearStream | fp.problems.TD):
        return
    w = random_model(problem, 0)
    d = len(flat(w))
    assert not covariances(problem, w).any() and not scatters(problem, w, symmetric(d)).any()


def test_who_knows_the_noise_and_whose_samples_depend_on_each_other():
    assert not fp.problems.Oracle.known_noise and fp.problems.Oracle.independent
    assert least_squares(batch=2).oracle.independent
    assert least_squares(batch=2, sampling="importance").oracle.independent
    assert not least_squares(batch=2, sampling="shuffle").oracle.independent
    assert least_squares(batch=12, sampling="shuffle").oracle.independent  # every batch is all rows


def test_linear_fields_are_the_fields(problem):
    found = problem.linear_fields()
    assert problem.linear == (found is not None)
    if found is not None:
        A, b = found
        w = random_model(problem, 1)
        assert A.dtype == b.dtype == np.float64
        np.testing.assert_allclose(A @ w - b, problem.fields(w), rtol=1e-12, atol=1e-12)


def test_linear_fields_without_normal_equations(monkeypatch):
    expected = least_squares().linear_fields()
    monkeypatch.setattr(least_squares_module, "GRAM_BYTES", 0)
    for ours, theirs in zip(least_squares().linear_fields(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_convexity_is_known_or_promised(problem):
    assert problem.convex is (None if isinstance(problem, fp.problems.Loss) else True)


def test_convexity_where_it_is_not_given():
    assert fp.problems.Quadratic([1.0, -0.5], [[0.0], [1.0]]).convex is False
    assert fp.problems.Quadratic([1.0, 0.0], [[0.0], [1.0]]).convex is True
    assert network(convex=True).convex is True


def test_prox_is_differentiated_exactly():
    """Newton's solution v of (H + 2 a) v = H c + 2 a x has (H + 2 a) dv = 2 a dx + 2 da (x - v).

    A derivative through the iterations would have only their accuracy, and one of the stopping rule none at all.
    """
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    H, c, center, direction = root @ root.T + 0.1 * np.eye(4), *rng.normal(size=(3, 4))
    with jax.enable_x64(True):
        solve = jax.jit(lambda x, a: newton(lambda v: H @ (v - c), x, a))
        v, dv = jax.jvp(solve, (center, 0.3), (direction, 0.7))
    matrix = H + 0.6 * np.eye(4)
    np.testing.assert_allclose(v, np.linalg.solve(matrix, H @ c + 0.6 * center), rtol=1e-10)
    np.testing.assert_allclose(
        dv, np.linalg.solve(matrix, 0.6 * direction + 1.4 * (center - np.asarray(v))), rtol=1e-10
    )


@pytest.mark.parametrize("make", [logistic, lambda: logistic(classes=(0, 1, 2))], ids=["logistic", "softmax"])
def test_prox_of_a_curved_loss_is_differentiated_exactly(make):
    """dv/dcenter = (f''(v) + 2 a)^-1 2 a, for all agents at once; and against a difference of two solutions."""
    problem = make()
    w, s, a, h = random_model(problem, 1), random_model(problem, 2), 0.4, 1e-5

    @jax.jit
    def solve(own, common, x):
        """The prox at x, its derivative along s, and the Hessian there."""

        def one(o):
            mine = Mine(o, common)
            v, dv = jax.jvp(lambda c: problem.oracle.prox(mine, c, a), (x,), (s,))
            flat_v, unravel = ravel_pytree(v)
            return v, dv, jax.jacfwd(lambda u: problem.oracle.mean_field(mine, unravel(u)).ravel())(flat_v)

        return jax.vmap(one)(own)

    with jax.enable_x64(True):
        up, down, (_, dv, H) = (
            [np.asarray(part) for part in solve(problem.own, problem.common, w + t * s)] for t in (h, -h, 0.0)
        )
    np.testing.assert_allclose(dv, (up[0] - down[0]) / (2 * h), rtol=1e-6, atol=1e-8)
    for k in range(problem.agents):
        exact = np.linalg.solve(H[k] + 2 * a * np.eye(len(H[k])), 2 * a * s.ravel())
        np.testing.assert_allclose(dv[k].ravel(), exact, rtol=1e-9)


def test_prox_of_a_large_model_is_differentiated_by_conjugate_gradients():
    n, a = 300, 0.2
    curvature, center, direction = np.random.default_rng(1).uniform(0.5, 2.0, size=(3, n))
    with jax.enable_x64(True):
        _, dv = jax.jvp(lambda x: newton(lambda v: curvature * v, x, a), (center,), (direction,))
    np.testing.assert_allclose(dv, 2 * a * direction / (curvature + 2 * a), rtol=1e-10)
