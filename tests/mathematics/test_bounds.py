"""Do the lectures' bounds hold where they claim to, and are they void where they do not?"""

import itertools

import numpy as np
import plain
import pytest

import fedpoint as fp
from fedpoint.theory import lms_floor
from fedpoint.theory.bounds import bounds
from fedpoint.theory.bounds.bound import EXCESS, FACTOR, FLOOR, NOISE
from fedpoint.theory.bounds.case import Case
from fedpoint.theory.bounds.lecture004 import region

WORLD = plain.bowls(seed=0)
EQUAL = fp.problems.Quadratic(WORLD.H, WORLD.c)  # weights 1/K


def stream(spread=0.5, noise=0.3, agents=8, dim=4, variance=1.0):
    return fp.problems.LinearStream.sample(agents, dim, spread, noise, seed=3, variance=variance)


def found(algorithm, problem, participation=None, **options):
    return {b.lecture: b for b in bounds(algorithm, problem, participation, **options)}


def applies(bound):
    """A bound has a value or a reason, never both."""
    assert (bound.value is None) == bool(bound.void)
    assert bound.void == "" or bound.curve is None
    assert bound.void or all(holds for text, holds, _ in bound.assumptions if holds is not None)
    return not bound.void


# Lecture 000, against the exact mean-square deviation of LMS.


@pytest.mark.parametrize("variance", [0.5, 1.0])
@pytest.mark.parametrize(("spread", "noise"), [(0.0, 0.3), (0.5, 0.0), (0.5, 0.3)])
def test_the_bound_is_above_the_exact_floor_of_lms(spread, noise, variance):
    """(40) for everyone and (52) for one agent, up to the longest steps they allow; (42), (53) where agents agree."""
    problem = stream(spread, noise, variance=variance)
    tested = 0
    for step, L in itertools.product((1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3), (1, 8)):
        got = found(fp.FedAvg(step), problem, None if L == 8 else L)
        exact = lms_floor(problem, step, 1, L)
        names = ["000 (40)", "000 (42)"] if L == 8 else ["000 (52)", "000 (53)"]
        for name in names:
            assert got[name].strict and got[name].quantity == FLOOR
            if applies(got[name]):
                tested += 1
                assert exact <= got[name].value * (1 + 1e-12)
        assert applies(got[names[1]]) == (applies(got[names[0]]) and spread == 0)
        if applies(got[names[1]]):
            assert got[names[1]].value == got[names[0]].value
    assert tested > 5


@pytest.mark.parametrize("L", [1, 8])
def test_the_bound_per_round_is_above_the_exact_curve(L):
    problem = stream()
    step = 0.01 if L == 1 else 0.05
    bound = found(fp.FedAvg(step), problem, None if L == 8 else L)["000 (40)" if L == 8 else "000 (52)"]
    rounds = np.arange(400)
    exact = fp.theory.lms_msd(problem, step, 1, L, rounds=399)
    curve = bound.curve(rounds)
    assert (exact <= curve * (1 + 1e-12)).all()
    assert curve[0] == pytest.approx(exact[0] + bound.value) and bound.curve(10**6) == pytest.approx(bound.value)


def test_how_loose_they_are():
    """Small steps: twice the noise, four times heterogeneity, eight times sampling of agents; (75) four times more."""
    step = 1e-8
    quiet, same, both = stream(noise=0.0), stream(spread=0.0), stream()
    loose = {
        "noise": found(fp.FedAvg(step), same)["000 (40)"].value / lms_floor(same, step),
        "heterogeneity": found(fp.FedAvg(step), quiet)["000 (40)"].value / lms_floor(quiet, step),
    }
    # Sampling is what one agent pays beyond the 1/K less noise of everyone.
    bound = found(fp.FedAvg(step), quiet, 1)["000 (52)"].value - 8 * found(fp.FedAvg(step), quiet)["000 (40)"].value
    exact = lms_floor(quiet, step, 1, 1) - 8 * lms_floor(quiet, step)
    loose["sampling"] = bound / exact
    assert loose == pytest.approx({"noise": 2, "heterogeneity": 4, "sampling": 8}, rel=1e-5)
    for L in (1, 3, 8):
        got = found(fp.FedAvg(step), both, None if L == 8 else L)
        assert got["000 (75)"].value == pytest.approx(4 * got["000 (76)"].value, rel=1e-12)
        if L != 3:
            strict = got["000 (40)" if L == 8 else "000 (52)"]
            assert got["000 (75)"].value == pytest.approx(4 * strict.value, rel=1e-12)


@pytest.mark.parametrize("L, E", [(8, 1), (3, 1), (1, 4), (3, 4), (8, 10)])
def test_federated_averaging_to_first_order(L, E):
    """(75) says no more than its first order, but in LMS the exact floor lies below it, for steps it calls small."""
    problem = stream()
    for step in (1e-4, 1e-3, 1e-2):
        got = found(fp.FedAvg(step, E, normalise=True), problem, L)
        for name, quantity in (
            ("000 (73)-(74)", FACTOR),
            ("000 (75)", FLOOR),
            ("000 (76)", FLOOR),
            ("000 (77)", NOISE),
        ):
            assert applies(got[name]) and got[name].quantity == quantity
        assert not got["000 (75)"].strict and not got["000 (76)"].strict and not got["000 (73)-(74)"].strict
        assert lms_floor(problem, step, E, L, normalise=True) < got["000 (75)"].value
        assert got["000 (76)"].value == pytest.approx(step * got["000 (77)"].value, rel=1e-12)
        # The same rounds, written with the local step itself.
        again = found(fp.FedAvg(step / E, E, normalise=False), problem, L)
        assert again["000 (75)"].value == pytest.approx(got["000 (75)"].value, rel=1e-12)


def test_the_noise_of_federated_averaging():
    """(77) by hand for LMS: beta_k^2 = (M+1) s^2, sigma_k^2 = M s noise, delta_k = s; (78), (79) where agents agree."""
    problem, E, L = stream(variance=0.7), np.array([1, 2, 3, 4, 1, 2, 3, 4]), 3
    models = problem.own.model
    h = ((models - models.mean(0)) ** 2).sum(1)
    c = (8 - L) / 7
    expected = ((2 * 5 * 0.49 * h + 4 * 0.7 * 0.3) / E + c * 4 * 0.49 * h).sum() / (8 * L)
    assert found(fp.FedAvg(0.01, E, normalise=True), problem, L)["000 (77)"].value == pytest.approx(expected, rel=1e-12)
    same = stream(spread=0.0, variance=0.7)
    got = found(fp.FedAvg(0.01, E, normalise=True), same, L)
    assert got["000 (78)"].value == pytest.approx((4 * 0.7 * 0.3 / E).sum() / (8 * L), rel=1e-12)
    assert "E_k = E" in got["000 (79)"].void
    got = found(fp.FedAvg(0.01, 5, normalise=True), same, L)
    assert got["000 (79)"].value == pytest.approx(4 * 0.7 * 0.3 / (L * 5), rel=1e-12)
    assert got["000 (80)"].value == pytest.approx(0.01 * 4 * 0.3 / (L * 5), rel=1e-12)
    exact = found(fp.FedAvg(0.01, 5, normalise=True), problem, L, exact=True)["000 (81)"]
    assert exact.value == pytest.approx(c * 4 * 0.49 * h.mean() / L, rel=1e-12)


# Lecture 000, the noise of a round's gradient.

UNEVEN = fp.problems.LinearStream(np.array([[3.0, 0.0], [-1.0, 1.0], [0.0, -2.0]]), 0.3, np.array([2.0, 0.3, 0.1]))


def exact_noise(problem, w, one):
    """E|estimate of the gradient - gradient|^2 at w: the mean over everyone, or one agent drawn uniformly."""
    noise, fields = problem.noise(w), problem.fields(w)
    if not one:
        return noise.sum() / problem.agents**2
    return (noise + ((fields - fields.mean(0)) ** 2).sum(1)).mean()


def noise_holds(problem, one, got):
    """(28), (29) or (49) at 200 models from near w* to far away from it, in all directions."""
    rng, star = np.random.default_rng(0), problem.solution()
    names = ["000 (49)"] if one else ["000 (28)", "000 (29)"]
    for scale in np.geomspace(1e-3, 1e3, 200):
        w = star + scale * rng.standard_normal(len(star))
        exact = exact_noise(problem, w, one)
        if not all(exact <= got[name].at(w) * (1 + 1e-10) for name in names):
            return False
    return True


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("problem", [UNEVEN, stream()], ids=["uneven", "lms"])
def test_the_noise_of_a_round_s_gradient(problem, one):
    got = found(fp.GradientExchange(1e-3), problem, 1 if one else None)
    assert noise_holds(problem, one, got)
    slope, power = ("000 (50)", "000 (51)") if one else ("000 (30) beta^2", "000 (30) sigma^2")
    star, most = problem.solution(), got["000 (49)" if one else "000 (29)"]
    assert exact_noise(problem, star, one) <= got[power].value == pytest.approx(most.at(star), rel=1e-12)
    away = star + 7.0
    assert most.at(away) == pytest.approx(got[slope].value * ((away - star) ** 2).sum() + got[power].value, rel=1e-12)
    assert most.value == most.at(problem.start())


def test_by_agents_it_is_exact_for_lms():
    """(28) is an equality for isotropic regressors; (29) adds at most the inequality |a + b|^2 <= 2|a|^2 + 2|b|^2."""
    got = found(fp.GradientExchange(1e-3), UNEVEN)
    for w in np.random.default_rng(1).normal(0, 3, (20, 2)):
        assert got["000 (28)"].at(w) == pytest.approx(exact_noise(UNEVEN, w, False), rel=1e-12)
        assert got["000 (28)"].at(w) <= got["000 (29)"].at(w)


@pytest.mark.parametrize(("one", "which"), [(False, "all_noise"), (True, "one_noise")])
def test_half_of_the_constants_would_be_caught(one, which, monkeypatch):
    """Half of (30), and an eighth of (50)-(51), which is looser: some model violates it."""
    right = getattr(Case, which).func
    share = 1 / 8 if one else 1 / 2

    def broken(case):
        beta2, sigma2 = right(case)
        return share * beta2, share * sigma2

    monkeypatch.setattr(Case, which, property(broken))
    assert not noise_holds(UNEVEN, one, found(fp.GradientExchange(1e-3), UNEVEN, 1 if one else None))


# Exact fields.


def test_gradient_descent_shrinks_by_its_factor():
    """(20) in every round of the engine, for unequal weights and Hessians, with little room for some steps."""
    problem = WORLD.problem()
    constants = problem.constants()
    top = 2 * constants.nu / constants.delta**2
    for step in (0.1 * top, 0.5 * top, 0.9 * top):
        bound = found(fp.GradientExchange(step), problem)["000 (20)"]
        assert applies(bound) and bound.strict and bound.quantity == FACTOR
        run = fp.run(fp.GradientExchange(step), problem, rounds=40, exact=True, start=np.array([1.5, -2.0, 1.0]))
        seen = run.error[0, 1:] > 1e-25  # above rounding
        assert seen.sum() > 10 and (run.error[0, 1:] <= bound.value * run.error[0, :-1])[seen].all()
        again = found(fp.GradientExchange(step), problem, start=np.array([1.5, -2.0, 1.0]))["000 (20)"]
        assert (run.error[0] <= again.curve(np.arange(41)) + 1e-25).all()
    assert "says nothing" in found(fp.GradientExchange(1.01 * top), problem)["000 (20)"].void


def steady_state(problem, step):
    """E|w - w*|^2 of one uniformly drawn agent with exact fields: S = mean_k (B_k S B_k' + f_k f_k'), sum f_k = 0."""
    A, b = problem.linear_fields()
    B, f = np.eye(3) - step * A, step * (A @ problem.solution() - b)
    both = np.mean([np.kron(one, one) for one in B], axis=0)
    S = np.linalg.solve(np.eye(9) - both, np.einsum("ki,kj->ij", f, f).ravel() / len(f))
    return np.trace(S.reshape(3, 3))


def test_sampling_agents_with_exact_fields():
    """(54), which is (52) then, against the exact steady state."""
    constants = EQUAL.constants()
    top = constants.nu / (constants.delta**2 + (4 * constants.delta_k**2).mean() + 2 * constants.delta**2)
    for step in (0.2 * top, 0.99 * top):
        got = found(fp.ParameterExchange(step), EQUAL, 1)
        assert applies(got["000 (54)"]) and got["000 (54)"].value == got["000 (52)"].value
        assert steady_state(EQUAL, step) < got["000 (54)"].value
    assert "limit" in found(fp.ParameterExchange(1.01 * top), EQUAL, 1)["000 (54)"].void


# Lecture 004, theorem 1.

ROUNDS = 300


def lecture004(problem, E):
    constants = problem.constants()
    return fp.steps.InverseTime.lecture004(constants.nu_k.min(), constants.delta_k.max(), E)


NOISY = fp.problems.Quadratic(WORLD.H, WORLD.c, noise=0.5, weights=WORLD.p)
THEOREM = {
    "everyone": (NOISY, 1, None),
    "everyone, local steps": (NOISY, 4, None),
    "scheme I": (NOISY, 4, fp.ByWeight(2)),
    "scheme II": (fp.problems.Quadratic(WORLD.H, WORLD.c, noise=0.5), 4, fp.Uniform(2)),
    "lms": (stream(dim=3), 2, fp.Uniform(2)),
}


@pytest.mark.parametrize("name", THEOREM)
def test_theorem_1_is_above_a_measured_run(name):
    """The mean over 40 repeats of f - f* at every tenth round; and the region that its G^2 is taken over."""
    problem, E, scheme = THEOREM[name]
    algorithm = fp.FedAvg(lecture004(problem, E), E, normalise=False)
    start = np.full(problem.start().shape, 2.0)
    bound = found(algorithm, problem, scheme, start=start, rounds=ROUNDS)["004 theorem 1"]
    assert applies(bound) and bound.strict and bound.quantity == EXCESS
    run = fp.run(algorithm, problem, rounds=ROUNDS, participation=scheme, start=start, repeats=40)
    rounds = np.arange(10, ROUNDS + 1, 10)
    models = run.history[:, rounds].reshape(-1, run.history.shape[-1])
    best = problem.objective(problem.solution()[None])[0]
    excess = (problem.objective(models) - best).reshape(40, -1)
    assert (excess.mean(0) < bound.curve(rounds)).all()
    assert bound.value == pytest.approx(bound.curve(ROUNDS), rel=1e-12)
    case = Case(algorithm, problem, scheme or fp.Everyone(), start, False, ROUNDS)
    inside = region(case, 2 / algorithm.step.scale, algorithm.step.value(0))
    assert (run.error.mean(0) <= inside.radius**2 * (1 + 1e-9)).all()


def test_theorem_1_by_hand():
    """Two agents on a line: f_k = (x -+ 1)^2/2, x* = 0, Gamma = 1/2, from 3: radius 3, G^2 = 16."""
    problem = fp.problems.Quadratic(1.0, [[-1.0], [1.0]])
    algorithm = fp.FedAvg(fp.steps.InverseTime.lecture004(1.0, 1.0, 2), 2, normalise=False)
    bound = found(algorithm, problem, start=np.array([3.0]), rounds=10)["004 theorem 1"]
    B = 6 * 0.5 + 8 * 16
    assert bound.value == pytest.approx((2 * B + 8 / 2 * 9) / (8 + 20 - 1), rel=1e-12)
    one = found(algorithm, problem, fp.ByWeight(1), start=np.array([3.0]), rounds=10)["004 theorem 1"]
    assert one.value == pytest.approx((2 * (B + 4 * 4 * 16) + 36) / 27, rel=1e-12)


def test_the_region_cannot_be_left():
    """From anywhere inside, every agent's step of every length up to the first stays inside: also at the edge."""
    problem = stream(dim=3)
    algorithm = fp.FedAvg(lecture004(problem, 2), 2, normalise=False)
    s0 = algorithm.step.value(0)
    inside = region(Case(algorithm, problem, fp.Everyone(), None, False, 1), 2 / algorithm.step.scale, s0)
    rng, star = np.random.default_rng(0), problem.solution()
    for _ in range(200):
        direction = rng.standard_normal(3)
        w = star + inside.radius * rng.uniform(0, 1) ** 0.2 * direction / np.linalg.norm(direction)
        fields, noise = problem.fields(w), problem.noise(w)
        assert (noise <= inside.sigma2 * (1 + 1e-12)).all()
        assert ((fields**2).sum(1) + noise <= inside.G2 * (1 + 1e-12)).all()
        for s in (s0, s0 / 10):
            after = ((w - s * fields - star) ** 2).sum(1) + s**2 * noise
            assert (after <= inside.radius**2 * (1 + 1e-12)).all()


# Void, with the right reason.

RNG = np.random.default_rng(0)
ROWS = ([RNG.standard_normal((6, 3)) for _ in range(4)], [RNG.standard_normal(6) for _ in range(4)])
WEIGHTED = fp.problems.LinearStream(stream().own.model, noise=0.3, weights=np.arange(1.0, 9.0))
SHUFFLED = fp.problems.LeastSquares(*ROWS, mean=True, batch=2, sampling="shuffle")
FLAT = fp.problems.Quadratic([1.0, 0.0], [[0.0], [1.0]])


def shuffled_loss(w, batch):
    return ((batch["x"] @ w) ** 2).mean()


UNKNOWN = fp.problems.Loss(shuffled_loss, np.ones(3), {"x": ROWS[0][0]}, batch=2)
SYSTEM = fp.problems.LinearSystem(np.ones((2, 1, 1)), np.ones((2, 1)))
SCHEDULE = fp.steps.InverseTime.lecture004(1.0, 1.0, 2)

VOID = [
    ("000 (20)", fp.FedAvg(0.1), stream(), None, "fields are exact; here: they are sampled"),
    ("000 (20)", fp.FedAvg(0.1, 3, normalise=True), EQUAL, None, "one gradient step a round; here: E = 3"),
    ("000 (20)", fp.Scaffold(0.1), EQUAL, None, "one gradient step a round; here: Scaffold"),
    ("000 (20)", fp.FedAvg(0.1), EQUAL, 2, r"everyone takes part; here: Uniform\(2\)"),
    ("000 (20)", fp.FedAvg(fp.steps.InverseTime(1.0, 10.0)), EQUAL, None, "one constant step"),
    (
        "000 (20)",
        fp.FedAvg(np.linspace(0.1, 0.2, 5)),
        EQUAL,
        None,
        "one constant step for all; here: step = 0.1 to 0.2",
    ),
    (
        "000 (20)",
        fp.FedAvg(0.1),
        fp.problems.Quadratic([1.0, -2.0], [[0.0], [1.0]]),
        None,
        "strongly convex; here: nu =",
    ),
    ("000 (28)", fp.FedAvg(0.1, 2), stream(), None, "one gradient step a round; here: E = 2"),
    ("000 (29)", fp.FedAvg(0.1), WEIGHTED, None, "p_k = 1/K"),
    ("000 (30) beta^2", fp.FedAvg(0.1), stream(), 3, "everyone takes part"),
    ("000 (30) sigma^2", fp.FedAvg(0.1), UNKNOWN, None, "its constants are unknown"),
    ("000 (49)", fp.FedAvg(0.1), stream(), None, "one agent a round"),
    (
        "000 (50)",
        fp.FedAvg(0.1),
        fp.problems.LinearSystem(np.ones((2, 1, 1)), np.ones((2, 1))),
        1,
        "delta is not known",
    ),
    ("000 (51)", fp.FedAvg(0.1), WEIGHTED, fp.ByWeight(1), "p_k = 1/K"),
    ("000 (40)", fp.FedAvg(0.1), WEIGHTED, None, "p_k = 1/K"),
    ("000 (40)", fp.FedAvg(0.5), stream(), None, "mu <= nu/.*; here: mu = 0.5, limit"),
    ("000 (40)", fp.FedAvg(0.01), stream(), 3, "everyone takes part"),
    ("000 (40)", fp.FedAvg(0.01), UNKNOWN, None, "nu is not known"),
    ("000 (42)", fp.FedAvg(0.01), stream(), None, "homogeneous agents: w_k = w"),
    ("000 (42)", fp.FedAvg(0.01), fp.problems.LinearStream(np.ones((2, 3)), noise=[0.1, 0.2]), None, "sigma_k"),
    ("000 (52)", fp.FedAvg(0.001), stream(), 2, r"one agent a round; here: Uniform\(2\)"),
    ("000 (52)", fp.FedAvg(0.001), WEIGHTED, fp.ByWeight(1), "p_k = 1/K"),
    ("000 (52)", fp.FedAvg(0.1), stream(), 1, "mu <= nu"),
    ("000 (53)", fp.FedAvg(0.001), stream(), 1, "homogeneous"),
    ("000 (54)", fp.FedAvg(0.001), stream(), 1, "they are sampled"),
    (
        "000 (75)",
        fp.FedAvg(0.01, 5, normalise=True),
        stream(),
        fp.ByWeight(3),
        r"without replacement, \(56\); here: ByWeight",
    ),
    ("000 (75)", fp.FedProx(0.01, 5), stream(), 3, "federated averaging; here: FedProx"),
    ("000 (75)", fp.FedAvg(0.01, [1, 2] * 4, normalise=False), stream(), 3, r"mu_k E_k = mu for all agents, \(72\)"),
    (
        "000 (75)",
        fp.FedAvg(0.01, fp.steps.Stragglers(3, 0.5), normalise=True),
        stream(),
        3,
        "fixed numbers of local steps",
    ),
    ("000 (75)", fp.FedAvg(3.0, 5, normalise=True), stream(), 3, "small enough; here: lambda"),
    ("000 (75)", fp.FedAvg(0.01, 5, normalise=True), FLAT, None, "every agent is strongly convex"),
    (
        "000 (75)",
        fp.FedAvg(0.01, 3, normalise=True),
        SHUFFLED,
        None,
        "independent, .* here: rows are shuffled",
    ),
    ("000 (81)", fp.FedAvg(0.01, 3, normalise=True), stream(), 3, "they are sampled"),
    ("004 theorem 1", fp.FedAvg(0.01, 3, normalise=True), EQUAL, None, "not normalised"),
    ("004 theorem 1", fp.FedAvg(0.01, 3, normalise=False), EQUAL, None, "steps s_t = .*; here: step = 0.01"),
    ("004 theorem 1", fp.FedAvg(SCHEDULE, [1, 2] * 4, normalise=False), stream(dim=3), None, "one number E"),
    ("004 theorem 1", fp.FedAvg(SCHEDULE, 2, normalise=False), WEIGHTED, fp.Uniform(3), "scheme II"),
    ("004 theorem 1", fp.FedAvg(SCHEDULE, 2, normalise=False), stream(dim=3), fp.Importance(3), "scheme I or"),
    ("004 theorem 1", fp.FedAvg(SCHEDULE, 2, normalise=False), FLAT, None, r"strongly convex \(A2\)"),
    ("004 theorem 1", fp.FedAvg(SCHEDULE, 2, normalise=False), fp.problems.Quadratic(0.5, [[0.0]]), None, "alpha = 2/"),
    ("004 theorem 1", fp.FedAvg(SCHEDULE, 9, normalise=False), fp.problems.Quadratic(1.0, [[0.0]]), None, "need 9"),
    ("004 theorem 1", fp.FedAvg(SCHEDULE, 2, normalise=False), stream(dim=10), None, "no region known"),
    ("004 theorem 1", fp.FedAvg(SCHEDULE, 2, normalise=False), UNKNOWN, None, "not known"),
]


@pytest.mark.parametrize(("lecture", "algorithm", "problem", "participation", "reason"), VOID)
def test_void_with_the_reason(lecture, algorithm, problem, participation, reason):
    bound = found(algorithm, problem, participation)[lecture]
    assert not applies(bound)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(bound.void)


@pytest.mark.parametrize("part", [{"channel": fp.channel.Cast("float16")}, {"gather": fp.gather.Median()}])
def test_all_are_void_where_messages_are_changed(part):
    """Rounded on their way, or merged by a median: no lecture is about that."""
    own = fp.forecast(fp.FedAvg(0.02), stream(), **part).bounds
    name = type(next(iter(part.values()))).__name__
    assert [b.lecture for b in own] == [b.lecture for b in bounds(fp.FedAvg(0.02), stream())]
    for bound in own:
        assert not applies(bound)
        assert (
            bound.void
            == f"it assumes: messages arrive as they were sent, and are summed with their weights; here: {name}"
        )
    assert any(applies(bound) for bound in fp.forecast(fp.FedAvg(0.02), stream()).bounds)


def test_every_bound_is_listed_whatever_is_asked():
    lectures = [b.lecture for b in bounds(fp.FedAvg(0.1), UNKNOWN)]
    assert lectures == [b.lecture for b in bounds(fp.Scaffnew(0.1, probability=0.5), EQUAL)]
    assert len(set(lectures)) == len(lectures) == 29
    for algorithm in (fp.FedAvg(0.1, 3, normalise=True), fp.FedAdam(0.1), fp.QFedAvg(1.0, 0.1), fp.Scaffold(0.1, 2)):
        for problem in (EQUAL, stream(), SHUFFLED, UNKNOWN, FLAT):
            for bound in bounds(algorithm, problem, 1):
                applies(bound)


def test_a_longer_offset_gives_theorem_1_a_region():
    """Ten dimensions are too noisy for the first step of the schedule; a schedule that starts later is not."""
    problem = stream(dim=10)
    late = fp.FedAvg(fp.steps.InverseTime(2.0, 30.0), 2, normalise=False)
    assert applies(found(late, problem)["004 theorem 1"])


def test_exact_runs_have_no_noise():
    got = found(fp.FedAvg(0.01), stream(), 1, exact=True)
    assert applies(got["000 (54)"]) and applies(got["000 (81)"])
    full = fp.problems.LeastSquares(*ROWS, mean=True)
    assert applies(found(fp.FedAvg(0.01), full)["000 (20)"])
