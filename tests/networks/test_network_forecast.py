"""Forecasts on networks beside runs, closed forms and long averages."""

from itertools import product

import numpy as np
import pytest
from scipy.linalg import block_diag

import fedpoint as fp

K, D = 6, 2
NET = fp.Network.from_edges(
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3)], [1.0, 0.5, 2.0, 1.0, 0.7, 1.3, 0.4]
)


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    X, y = [rng.normal(size=(8, D)) for _ in range(K)], [rng.normal(size=8) for _ in range(K)]
    return fp.problems.LeastSquares(X, y, mean=True, half=False)


def system(task, coupling, net=NET):
    """Q and the right side of lecture 003's closed form: (blkdiag(X'X/m) + alpha Lap (x) I) w = X'y/m."""
    A, b = task.linear_fields()  # 2 X'X/m and 2 X'y/m
    return block_diag(*(A / 2)) + coupling * np.kron(net.laplacian.toarray(), np.eye(D)), b.ravel() / 2


def test_fedgd_ends_at_gtvmin_with_the_rate_of_its_matrix(task):
    Q, b = system(task, 0.7)
    step = 0.8 / np.linalg.eigvalsh(Q).max()
    f = fp.forecast(fp.FedGD(step=step, coupling=0.7), task, network=NET)
    np.testing.assert_allclose(f.limit.ravel(), np.linalg.solve(Q, b), rtol=1e-10, atol=1e-12)
    assert f.bias == 0 and f.floor == 0 and not f.diverges
    assert f.rate == pytest.approx(np.abs(1 - 2 * step * np.linalg.eigvalsh(Q)).max(), abs=1e-10)
    assert f.step_limit == pytest.approx(1 / np.linalg.eigvalsh(Q).max(), rel=1e-8)


def test_fedrelax_has_the_rate_of_jacobis_iteration(task):
    Q, b = system(task, 0.7)
    D_ = block_diag(*(Q[i : i + D, i : i + D] for i in range(0, K * D, D)))
    f = fp.forecast(fp.FedRelax(coupling=0.7), task, network=NET)
    np.testing.assert_allclose(f.limit.ravel(), np.linalg.solve(Q, b), rtol=1e-10, atol=1e-12)
    values = np.linalg.eigvals(np.eye(K * D) - np.linalg.solve(D_, Q))
    assert f.rate == pytest.approx(np.abs(values).max(), abs=1e-10)
    assert f.rate <= f.contraction.kappa < 1


def test_a_curve_is_the_run(task):
    for method in (fp.FedGD(step=0.1, coupling=0.7), fp.FedRelax(coupling=0.7)):
        f, run = fp.forecast(method, task, network=NET), fp.run(method, task, network=NET, rounds=30)
        np.testing.assert_allclose(f.curve(30), run.error[0], rtol=1e-11, atol=1e-25)
    reached = int(f.rounds_to(1e-8))
    assert run.error[0, reached] <= 1e-8 < run.error[0, reached - 1]


def test_diffusion_ends_where_it_is_forecast(task):
    method, net = fp.FedAvg(step=0.1, local_steps=3, normalise=True), NET.mixing()
    f = fp.forecast(method, task, network=net, exact=True)
    run = fp.run(method, task, network=net, rounds=400, exact=True)
    np.testing.assert_allclose(run.models[0], f.limit, rtol=0, atol=1e-8)
    gap = ((f.limit - task.solution()) ** 2).sum(1).mean()
    assert f.bias == pytest.approx(np.sqrt(gap), rel=1e-9) and f.bias > 1e-3


def test_a_step_too_long_diverges_and_says_so(task):
    f = fp.forecast(fp.FedGD(step=1.01 * 0.5, coupling=5.0), task, network=NET)
    Q, _ = system(task, 5.0)
    assert f.diverges and f"below {1 / np.linalg.eigvalsh(Q).max():.4g}" in f.text()
    assert np.isinf(f.rounds_to(1e-3)) and "diverges" in f.rounds_to(1e-3).reason
    with pytest.raises(fp.Diverged):
        fp.run(fp.FedGD(step=1.01 * 0.5, coupling=5.0), task, network=NET, rounds=2000)


@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_fedsgds_floor_within_four_standard_errors_of_long_runs(batch):
    rng = np.random.default_rng(1)
    X, y = [rng.normal(size=(8, D)) for _ in range(K)], [rng.normal(size=8) for _ in range(K)]
    task = fp.problems.LeastSquares(X, y, mean=True, half=False, batch=batch)
    method = fp.FedSGD(step=0.03, coupling=0.7)
    f = fp.forecast(method, task, network=NET)
    run = fp.run(method, task, network=NET, rounds=3000, repeats=32, record_every=10, seed=5)
    seen = run.error[:, 40:].mean(1)  # from round 400 on: 0.03 s with s > 0.5 has settled to below 1e-5
    assert abs(seen.mean() - f.floor) <= 4 * seen.std(ddof=1) / np.sqrt(32)
    assert f.variance > 0 and f.bias == 0
    curve = f.curve(3000)
    assert f.proviso == "" and curve[-1] == pytest.approx(f.floor, rel=1e-6)
    early = run.error[:, 5:20].mean(1)  # on the way, where the mean path and the variance are of one size
    assert abs(early.mean() - curve[run.rounds[5:20]].mean()) <= 4 * early.std(ddof=1) / np.sqrt(32)
    assert f.rounds_to(f.floor * 0.99) == np.inf


def test_the_curve_of_a_noisy_run_is_the_mean_over_all_its_samples():
    """Two nodes, two rows each, one drawn a tick: 4^3 equally likely runs of three rounds."""
    X, y = np.array([[[1.0], [2.0]], [[0.5], [-1.0]]]), np.array([[1.0, 0.0], [2.0, 1.0]])
    pair, step, coupling = fp.Network.complete(2), 0.1, 0.6
    task = fp.problems.LeastSquares(list(X), list(y), mean=True, half=False, batch=1)
    f = fp.forecast(fp.FedSGD(step=step, coupling=coupling), task, network=pair)
    target, found = np.asarray(f.limit)[:, 0], []
    for draws in product(product(range(2), repeat=2), repeat=3):
        w, path = np.zeros(2), [(target**2).mean()]
        for rows in draws:
            x, b = X[[0, 1], rows, 0], y[[0, 1], rows]
            w = w - step * (2 * x * (x * w - b) + 2 * coupling * (w - w[::-1]))
            path.append(((w - target) ** 2).mean())
        found.append(path)
    np.testing.assert_allclose(f.curve(3), np.mean(found, axis=0), rtol=1e-10)


def test_what_a_curve_leaves_out_is_said(task):
    late = fp.forecast(fp.FedRelax(coupling=0.7), task, network=NET, schedule=fp.TotallyAsynchronous())
    assert late.proviso == "all nodes in step"
    X = [np.ones((4, 1)) * (1 + k) for k in range(K)]
    noisy = fp.problems.LeastSquares(X, [np.arange(4.0)] * K, mean=True, half=False, batch=1)
    for floor, left_out in (("auto", ""), ("sampled", "without noise")):  # drawn rounds tell of the end only
        f = fp.forecast(fp.FedSGD(step=0.01, local_steps=2), noisy, network=NET, floor=floor)
        assert f.proviso == left_out


def test_what_is_certain_under_a_schedule(task):
    f = fp.forecast(fp.FedRelax(coupling=0.7), task, network=NET, schedule=fp.PartiallyAsynchronous(3))
    bound = f.bound(40)
    assert bound.B == 3 and bound.kappa == f.contraction.kappa
    run = fp.run(fp.FedRelax(coupling=0.7), task, network=NET, schedule=fp.PartiallyAsynchronous(3), rounds=40)
    apart = np.linalg.norm(run.history[0] - f.limit, axis=2).max(1)
    assert (apart <= bound.safe * apart[0] * (1 + 1e-12)).all()
    with pytest.raises(fp.FedpointError, match="no bound B"):
        fp.forecast(fp.FedRelax(), task, network=NET, schedule=fp.RandomActivation(2)).bound(10)


def test_logistic_losses_are_linearised_at_gtvmins_solution():
    rng = np.random.default_rng(2)
    X, y, groups = rng.normal(size=(60, D)), rng.integers(0, 2, 60), np.repeat(np.arange(K), 10)
    task = fp.problems.Logistic(X, y, groups=groups, ridge=0.1)
    method = fp.FedGD(step=0.2, coupling=0.5)
    f = fp.forecast(method, task, network=NET)
    np.testing.assert_allclose(f.limit, fp.gtv.solve(task, NET, 0.5), rtol=0, atol=1e-9)
    run = fp.run(method, task, network=NET, rounds=200)
    distance = np.sqrt(run.error[0])
    late = distance[(distance < 1e-4) & (distance > 1e-9)]  # where the linear part rules, and rounding does not yet
    assert len(late) > 10
    assert late[-1] / late[-2] == pytest.approx(f.rate, abs=2e-4)
    assert any("linearised" in note for note in f.notes)


def test_refusals(task):
    with pytest.raises(fp.FedpointError, match="FedGD runs on a network"):
        fp.forecast(fp.FedGD(step=0.1), task)
    with pytest.raises(fp.FedpointError, match="needs a fusion center"):
        fp.forecast(fp.Scaffold(step=0.1), task, network=NET)
    with pytest.raises(fp.FedpointError, match="is not forecast here"):
        fp.forecast(fp.FedAvg(step=0.1), task, schedule=fp.Arrivals(fp.Clock(law="constant")))
