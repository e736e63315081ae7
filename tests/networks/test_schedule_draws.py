"""Do schedules draw what they say? Who works and what is heard, tick by tick, against what was promised."""

import jax
import jax.numpy as jnp
import numpy as np
import plain_network as plain
import pytest
from schedule_world import NET, SCHEDULES, SEED, TICKS, WORK, K, neighbours, plan, within

import fedpoint as fp
from fedpoint.engine.state import SCHEDULE
from fedpoint.timing.base import Context
from fedpoint.timing.clock import STREAM
from fedpoint.timing.schedule import AWAY, LATE, LOST, PHASE, WORKS

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


# Nodes at their own pace.


def test_own_pace_of_two_nodes_by_hand():
    """Node 0 takes 1 second, node 1 takes 2.5; messages arrive at once. Both are done at 5: node 0 comes first."""
    pair = fp.Network.complete(2)
    bound = fp.OwnPace(fp.Clock([1.0, 2.5], law="constant")).bind(Context(network=pair, rounds=7))
    np.testing.assert_array_equal(bound.agents[0, :, 0], [0, 0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(bound.clock[0], [1, 2, 2.5, 3, 4, 5, 5])
    # Tick 3 began at 2, when node 1 had said nothing; tick 4 at 3, and node 1 had said version 3 (tick 2) at 2.5.
    np.testing.assert_array_equal(bound.ages[0, :, 0, 0], [0, 1, 2, 3, 1, 2, 4])
    # With half a second on the way, what node 1 says at 2.5 is there at 3, and what node 0 says at 2 is there at 2.5.
    bound = fp.OwnPace(fp.Clock([1.0, 2.5], law="constant", travel=0.5)).bind(Context(network=pair, rounds=7))
    np.testing.assert_array_equal(bound.ages[0, :, 0, 0], [0, 1, 2, 3, 1, 2, 4])
    # With a little more, both are missed.
    bound = fp.OwnPace(fp.Clock([1.0, 2.5], law="constant", travel=0.6)).bind(Context(network=pair, rounds=7))
    np.testing.assert_array_equal(bound.ages[0, :, 0, 0], [0, 1, 2, 3, 4, 2, 5])


@pytest.mark.parametrize("law", ["exponential", "lognormal"])
def test_own_pace_is_an_independent_simulation(law):
    """The log of all events first; what was known when a work began is then read from the log."""
    clock, loss, ticks, seed = fp.Clock(WORK, law=law, travel=0.35), 0.25, 150, 11
    bound = fp.OwnPace(clock, loss=loss).bind(Context(network=NET, seed=seed, repeats=2, rounds=ticks))
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
