"""Large models without matrices, and many agents."""

import math

import numpy as np
import pytest

import fedpoint as fp

D = 2000


def long_vectors(seed=0):
    """Three agents, each with two orthogonal rows of its own: H_k = a a' + b b' has rank 2, all in one space of six.

    Everything the rounds do happens in the span of six orthonormal vectors: there the closed form is 6 x 6.
    """
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(D, 6)))[0].T
    mix = rng.normal(size=(3, 4, 6))  # four rows an agent, so that all of the six dimensions are seen
    targets = rng.normal(size=(3, 4))
    return basis, mix, targets


@pytest.mark.slow
def test_two_thousand_unknowns():
    basis, mix, targets = long_vectors()
    p, s, E = np.array([0.5, 0.2, 0.3]), 0.1, 3
    problem = fp.problems.LeastSquares([m @ basis for m in mix], list(targets), weights=p, mean=True)
    f = fp.forecast(fp.FedAvg(s, E, normalise=False), problem, exact=True)
    H, g = mix.transpose(0, 2, 1) @ mix / 4, np.einsum("kri,kr->ki", mix, targets) / 4
    I = np.eye(6)
    power = [np.linalg.matrix_power(I - s * h, E) for h in H]
    P = [sum(np.linalg.matrix_power(I - s * h, e) for e in range(E)) for h in H]
    M = sum(a * b for a, b in zip(p, power, strict=True))
    limit = np.linalg.solve(I - M, s * sum(a * b @ c for a, b, c in zip(p, P, g, strict=True)))
    np.testing.assert_allclose(f.limit, limit @ basis, rtol=0, atol=1e-8 * np.linalg.norm(limit))
    # Directions that no row sees stay where they start, with eigenvalue 1: left out of the rate.
    assert f.rate == pytest.approx(np.abs(np.linalg.eigvals(M)).max(), rel=1e-8)
    assert f.rate < 1


@pytest.mark.slow
def test_scaffold_with_two_thousand_unknowns():
    """A state of 10,000 numbers: w* in the space that rows see, matrix-free."""
    basis, mix, targets = long_vectors()
    p = np.array([0.5, 0.2, 0.3])
    problem = fp.problems.LeastSquares([m @ basis for m in mix], list(targets), weights=p, mean=True)
    f = fp.forecast(fp.Scaffold(0.1, 3), problem, exact=True)
    H, g = mix.transpose(0, 2, 1) @ mix / 4, np.einsum("kri,kr->ki", mix, targets) / 4
    star = np.linalg.solve(np.tensordot(p, H, 1), p @ g) @ basis
    np.testing.assert_allclose(f.limit, star, rtol=0, atol=1e-7 * np.linalg.norm(star))
    small = fp.problems.LeastSquares(list(mix), list(targets), weights=p, mean=True)
    assert f.rate == pytest.approx(fp.forecast(fp.Scaffold(0.1, 3), small, exact=True).rate, rel=1e-6)


@pytest.mark.parametrize("count", [100, 10])
def test_a_hundred_agents(count):
    problem = fp.problems.LinearStream.sample(agents=100, dim=20, spread=0.1, noise=0.01, seed=1)
    models = problem.local_solutions()
    f = fp.forecast(fp.FedAvg(0.02, 5, normalise=False), problem, participation=count)
    spread = ((models - models.mean(0)) ** 2).sum(1).mean()
    M, mu, E, v = 20, 0.02, 5, 0.01
    a, r = 1 - mu, 1 - 2 * mu + mu**2 * (M + 2)
    c = (100 - count) / 99
    lam = a ** (2 * E) + (r**E - a ** (2 * E)) / count
    kap = (mu**2 * M * v * (1 - r**E) / (1 - r) + spread * (r**E - a ** (2 * E) + c * (1 - a**E) ** 2)) / count
    assert f.floor == pytest.approx(kap / (1 - lam), rel=1e-8)
    assert f.closed["floor"] == pytest.approx(f.floor, rel=1e-8)


@pytest.mark.slow
def test_scaffold_of_a_hundred_agents():
    """2,040 numbers: the floor against a run (settled after 400 rounds), 24 repeats, five standard errors."""
    problem = fp.problems.LinearStream.sample(agents=100, dim=20, spread=0.1, noise=0.01, seed=1)
    algorithm = fp.Scaffold(0.02, 5)
    f = fp.forecast(algorithm, problem, participation=10)
    assert f.bias == 0.0 and f.rate < 1
    run = fp.run(algorithm, problem, 1200, participation=10, seed=3, repeats=24)
    tail = run.error[:, 600:].mean(1)
    assert abs(tail.mean() - f.curve(1200)[600:].mean()) < 5 * tail.std(ddof=1) / math.sqrt(24)


def test_the_search_for_a_fixed_point_ends_with_advice(monkeypatch):
    """From 2 on a double well whose minima are at 1 and -1; of a few products it finds neither."""

    def loss(w, batch):
        return ((w**2 - 1) ** 2).sum() + 0 * batch[0].sum()

    problem = fp.problems.Loss(loss, np.zeros(3), (np.ones((4, 1)),), groups=np.arange(4) % 2)
    begun = {"start": np.array([2.0, -2.0, 1.5]), "around": np.array([2.0, -2.0, 1.5])}
    np.testing.assert_allclose(fp.forecast(fp.FedAvg(0.01, 2), problem, **begun).limit, [1.0, -1.0, 1.0], atol=1e-9)
    monkeypatch.setattr("fedpoint.theory.strides.WORK", 0)
    monkeypatch.setattr("fedpoint.theory.strides.FEWEST", 4)
    lost = fp.forecast(fp.FedAvg(0.01, 2), problem, **begun)
    assert lost.limit is None and not lost.diverges
    assert "no fixed point was found" in lost.reason
    assert "Begin nearer to one: give start= and around= a longer run's model" in str(lost)
