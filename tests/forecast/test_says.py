"""What a forecast must say: diverges, never and why, only a curve, only limit and rate, nothing at all."""

import json
import math

import jax
import numpy as np
import pytest
import worlds

import fedpoint as fp
from fedpoint.core.errors import Diverged

REPEATS = 400


def document(f):
    """What a program gets; refuses what is not JSON."""
    return json.loads(json.dumps(f.to_dict(), allow_nan=False))


# Diverges.


def test_diverges_in_the_mean():
    """One agent's quadratic h w^2 / 2 with step above 2 / h: the mean grows by step h - 1, and so does a run."""
    problem = fp.problems.Quadratic([1.0, 3.0], [[0.0], [1.0]], noise=0.1)
    f = fp.forecast(fp.GradientExchange(1.2), problem)  # mean curvature 2
    assert f.rate == pytest.approx(1.4, rel=1e-10) and f.rate_ms == pytest.approx(1.96, rel=1e-6)
    assert f.diverges and f.floor == math.inf and f.variance == math.inf
    assert "mean grows by 1.4 per round" in f.reason and "diverges" in f.text()
    assert document(f)["diverges"] is True and document(f)["floor"] is None
    assert math.isinf(f.rounds_to(1e-3)) and "mean grows" in str(f.rounds_to(1e-3))
    long = f.curve(2000)  # 1.96^2000 is no finite number: infinite, not NaN, and no warning
    assert np.isfinite(long[:1000]).all() and long[-1] == math.inf and not np.isnan(long).any()
    with pytest.raises(Diverged):
        fp.run(fp.GradientExchange(1.2), problem, rounds=400)
    stable = fp.forecast(fp.GradientExchange(0.99), problem)
    assert not stable.diverges and stable.rate == pytest.approx(0.98, rel=1e-10)
    assert stable.closed["stability"] == pytest.approx(1.0)


def test_diverges_in_the_mean_square_only():
    """LMS with s = 1, M = 2, L = 1 of 3: lambda = 1 - 2 mu + 4 mu^2 crosses 1 at mu = 1/2, the mean's limit is 2."""
    problem = fp.problems.LinearStream(worlds.CENTERS, noise=0.2)
    below, above = (fp.forecast(fp.GradientExchange(mu), problem, participation=1) for mu in (0.49, 0.51))
    for f, mu in ((below, 0.49), (above, 0.51)):
        assert f.rate == pytest.approx(1 - mu, rel=1e-9) and f.rate_ms == pytest.approx(1 - 2 * mu + 4 * mu**2)
    assert not below.diverges and math.isfinite(below.floor)
    assert above.diverges and above.floor == math.inf and "mean square grows" in above.reason
    assert "diverges" in above.text() and document(above)["reason"] == above.reason
    # The expected error of the diverging one, exactly: e+ = lambda e + kappa, L = 1 of K = 3 (c = 1).
    lam, mu = 1 - 2 * 0.51 + 4 * 0.51**2, 0.51
    spread = ((worlds.CENTERS - worlds.CENTERS.mean(0)) ** 2).sum(1).mean()
    kappa = mu**2 * 2 * 0.2 + spread * (lam - (1 - mu) ** 2 + mu**2)
    expected = [((worlds.CENTERS.mean(0)) ** 2).sum()]
    for _ in range(300):
        expected.append(lam * expected[-1] + kappa)
    np.testing.assert_allclose(above.curve(300), expected, rtol=1e-7)


@pytest.mark.slow
def test_a_run_far_above_the_limit_of_the_mean_square_diverges():
    problem = fp.problems.LinearStream(worlds.CENTERS, noise=0.2)
    f = fp.forecast(fp.GradientExchange(1.7), problem, participation=1)
    assert f.rate < 1 < f.rate_ms
    with pytest.raises(Diverged):
        fp.run(fp.GradientExchange(1.7), problem, rounds=2000, participation=1)


# Never, or when.


def test_never_because_of_the_bias():
    problem = worlds.quadratic(0.0)
    f = fp.forecast(worlds.CATALOGUE["fedavg, own steps"], problem, start=worlds.START)
    reached = f.rounds_to(0.5 * f.bias**2)
    assert math.isinf(reached) and f"bias^2 {f.bias**2:.3g}" in reached.reason and str(reached).startswith("never")


def test_never_because_of_the_variance_and_a_number_that_runs_confirm():
    """The mean error of 400 repeats crosses the target where the forecast says: at t - 1 above, at t below."""
    problem = worlds.stream(spread=0.0)
    algorithm = fp.FedAvg(0.05, 2, normalise=False)
    f = fp.forecast(algorithm, problem, participation=fp.Uniform(2), start=worlds.START)
    assert f.bias == 0.0
    reached = f.rounds_to(0.5 * f.floor)
    assert math.isinf(reached) and "variance" in reached.reason and "bias^2 0 " in reached.reason
    target = 0.2 * ((worlds.START - problem.solution()) ** 2).sum()
    assert target > f.floor
    t = f.rounds_to(target)
    assert 3 < t < 100 and t.reason == "" and str(t) == str(int(t))
    curve = f.curve(int(t))
    assert curve[-1] <= target < curve[-2]
    error = fp.run(
        algorithm, problem, int(t), participation=fp.Uniform(2), start=worlds.START, repeats=REPEATS, seed=4
    ).error
    z = (error.mean(0) - curve)[-2:] / (error.std(0, ddof=1) / np.sqrt(REPEATS))[-2:]
    assert np.abs(z).max() < 5
    assert f.rounds_to(1e6) == 0


def test_an_error_that_dips_below_its_floor_is_reached_there():
    """In one dimension the mean passes w* on its way to a limit beyond it: not "never", though the floor is above."""
    problem = fp.problems.Quadratic([1.0, 3.0], [[0.0], [1.0]])
    w = problem.solution()
    algorithm = fp.FedAvg(0.02, 10, normalise=False)
    assert fp.forecast(algorithm, problem).limit[0] < w[0]
    f = fp.forecast(algorithm, problem, start=w + 5.0)
    target = 0.1 * f.floor
    run = fp.run(algorithm, problem, rounds=100, start=w + 5.0)
    first = int(np.flatnonzero(run.error[0] <= target)[0])
    assert run.error[0, -1] > target
    assert f.rounds_to(target) == first
    assert math.isinf(f.rounds_to(1e-12 * f.floor))


def test_targets_must_be_positive():
    f = fp.forecast(fp.GradientExchange(0.1), worlds.quadratic())
    for target in (0.0, -1.0, math.nan):
        with pytest.raises(fp.FedpointError, match="target"):
            f.rounds_to(target)
    with pytest.raises(fp.FedpointError, match="rounds"):
        f.curve(-1)


# Only in part.


@pytest.mark.parametrize("server", ["adam", pytest.param("yogi", marks=pytest.mark.slow)])
def test_adaptive_servers_have_limit_and_rate_only(server):
    """The limit is FedAvg's (the server stops where the mean change is 0); the rate is the slope of a long run."""
    problem = worlds.quadratic()
    algorithm = fp.FedOpt(0.1, 2, server, server_step=0.05, adaptivity=0.5)
    f = fp.forecast(algorithm, problem, start=worlds.START)
    fedavg = fp.forecast(fp.FedAvg(0.1, 2, normalise=False), problem)
    np.testing.assert_allclose(f.limit, fedavg.limit, rtol=0, atol=1e-9)
    path = fp.run(algorithm, problem, rounds=4000, start=worlds.START, exact=True).history[0]
    gap = np.linalg.norm(path - fedavg.limit, axis=1)
    good = np.flatnonzero(gap > 1e-9)
    assert len(good) < 4000
    half = good[len(good) // 2 :]
    slope = np.polyfit(half, np.log(gap[half]), 1)[0]  # turning modes make it uneven: 10 %
    assert math.log(f.rate) == pytest.approx(slope, rel=0.1)
    assert f.floor is None and f.variance is None and not f.diverges
    assert any("adaptive" in note for note in f.notes)
    with pytest.raises(fp.FedpointError, match="adaptive"):
        f.curve(10)
    assert document(f)["floor"] is None
    quiet = fp.forecast(algorithm, problem, start=worlds.START, exact=True)  # nothing random: no noise to leave out
    assert quiet.variance == 0.0 and quiet.floor == pytest.approx(fedavg.bias**2, rel=1e-6)
    np.testing.assert_allclose(quiet.curve(20), ((path[:21] - problem.solution()) ** 2).sum(1), rtol=1e-9)


def test_a_large_state_says_so():
    """300 numbers: a step of 0.05 multiplies the mean square by 1 - 2 0.05 + 302 0.05^2 > 1, one of 0.005 by less."""
    problem = fp.problems.LinearStream(np.zeros((2, 300)))
    f = fp.forecast(fp.FedAvg(0.1, 2, normalise=True), problem, start=np.ones(300))
    assert f.bias == 0.0 and f.rate == pytest.approx(0.95**2, rel=1e-8) and f.floor == math.inf and f.diverges
    asked = fp.forecast(fp.FedAvg(0.01, 2, normalise=True), problem, start=np.ones(300), floor="exact")
    assert asked.floor is None and any("300 numbers" in note for note in asked.notes)
    with pytest.raises(fp.FedpointError, match="300 numbers"):
        asked.curve(3)
    exact = fp.forecast(fp.FedAvg(0.1, 2, normalise=True), problem, start=np.ones(300), exact=True)
    np.testing.assert_allclose(exact.curve(3), 300 * 0.95 ** (4 * np.arange(4)), rtol=1e-10)
    assert exact.floor == 0.0 and exact.rounds_to(1.0) == math.ceil(math.log(300) / -math.log(0.95**4))


def test_exact_fields_leave_the_luck_of_the_draw():
    """One step of exact fields, one of three agents: the variance of a random affine map, by hand."""
    mu, problem = 0.2, worlds.quadratic()
    f = fp.forecast(fp.GradientExchange(mu), problem, participation=1, exact=True)
    w = problem.solution()
    J = [np.eye(2) - 3 * mu * p * h for p, h in zip(worlds.P, worlds.H, strict=True)]
    q = [-3 * mu * p * h @ (w - c) for p, h, c in zip(worlds.P, worlds.H, worlds.CENTERS, strict=True)]
    M, Q = sum(np.kron(j, j) for j in J) / 3, sum(np.outer(a, a) for a in q) / 3
    sigma = np.linalg.solve(np.eye(4) - M, Q.ravel()).reshape(2, 2)
    assert f.bias == 0.0 and f.variance == pytest.approx(np.trace(sigma), rel=1e-8)
    assert f.rate_ms == pytest.approx(np.abs(np.linalg.eigvals(M)).max(), rel=1e-6)


# Losses of one's own: pytrees, convexity, precision, an unknown solution.


def squares_of(params, batch):
    return (batch["x"] @ params["a"] + params["b"] - batch["y"]) ** 2


def tree_problem(dtype=np.float64, **options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 2))
    y = x @ np.array([1.0, -2.0]) + 0.5 + rng.normal(size=24)
    start = {"a": np.zeros(2, dtype), "b": np.zeros((), dtype)}
    groups = np.repeat([0, 1, 2], 8)
    data = {"x": x.astype(dtype), "y": y.astype(dtype)}
    twin = fp.problems.LeastSquares(
        np.column_stack([x, np.ones(24)]), y, groups=groups, mean=True, half=False, batch=2, sampling="iid"
    )
    return fp.problems.Loss(squares_of, start, data, groups, batch=2, **options), twin


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_a_tree_of_parameters_is_forecast_as_its_vector(dtype):
    """The same problem as LeastSquares: single precision rounds the data to 1e-7, so 1e-5 there."""
    close = 1e-8 if dtype == np.float64 else 1e-5
    problem, twin = tree_problem(dtype, convex=True)
    algorithm = fp.FedAvg(0.05, 2, normalise=False)
    f, g = fp.forecast(algorithm, problem), fp.forecast(algorithm, twin)
    limit = np.concatenate([np.ravel(f.limit["a"]), np.ravel(f.limit["b"])])
    np.testing.assert_allclose(limit, g.limit, rtol=close)
    assert f.limit["b"].shape == () and f.rate == pytest.approx(g.rate, rel=close)
    assert f.variance == pytest.approx(g.variance, rel=close)
    assert f.bias is None and any("w* is not known" in note for note in f.notes)
    assert f.floor == f.variance  # around the limit
    assert {a.text: a.holds for a in f.assumptions}["the aggregate is strongly convex"] is None
    assert "not met" not in f.text()
    assert document(f)["bias"] is None and len(document(f)["limit"]) == 2
    np.testing.assert_allclose(f.curve(5), g.steady.curve(g.origin, np.zeros(3), 5), rtol=2e-3)  # legs of the path


@pytest.mark.slow
def test_a_solution_in_single_precision_is_no_bias():
    problem = fp.problems.Logistic(
        worlds._X.astype(np.float32), worlds.logistic().all_rows()[1][:, 0], worlds._groups, 0.2, dtype=np.float32
    )
    f = fp.forecast(fp.GradientExchange(0.3), problem)
    assert f.bias == 0.0 and "w* itself" in f.text()


def test_losses_of_unknown_convexity():
    problem, twin = tree_problem()
    algorithm = fp.FedAvg(0.05, 2, normalise=False)
    with pytest.raises(fp.FedpointError, match=r"around=.*convex=True"):
        fp.forecast(algorithm, problem)
    f = fp.forecast(algorithm, problem, around={"a": np.ones(2), "b": np.ones(())})
    limit = np.concatenate([np.ravel(a) for a in jax.tree.leaves(f.limit)])
    np.testing.assert_allclose(limit, fp.forecast(algorithm, twin).limit, rtol=1e-8)
    assert any("local forecast" in note for note in f.notes)


def wells(params, batch):
    """Two minima, at -1 and 1, slightly apart by agent."""
    return (params**2 - 1 + 0.1 * batch) ** 2


def test_the_limit_is_the_one_nearby():
    problem = fp.problems.Loss(wells, np.array(0.5), np.linspace(-1, 1, 8), np.repeat([0, 1], 4))
    algorithm = fp.FedAvg(0.01, 2, normalise=False)
    left, right = (fp.forecast(algorithm, problem, around=np.array(a)) for a in (-0.9, 0.9))
    run = fp.run(algorithm, problem, rounds=600)
    assert right.limit == pytest.approx(float(run.model[0]), abs=1e-9)
    assert left.limit == pytest.approx(-float(run.model[0]), abs=1e-9)


def test_mistakes_in_the_call():
    problem = worlds.quadratic()
    with pytest.raises(fp.FedpointError, match="floor must be"):
        fp.forecast(fp.FedAvg(0.1), problem, floor="guess")
    with pytest.raises(fp.FedpointError, match="measure must be"):
        fp.forecast(fp.FedAvg(0.1), problem, measure="accuracy")
    with pytest.raises(fp.FedpointError, match="FedAvg needs step"):
        fp.forecast("fedavg", problem)
    with pytest.raises(fp.FedpointError, match="4 participants"):
        fp.forecast(fp.FedAvg(0.1), problem, participation=4)


def test_assumptions_name_the_agent_in_the_way():
    """Curvatures 1 and 10: the second agent allows steps below 0.2."""
    problem = fp.problems.Quadratic([1.0, 10.0], [[0.0], [1.0]])
    f = fp.forecast(fp.FedAvg(0.25, 2, normalise=False), problem)
    (limit,) = [a for a in f.assumptions if "limit" in a.text]
    assert limit.holds is False and "agent 1 allows 0.2" in limit.detail
    f = fp.forecast(fp.FedAvg(0.1, 2, normalise=False), problem)
    assert all(a.holds for a in f.assumptions)
