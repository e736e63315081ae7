"""Lecture 004's lemmas and theorem 1 on sampled rows: constants over a ball, and every inequality, simulated."""

import math

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.bounds import bounds
from fedpoint.theory.bounds.bound import DRIFT, EXCESS, STEP_NOISE
from fedpoint.theory.bounds.case import Case
from fedpoint.theory.bounds.lecture004 import largest, over_ball

P = np.array([0.5, 0.3, 0.2])


def rows(seed=0, counts=(20, 30, 25), spread=0.2):
    """Agents' rows (A_k, b_k), with solutions of their own."""
    rng = np.random.default_rng(seed)
    A = [rng.standard_normal((n, 2)) for n in counts]
    return A, [a @ (1 + spread * rng.standard_normal(2)) + 0.2 * rng.standard_normal(len(a)) for a in A]


A, B = rows()
BATCH = 2
PROBLEM = fp.problems.LeastSquares(A, B, weights=P, mean=True, batch=BATCH)
CONSTANTS = PROBLEM.constants()
ALPHA, BETA, GAMMA = CONSTANTS.nu_k.min(), CONSTANTS.delta_k.max(), CONSTANTS.gamma
STAR, E = PROBLEM.solution(), 3
STEPS = fp.steps.InverseTime.lecture004(ALPHA, BETA, E)
METHOD = fp.FedAvg(STEPS, E)
RADIUS = 2.0


def found(algorithm=METHOD, problem=PROBLEM, participation=None, **options):
    return {b.lecture: b for b in fp.theory.local_sgd_bounds(algorithm, problem, participation, **options)}


def case(problem, exact=False):
    return Case(METHOD, problem, fp.Everyone(), None, exact, 1)


# Constants over a ball.


def by_hand(k, w, A=A, B=B, batch=BATCH):
    """Noise and mean square of a sampled gradient of agent k, from its rows one by one."""
    g = (A[k] @ w - B[k])[:, None] * A[k]
    noise = ((g - g.mean(0)) ** 2).sum(1).mean() / batch
    return noise, noise + (g.mean(0) ** 2).sum()


def inside(found, share=1.0, points=600):
    """The largest noise and square on circles about w*, up to `share` of the radius, over the constants."""
    noise, square = np.zeros(3), 0.0
    for radius in share * found.radius * np.array([0.3, 1.0]):
        for angle in np.linspace(0, 2 * np.pi, points, endpoint=False):
            w = STAR + radius * np.array([np.cos(angle), np.sin(angle)])
            each = np.array([by_hand(k, w) for k in range(3)])
            noise, square = np.maximum(noise, each[:, 0]), max(square, each[:, 1].max())
    return noise / found.sigma2, square / found.G2


def test_constants_over_a_ball_are_the_least():
    """On 600 models of its edge the largest is within 1e-4 of them (an angle of pi/600 off), and never above."""
    noise, square = inside(over_ball(case(PROBLEM), RADIUS))
    assert (noise <= 1 + 1e-12).all() and square <= 1 + 1e-12
    assert (noise > 1 - 1e-4).all() and square > 1 - 1e-4


def test_constants_of_a_smaller_ball_are_caught():
    noise, square = inside(over_ball(case(PROBLEM), RADIUS / 1.05), share=1.05, points=200)
    assert (noise > 1).all() and square > 1


def test_importance_sampling_and_streams_have_them_too():
    """The mean square of a sampled gradient at the edge, as the problem itself knows it."""
    weighted = fp.problems.LeastSquares(A, B, weights=P, mean=True, batch=1, sampling="importance")
    stream = fp.problems.LinearStream.sample(agents=3, dim=2, spread=0.5, noise=0.3, seed=1)
    for problem in (weighted, stream):
        ball = over_ball(case(problem), RADIUS)
        best = np.zeros(3)
        for angle in np.linspace(0, 2 * np.pi, 300, endpoint=False):
            w = problem.solution() + RADIUS * np.array([np.cos(angle), np.sin(angle)])
            noise, fields = problem.noise(w), problem.fields(w)
            assert ((fields**2).sum(1) + noise).max() <= ball.G2 * (1 + 1e-12)
            best = np.maximum(best, noise)
        assert (best <= ball.sigma2 * (1 + 1e-12)).all() and (best > ball.sigma2 * (1 - 1e-3)).all()


def test_random_models_of_that_mean_square():
    """Far away with a small probability: E|x|^2 = radius^2, outside of the ball, and the mean is not above either."""
    ball, rng = over_ball(case(PROBLEM), RADIUS), np.random.default_rng(0)
    for _ in range(300):
        chance, direction = rng.uniform(0.01, 1), rng.standard_normal(2)
        far = direction / np.linalg.norm(direction) * RADIUS / math.sqrt(chance)
        for k in range(3):
            (n, g), (n0, g0) = by_hand(k, STAR + far), by_hand(k, STAR)
            assert chance * n + (1 - chance) * n0 <= ball.sigma2[k] * (1 + 1e-12)
            assert chance * g + (1 - chance) * g0 <= ball.G2 * (1 + 1e-12)


def test_exact_fields_have_no_noise():
    ball = over_ball(case(PROBLEM, exact=True), RADIUS)
    assert (ball.sigma2 == 0).all()
    full = over_ball(case(fp.problems.LeastSquares(A, B, weights=P, mean=True)), RADIUS)
    assert pytest.approx(ball.G2, rel=1e-12) == full.G2


@pytest.mark.parametrize("seed", range(5))
def test_largest_of_a_quadratic(seed):
    """Against 20,000 points of the sphere, in three dimensions; also where q has no part along the top eigenvector."""
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((3, 3))
    Q, q = M @ M.T, rng.standard_normal(3)
    top = np.linalg.eigh(Q)[1][:, -1]
    points = rng.standard_normal((20_000, 3))
    points *= 1.5 / np.linalg.norm(points, axis=1, keepdims=True)
    for line in (q, q - (q @ top) * top, 0 * q):
        seen = (np.einsum("ni,ij,nj->n", points, Q, points) + 2 * points @ line).max()
        assert seen <= largest(Q, line, 1.5) * (1 + 1e-12) and seen > 0.99 * largest(Q, line, 1.5)


# The lemmas, step by step, against a simulation in NumPy.

REPEATS, ROUNDS = 4000, 30


class Path:
    """Local SGD on the rows, all repeats at once: what lemmas and theorem speak of, at every gradient step."""

    def __init__(self, start, seed=0, A=A, B=B, p=P, E=E, schedule=STEPS, batch=BATCH, rounds=ROUNDS):
        rng = np.random.default_rng(seed)
        K, d = len(A), len(start)
        H = [a.T @ a / len(a) for a in A]
        h = [a.T @ b / len(a) for a, b in zip(A, B, strict=True)]
        self.star = np.linalg.solve(np.tensordot(p, H, 1), np.tensordot(p, h, 1))
        f = np.tensordot(p, H, 1)
        x = np.tile(start, (K, REPEATS, 1)).astype(float)
        self.lengths, self.noise, self.spread, self.mean, self.worst = [], [], [], [], []
        self.after, self.excess = [], []  # |v - w*|^2 after the step, and f - f* at merges
        for t in range(rounds * E):
            s = schedule.value(t)
            bar = np.tensordot(p, x, 1)
            self.mean.append(((bar - self.star) ** 2).sum(1))
            self.spread.append(np.tensordot(p, ((x - bar) ** 2).sum(2), 1))
            self.worst.append(max(((one - self.star) ** 2).sum(1).mean() for one in x))
            g, exact = np.zeros_like(x), np.zeros_like(x)
            for k in range(K):
                at = rng.integers(len(A[k]), size=(REPEATS, batch))
                a, b = A[k][at], B[k][at]
                g[k] = ((np.einsum("rbi,ri->rb", a, x[k]) - b)[:, :, None] * a).mean(1)
                exact[k] = x[k] @ H[k] - h[k]
            self.noise.append((np.tensordot(p, g - exact, 1) ** 2).sum(1))
            x = x - s * g
            bar = np.tensordot(p, x, 1)
            self.after.append(((bar - self.star) ** 2).sum(1))
            self.lengths.append(s)
            if (t + 1) % E == 0:
                x = np.tile(bar, (K, 1, 1))
                gap = bar - self.star
                self.excess.append(np.einsum("ri,ij,rj->r", gap, f, gap) / 2)
        assert d == x.shape[-1]


def below(seen, most):
    """A mean over repeats is at most a bound, within 4 standard errors: (whether, at every entry)."""
    seen = np.asarray(seen)
    return seen.mean(1) <= np.asarray(most) + 4 * seen.std(1) / math.sqrt(REPEATS) + 1e-12


ANGLES = np.stack([np.cos(turn := np.linspace(0, 2 * np.pi, 100)), np.sin(turn)], axis=1)
DIRECTION = max(ANGLES, key=lambda u: sum(P[k] ** 2 * by_hand(k, STAR + RADIUS * u)[0] for k in range(3)))  # noisiest


@pytest.fixture(scope="module")
def path():
    """From the edge of the ball."""
    made = Path(STAR + RADIUS * DIRECTION)
    assert made.star == pytest.approx(STAR)
    return made


@pytest.fixture(scope="module")
def promised():
    return found(start=STAR + RADIUS * DIRECTION, radius=RADIUS, rounds=ROUNDS)


def test_the_path_stays_where_it_is_said_to_be(path):
    """In mean square, at every step of every agent: else nothing below would mean anything."""
    assert max(path.worst) <= RADIUS**2 * (1 + 1e-12)


def test_lemma_1(path):
    """E|v - w*|^2 <= (1 - s alpha) E|xbar - w*|^2 + s^2 E|g - gbar|^2 + 6 beta s^2 Gamma + 2 E sum p_k |xbar - x_k|^2,
    the terms as measured in the same repeats."""

    left = [path.after, path.lengths, path.mean, path.noise, path.spread]

    def holds(contraction):
        gaps = [
            after - (1 - contraction * s * ALPHA) * mean - s**2 * noise - 6 * BETA * s**2 * GAMMA - 2 * spread
            for after, s, mean, noise, spread in zip(*left, strict=True)
        ]
        return below(gaps, 0.0).all()

    assert holds(1)
    assert not holds(6)


def test_lemma_2(path, promised):
    bound = promised["004 lemma 2"]
    assert not bound.void and bound.strict and bound.quantity == STEP_NOISE
    assert below(path.noise, bound.value).all()
    assert not below(path.noise, bound.value / 1.5).all()  # at the start, which is not every agent's noisiest model


def test_lemma_3(path, promised):
    bound = promised["004 lemma 3"]
    assert not bound.void and bound.quantity == DRIFT
    G2 = over_ball(case(PROBLEM), RADIUS).G2
    assert below(path.spread, 4 * np.array(path.lengths) ** 2 * (E - 1) ** 2 * G2).all()
    last = np.arange(1, ROUNDS + 1) * E - 1  # before each merge
    curve = bound.curve(np.arange(1, ROUNDS + 1))
    assert curve == pytest.approx(4 * np.array(path.lengths)[last] ** 2 * (E - 1) ** 2 * G2, rel=1e-12)
    assert bound.value == pytest.approx(curve[-1], rel=1e-12)


def test_lemma_3_is_a_quarter_off_at_most():
    """Two agents that pull apart, +-1 at w*, E = 2, exact: the spread after one step is s_0^2 G^2, and the bound
    4 s_1^2 G^2. A fifth of it would fail."""
    line = fp.problems.Quadratic(1.0, [[-1.0], [1.0]])
    steps = fp.steps.InverseTime(2.0, 1000.0)
    bound = found(fp.FedAvg(steps, 2), line, radius=1e-9, rounds=1)["004 lemma 3"]
    spread = steps.value(0) ** 2  # x_k = +- s_0
    assert spread <= bound.value == pytest.approx(4 * steps.value(1) ** 2, rel=1e-8)
    assert not spread <= bound.value / 5


def test_lemma_1_along_the_rounds(path, promised):
    """Its recursion with lemmas 2 and 3: above E|w - w*|^2 after every round, and by hand."""
    bound = promised["004 lemma 1"]
    merged = [path.after[(r + 1) * E - 1] for r in range(ROUNDS)]
    assert below(merged, bound.curve(np.arange(1, ROUNDS + 1))).all()
    ball = over_ball(case(PROBLEM), RADIUS)
    total = P**2 @ ball.sigma2 + 6 * BETA * GAMMA + 8 * (E - 1) ** 2 * ball.G2
    delta, expected = RADIUS**2, [RADIUS**2]
    for t in range(ROUNDS * E):
        delta = (1 - STEPS.value(t) * ALPHA) * delta + STEPS.value(t) ** 2 * total
        if (t + 1) % E == 0:
            expected.append(delta)
    assert bound.curve(np.arange(ROUNDS + 1)) == pytest.approx(expected, rel=1e-10)
    assert bound.value == pytest.approx(expected[-1], rel=1e-10)


def test_theorem_1(path, promised):
    bound = promised["004 theorem 1"]
    assert not bound.void and bound.strict and bound.quantity == EXCESS
    assert below(path.excess, bound.curve(np.arange(1, ROUNDS + 1))).all()
    # f - f* <= beta/2 |w - w*|^2, so that lemma 1's recursion is never above theorem 1.
    rounds = np.arange(1, ROUNDS + 1)
    assert (BETA / 2 * promised["004 lemma 1"].curve(rounds) <= bound.curve(rounds) * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    "who", [fp.ByWeight(2), pytest.param(fp.Uniform(2), marks=pytest.mark.slow)], ids=["scheme I", "scheme II"]
)
def test_theorem_1_with_few_participants(who):
    """Runs of the library on equal weights; the mean over 200 repeats, whose ball they stay in."""
    problem = fp.problems.LeastSquares(A, B, mean=True, batch=BATCH)
    c = problem.constants()
    method = fp.FedAvg(fp.steps.InverseTime.lecture004(c.nu_k.min(), c.delta_k.max(), E), E)
    start = problem.solution() + RADIUS * DIRECTION
    got = found(method, problem, who, start=start, radius=RADIUS, rounds=ROUNDS)
    run = fp.run(method, problem, rounds=ROUNDS, repeats=200, participation=who, start=start)
    assert run.error.mean(0).max() <= RADIUS**2 * (1 + 1e-12)
    best = problem.objective(problem.solution()[None])[0]
    assert (run.loss.mean(0) - best <= got["004 theorem 1"].curve(run.rounds)).all()
    everyone = found(method, problem, start=start, radius=RADIUS, rounds=ROUNDS)["004 theorem 1"]
    assert got["004 theorem 1"].value > everyone.value


def test_theorem_1_by_hand_on_two_lines():
    """Rows a = 1, 2 with b = 1, 2 and a = 2, 1 with b = 4, 1, one at a time: w* = 1.4, both Hessians 2.5, Gamma = 0.2.
    Within 2 of it the noise is at most 2.25 * 2.4^2 and (8.8/2)^2, the square at most (10.4^2 + 1.6^2)/2."""
    problem = fp.problems.LeastSquares([[[1.0], [2.0]], [[2.0], [1.0]]], [[1.0, 2.0], [4.0, 1.0]], mean=True, batch=1)
    steps = fp.steps.InverseTime.lecture004(2.5, 2.5, 2)
    got = found(fp.FedAvg(steps, 2), problem, radius=2.0, rounds=100)
    noise, G2 = (2.25 * 2.4**2 + 4.4**2) / 4, (10.4**2 + 1.6**2) / 2
    total = noise + 6 * 2.5 * 0.2 + 8 * G2
    assert got["004 lemma 2"].value == pytest.approx(noise, rel=1e-9)
    assert got["004 lemma 3"].value == pytest.approx(4 * (2 / (2.5 * 207)) ** 2 * G2, rel=1e-9)
    assert got["004 theorem 1"].value == pytest.approx((2 * total / 2.5 + 10 * 1.4**2) / 207, rel=1e-9)
    given = found(fp.FedAvg(steps, 2), problem, sigma2=[2.25 * 2.4**2, 4.4**2], G2=G2, rounds=100)
    for name, bound in got.items():
        assert given[name].value == pytest.approx(bound.value, rel=1e-9)
        assert any("given" in detail for _, _, detail in given[name].assumptions)
        assert any("stated, not checked" in detail for _, _, detail in bound.assumptions)


# Void, refused.


def loss(w, batch):
    return ((batch["x"] @ w) ** 2).mean() + (w @ w) ** 2


def test_without_a_statement_it_is_the_forecast_s_own():
    own = {b.lecture: b for b in bounds(METHOD, PROBLEM)}
    for name, bound in found().items():
        assert not bound.void and bound.value == own[name].value
        assert "by induction" in bound.assumptions[-1][2]


def test_rows_that_are_too_noisy_for_a_region_by_induction():
    """Few rows, one at a time, and a first step of 1/(4 beta): the constants are those of a stated ball, or none."""
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((n, 2)) + np.array([1.0, 0.0]) for n in (6, 9, 5)]
    problem = fp.problems.LeastSquares(X, [x.sum(1) for x in X], mean=True, batch=1)
    c = problem.constants()
    method = fp.FedAvg(fp.steps.InverseTime.lecture004(c.nu_k.min(), c.delta_k.max(), E), E)
    assert all("no region known" in b.void for b in found(method, problem).values())
    assert all(not b.void for b in found(method, problem, radius=3.0).values())


def test_a_start_outside_of_the_ball():
    for bound in found(start=STAR + 3.0, radius=RADIUS).values():
        assert bound.void == "it assumes: the start is in the stated ball; here: it is 4.243 from w*"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"radius": 1.0, "G2": 1.0}, "radius, or sigma2 and G2"),
        ({"sigma2": 1.0}, "both sigma2 and G2"),
        ({"G2": 1.0}, "both sigma2 and G2"),
        ({"sigma2": [1.0, 2.0], "G2": 1.0}, "sigma2 has shape"),
        ({"sigma2": -1.0, "G2": 1.0}, "sigma2 must be at least 0"),
        ({"radius": -1.0}, "radius"),
        ({"radius": 0.0}, "radius"),
    ],
)
def test_mistakes(options, words):
    with pytest.raises(fp.FedpointError, match=words):
        found(**options)


@pytest.mark.slow
def test_over_a_ball_only_affine_fields():
    X, y = np.random.default_rng(0).standard_normal((20, 2)), np.tile([0, 1], 10)
    logistic = fp.problems.Logistic(X, y, groups=np.repeat([0, 1], 10), ridge=0.5)
    c = logistic.constants()
    method = fp.FedAvg(fp.steps.InverseTime.lecture004(c.nu_k.min(), c.delta_k.max(), 2), 2)
    for bound in found(method, logistic, radius=2.0).values():
        assert "give sigma2 and G2" in bound.void
    assert all(not b.void for b in found(method, logistic, sigma2=1.0, G2=2.0).values())
