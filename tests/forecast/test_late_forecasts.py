"""A fusion center that merges answers as they come, at exponential times: moments of every merge against the
enumeration of all that may happen, rates and floors against Kronecker products written out, and all of it against runs.

Tolerance of enumerations: up to 1e5 terms of order 1 are added, whose roundings of 1e-16 do not all point one way:
1e-11 of the largest entry. What a mistake changes is of order 1e-2.
"""

import itertools

import numpy as np
import pytest

import fedpoint as fp

RELATIVE = 1e-11
WEIGHTED = 1e-5  # where old answers count less: their weights are sums of exponentials, to 1e-6
CURVATURE = np.array([1.0, 1.7, 0.6])
CENTRE = np.array([1.0, -2.0, 3.0])
WEIGHTS = np.array([0.2, 0.5, 0.3])
WORK = np.array([1.0, 0.5, 2.5])
CLOCK = fp.Clock(work=WORK)
STEP, E = 0.15, 2
POLYNOMIAL = fp.staleness.Polynomial(0.7)


def world(**options):
    return fp.problems.Quadratic(CURVATURE, CENTRE[:, None], weights=WEIGHTS, **options)


def fedavg(k, held, memory):
    y = held[0]
    for _ in range(E):
        y -= STEP * (CURVATURE[k] * (y - CENTRE[k]))
    return np.array([y - held[0]]), memory


def scaffold(k, held, memory):
    """(w, c) is heard; option 2."""
    x, c = held
    y = x
    for _ in range(E):
        y -= STEP * (CURVATURE[k] * (y - CENTRE[k]) - memory + c)
    new = memory - c + (x - y) / (E * STEP)
    return np.array([y - x, new - memory]), new


METHODS = {"fedavg": (fp.FedAvg(STEP, E), fedavg, 1), "scaffold": (fp.Scaffold(STEP, E), scaffold, 2)}


def first_answers(buffer):
    """(chance, agents) of all orders in which a buffer may fill."""
    pace = 1 / WORK
    for order in itertools.permutations(range(3), buffer):
        chance, left = 1.0, pace.sum()
        for k in order:
            chance, left = chance * pace[k] / left, left - pace[k]
        yield chance, order


def begun_anew(dropout):
    """(chance, agents) of who begins anew between two merges, by the chain of events: each is lost by chance."""
    pace = (1 / WORK) / (1 / WORK).sum()
    sets = [frozenset(a) for n in range(4) for a in itertools.combinations(range(3), n)]
    Q = np.zeros((8, 8))
    for a, k in itertools.product(sets, range(3)):
        Q[sets.index(a), sets.index(a | {k})] += dropout * pace[k]
    visits = np.linalg.solve(np.eye(8) - Q.T, np.eye(8)[0])
    return [(float(chance), a) for chance, a in zip(visits * (1 - dropout), sets, strict=True) if chance]


class Luck:
    """All that may happen in so many merges, written out agent by agent."""

    def __init__(self, schedule, work, size, wrong=""):
        self.schedule, self.work, self.size, self.wrong = schedule, work, size, wrong
        self.lost = begun_anew(schedule.dropout)
        self.ways = list(first_answers(schedule.buffer))

    def __call__(self, merges):
        """(merges + 1,): E w and E w^2."""
        self.found = np.zeros((2, merges + 1))
        hub = np.zeros(self.size)
        self._go(merges, 0, 1.0, hub, [hub] * 3, [0] * 3, np.zeros(3))
        return self.found

    def _go(self, merges, t, chance, hub, held, since, memory):
        self.found[:, t] += chance * np.array([hub[0], hub[0] ** 2])
        if t == merges:
            return
        for (a, anew), (b, order) in itertools.product(self.lost, self.ways):
            mine = [hub if k in anew and self.wrong != "lost" else held[k] for k in range(3)]
            asked = [t if k in anew and self.wrong != "lost" else since[k] for k in range(3)]
            new, memories = self._merged(hub, mine, [t - s for s in asked], memory, order)
            for k in order:
                mine[k], asked[k] = new if self.wrong != "fresh" else hub, t + 1
            self._go(merges, t + 1, chance * a * b, new, mine, asked, memories)

    def _merged(self, hub, held, age, memory, order):
        s, memories, change = self.schedule, memory.copy(), np.zeros(self.size)
        for k in order:
            sent, memories[k] = self.work(k, held[k], memory[k])
            if s.models:
                sent = sent + held[k] - hub
            weight = s.mixing * WEIGHTS[k] * 3 / s.buffer
            weight *= 1.0 if self.wrong == "age" else float(s.staleness.weight(np.array(age[k])))
            change[0] += weight * sent[0]
            change[1:] += WEIGHTS[k] * sent[1:]
        return hub + change, memories


SCHEDULES = {
    "each": fp.Arrivals(CLOCK),
    "two together": fp.Arrivals(CLOCK, buffer=2),
    "all together": fp.Arrivals(CLOCK, buffer=3),
    "models": fp.Arrivals(CLOCK, models=True, mixing=0.4),
    "old ones count less": fp.Arrivals(CLOCK, staleness=POLYNOMIAL, mixing=0.8),
    "two, old ones count less": fp.Arrivals(CLOCK, buffer=2, staleness=fp.staleness.Hinge(2.0, 1.0)),
    "lost": fp.Arrivals(CLOCK, dropout=0.4),
    "lost, old ones count less": fp.Arrivals(CLOCK, dropout=0.4, staleness=POLYNOMIAL),
}
CASES = [(m, s) for m, s in itertools.product(METHODS, SCHEDULES) if (m, s) != ("scaffold", "models")]


def close(found, expected, relative):
    return np.abs(found - expected).max() <= relative * np.abs(expected).max()


@pytest.mark.parametrize(("method", "schedule"), CASES)
def test_every_merge_is_the_mean_over_all_luck(method, schedule):
    algorithm, work, size = METHODS[method]
    merges = 3 if "lost" in schedule else 4
    f = fp.forecast(algorithm, world(), schedule=SCHEDULES[schedule])
    mean, square = Luck(SCHEDULES[schedule], work, size)(merges)
    w = f.optimum[0]
    relative = WEIGHTED if "less" in schedule else RELATIVE
    assert close(f.mean_path(merges)[:, 0], mean, relative)
    assert close(f.curve(merges), square - 2 * w * mean + w**2, relative)
    assert f.proviso == "" and f.exact


@pytest.mark.parametrize(
    ("schedule", "wrong"), [("each", "fresh"), ("lost", "lost"), ("old ones count less", "age"), ("models", "fresh")]
)
def test_a_wrong_reading_of_the_clock_is_convicted(schedule, wrong):
    f = fp.forecast(fp.FedAvg(STEP, E), world(), schedule=SCHEDULES[schedule])
    mean, square = Luck(SCHEDULES[schedule], fedavg, 1, wrong)(3)
    w = f.optimum[0]
    assert np.abs(f.curve(3) - (square - 2 * w * mean + w**2)).max() > 1e-3 * square.max()


ROWS = np.array([[1.0, 2.0], [0.5, -1.0], [1.5, 0.3]]), np.array([[1.0, 0.0], [2.0, 1.0], [-1.0, 0.5]])


def rows_task():
    X, y = ROWS
    return fp.problems.LeastSquares(list(X[:, :, None]), list(y), mean=True, half=False, batch=1)


def merges_of(step):
    """(chance, J) of all merges of one answer to one of two rows, of x = (1, hub, what three agents hold)."""
    X, y = ROWS
    pace = (1 / WORK) / (1 / WORK).sum()
    for k, row in itertools.product(range(3), range(2)):
        x, J = X[k, row], np.eye(5)
        J[1, 2 + k] -= step * 2 * x * x  # w_k K = 1: the change counts whole
        J[1, 0] += step * 2 * x * y[k, row]
        J[2 + k] = J[1]
        yield pace[k] / 2, J


def test_rates_floor_and_curve_are_those_of_the_kronecker_products():
    f = fp.forecast(fp.FedAvg(0.1), rows_task(), schedule=fp.Arrivals(CLOCK))
    J = sum(p * J for p, J in merges_of(0.1))
    JJ = sum(p * np.kron(J, J) for p, J in merges_of(0.1))
    S, w, curve = np.outer(x := np.array([1.0, 0, 0, 0, 0]), x), f.optimum[0], []
    for _ in range(901):
        curve.append(S[1, 1] - 2 * w * S[0, 1] + w**2)
        S = (JJ @ S.ravel()).reshape(5, 5)
    values = np.sort(np.abs(np.linalg.eigvals(J)))[::-1]
    assert values[0] == pytest.approx(1)
    assert f.rate == pytest.approx(values[1], rel=1e-10)
    no_mean = np.delete(np.delete(JJ.reshape(5, 5, 5, 5), 0, 0), 0, 1)[:, :, 1:, 1:].reshape(16, 16)
    assert f.rate_ms == pytest.approx(np.abs(np.linalg.eigvals(no_mean)).max(), rel=1e-9)
    np.testing.assert_allclose(f.curve(900), curve, rtol=1e-9)  # the second half by Krylov's approximation
    assert f.floor == pytest.approx(curve[-1], rel=1e-9)
    assert f.limit[0] == pytest.approx(S[0, 1], rel=1e-9)
    assert f.variance == pytest.approx(S[1, 1] - S[0, 1] ** 2, rel=1e-9)


def test_who_is_fast_moves_the_limit_of_fedavg_but_not_of_scaffold():
    """With a_k = p_k K (1 - (1 - s h_k)^E) and q_k the chance to answer next: agent k holds the hub after its own
    merge, on average x_k = w + a_k (c_k - x_k), and sum_k q_k a_k (c_k - x_k) = 0. SCAFFOLD ends at w*."""
    pace, a = (1 / WORK) / (1 / WORK).sum(), 3 * WEIGHTS * (1 - (1 - STEP * CURVATURE) ** E)
    pull = pace * a / (1 + a)
    end = (pull * CENTRE).sum() / pull.sum()
    f = fp.forecast(fp.FedAvg(STEP, E), world(), schedule=fp.Arrivals(CLOCK), exact=True)
    assert f.limit[0] == pytest.approx(end, rel=1e-10)
    assert f.variance > 0  # who answers is drawn
    s = fp.forecast(fp.Scaffold(STEP, E), world(), schedule=fp.Arrivals(CLOCK), exact=True)
    assert s.bias == 0 and s.variance == pytest.approx(0, abs=1e-12)


RUNS = {
    "fedavg": (fp.FedAvg(0.05, 3), fp.Arrivals(fp.Clock([1.0, 1.0, 2.0, 4.0]))),
    "scaffold, lost": (fp.Scaffold(0.05, 3), fp.Arrivals(fp.Clock([1.0, 1.0, 2.0, 4.0]), dropout=0.5)),
    "fedavg, old ones count less": (
        fp.FedAvg(0.05, 3),
        fp.Arrivals(fp.Clock([1.0, 1.0, 2.0, 4.0]), buffer=2, staleness=POLYNOMIAL),
    ),
    "fedasync": (fp.FedAvg(0.1, 3), fp.Arrivals(fp.Clock([1.0, 1.0, 2.0, 4.0]), models=True, mixing=0.3)),
    "fedavg, lost": (fp.FedAvg(0.05, 3), fp.Arrivals(fp.Clock([1.0, 1.0, 2.0, 4.0]), dropout=0.5, mixing=0.5)),
}
QUICK = ("fedavg", "scaffold, lost")


def four(noise=0.3):
    return fp.problems.Quadratic(np.linspace(1.0, 3.0, 4), np.arange(8.0).reshape(4, 2), noise=noise)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RUNS])
def test_runs_follow_the_forecast_within_four_standard_errors(name):
    method, schedule = RUNS[name]
    f = fp.forecast(method, four(), schedule=schedule)
    run = fp.run(method, four(), schedule=schedule, rounds=70, repeats=400, seed=2)
    at = np.array([1, 4, 12, 30, 70])
    error = run.error[:, at]
    assert (np.abs(error.mean(0) - f.curve(70)[at]) <= 4 * error.std(0, ddof=1) / np.sqrt(400)).all()
    if name == "fedavg":  # settled by then; before, SCAFFOLD's errors are made of rare large ones
        below = (run.error[:, -1] <= f.quantile(0.8, 70)).mean()  # a binomial's standard error: 0.02
        assert 0.72 < below < 0.88


def test_checks_compare_runs_and_convict_wrong_ones():
    method, schedule = RUNS["fedavg"]
    options = {"schedule": schedule, "rounds": 100, "repeats": 64, "seed": 3}
    right = fp.check(fp.run(method, four(), **options))
    assert right and {"path", "limit", "floor", "unbiasedness"} <= {c.name for c in right.checks if c.ok}
    longer = fp.check(fp.run(fp.FedAvg(0.1, 3), four(), **options), claims=method)
    assert longer.outcome == "contradicted"
    corrected = fp.check(fp.run(method, four(), **options), claims=fp.Scaffold(0.05, 3))
    assert corrected.outcome == "contradicted"


def test_what_is_not_followed_is_refused_and_names_the_bound():
    def refused(schedule, method=None, task=None):
        with pytest.raises(fp.FedpointError, match=r"fp\.theory\.asynchronous") as error:
            fp.forecast(method or fp.FedAvg(STEP, E), task or world(), schedule=schedule)
        return str(error.value)

    assert "unless its times are exponential" in refused(fp.Arrivals(fp.Clock(WORK, law="constant")))
    assert "unless its times are exponential" in refused(fp.Arrivals(fp.Clock(WORK, law="lognormal")))
    assert "unless its times are exponential" in refused(fp.Arrivals(fp.Clock(WORK, travel=0.1)))
    assert "unless its times are exponential" in refused(fp.Arrivals(CLOCK, deadline=3.0))
    assert "who is asked next" in refused(fp.Arrivals(CLOCK, working=2))
    assert "while a buffer fills" in refused(fp.Arrivals(CLOCK, buffer=2, dropout=0.1))
    assert "decaying" in refused(fp.Arrivals(CLOCK), fp.FedAvg(fp.steps.InverseTime(0.1, 10.0)))
    rng = np.random.default_rng(2)
    X, y, groups = rng.normal(size=(60, 2)), rng.integers(0, 2, 60), np.repeat(np.arange(3), 20)
    curved = fp.problems.Logistic(X, y, groups=groups, ridge=0.1)
    assert "affine" in refused(fp.Arrivals(CLOCK), fp.FedAvg(0.1), curved)
    with pytest.raises(fp.FedpointError, match="Median does not merge linearly"):
        fp.forecast(fp.FedAvg(STEP, E), world(), schedule=fp.Arrivals(CLOCK, buffer=3), gather=fp.gather.Median())


def test_a_step_that_is_too_long_for_late_answers_diverges_where_waiting_settles():
    """Three alike, w+ = w - a (held - c): waiting settles for a < 2; a third of the answers is fresh."""
    task = fp.problems.Quadratic(1.0, np.zeros((3, 1)) + 1.0)
    late = fp.forecast(fp.FedAvg(1.5), task, schedule=fp.Arrivals(fp.Clock(1.0)))
    assert not fp.forecast(fp.FedAvg(1.5), task).diverges
    assert late.diverges and "grows" in late.reason and late.floor == np.inf
    with pytest.raises(fp.FedpointError, match="about the nodes"):
        late.bound(10)
    assert fp.forecast(fp.FedAvg(0.3), task, schedule=fp.Arrivals(fp.Clock(1.0))).rate < 1


WAITING = {  # and the chance to answer in time
    "everyone": (fp.Waiting(CLOCK), fp.Everyone()),
    "two of them": (fp.Waiting(CLOCK, count=2), fp.Uniform(2)),
    "exponential": (fp.Waiting(fp.Clock(2.0, travel=0.25), deadline=2.0), 1 - np.exp(-1.5 / 2)),
    "lognormal": (fp.Waiting(fp.Clock(2.0, law="lognormal", spread=0.4), deadline=2 * np.exp(-0.08)), 0.5),  # median
    "lost": (fp.Waiting(fp.Clock(2.0, law="constant"), deadline=3.0, dropout=0.3), 0.7),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_hub_that_waits_is_forecast_without_its_clock(name):
    schedule, plain = WAITING[name]
    if isinstance(plain, float):
        plain = fp.Answering(fp.Everyone(), plain)
    both = {"schedule": schedule}, {"participation": plain}
    f, g = (fp.forecast(fp.FedAvg(STEP, E), world(noise=0.2), **options) for options in both)
    assert f.floor == pytest.approx(g.floor, rel=1e-9) and f.rate == pytest.approx(g.rate, rel=1e-9)


def test_runs_that_wait_until_a_deadline_are_checked():
    options = {"schedule": fp.Waiting(fp.Clock(2.0), count=3, keep=2, deadline=2.5), "rounds": 100, "repeats": 32}
    right = fp.check(fp.run(fp.FedAvg(0.05, 3), four(), **options))
    assert right and {"path", "limit", "floor", "step", "noise"} <= {c.name for c in right.checks if c.ok}
    longer = fp.check(fp.run(fp.FedAvg(0.07, 3), four(), **options), claims=fp.FedAvg(0.05, 3))
    assert longer.outcome == "contradicted"


def test_deadlines_that_favour_the_fast_are_refused():
    for schedule in (fp.Waiting(CLOCK, keep=2), fp.Waiting(CLOCK, deadline=2.0), Early(fp.Clock(1.0))):
        with pytest.raises(fp.FedpointError, match="how fast each agent is"):
            fp.forecast(fp.FedAvg(STEP, E), world(), schedule=schedule)


class Early(fp.Waiting):
    """Another law of rounds under an inherited name."""

    def rounds(self, luck, p, count):
        return super().rounds(luck, p, count)
