"""Do runs under schedules do what they must? Whole trajectories against a simulator that keeps every version of every
model, the bound of partial asynchrony, and what is refused."""

import numpy as np
import plain_network as plain
import pytest
from schedule_world import COUPLINGS, MESSAGES, NET, SCHEDULES, SEED, TICKS, WORK, WORLD, K, plan, run

import fedpoint as fp
from fedpoint.timing.base import Context
from fedpoint.timing.clock import STREAM

under_every_schedule = pytest.mark.parametrize("name", SCHEDULES)
of_both = pytest.mark.parametrize("method", ["fedgd", "fedrelax"])
# A program takes a second to compile. What a schedule does is the same for both methods: a few pairs only when asked.
SLOW = [
    ("random", "fedrelax"),
    ("partial", "fedrelax"),
    ("total", "fedrelax"),
    ("replay", "fedrelax"),
    ("worst", "fedrelax"),
]
of_both_under_every_schedule = pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(name, method, marks=[pytest.mark.slow] if (name, method) in SLOW else [])
        for name in SCHEDULES
        for method in ("fedgd", "fedrelax")
    ],
)


def update(method, coupling):
    if method == "fedgd":
        return plain.fedgd(WORLD, coupling, WORLD.safe_step(coupling))
    return plain.fedrelax(WORLD, coupling)


@of_both_under_every_schedule
def test_trajectories_are_the_simulators(name, method):
    """Contractions: a rounding error does not grow, so 1e-12 is far above what 600 ticks leave."""
    versions = plain.simulate(update(method, 0.1), np.zeros((K, 2)), plan(name)[:300])
    np.testing.assert_allclose(run(name, method, 0.1).history[0, :301], versions, rtol=0, atol=1e-12)


@of_both_under_every_schedule
def test_every_schedule_ends_at_gtvmins_solution(name, method):
    for coupling in COUPLINGS[name]:
        done, solution = run(name, method, coupling), WORLD.gtvmin(coupling)
        np.testing.assert_allclose(fp.gtv.solve(WORLD.problem(), NET, coupling), solution, rtol=0, atol=1e-12)
        np.testing.assert_allclose(done.models[0], solution, rtol=0, atol=1e-9)
        gaps = ((done.history - solution) ** 2).sum(axis=(2, 3)) / K
        np.testing.assert_allclose(done.error, gaps, rtol=1e-9, atol=1e-20)


@under_every_schedule
def test_messages_and_work_are_counted_to_the_last(name):
    """A node that works sends one message to each neighbour; there is no hub that sends models down."""
    sent = np.cumsum([MESSAGES[tick.who].sum() for tick in plan(name)])
    worked = np.cumsum([len(tick.who) for tick in plan(name)])
    used = run(name, "fedgd", 0.1).used[0]
    np.testing.assert_array_equal(used[1:, 0], 0)
    np.testing.assert_array_equal(used[1:, 1], sent)
    np.testing.assert_array_equal(used[1:, 2], worked)
    cost = run(name, "fedgd", 0.1).cost
    assert cost.floats_up == 2 * sent[-1] and cost.bytes_up == 16 * sent[-1]


@under_every_schedule
def test_no_age_reaches_before_the_start(name):
    for k, tick in enumerate(plan(name)):
        assert tick.age.min() >= 0 and tick.age.max() <= k
        assert len(set(tick.who.tolist())) == len(tick.who)


# Time.


def test_virtual_time_is_the_timetables():
    done = run("own pace", "fedgd", 0.1)
    bound = SCHEDULES["own pace"].bind(Context(network=NET, seed=SEED, rounds=TICKS))
    np.testing.assert_array_equal(done.time[0], [0.0, *bound.clock[0]])
    assert run("partial", "fedgd", 0.1).time[0, -1] == TICKS  # without a clock a tick is a second
    # In the long run a node works in proportion to its speed.
    share = np.bincount(bound.agents[0, :, 0], minlength=K) / TICKS
    assert np.abs(share - (1 / WORK) / (1 / WORK).sum()).max() < 4 * np.sqrt(0.25 / TICKS)


def test_in_step_waits_for_the_slowest():
    clock = fp.Clock(WORK, law="constant", travel=0.25)
    options = {"network": NET, "rounds": 40}
    done = fp.run(fp.FedRelax(0.1), WORLD.problem(), schedule=fp.InStep(clock), **options)
    np.testing.assert_allclose(done.time[0], 1.45 * np.arange(41), rtol=1e-13)
    np.testing.assert_array_equal(done.history, run("synchronous", "fedrelax", 0.1).history[:, :41])
    np.testing.assert_array_equal(done.used, run("synchronous", "fedrelax", 0.1).used[:, :41])
    exponential = fp.InStep(fp.Clock(WORK)).bind(Context(network=NET, seed=SEED, rounds=50)).clock[0]
    rng = np.random.default_rng([STREAM, SEED, 0])
    np.testing.assert_allclose(
        np.diff(exponential, prepend=0), [(WORK * rng.exponential(size=K)).max() for _ in range(50)]
    )


# The bound of partial asynchrony.


def distances(history, solution):
    """V_k = max_i |w_i(k) - w_i*|."""
    return np.sqrt(((history - solution) ** 2).sum(-1)).max(-1)


def bound(kappa, B, ticks):
    k = np.arange(ticks + 1)
    return np.where(k < B, 1.0, kappa ** (1.0 + np.maximum(k - B, 0) // (2 * B)))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("synchronous", "fedgd"),
        ("synchronous", "fedrelax"),
        ("partial", "fedgd"),
        pytest.param("partial", "fedrelax", marks=pytest.mark.slow),
        ("worst", "fedgd"),
        pytest.param("worst", "fedrelax", marks=pytest.mark.slow),
    ],
)
def test_the_bound_is_never_violated(name, method):
    B = SCHEDULES[name].bound()
    for coupling in (0.02, 0.3):
        V = distances(run(name, method, coupling).history[0], WORLD.gtvmin(coupling))
        safe = bound(WORLD.factor(method, coupling), B, TICKS)
        np.testing.assert_allclose(
            fp.theory.asynchronous(WORLD.factor(method, coupling), B, TICKS).safe, safe, rtol=1e-12
        )
        assert (V / V[0] <= safe * (1 + 1e-12) + 1e-14).all()


@of_both
def test_the_bound_is_never_violated_over_adversarial_plans(method):
    """Plans that no schedule of the library makes: who works and what is heard drawn anew, or as late as allowed."""
    rng = np.random.default_rng(8)
    for trial in range(6):
        B, ticks, coupling = (2, 3, 5)[trial % 3], 60, 0.3
        due = rng.integers(B, size=K)
        made = []
        for k in range(ticks):
            who = np.flatnonzero((k % B == due) | (rng.random(K) < 0.3 * (trial < 3)))
            age = rng.integers(B + 1, size=(K, K)) if trial % 2 else np.full((K, K), B)
            made.append(plain.Tick(who, np.minimum(age, k)))
        V = distances(
            plain.simulate(update(method, coupling), 3 * rng.standard_normal((K, 2)), made), WORLD.gtvmin(coupling)
        )
        assert (V / V[0] <= bound(WORLD.factor(method, coupling), B, ticks) * (1 + 1e-12)).all()


def test_the_worst_case_attains_the_bound():
    """Equal quadratics on a ring: every error is multiplied by kappa itself."""
    s, coupling, B, ticks = 1.3, 0.4, 4, 70
    ring, quad = fp.Network.ring(5), fp.problems.Quadratic(s, np.full((5, 2), 0.5))
    done = fp.run(fp.FedRelax(coupling), quad, network=ring, schedule=fp.WorstCase(B), rounds=ticks, start=[3.0, -1.0])
    kappa = 1 / (1 + s / (2 * coupling * 2))
    V = distances(done.history[0], np.full((5, 2), 0.5))
    np.testing.assert_allclose(V / V[0], bound(kappa, B, ticks), rtol=1e-11)
    assert fp.WorstCase(B).bound() == B


# What makes no sense.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.RandomActivation(0), "count must be a whole number, at least 1, got 0"),
        (lambda: fp.PartiallyAsynchronous(0), "bounded must be a whole number, at least 1"),
        (lambda: fp.PartiallyAsynchronous(2, delay=3), "a delay of 3 ticks exceeds the bound of 2"),
        (lambda: fp.PartiallyAsynchronous(2, activity=1.5), "activity must be a probability"),
        (lambda: fp.PartiallyAsynchronous(2, loss=-0.1), "loss must be a probability"),
        (lambda: fp.PartiallyAsynchronous(2, away=float("nan")), "away must be a number; got nan"),
        (lambda: fp.PartiallyAsynchronous(2, stretch=0), "stretch must be a whole number"),
        (lambda: fp.TotallyAsynchronous(growth=1.0), "growth must be at least 0 and below 1"),
        (lambda: fp.TotallyAsynchronous(growth="fast"), "growth must be a number; got 'fast'"),
        (lambda: fp.TotallyAsynchronous(activity=0.0), "activity must be a probability, above 0"),
        (lambda: fp.WorstCase(1.5), "bounded must be a whole number"),
        (lambda: fp.OwnPace(1.0), "clock must be a Clock; got 1.0"),
        (lambda: fp.InStep(None), "clock must be a Clock; got None"),
        (lambda: fp.OwnPace(fp.Clock(), loss=2.0), "loss must be a probability"),
        (lambda: fp.Replay(()), "there is no event"),
        (
            lambda: fp.Replay(((0, "a", None, 0), (-1, "a", None, 0), (0, "a", "b", -1))),
            r"-1, 'a'.*at least 0;.*'b', -1",
        ),
        (lambda: fp.Replay((("a", 0),)), "tick and age must be whole numbers"),
        (lambda: fp.Replay(((0,),)), "an event is"),
        (lambda: fp.Clock(0.0), "work must be seconds above 0"),
        (lambda: fp.Clock("fast"), "work must be a number or an array; got 'fast'"),
        (lambda: fp.Clock([1.0, float("inf")]), "work must be seconds above 0"),
        (lambda: fp.Clock(law="uniform"), "unknown law 'uniform'"),
        (lambda: fp.Clock(travel=-1.0), "travel must be a number, at least 0"),
        (lambda: fp.Clock(travel=float("inf")), "travel must be a number, at least 0"),
        (lambda: fp.Clock(spread=float("nan")), "spread must be a number; got nan"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(make, words):
    with pytest.raises(fp.FedpointError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": fp.RandomActivation(8), "network": NET}, "8 nodes of 7 cannot work"),
        ({"schedule": fp.OwnPace(fp.Clock([1.0, 2.0])), "network": NET}, "2 times for 7 agents"),
        ({"schedule": fp.InStep(fp.Clock([1.0, 2.0])), "network": NET}, "2 times for 7 agents"),
        ({"schedule": fp.WorstCase(2)}, "WorstCase is a schedule for networks: give network="),
        ({}, "FedGD runs on a network: give network="),
        ({"schedule": fp.Arrivals(fp.Clock()), "network": NET}, "schedule must be one for networks"),
        ({"participation": 2, "network": NET}, "take turns by schedule=, not by participation="),
        ({"schedule": "fast", "network": NET}, "schedule must be a Schedule"),
    ],
)
def test_what_does_not_fit_the_network_is_refused(options, words):
    with pytest.raises(fp.FedpointError, match=words):
        fp.run(fp.FedGD(0.1), WORLD.problem(), rounds=1, **options)


# Would a mistake be found? Each of these is one that an engine of stale messages could make.


def stale_own(update):
    """The own value is as old as the oldest that is heard."""

    def simulate(start, ticks):
        versions = [start]
        for k, (who, age) in enumerate(ticks):
            new = versions[-1].copy()
            for i in who:
                heard = np.array([versions[k - age[i, j]][j] for j in range(K)])
                new[i] = update(i, k, versions[k - age[i].max()][i], heard)
            versions.append(new)
        return np.array(versions)

    return simulate


MISTAKES = {
    "current instead of stale": lambda tick, k: plain.Tick(tick.who, 0 * tick.age),
    "a tick too old": lambda tick, k: plain.Tick(tick.who, np.minimum(tick.age + 1, k)),
    "a tick too new": lambda tick, k: plain.Tick(tick.who, np.maximum(tick.age - 1, 0)),
    "ages of the other direction": lambda tick, k: plain.Tick(tick.who, tick.age.T),
    "all work": lambda tick, k: plain.Tick(np.arange(K), tick.age),
}


@pytest.mark.parametrize("mistake", [*MISTAKES, "own value stale"])
def test_a_mistake_in_the_ages_is_convicted(mistake):
    """By the comparison of trajectories: what it changes is of order 1e-3, the tolerance is 1e-12."""
    ticks = plan("partial")[:100]
    found = run("partial", "fedgd", 0.1).history[0, :101]
    step = update("fedgd", 0.1)
    if mistake == "own value stale":
        wrong = stale_own(step)(np.zeros((K, 2)), ticks)
    else:
        wrong = plain.simulate(step, np.zeros((K, 2)), [MISTAKES[mistake](tick, k) for k, tick in enumerate(ticks)])
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found, wrong, rtol=0, atol=1e-4)
