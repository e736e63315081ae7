"""Linear systems: noise as it was asked for, stability as it is defined, mistakes with names, runs without a loss."""

import numpy as np
import pytest
from test_noise import covariances
from zoo import sampled_fields, spd, system

import fedpoint as fp
from fedpoint.problems import LinearSystem, Noise

TURN = np.array([[1.0, 2.0], [-2.0, 1.0]])  # eigenvalues 1 +- 2i: |1 - eta (1 + 2i)| < 1 for eta < 2/5


def test_solutions_solve():
    problem = system()
    A, b = problem.linear_fields()
    np.testing.assert_allclose(problem.weights @ (A @ problem.solution() - b), 0, atol=1e-12)
    for k, w in enumerate(problem.local_solutions()):
        np.testing.assert_allclose(A[k] @ w, b[k], atol=1e-12)
    assert not problem.has_loss and problem.convex and problem.linear
    assert not LinearSystem([[[0.0, 5.0], [0.0, 1.0]]], [[0.0, 0.0]]).convex


def test_noise_has_the_covariance_that_was_given():
    """Cov(vec A) and Cov(b) are read off from fields at 0 and at unit vectors, exactly."""
    rng = np.random.default_rng(0)
    C_A, C_b = spd(rng, 2, 4), spd(rng, 2, 2)
    problem = LinearSystem(np.tile(np.eye(2), (2, 1, 1)), np.zeros((2, 2)), Noise(b=C_b, A=C_A))
    np.testing.assert_allclose(covariances(problem, np.zeros(2)), C_b, rtol=1e-12)
    for j in range(2):  # column j of A: entries (0, j) and (1, j), which are j and 2 + j row after row
        column = np.ix_([j, 2 + j], [j, 2 + j])
        expected = C_b + np.stack([C[column] for C in C_A])
        np.testing.assert_allclose(covariances(problem, np.eye(2)[j]), expected, rtol=1e-12)
    np.testing.assert_allclose(problem.sigma2(), np.trace(C_b, axis1=1, axis2=2), rtol=1e-12)  # th_k* = 0


def test_a_covariance_may_be_singular_and_agents_may_differ_in_rank():
    C = np.stack([np.diag([1.0, 0.0]), np.diag([0.0, 2.0])])
    problem = LinearSystem(np.tile(np.eye(2), (2, 1, 1)), np.zeros((2, 2)), Noise(b=C))
    drawn = sampled_fields(problem, np.zeros(2), 50)[:, :, 0]
    assert not drawn[0, :, 1].any() and not drawn[1, :, 0].any() and drawn[0, :, 0].any() and drawn[1, :, 1].any()


def coin(own, row):
    """A system whose matrix is twice A or nothing, and whose b is exact."""
    A, b = own
    return A * 2 * (row.uniform() < 0.5), b


def test_a_sampler_of_ones_own():
    problem = LinearSystem([[[1.0]], [[2.0]]], [[1.0], [1.0]], noise=coin)
    assert not problem.oracle.known_noise and problem.slope_noise() is None
    np.testing.assert_allclose(
        problem.noise(np.array([3.0])), [9.0, 36.0], rtol=1e-12
    )  # (2A w - b) or -b about A w - b
    run = fp.run(fp.FedLSA(0.05, 2), problem, rounds=100, repeats=4)
    assert run.error[:, -1].mean() < 0.2
    f = fp.forecast(fp.FedLSA(0.05, 2), problem)
    assert f.standard_error is not None and f.bias > 0
    own = LinearSystem([[[1.0]], [[2.0]]], [[1.0], [1.0]], noise=lambda d, row: (d["A"], d["b"]), data={
        "A": np.array([[[1.0]], [[2.0]]]), "b": np.ones((2, 1)),
    })  # fmt: skip
    assert not own.noise(np.zeros(1)).any()


def test_stability_is_what_it_says():
    """a is sharp for short steps, the step is the longest with which the inequality holds, the limit is sharp."""
    problem = system(Noise(b=0.1, A=0.2))
    s = problem.stability()
    A, extra = problem.A, problem.slope_noise()
    np.testing.assert_allclose(extra, 0.2 * 4 * np.tile(np.eye(4), (3, 1, 1)))
    for k in range(3):
        for eta, holds in ((s.step_k[k] * 0.999, True), (s.step_k[k] * 1.001, False)):
            B = np.eye(4) - eta * A[k]
            top = np.linalg.eigvalsh(B.T @ B + eta**2 * extra[k])[-1]
            assert (top <= 1 - eta * s.a_k[k]) is np.bool_(holds)
        eta = 1e-6
        slope = (1 - np.linalg.norm(np.eye(4) - eta * A[k], 2) ** 2) / eta
        assert slope == pytest.approx(2 * s.a_k[k], rel=1e-3)
        for eta, settles in ((s.limit[k] * 0.999, True), (s.limit[k] * 1.001, False)):
            assert (np.abs(np.linalg.eigvals(np.eye(4) - eta * A[k])).max() < 1) == settles
    assert s.a == s.a_k.min() and s.step == s.step_k.min() and s.stable.all()
    np.testing.assert_allclose(s.norm, [np.linalg.norm(a, 2) for a in A])


def test_unstable_agents_are_named_with_their_limits():
    problem = LinearSystem([TURN, -TURN, 10 * TURN], np.ones((3, 2)))
    s = problem.stability()
    np.testing.assert_allclose(s.limit, [0.4, 0.0, 0.04], rtol=1e-12)
    assert s.stable.tolist() == [True, False, True]
    with pytest.raises(
        fp.FedpointError, match=r"agent 1 is unstable for every step; agent 2 allows steps below 0.04, no"
    ):
        s.require(0.1)
    assert "agent 1 is unstable" in repr(s)
    f = fp.forecast(fp.FedLSA(0.1, 3), problem)
    assert f.diverges and "grows" in f.reason
    assert "agent 1 is not" in f.text() and "agent 1 allows 0 and 1 more" in f.text()
    with pytest.raises(fp.Diverged, match="agent 1 is unstable for every step"):
        fp.run(fp.FedLSA(0.1, 3), problem, rounds=3000)


def test_too_long_a_step_is_reported_with_the_agent_and_the_limit():
    problem = LinearSystem([TURN, 10 * TURN], np.ones((2, 2)))
    with pytest.raises(fp.Diverged, match=r"largest stable step here is 0.04 \(agent 1\)"):
        fp.run(fp.FedLSA(0.1, 3), problem, rounds=3000)
    f = fp.forecast(fp.FedLSA(0.1, 3), problem)
    assert f.diverges and "agent 1 allows 0.04" in f.text()
    assert f.closed["stability"] == pytest.approx(0.04) and f.closed["stability_by_agent"] == pytest.approx([0.4, 0.04])
    one = fp.forecast(fp.FedLSA(0.1, 1), problem).closed["stability"]  # H = 1: that of the mean, 5.5 TURN
    assert one == pytest.approx(0.4 / 5.5)


def test_runs_folders_and_tables_do_without_a_loss(tmp_path):
    problem = system(0.1)
    run = fp.run(fp.FedLSA(0.02, 3), problem, rounds=20, folder=tmp_path / "run")
    assert run.error.shape == (1, 21)
    with pytest.raises(fp.FedpointError, match="has no loss"):
        _ = run.loss
    with pytest.raises(fp.FedpointError, match="has no loss"):
        _ = fp.load(tmp_path / "run").loss
    assert fp.load(tmp_path / "run").error.tobytes() == run.error.tobytes()
    both = fp.compare([fp.FedLSA(0.02, 3), fp.ScaffLSA(0.02, 3)], problem, rounds=5)
    assert both.table()[0]["loss"] is None and "FedAvg" in str(both)
    run.plot(str(tmp_path / "error.png"))
    with pytest.raises(fp.FedpointError, match="has no loss"):
        run.plot(str(tmp_path / "loss.png"), what="loss")
    with pytest.raises(fp.FedpointError, match="has no loss"):
        fp.forecast(fp.FedLSA(0.02, 3), problem, measure="loss")
    with pytest.raises(fp.FedpointError, match="not a gradient"):
        fp.run(fp.QFedAvg(1.0, 0.1), problem, rounds=1)


def test_the_prox_of_a_field_is_its_resolvent():
    problem = system()
    run = fp.run(fp.FedProx(pull=0.7, exact=True), problem, rounds=1, start=np.ones(4))
    A, b = problem.linear_fields()
    each = np.linalg.solve(A + 0.7 * np.eye(4), (b + 0.7)[..., None])[..., 0]
    np.testing.assert_allclose(run.model[0], problem.weights @ each, rtol=1e-12)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"A": [[1.0]], "b": [1.0]}, "A must be"),
        ({"A": np.ones((2, 3, 3)), "b": np.ones((2, 2))}, "got"),
        ({"A": np.full((1, 1, 1), np.nan), "b": [[1.0]]}, "A is nan"),
        ({"A": np.ones((1, 1, 1)), "b": [[1.0]], "noise": -1.0}, "must be at least 0"),
        ({"A": np.ones((1, 2, 2)), "b": np.ones((1, 2)), "noise": Noise(b=np.eye(3))}, r"covariance \(2, 2\)"),
        ({"A": np.ones((1, 2, 2)), "b": np.ones((1, 2)), "noise": Noise(A=np.eye(2))}, r"covariance \(4, 4\)"),
        ({"A": np.ones((1, 2, 2)), "b": np.ones((1, 2)), "noise": Noise(b=-np.eye(2))}, "without negative eigenvalues"),
        ({"A": np.ones((1, 1, 1)), "b": [[1.0]], "noise": lambda own, row: row.normal()}, "must return"),
        ({"A": np.ones((1, 1, 1)), "b": [[1.0]], "noise": coin, "data": np.ones(3)}, "lead with the 1 agent"),
        ({"A": np.ones((1, 1, 1)), "b": [[1.0]], "data": np.ones(1)}, "what a sampler gets"),
        ({"A": np.ones((0, 1, 1)), "b": np.ones((0, 1))}, "no agent"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(fp.FedpointError, match=message):
        LinearSystem(**arguments)
