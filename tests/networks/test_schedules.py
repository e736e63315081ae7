"""Do schedules mean what they say? Whole trajectories against a simulator that keeps every version of every model, and
who works and what is heard against what was promised."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import plain_network as plain
import pytest

import fedpoint as fp
from fedpoint.core.clock import STREAM
from fedpoint.core.schedule import AWAY, LATE, LOST, PHASE, WORKS
from fedpoint.runtimes.simulation import SCHEDULE

WORLD = plain.world()
NET = WORLD.network()
K, TICKS, SEED = 7, 1000, 3
WORK = np.array([0.3, 1.0, 0.5, 1.2, 0.8, 0.9, 0.6])
MESSAGES = np.count_nonzero(WORLD.A, axis=1)  # of a node that works: one to each neighbour


def neighbours(i):
    return np.flatnonzero(WORLD.A[i])


# All seven work in tick 0 (more places than the padded graph has arcs), then some; ages up to 8, beyond the start.
TRACE = (
    *((0, str(i), str(neighbours(i)[0]), 3) for i in range(K)),
    *((1, str(i), None, 0) for i in (0, 3, 6)),
    *((2, str(i), str(j), int(i + j) % 9) for i in (0, 5, 2, 4) for j in neighbours(i)),
    *((4, str(i), str(neighbours(i)[-1]), 8) for i in (6, 1, 0)),
)
SCHEDULES = {
    "synchronous": fp.Synchronous(),
    "random": fp.RandomActivation(3),
    "partial": fp.PartiallyAsynchronous(3, activity=0.4, delay=2, loss=0.2, away=0.2, stretch=4),
    "total": fp.TotallyAsynchronous(growth=0.2),
    "worst": fp.WorstCase(3),
    "replay": fp.Replay(TRACE),
    "own pace": fp.OwnPace(fp.Clock(WORK, travel=0.2), loss=0.1),
}
COUPLINGS = dict.fromkeys(SCHEDULES, (0.02, 0.1, 0.3)) | {"total": (0.02, 0.1)}  # delays that grow take their time
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


def algorithm(method, coupling):
    return fp.FedGD(WORLD.safe_step(coupling), coupling) if method == "fedgd" else fp.FedRelax(coupling)


def update(method, coupling):
    if method == "fedgd":
        return plain.fedgd(WORLD, coupling, WORLD.safe_step(coupling))
    return plain.fedrelax(WORLD, coupling)


@functools.cache
def plan(name):
    if name == "synchronous":
        return plain.in_step(K, TICKS)
    if name == "worst":  # by hand: all in the last of three ticks, and what they hear is three old
        nobody, everyone = np.zeros(0, int), np.arange(K)
        old = [np.full((K, K), min(k, 3)) for k in range(TICKS)]
        return [plain.Tick(everyone if k % 3 == 2 else nobody, old[k]) for k in range(TICKS)]
    return plain.plan(SCHEDULES[name], NET, TICKS, SEED)


@functools.cache
def run(name, method, coupling):
    method = algorithm(method, coupling)
    return fp.run(method, WORLD.problem(), network=NET, schedule=SCHEDULES[name], rounds=TICKS, seed=SEED)


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


# Partially asynchronous.


def luck(seed, ticks, purpose, count, first=0):
    """The uniform numbers of (tick, index), as the schedule draws them: (ticks, count)."""
    with jax.enable_x64(True):
        return np.asarray(_luck(fp.Key.of(seed, 0, SCHEDULE), jnp.arange(ticks) + first, purpose, jnp.arange(count)))


@jax.jit
def _luck(key, ticks, purpose, index):
    return jax.vmap(lambda t: key.fold(t, purpose).row().uniform_at(index))(ticks)


@pytest.mark.parametrize(
    "schedule",
    [
        SCHEDULES["partial"],
        pytest.param(fp.PartiallyAsynchronous(4, activity=0.7, loss=0.5), marks=pytest.mark.slow),
        pytest.param(fp.PartiallyAsynchronous(1, activity=0.0), marks=pytest.mark.slow),
    ],
    ids=["all of it", "default delay", "bound 1"],
)
def test_partially_asynchronous_hears_the_freshest_that_has_arrived(schedule):
    """Messages as events that travel forwards in time, where the schedule looks backwards, from the same luck."""
    ticks, arcs, B = 300, NET.arcs, schedule.bounded
    A = len(arcs.says)
    here = luck(SEED, ticks, AWAY, K)[np.arange(ticks) // schedule.stretch] >= schedule.away
    place = np.floor(luck(SEED, 1, PHASE, K)[0] * B)
    works = (here & (luck(SEED, ticks, WORKS, K) < schedule.activity)) | (np.arange(ticks)[:, None] % B == place)
    most = B if schedule.delay is None else schedule.delay
    late = np.floor(luck(SEED, ticks + 1, LATE, A) * (most + 1)).astype(int)
    lost = luck(SEED, ticks + 1, LOST, A) < schedule.loss
    known, arriving = np.zeros(A, int), [[] for _ in range(2 * ticks)]
    for k, tick in enumerate(plain.plan(schedule, NET, TICKS, SEED)[:ticks]):
        if k:
            for arc in range(A):  # version k was sent in tick k - 1
                if works[k - 1, arcs.says[arc]] and not lost[k, arc]:
                    arriving[k + late[k, arc]].append((arc, k))
        for arc, version in arriving[k]:
            known[arc] = max(known[arc], version)
        np.testing.assert_array_equal(tick.who, np.flatnonzero(works[k]))
        np.testing.assert_array_equal(tick.age[arcs.hears, arcs.says], k - np.maximum(known, max(0, k - B)))


def test_partially_asynchronous_keeps_its_promise():
    """Every node in every window of B ticks, wherever it begins; ages at most B, and some of them B."""
    worked = np.zeros((TICKS, K), bool)
    for k, tick in enumerate(plan("partial")):
        worked[k, tick.who] = True
    windows = np.lib.stride_tricks.sliding_window_view(worked, 3, axis=0)
    assert windows.any(axis=2).all() and not worked.all()
    ages = np.array([tick.age for tick in plan("partial")])
    assert ages.max() == SCHEDULES["partial"].bound() == 3
    assert SCHEDULES["partial"].depth(10) > 3 and SCHEDULES["synchronous"].bound() == 1
    assert fp.RandomActivation(3).bound() is None and fp.TotallyAsynchronous().bound() is None


def within(samples, expected):
    """Four standard errors of a mean of independent numbers."""
    samples = np.asarray(samples, float).ravel()
    return abs(samples.mean() - expected) <= 4 * max(samples.std(), 1e-3) / np.sqrt(len(samples))


def test_partially_asynchronous_has_the_rates_it_says():
    B, ticks, arcs = 3, TICKS, NET.arcs  # the program of "partial" with other numbers
    schedule = fp.PartiallyAsynchronous(B, activity=0.4, delay=2, loss=0.3, away=0.2, stretch=4)
    made = plain.plan(schedule, NET, ticks, seed=1)
    worked = np.zeros((ticks, K), bool)
    for k, tick in enumerate(made):
        worked[k, tick.who] = True
    place = np.array([next(r for r in range(B) if worked[r::B, i].all()) for i in range(K)])
    free = np.arange(ticks)[:, None] % B != place  # not demanded by the bound
    stretches = [worked[s : s + 4, i][free[s : s + 4, i]] for s in range(0, ticks, 4) for i in range(K)]
    assert within([one.mean() for one in stretches], 0.8 * 0.4)  # stretches are independent, ticks of one are not
    # Of n free ticks none is worked with probability 0.2 + 0.8 (1 - 0.4)^n: away for the whole stretch.
    assert within([not one.any() for one in stretches if len(one) == 3], 0.2 + 0.8 * 0.6**3)
    ages = np.array([tick.age[arcs.hears, arcs.says] for tick in made])
    sent = worked[:-1, arcs.says]
    assert within(ages[1:][sent] == 0, 0.7 / 3)  # sent in the last tick: heard at once if not lost, and not late


def test_partially_asynchronous_has_the_delays_it_says():
    """All send in every tick, delays uniform on 0 to D: the freshest is older than a when all of 0 to a take longer."""
    D = 2
    schedule = fp.PartiallyAsynchronous(3, activity=1.0, delay=D, stretch=4)
    made = plain.plan(schedule, NET, TICKS, seed=2)
    ages = np.array([tick.age[NET.arcs.hears, NET.arcs.says] for tick in made])[3::3]  # 3 apart: no common message
    for a in range(D):
        assert within(ages > a, np.prod([1 - (b + 1) / (D + 1) for b in range(a + 1)]))
    assert (ages <= D).all()  # nothing is lost


# The other schedules.


def test_random_activation_draws_uniformly():
    counts = np.zeros((TICKS, K))
    for k, tick in enumerate(plan("random")):
        counts[k, tick.who] = 1
        assert len(tick.who) == 3 and not tick.age.any()
    assert all(within(counts[:, i], 3 / K) for i in range(K))
    assert within(counts[:, 0] * counts[:, 1], 3 * 2 / (K * (K - 1)))


def test_totally_asynchronous_has_no_bound_but_advances():
    made = plan("total")
    ages = np.array([tick.age[NET.arcs.hears, NET.arcs.says] for tick in made])
    k = np.arange(TICKS)[:, None]
    assert (ages <= 0.2 * k).all() and ages.max() > 80
    some = k.ravel() >= 100
    most = np.floor(0.2 * k[some])
    assert within(ages[some] / most, 0.5)  # uniform on 0, ..., floor(growth k)
    assert within([len(tick.who) / K for tick in made], 0.5)
    assert (ages[: int(1 / 0.2)] == 0).all()


def test_a_replay_repeats_its_trace():
    made = plan("replay")
    period = 5
    assert SCHEDULES["replay"].period == period
    for k in range(2 * period, 4 * period):
        events = [e for e in TRACE if e[0] == k % period]
        assert sorted(made[k].who) == sorted({int(e[1]) for e in events})
        age = np.zeros((K, K), int)
        for _, i, j, a in events:
            if j is not None:
                age[int(i), int(j)] = a
        np.testing.assert_array_equal(made[k].age, age)
    assert not made[0].age.any() and made[4].age.max() == 4  # nothing is older than the start


def test_a_replay_is_read_from_a_file(tmp_path):
    file = tmp_path / "trace.csv"
    rows = ["node,tick,age,neighbour", *(f"{i},{t},{a or ''},{j or ''}" for t, i, j, a in TRACE)]
    file.write_text("\n".join(rows) + "\n")
    assert fp.Replay.read(file) == SCHEDULES["replay"]


def test_every_mistake_of_a_trace_is_told_at_once(tmp_path):
    file = tmp_path / "trace.csv"
    lines = [
        "tick,node,neighbour,age",
        "0,1,0,0",
        "x,1,0,0",
        "1,1,0,1.5",
        "-1,1,0,0",
        "2,1,0,-2",
        "3,,0,1",
        "4,1,,2",
        ",1,0,1",
    ]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(fp.FedpointError) as caught:
        fp.Replay.read(file)
    text = str(caught.value)
    for number, words in (
        (3, "whole numbers"),
        (4, "whole numbers"),
        (5, "at least 0"),
        (6, "at least 0"),
        (7, "no name of a node"),
        (8, "an age needs the neighbour"),
        (9, "whole numbers"),
    ):
        assert any(f"line {number}:" in part and words in part for part in text.split(";")), number
    assert "line 2:" not in text and str(file) in text
    many = tmp_path / "many.csv"
    many.write_text("tick,node\n" + "x,1\n" * 25)
    with pytest.raises(fp.FedpointError, match=r"line 11: .*\(and 15 more\)$"):
        fp.Replay.read(many)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs columns tick and node"),
        ("tick,node\n", "at least one row"),
        ("time,node\n1,2\n", "needs columns tick"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(fp.FedpointError, match=words):
        fp.Replay.read(tmp_path / "t.csv")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(fp.FedpointError, match="No such file"):
        fp.Replay.read(tmp_path / "none.csv")
    (tmp_path / "picture.csv").write_bytes(b"\xff\xfe\x00\x89PNG")
    with pytest.raises(fp.FedpointError, match=r"trace .*picture.csv"):
        fp.Replay.read(tmp_path / "picture.csv")


def test_a_trace_that_does_not_fit_the_network_lists_all_that_is_wrong():
    trace = fp.Replay(((0, "9", None, 0), (1, "3", "6", 1), (2, "1", "nobody", 1), (3, "1", "0", 1)))
    with pytest.raises(fp.FedpointError) as caught:
        fp.run(fp.FedRelax(), WORLD.problem(), network=NET, schedule=trace, rounds=1)
    for words in ("no node 9", "6 is not a neighbour of 3", "nobody is not a neighbour of 1"):
        assert words in str(caught.value)
    assert "tick 3" not in str(caught.value)


# Nodes at their own pace.


def test_own_pace_of_two_nodes_by_hand():
    """Node 0 takes 1 second, node 1 takes 2.5; messages arrive at once. Both are done at 5: node 0 comes first."""
    pair = fp.Network.complete(2)
    bound = fp.OwnPace(fp.Clock([1.0, 2.5], law="constant")).bind(pair, 0, 1, 7)
    np.testing.assert_array_equal(bound.agents[0, :, 0], [0, 0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(bound.clock[0], [1, 2, 2.5, 3, 4, 5, 5])
    # Tick 3 began at 2, when node 1 had said nothing; tick 4 at 3, and node 1 had said version 3 (tick 2) at 2.5.
    np.testing.assert_array_equal(bound.ages[0, :, 0, 0], [0, 1, 2, 3, 1, 2, 4])
    # With half a second on the way, what node 1 says at 2.5 is there at 3, and what node 0 says at 2 is there at 2.5.
    bound = fp.OwnPace(fp.Clock([1.0, 2.5], law="constant", travel=0.5)).bind(pair, 0, 1, 7)
    np.testing.assert_array_equal(bound.ages[0, :, 0, 0], [0, 1, 2, 3, 1, 2, 4])
    # With a little more, both are missed.
    bound = fp.OwnPace(fp.Clock([1.0, 2.5], law="constant", travel=0.6)).bind(pair, 0, 1, 7)
    np.testing.assert_array_equal(bound.ages[0, :, 0, 0], [0, 1, 2, 3, 4, 2, 5])


@pytest.mark.parametrize("law", ["exponential", "lognormal"])
def test_own_pace_is_an_independent_simulation(law):
    """The log of all events first; what was known when a work began is then read from the log."""
    clock, loss, ticks, seed = fp.Clock(WORK, law=law, travel=0.35), 0.25, 150, 11
    bound = fp.OwnPace(clock, loss=loss).bind(NET, seed, 2, ticks)
    for repeat in range(2):
        rng = np.random.default_rng([STREAM, seed, repeat])

        def seconds(i, rng=rng):
            if law == "exponential":
                return WORK[i] * rng.exponential(size=np.shape(i))
            return WORK[i] * np.exp(0.5 * rng.standard_normal(np.shape(i)) - 0.125)

        done = dict(enumerate(seconds(np.arange(K))))  # when the work at hand ends
        began = dict.fromkeys(range(K), (0.0, -1))  # and when it began: time, tick
        log = []  # (end, node, began, who of the neighbours got it)
        for k in range(ticks):
            end, i = sorted((t, i) for i, t in done.items())[0]
            got = {j for j in neighbours(i) if rng.random() >= loss}
            log.append((end, i, began[i], got))
            began[i], done[i] = (end, k), end + seconds(i)
        np.testing.assert_array_equal(bound.agents[repeat, :, 0], [e[1] for e in log])
        np.testing.assert_allclose(bound.clock[repeat], [e[0] for e in log], rtol=1e-14)
        for k, (_, i, (since, tick), _) in enumerate(log):
            for n, j in enumerate(neighbours(i)):
                versions = [
                    m + 1 for m in range(tick + 1) if log[m][1] == j and i in log[m][3] and log[m][0] + 0.35 <= since
                ]
                assert bound.ages[repeat, k, 0, n] == k - max(versions, default=0)
        assert (np.diff(bound.clock[repeat]) >= 0).all()


def test_virtual_time_is_the_timetables():
    done = run("own pace", "fedgd", 0.1)
    bound = SCHEDULES["own pace"].bind(NET, SEED, 1, TICKS)
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
    exponential = fp.InStep(fp.Clock(WORK)).bind(NET, SEED, 1, 50).clock[0]
    rng = np.random.default_rng([STREAM, SEED, 0])
    np.testing.assert_allclose(
        np.diff(exponential, prepend=0), [(WORK * rng.exponential(size=K)).max() for _ in range(50)]
    )


# What makes no sense.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.RandomActivation(0), "count must be a whole number, at least 1, got 0"),
        (lambda: fp.PartiallyAsynchronous(0), "bounded must be a whole number, at least 1"),
        (lambda: fp.PartiallyAsynchronous(2, delay=3), "a delay of 3 ticks exceeds the bound of 2"),
        (lambda: fp.PartiallyAsynchronous(2, activity=1.5), "activity must be a probability"),
        (lambda: fp.PartiallyAsynchronous(2, loss=-0.1), "loss must be a probability"),
        (lambda: fp.PartiallyAsynchronous(2, away=float("nan")), "away must be a probability"),
        (lambda: fp.PartiallyAsynchronous(2, stretch=0), "stretch must be a whole number"),
        (lambda: fp.TotallyAsynchronous(growth=1.0), "growth must be at least 0 and below 1"),
        (lambda: fp.TotallyAsynchronous(growth="fast"), "growth must be at least 0 and below 1"),
        (lambda: fp.TotallyAsynchronous(activity=0.0), "activity must be a probability, above 0"),
        (lambda: fp.WorstCase(1.5), "bounded must be a whole number"),
        (lambda: fp.OwnPace(1.0), "clock must be an fp.Clock"),
        (lambda: fp.InStep(None), "clock must be an fp.Clock"),
        (lambda: fp.OwnPace(fp.Clock(), loss=2.0), "loss must be a probability"),
        (lambda: fp.Replay(()), "there is no event"),
        (
            lambda: fp.Replay(((0, "a", None, 0), (-1, "a", None, 0), (0, "a", "b", -1))),
            r"-1, 'a'.*at least 0;.*'b', -1",
        ),
        (lambda: fp.Replay((("a", 0),)), "an event is"),
        (lambda: fp.Clock(0.0), "work must be seconds above 0"),
        (lambda: fp.Clock("fast"), "work must be seconds above 0"),
        (lambda: fp.Clock([1.0, float("inf")]), "work must be seconds above 0"),
        (lambda: fp.Clock(law="uniform"), "unknown law 'uniform'"),
        (lambda: fp.Clock(travel=-1.0), "travel must be a number, at least 0"),
        (lambda: fp.Clock(travel=float("inf")), "travel must be a number, at least 0"),
        (lambda: fp.Clock(spread=float("nan")), "spread must be a number, at least 0"),
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
        ({"schedule": "fast", "network": NET}, "schedule must be one for networks"),
    ],
)
def test_what_does_not_fit_the_network_is_refused(options, words):
    with pytest.raises(fp.FedpointError, match=words):
        fp.run(fp.FedGD(0.1), WORLD.problem(), rounds=1, **options)


def test_growth_zero_is_never_stale():
    """As a whole number too."""
    made = plain.plan(fp.TotallyAsynchronous(growth=0, activity=1), NET, 20)
    assert all(len(tick.who) == K and not tick.age.any() for tick in made)


def test_the_mean_time_is_the_one_given():
    rng = np.random.default_rng(0)
    for law in ("exponential", "lognormal"):
        assert within(fp.Clock(2.0, law=law).draw(rng, np.zeros(4000, int)), 2.0)
    times = fp.Clock.sample(2000, spread=0.8, seed=1).work
    assert within(np.log(times), 0.0) and abs(np.log(times).std() - 0.8) < 4 * 0.8 / np.sqrt(2 * 2000)
    assert (
        fp.Clock.sample(5, seed=2, law="constant").draw(rng, np.arange(5)).tolist()
        == fp.Clock.sample(5, seed=2).work.tolist()
    )


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
