"""Networks whose nodes take random turns and hear late: moments of every tick against the enumeration of all that may
happen, rates and floors against systems with explicit modes, and all of it against runs.

Tolerance of enumerations: up to 4e5 terms of order 1 are added, whose roundings of 1e-16 do not all point one way:
1e-12 of the largest entry. What a mistake changes is of order 1e-2.
"""

import itertools

import enumerate_ticks as every
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.jumps import Jumps, why_not
from fedpoint.theory.outlook import Gauge
from fedpoint.verbs.check.comparisons import Comparisons

RELATIVE = 1e-12
STEP, COUPLING = 0.2, 0.4
CURVATURE = np.array([1.0, 1.7, 0.6, 1.3])
CENTRE = np.array([1.0, -2.0, 0.5, 3.0])
EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
WEIGHTS = np.array([1.0, 0.5, 1.4, 0.8, 0.3])


def world(nodes, edges=EDGES, weights=WEIGHTS):
    """Quadratics in one unknown, and a network between them with its matrix."""
    A = np.zeros((nodes, nodes))
    for (i, j), w in zip(edges, weights, strict=False):
        if max(i, j) < nodes:
            A[i, j] = A[j, i] = w
    problem = fp.problems.Quadratic(CURVATURE[:nodes], CENTRE[:nodes, None])
    return problem, fp.Network.from_matrix(A), A


def jumps(method, problem, network, schedule, **options):
    f = fp.forecast(method, problem, network=network, schedule=schedule, **options)
    assert why_not(f.setting) == ""
    return Jumps(f.setting, f.state, f.origin, Gauge(f.optimum, None, f.setting.models))


def fedgd(A):
    def update(i, own, heard):
        pull = A[i].sum() * own - heard @ A[i]
        return own - STEP * (CURVATURE[i] * (own - CENTRE[i]) + 2 * COUPLING * pull)

    return update


def fedrelax(A):
    def update(i, own, heard):
        total = CURVATURE[i] * CENTRE[i] + 2 * COUPLING * heard @ A[i]
        return total / (CURVATURE[i] + 2 * COUPLING * A[i].sum())

    return update


def close(found, expected):
    return np.abs(found - expected).max() <= RELATIVE * np.abs(expected).max()


METHODS = {
    "fedgd": (fp.FedGD(STEP, COUPLING), fedgd),
    "fedrelax": (fp.FedRelax(COUPLING), fedrelax),
}
LATE = {  # nodes, edges among them, ticks, B, activity, delay, loss
    "all of it": (2, 1, 3, 2, 0.6, 2, 0.3),
    "lost": (3, 2, 4, 2, 1.0, 0, 0.4),
    "late": (2, 1, 4, 3, 1.0, 2, 0.0),
    "idle": (3, 2, 4, 2, 0.3, 0, 0.0),
    "one tick late": (3, 2, 3, 3, 1.0, 1, 0.2),
}


def late(name, mutant=every.RIGHT):
    """Schedule, problem, network, matrix, and all that may happen."""
    K, count, ticks, B, activity, delay, loss = LATE[name]
    problem, net, A = world(K, EDGES[:count], WEIGHTS[:count])
    schedule = fp.PartiallyAsynchronous(B, activity, delay, loss)
    lucks = list(every.partially(EDGES[:count], K, ticks, B, activity, delay, loss, mutant))
    return schedule, problem, net, A, lucks, ticks


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_random_turns_are_the_mean_over_all_turns(method, count):
    problem, net, A = world(4)
    algorithm, update = METHODS[method]
    found = jumps(algorithm, problem, net, fp.RandomActivation(count)).path(4)
    square, mean = every.curve(update(A), np.zeros(4), [every.subsets(4, count, 4)], net_limit(problem, net))
    assert close(found.total, square)
    assert close(found.mean, ((mean - net_limit(problem, net)) ** 2).mean(1))


def net_limit(problem, net):
    return fp.gtv.solve(problem, net, COUPLING)[:, 0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LATE)
def test_late_and_lost_messages_are_the_mean_over_all_luck(method, name):
    schedule, problem, net, A, lucks, ticks = late(name)
    algorithm, update = METHODS[method]
    target = net_limit(problem, net)
    square, mean = every.curve(update(A), np.zeros(len(A)), lucks, target)
    found = jumps(algorithm, problem, net, schedule)
    assert not found.laws.drawn
    assert close(found.path(ticks).total, square)
    assert close(found.path(ticks).mean, ((mean - target) ** 2).mean(1))


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("one tick late", every.Mutant(age=1)),
        ("late", every.Mutant(own_stale=True)),
        ("lost", every.Mutant(lost_is_fresh=True)),
        ("all of it", every.Mutant(lost_is_fresh=True)),
    ],
)
def test_a_wrong_reading_of_the_schedule_is_convicted(name, mutant):
    schedule, problem, net, A, lucks, ticks = late(name, mutant)
    square, _ = every.curve(fedgd(A), np.zeros(len(A)), lucks, net_limit(problem, net), mutant)
    found = jumps(fp.FedGD(STEP, COUPLING), problem, net, schedule).path(ticks).total
    assert np.abs(found - square).max() > 1e-3 * square.max()


@pytest.mark.parametrize("name", ["all of it", "lost", "idle"])
def test_gossip_is_the_mean_over_all_luck(name):
    """A method with a hub: who works next has mixed before; nodes start apart, and nobody listens before tick 0."""
    schedule, problem, _, _, lucks, ticks = late(name)
    K = problem.agents
    A = np.zeros((K, K))
    for i, j in EDGES[: LATE[name][1]]:
        A[i, j] = A[j, i] = 0.3
    start, step = np.array([2.0, -1.0, 0.5])[:K], 0.25
    w = problem.solution()[0]
    square = 0.0
    for luck in lucks:
        x = every.gossip(lambda i, x: x - step * CURVATURE[i] * (x - CENTRE[i]), A, start, luck)
        square = square + luck.chance @ ((x - w) ** 2).mean(2) / len(lucks)
    method = fp.FedAvg(step)
    found = jumps(method, problem, fp.Network.from_matrix(A), schedule, start=start[:, None], exact=True)
    assert close(found.path(ticks - 1).total, square)


ROWS = np.array([[1.0, 2.0], [0.5, -1.0], [1.5, 0.3]]), np.array([[1.0, 0.0], [2.0, 1.0], [-1.0, 0.5]])


def test_noise_of_samples_is_the_mean_over_all_rows():
    """Three nodes with two rows, one works and meets one of its rows: 6^4 equally likely runs of four ticks."""
    X, y = ROWS
    task = fp.problems.LeastSquares(list(X[:, :, None]), list(y), mean=True, half=False, batch=1)
    _, net, A = world(3)
    found = jumps(fp.FedSGD(0.1, COUPLING), task, net, fp.RandomActivation(1))
    target, errors = net_limit(task, net), []
    for draws in itertools.product(range(3), range(2), repeat=4):
        w, path = np.zeros(3), [(target**2).mean()]
        for i, row in zip(draws[::2], draws[1::2], strict=True):
            x, new = X[i, row], w.copy()
            new[i] -= 0.1 * (2 * x * (x * w[i] - y[i, row]) + 2 * COUPLING * (A[i].sum() * w[i] - A[i] @ w))
            w = new
            path.append(((w - target) ** 2).mean())
        errors.append(path)
    assert close(found.path(4).total, np.mean(errors, axis=0))


def turns_of(task, net, A, step):
    """(chance, J, c) of all ticks of one random node and one of its two rows, around zero."""
    X, y = ROWS
    for i, row in itertools.product(range(3), range(2)):
        J, c, x = np.eye(3), np.zeros(3), X[i, row]
        J[i] += step * 2 * COUPLING * A[i]
        J[i, i] -= step * (2 * x * x + 2 * COUPLING * A[i].sum())
        c[i] = step * 2 * x * y[i, row]
        yield 1 / 6, J, c


def test_rates_and_floor_are_those_of_the_kronecker_products():
    X, y = ROWS
    task = fp.problems.LeastSquares(list(X[:, :, None]), list(y), mean=True, half=False, batch=1)
    _, net, A = world(3)
    found = jumps(fp.FedSGD(0.1, COUPLING), task, net, fp.RandomActivation(1))
    J = sum(p * J for p, J, _ in turns_of(task, net, A, 0.1))
    JJ = sum(p * np.kron(J, J) for p, J, _ in turns_of(task, net, A, 0.1))
    w = net_limit(task, net)
    Q = sum(p * np.outer(a := J @ w + c - w, a) for p, J, c in turns_of(task, net, A, 0.1))
    S = np.linalg.solve(np.eye(9) - JJ, Q.ravel()).reshape(3, 3)
    assert found.mean_rate == pytest.approx(np.abs(np.linalg.eigvals(J)).max(), rel=1e-12)
    assert found.rate == pytest.approx(np.abs(np.linalg.eigvals(JJ)).max(), rel=1e-9)
    assert found.variance == pytest.approx(np.trace(S) / 3, rel=1e-10)
    law = found.law(None)
    np.testing.assert_allclose(np.sort(law.weights), np.sort(np.linalg.eigvalsh(S / 3)), rtol=1e-9)
    far = found.path(700)  # beyond what is gone through tick by tick
    assert far.total[-1] == pytest.approx(np.trace(S) / 3, rel=1e-9)
    near = found.path(200)
    np.testing.assert_allclose(far.total[:201], near.total, rtol=1e-7)


def test_rates_are_those_of_a_jump_system_whose_modes_are_ages():
    """Two nodes, losses only: how old a message is at tick k depends on the luck of versions k and k - 1 of its arc.
    Moments of all versions are kept for each of the 16 joint modes; no delay line."""
    loss, B = 0.4, 2
    problem, net, A = world(2)
    found = jumps(fp.FedGD(STEP, COUPLING), problem, net, fp.PartiallyAsynchronous(B, 1.0, 0, loss))
    modes = list(itertools.product(range(2), repeat=4))  # arc 0 now and before, arc 1 now and before; 1: lost
    n = 2 * (B + 1)

    def matrix(mode):
        age = [0 if not now else 1 if not before else 2 for now, before in (mode[:2], mode[2:])]
        J = np.zeros((n, n))
        for i in range(2):
            J[i, i] = 1 - STEP * (CURVATURE[i] + 2 * COUPLING * A[0, 1])
            J[i, 2 * age[i] + 1 - i] += STEP * 2 * COUPLING * A[0, 1]
        J[2:, :-2] = np.eye(n - 2)
        return J

    def chance(mode, after):
        if (after[1], after[3]) != (mode[0], mode[2]):
            return 0.0
        return float(np.prod([loss if lost else 1 - loss for lost in (after[0], after[2])]))

    def radius(power):
        blocks = [[chance(a, b) * power(matrix(b)) for a in modes] for b in modes]
        return np.abs(np.linalg.eigvals(np.block(blocks))).max()

    assert found.mean_rate == pytest.approx(radius(lambda J: J), rel=1e-10)
    assert found.rate == pytest.approx(radius(lambda J: np.kron(J, J)), rel=1e-8)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_in_step_it_is_the_forecast_in_step(noise):
    problem = fp.problems.Quadratic(CURVATURE, CENTRE[:, None], noise=noise)
    net = world(4)[1]
    f = fp.forecast(fp.FedSGD(STEP, COUPLING), problem, network=net)
    found = jumps(fp.FedSGD(STEP, COUPLING), problem, net, fp.Synchronous())
    assert found.mean_rate == pytest.approx(f.rate, rel=1e-10)
    assert found.variance == pytest.approx(f.variance, rel=1e-9)
    np.testing.assert_allclose(found.path(60).total, f.curve(60), rtol=1e-7)


def test_the_worst_schedule_is_known_tick_by_tick():
    problem, net, _ = world(4)
    found = jumps(fp.FedRelax(COUPLING), problem, net, fp.WorstCase(3))
    run = fp.run(fp.FedRelax(COUPLING), problem, network=net, schedule=fp.WorstCase(3), rounds=40)
    np.testing.assert_allclose(found.path(40).total, run.error[0], rtol=1e-9)
    assert found.laws.certain and found.variance == 0 and found.rate == found.mean_rate**2
    slope = (run.error[0, 40] / run.error[0, 28]) ** (1 / 12)  # two periods of 2 B ticks
    assert slope == pytest.approx(found.rate, rel=1e-3)


class Twice(fp.RandomActivation):
    """Another law of ticks under an inherited name."""

    def tick(self, key, p, round):
        return super().tick(key, p, round // 2)


def test_laws_of_single_runs_have_the_mean_of_the_curve_in_any_order():
    task = fp.problems.Quadratic(np.linspace(1.0, 2.0, 3), np.arange(3.0)[:, None], noise=0.2)
    method, net = fp.FedSGD(step=0.1, coupling=0.5), fp.Network.ring(3)
    f = fp.forecast(method, task, network=net, schedule=fp.RandomActivation(1))
    curve = f.curve(3)
    for tick in (3, 1, 1, 0, 2):
        assert f._law(tick).mean == pytest.approx(curve[tick], rel=1e-9)


def test_what_is_not_known_is_said():
    problem, net, _ = world(4)

    def reason(schedule, step=STEP):
        return why_not(fp.forecast(fp.FedSGD(step, COUPLING), problem, network=net, schedule=schedule).setting)

    assert "does not tell the law" in reason(Twice(1))
    assert "away" in reason(fp.PartiallyAsynchronous(3, away=0.2))
    assert "law of its ticks" in reason(fp.TotallyAsynchronous())
    assert "decaying" in reason(fp.RandomActivation(1), fp.steps.InverseTime(0.1, 10.0))


RING = fp.Network.ring(5)
FIVE = np.linspace(1.0, 2.0, 5), np.arange(10.0).reshape(5, 2)
RUNS = {
    "fedsgd, late and lost": (fp.FedSGD(0.1, 0.5), RING, fp.PartiallyAsynchronous(2, delay=1, loss=0.3), 0.5),
    "fedavg, random": (fp.FedAvg(0.1, 2), RING.mixing(), fp.RandomActivation(2), 0.5),
    "fedgd, random": (fp.FedGD(0.15, 0.5), RING, fp.RandomActivation(1), 0.0),
    "fedrelax, late and lost": (fp.FedRelax(0.5), RING, fp.PartiallyAsynchronous(2, loss=0.3), 0.0),
    "fedavg, late": (fp.FedAvg(0.1, 2), RING.mixing(), fp.PartiallyAsynchronous(2, 0.3), 0.5),
    "fedsgd, sampled places": (fp.FedSGD(0.1, 0.5), RING, fp.PartiallyAsynchronous(3, 0.4, loss=0.2), 0.5),
}
QUICK = ("fedavg, random",)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RUNS])
def test_runs_follow_the_forecast_within_four_standard_errors(name):
    method, net, schedule, noise = RUNS[name]
    task = fp.problems.Quadratic(*FIVE, noise=noise)
    f = fp.forecast(method, task, network=net, schedule=schedule)
    run = fp.run(method, task, network=net, schedule=schedule, rounds=80, repeats=600, seed=2)
    at = np.array([1, 4, 12, 30, 80])
    error = run.error[:, at]
    se = np.hypot(error.std(0, ddof=1) / np.sqrt(600), f.curve_error(80)[at])
    assert (np.abs(error.mean(0) - f.curve(80)[at]) <= 4 * se).all()
    assert f.proviso == "" and f.exact == (name != "fedsgd, sampled places")
    assert noise == 0 or run.error[:, -1].mean() == pytest.approx(f.floor, rel=0.2)  # it has settled


@pytest.mark.parametrize(
    "schedule",
    [fp.RandomActivation(2), pytest.param(fp.PartiallyAsynchronous(3, loss=0.2), marks=pytest.mark.slow)],
)
def test_checks_compare_runs_under_random_turns_and_convict_wrong_ones(schedule):
    task = fp.problems.Quadratic(*FIVE, noise=0.2)
    options = {"network": RING, "schedule": schedule, "rounds": 120, "repeats": 64, "seed": 3}
    right = fp.check(fp.run(fp.FedSGD(0.1, 0.5), task, **options))
    held = {c.name for c in right.checks if c.ok}
    assert right and {"path", "limit", "floor"} <= held
    longer = fp.check(fp.run(fp.FedSGD(0.14, 0.5), task, **options), claims=fp.FedSGD(0.1, 0.5))
    assert not longer and longer.outcome == "contradicted"
    prompt = fp.run(fp.FedSGD(0.1, 0.5), task, **{**options, "schedule": None})
    experiment = right.forecast.setting.bound.experiment
    assert Comparisons(prompt, experiment).f.jumps is not None
    assert any(c.ok is False for c in Comparisons(prompt, experiment).checks())  # nodes in step are another run


def test_logistic_losses_are_linearised_and_say_so():
    rng = np.random.default_rng(2)
    X, y, groups = rng.normal(size=(60, 2)), rng.integers(0, 2, 60), np.repeat(np.arange(5), 12)
    task = fp.problems.Logistic(X, y, groups=groups, ridge=0.1)
    options = {"network": RING, "schedule": fp.RandomActivation(2)}
    near = fp.gtv.solve(task, RING, 0.2) + 1e-4 * rng.normal(size=(5, 2))  # where curvature adds 1e-4 of itself
    f = fp.forecast(fp.FedGD(0.3, 0.2), task, start=near, **options)
    assert any("linearised" in note for note in f.notes) and not f.exact and f.rate**2 <= f.rate_ms < 1
    error = fp.run(fp.FedGD(0.3, 0.2), task, start=near, rounds=60, repeats=400, **options).error[:, [1, 5, 20, 60]]
    assert (np.abs(error.mean(0) - f.curve(60)[[1, 5, 20, 60]]) <= 4 * error.std(0, ddof=1) / 20).all()
