"""What every problem promises: its field is the gradient of its loss, samples are unbiased, constants hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo import PROBLEMS, agent, build, flat, random_model, sampled_fields

import fedpoint as fp
from fedpoint.problems import LinearStream, Mine, Quadratic

SMOOTH = [name for name in PROBLEMS if name.startswith(("quadratic", "stream", "least"))]


def hessians(problem, w):
    """(K, n, n) by differentiating the field."""
    with jax.enable_x64(True):
        start, unravel = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.asarray, w))

        agents = jnp.arange(problem.agents)

        def field(v, k):
            return jax.flatten_util.ravel_pytree(problem.oracle.mean_field(agent(problem, k), unravel(v)))[0]

        return np.asarray(jax.jit(lambda v: jax.lax.map(lambda k: jax.jacobian(field)(v, k), agents))(start))


def test_the_field_is_the_gradient_of_the_loss(problem):
    w = random_model(problem, 1)
    if not problem.has_loss:
        with pytest.raises(fp.FedpointError, match="not a gradient"):
            problem.losses(w)
        return
    with jax.enable_x64(True):
        start, unravel = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.asarray, w))
        start, h = np.asarray(start), 1e-5
        slopes = []
        for direction in np.eye(len(start)):
            up, down = (problem.losses(unravel(jnp.asarray(start + s * direction))) for s in (h, -h))
            slopes.append((up - down) / (2 * h))
    np.testing.assert_allclose(problem.fields(w), np.stack(slopes, axis=1), rtol=1e-6, atol=1e-6)


def test_samples_are_unbiased_and_noise_is_their_variance(sampled):
    w, n = random_model(sampled, 2), 4000
    exact = sampled.fields(w)[:, None]
    drawn = sampled_fields(sampled, w, n, steps=(0, 3))
    for e in range(2):  # the first and a later sample of a round
        gap = drawn[:, :, e] - exact
        error = gap.std(1) / np.sqrt(n) + 1e-14 * (1 + np.abs(exact[:, 0]))
        assert (np.abs(gap.mean(1)) < 4.8 * error).all()
    squares = ((drawn[:, :, 0] - exact) ** 2).sum(2)
    error = squares.std(1) / np.sqrt(n) + 1e-14
    assert (np.abs(squares.mean(1) - sampled.noise(w)) < 5 * error).all(), (squares.mean(1), sampled.noise(w))


def test_without_sampling_there_is_no_noise(problem):
    if isinstance(problem, LinearStream | fp.problems.TD):
        return
    assert not problem.noise(random_model(problem, 0)).any()


def test_the_solution_is_where_the_fields_balance(problem):
    w = problem.solution()
    if w is None:
        assert isinstance(problem, fp.problems.Loss)
        return
    assert np.shape(w) == np.shape(problem.start())
    assert np.abs(problem.weights @ problem.fields(w)).max() < 1e-9


def test_local_solutions_are_where_each_field_vanishes(problem):
    models = problem.local_solutions()
    if models is None:
        assert isinstance(problem, fp.problems.Loss)
        return
    assert models.shape == (problem.agents, *np.shape(problem.start()))
    fields = np.stack([problem.fields(w)[k] for k, w in enumerate(models)])
    assert np.abs(fields).max() < 1e-9


def test_the_objective_is_the_weighted_mean_of_the_losses(problem):
    if not problem.has_loss:
        return
    models = [random_model(problem, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *a: np.stack(a), *models)
    expected = [problem.weights @ problem.losses(w) for w in models]
    np.testing.assert_allclose(problem.objective(stacked), expected, rtol=1e-11)


def test_weights_sum_to_one_and_agents_have_names(problem):
    assert problem.weights.sum() == pytest.approx(1, abs=1e-15)
    assert len(problem.names) == problem.agents == len(problem.weights) == len(set(problem.names))


@pytest.mark.parametrize("name", SMOOTH)
def test_convexity_and_smoothness_are_the_extreme_curvatures(name):
    problem = build(name)
    c, H = problem.constants(), hessians(problem, problem.start())
    each = np.linalg.eigvalsh(H)
    total = np.linalg.eigvalsh(np.tensordot(problem.weights, H, 1))
    np.testing.assert_allclose([c.nu, c.delta], total[[0, -1]], rtol=1e-9)
    np.testing.assert_allclose(c.nu_k, each[:, 0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(c.delta_k, each[:, -1], rtol=1e-9)


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_convexity_and_smoothness_bound_the_curvature_everywhere(name):
    problem = build(name)
    c = problem.constants()
    tops = []
    for scale in (0.0, 0.3, 3.0):
        H = hessians(problem, random_model(problem, 4, scale))
        each, total = np.linalg.eigvalsh(H), np.linalg.eigvalsh(np.tensordot(problem.weights, H, 1))
        assert c.nu <= total[0] + 1e-12 and total[-1] <= c.delta + 1e-12
        assert (c.nu_k <= each[:, 0] + 1e-12).all() and (each[:, -1] <= c.delta_k + 1e-12).all()
        tops.append(each[:, -1])
    if name == "logistic":  # the bound 1/4 is reached at zero
        np.testing.assert_allclose(tops[0], c.delta_k, rtol=1e-9)


def test_noise_is_bounded_by_beta2_and_sigma2(sampled):
    """E|noise|^2 <= beta2_k |w - w_k|^2 + sigma2_k, lecture 000 (25)."""
    c, local = sampled.constants(), sampled.local_solutions()
    if c.beta2_k is None or local is None:
        return
    assert c.beta2_k.shape == c.sigma2_k.shape == (sampled.agents,)
    for seed in range(30):
        w = random_model(sampled, seed, scale=10.0 ** (seed % 5 - 2))
        distance = ((w - local).reshape(sampled.agents, -1) ** 2).sum(1)
        bound = c.beta2_k * distance + c.sigma2_k
        assert (sampled.noise(w) <= bound * (1 + 1e-9) + 1e-12).all(), seed


def test_the_bound_holds_where_importance_has_made_a_row_rare(rng):
    """A row that the solution fits well is hardly drawn, and weighs much where it is fitted badly."""
    X = rng.normal(size=(60, 2)) * np.exp(0.5 * rng.normal(size=(60, 1)))
    y = np.sign(2 * X[:, 0] + 0.3 * rng.normal(size=60))
    problem = fp.problems.Logistic(X, y, ridge=0.001, batch=1, sampling="importance")
    c, local = problem.constants(), problem.local_solutions()
    for scale in np.repeat([0.3, 1.0, 3.0, 10.0, 30.0], 20):
        w = local[0] + scale * rng.normal(size=2)
        assert problem.noise(w) <= c.beta2_k * ((w - local) ** 2).sum() + c.sigma2_k


@pytest.mark.parametrize("name", ["stream, one variance", "stream, variances"])
def test_lms_reaches_its_noise_bound(name):
    """nu = delta = s, beta2 = (M + 1) s^2, sigma2 = M s noise, and equality in the bound."""
    problem = build(name, name not in PROBLEMS)
    c, M = problem.constants(), 4
    s, v = problem.own.root**2, problem.own.deviation**2
    np.testing.assert_allclose(c.beta2_k, (M + 1) * s**2)
    np.testing.assert_allclose(c.sigma2_k, M * s * v)
    w = random_model(problem, 7)
    distance = ((w - problem.local_solutions()) ** 2).sum(1)
    np.testing.assert_allclose(problem.noise(w), c.beta2_k * distance + c.sigma2_k, rtol=1e-12)


def test_heterogeneity_and_gamma_are_what_they_say(problem):
    """sum p_k |w_k - w*|^2, and f* - sum p_k f_k*."""
    c, w, local = problem.constants(), problem.solution(), problem.local_solutions()
    if w is None or local is None:
        assert c.heterogeneity is None and c.gamma is None
        return
    spread = problem.weights @ ((local - w).reshape(problem.agents, -1) ** 2).sum(1)
    assert c.heterogeneity == pytest.approx(spread, rel=1e-10)
    if not problem.has_loss:
        assert c.gamma is None
        return
    best = [problem.losses(v)[k] for k, v in enumerate(local)]
    assert c.gamma == pytest.approx(problem.weights @ (problem.losses(w) - best), rel=1e-8, abs=1e-12)
    assert c.gamma >= -1e-12


def test_prox_satisfies_its_optimality_condition(problem):
    """g_k(v) + 2 weight (v - center) = 0."""
    center = random_model(problem, 8, scale=0.5)

    @jax.jit
    def prox(own, common, weight):
        return jax.lax.map(lambda o: problem.oracle.prox(Mine(o, common), center, weight), own)

    for weight in (2.0, 0.05):
        if isinstance(center, dict) and weight < 1:
            continue  # a network's local problem is convex only with enough weight
        with jax.enable_x64(True):
            found = jax.tree.map(np.asarray, prox(problem.own, problem.common, weight))
        for k in range(problem.agents):
            v = jax.tree.map(lambda a, k=k: a[k], found)
            gap = problem.fields(v)[k] + 2 * weight * (flat(v) - flat(center))
            assert np.abs(gap).max() < 1e-9, (k, weight)


def test_a_singular_problem_has_no_solution():
    assert Quadratic(np.diag([1.0, 0.0]), [[1.0, 2.0]]).solution() is None
    assert Quadratic(0.0, [[1.0]]).solution() is None
