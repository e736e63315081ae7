"""Do transient, heterogeneity and noise add up to a run's error, and is each what lecture 001 says it is?"""

import dataclasses

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory import stochastic_expansion

A = np.array([[[1.0, 1.0], [-1.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]], [[0.7, -0.2], [0.3, 1.5]]])
B = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, -1.0]])
P = np.array([0.5, 0.3, 0.2])
NOISE = fp.problems.Noise(b=0.3, A=0.1)
SYSTEM = fp.problems.LinearSystem(A, B, NOISE, weights=P)
START = np.array([3.0, -1.0])
STEP, H = 0.1, 4

ROWS = np.random.default_rng(0)
LEAST = fp.problems.LeastSquares(
    [ROWS.standard_normal((n, 2)) for n in (5, 9, 3)], [ROWS.standard_normal(n) for n in (5, 9, 3)], mean=True, batch=2
)
STREAM = fp.problems.LinearStream.sample(agents=4, dim=2, spread=0.5, noise=0.1)
TRAJECTORY = fp.problems.garnet(states=5, dim=2, agents=3, heterogeneity=0.5, sampling="trajectory")
INVERSE = fp.steps.InverseTime(1.0, 10.0)
SETTINGS = {
    "each its own steps, few": (fp.FedAvg([0.1, 0.05, 0.2], [3, 1, 2], normalise=True), SYSTEM, 2),
    "gradient exchange, decaying": (fp.GradientExchange(INVERSE), SYSTEM, None),
    "least squares": (fp.FedAvg(0.1, 3), LEAST, fp.ByWeight(2)),
    "stragglers": (fp.FedAvg(0.05, fp.steps.Stragglers(3, 0.5)), SYSTEM, fp.Importance(2)),
    "lms": (fp.ParameterExchange(0.05), STREAM, None),
    "one trajectory": (fp.FedLSA(0.3, 3), TRAJECTORY, None),
}
SLOW = ("gradient exchange, decaying", "least squares", "stragglers", "lms", "one trajectory")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SETTINGS])
def test_the_parts_add_up_to_the_error(name):
    """To rounding: 40 rounds of numbers of size 10 at most, contracted in every one."""
    algorithm, problem, who = SETTINGS[name]
    run = fp.run(algorithm, problem, rounds=40, repeats=3, seed=7, start=START, record_every=9, participation=who)
    parts = fp.theory.expansion(run)
    assert parts.rounds.tolist() == run.rounds.tolist() == [0, 9, 18, 27, 36, 40]
    np.testing.assert_allclose((parts.error**2).sum(-1), run.error, rtol=1e-12, atol=1e-28)
    np.testing.assert_allclose(parts.transient + parts.heterogeneity + parts.noise, parts.error, rtol=0, atol=1e-12)
    assert parts.residual < 1e-12
    for part in (parts.transient, parts.heterogeneity, parts.noise):
        assert part.shape == parts.error.shape and np.abs(part[:, 1:]).max() > 1e-4  # none of them is nothing


REPEATS = 2000


def expanded(problem=SYSTEM, **options):
    """All with the same numbers of repeats and rounds: compiled once, and once more for exact fields."""
    run = fp.run(fp.FedLSA(STEP, H), problem, rounds=30, start=START, **{"repeats": REPEATS, **options})
    return fp.theory.expansion(run, products=True)


@pytest.fixture(scope="module")
def parts():
    return expanded()


def matrices(A=A):
    """(I - eta A_c)^H, and their mean G."""
    each = np.array([np.linalg.matrix_power(np.eye(2) - STEP * one, H) for one in A])
    return each, np.tensordot(P, each, 1)


def test_with_exact_fields_every_part_is_known():
    """No noise; transient G^t (w_0 - w*); heterogeneity (I - G^t) bias, the lecture's; gamma G^t."""
    parts = expanded(exact=True, repeats=1)
    _, G = matrices()
    star, bias = SYSTEM.solution(), fp.theory.lsa_bias(SYSTEM, STEP, H)
    np.testing.assert_allclose(parts.noise, 0, atol=1e-13)
    for t in range(31):
        power = np.linalg.matrix_power(G, t)
        np.testing.assert_allclose(parts.gamma[0, t], power, rtol=0, atol=1e-12)
        np.testing.assert_allclose(parts.transient[0, t], power @ (START - star), rtol=0, atol=1e-12)
        np.testing.assert_allclose(parts.heterogeneity[0, t], bias - power @ bias, rtol=0, atol=1e-12)


def test_with_equal_solutions_there_is_no_heterogeneity():
    """Different matrices, one solution: b_c = A_c th*."""
    same = fp.problems.LinearSystem(A, A @ np.array([1.0, 2.0]), NOISE, weights=P)
    parts = expanded(same)
    np.testing.assert_allclose(parts.heterogeneity, 0, atol=1e-13)
    assert np.abs(parts.noise).max() > 0.01


def test_means_over_many_runs(parts):
    """2,000 runs: noise has mean zero, heterogeneity (I - G^t) bias and transient G^t (w_0 - w*): rounds and agents are
    independent. Within 4 standard errors, at rounds 1, 3, 10, 30 and both coordinates."""
    assert parts.residual < 1e-12
    _, G = matrices()
    star, bias = SYSTEM.solution(), fp.theory.lsa_bias(SYSTEM, STEP, H)
    for t in (1, 3, 10, 30):
        power = np.linalg.matrix_power(G, t)
        expected = {"noise": 0 * bias, "heterogeneity": bias - power @ bias, "transient": power @ (START - star)}
        for name, mean in expected.items():
            seen = getattr(parts, name)[:, t]
            assert (np.abs(seen.mean(0) - mean) < 4 * seen.std(0) / np.sqrt(REPEATS) + 1e-12).all(), (name, t)


def test_products_of_matrices(parts):
    moved = np.einsum("rtij,rj->rti", parts.gamma, parts.error[:, 0])
    np.testing.assert_allclose(moved, parts.transient, rtol=0, atol=1e-12)


# Deliberately broken: each is caught by one of the statements above.


class Broken(stochastic_expansion.Expanded):
    factors: np.ndarray = dataclasses.field(kw_only=True)

    def local(self, heard, memory, agent):
        sent, memory = super().local(heard, memory, agent)
        lost, turned = self.factors
        return sent._replace(heterogeneity=lost * sent.heterogeneity, noise=turned * sent.noise), memory


@pytest.mark.parametrize("factors", [(0.0, 1.0), (1.0, -1.0)])
def test_a_part_that_is_lost_or_turned_breaks_the_sum(factors, monkeypatch):
    monkeypatch.setattr(
        stochastic_expansion, "Expanded", lambda inner, **fields: Broken(inner, factors=np.array(factors), **fields)
    )
    assert expanded().residual > 0.01


def test_noise_about_another_point_is_not_zero_with_exact_fields(monkeypatch):
    """About w* instead of the agents' own solutions the sum is right, and noise holds what is heterogeneity."""
    star = SYSTEM.solution()
    monkeypatch.setattr(stochastic_expansion, "own_solutions", lambda problem: np.tile(star, (3, 1)))
    parts = expanded(exact=True, repeats=1)
    assert parts.residual < 1e-12
    assert np.abs(parts.noise[:, -1]).max() > 1e-3


# Refusals, and the picture.


def loss(w, batch):
    return ((batch["x"] @ w) ** 4).mean()


LOSS = fp.problems.Loss(loss, np.ones(2), {"x": ROWS.standard_normal((4, 3, 2))})
NETWORK = {"network": fp.Network.complete(3)}


@pytest.mark.parametrize(
    ("algorithm", "problem", "options", "words"),
    [
        (fp.Scaffold(0.1), SYSTEM, {}, "not of SCAFFOLD"),
        (fp.FedAvg(0.01), LOSS, {}, "affine fields; those of Loss are not"),
        (fp.FedGD(0.1, 0.1), SYSTEM, NETWORK, "not of"),
        (fp.FedAvg(0.1), SYSTEM, {"schedule": fp.Arrivals(fp.Clock(1.0))}, "nobody is late"),
        (fp.FedAvg(0.1), SYSTEM, {"channel": fp.channel.Cast("float16")}, "arrive as they were sent"),
        (fp.FedAvg(0.1), SYSTEM, {"gather": fp.gather.Median()}, "their weighted sum"),
    ],
)
def test_what_has_no_expansion(algorithm, problem, options, words):
    with pytest.raises(fp.FedpointError, match=words):
        stochastic_expansion.check_expandable(fp.Experiment(algorithm, problem, **options))


def test_what_is_no_run():
    with pytest.raises(fp.FedpointError, match="run must be a Run; got 3"):
        fp.theory.expansion(3)


def test_the_picture(parts, tmp_path):
    """Its areas are the shares of the mean squares; they fill the axes from 0 to 1."""
    figure = parts.plot(tmp_path / "parts.png", title="FedLSA")
    assert (tmp_path / "parts.png").stat().st_size > 10_000
    above, below = figure.axes
    squares = parts.mean_squares
    areas = [area.get_paths()[0].vertices[:, 1].max() for area in below.collections]
    assert areas[-1] == pytest.approx(1.0) and below.get_ylim() == (0.0, 1.0)
    curves = {line.get_label(): line.get_ydata() for line in above.lines}
    np.testing.assert_allclose(curves["error"], squares["error"])
    np.testing.assert_allclose(curves["noise"][1:], squares["noise"][1:])
    with pytest.raises(fp.FedpointError, match="a picture is saved as"):
        parts.plot(tmp_path / "parts.txt")
