"""When do answers arrive, and what do they weigh? Timetables against event simulations of their own, and by hand."""

import numpy as np
import pytest
from late_world import ARRIVALS, CLOCK, ROUNDS, SEED, STEPS, WAITING, WORK, K, P, problem, run

import fedpoint as fp
from fedpoint.timing.base import Context
from fedpoint.timing.clock import STREAM


def seconds(rng, agents):
    """As the clock draws them: exponential around the agent's mean, and the way there and back."""
    return WORK[agents] * rng.exponential(size=np.shape(agents)) + 0.2


@pytest.mark.parametrize("name", WAITING)
def test_waiting_is_an_independent_simulation(name):
    scheme, rng, time = WAITING[name], np.random.default_rng([STREAM, SEED, 0]), 0.0
    timetable = run(name).session.timing
    answers = asked = 0
    for r in range(ROUNDS):
        agents = np.arange(K) if scheme.count is None else np.sort(rng.choice(K, scheme.count, replace=False))
        took = seconds(rng, agents)
        there = rng.random(len(agents)) >= scheme.dropout
        order = [k for _, k in sorted((t, n) for n, (t, ok) in enumerate(zip(took, there, strict=True)) if ok)]
        within = [n for n in order if scheme.deadline is None or took[n] <= scheme.deadline]
        kept = within if scheme.keep is None else within[: scheme.keep]
        everyone = len(kept) == (len(agents) if scheme.keep is None else scheme.keep)
        time += took[kept[-1]] if everyone else scheme.deadline
        np.testing.assert_array_equal(timetable.ticks.agents[0, r], agents)
        np.testing.assert_array_equal(np.flatnonzero(timetable.ticks.heard[0, r]), sorted(kept))
        weight = np.zeros(len(agents))
        weight[kept] = P[agents[kept]] * K / max(len(kept), 1)
        np.testing.assert_allclose(timetable.ticks.weight[0, r], weight, rtol=1e-14)
        np.testing.assert_allclose(timetable.clock[0, r], time, rtol=1e-13)
        assert timetable.ticks.merge[0, r] == (len(kept) >= scheme.minimum) and not timetable.ticks.age[0, r].any()
        answers, asked = answers + len(kept), asked + len(agents)
        np.testing.assert_array_equal(run(name).used[0, r + 1], [asked, answers, STEPS * answers])
    np.testing.assert_array_equal(run(name).time[0], [0.0, *timetable.clock[0, :ROUNDS]])
    assert name != "count" or not timetable.ticks.merge[0, :ROUNDS].all()  # some rounds were abandoned


@pytest.mark.parametrize("name", ARRIVALS)
def test_arrivals_are_an_independent_simulation(name):
    """All that is under way in one list, searched for what comes next; weights by the formula."""
    scheme, rng = ARRIVALS[name], np.random.default_rng([STREAM, SEED, 0])
    timetable = run(name).session.timing
    order = [int(k) for k in rng.permutation(K)]
    at_work = K if scheme.working is None else scheme.working
    idle, under_way, asked, merged, here, answers = order[at_work:], [], 0, 0, [], 0

    def ask(k, now):
        nonlocal asked
        took, lost = float(seconds(rng, k)), rng.random() < scheme.dropout
        if scheme.deadline is not None and (lost or took > scheme.deadline):
            took, lost = scheme.deadline, True
        under_way.append({"agent": k, "version": merged, "due": now + took, "lost": lost, "number": asked})
        asked += 1

    def replace(k, now):
        if idle:
            place = rng.integers(len(idle))
            k, idle[place] = idle[place], k
        ask(k, now)

    for k in order[:at_work]:
        ask(k, 0.0)
    before = 0.0
    while merged < ROUNDS:
        one = min(under_way, key=lambda e: (e["due"], e["number"]))
        under_way.remove(one)
        now = one["due"]
        if one["lost"]:
            replace(one["agent"], now)
            continue
        here.append(one)
        if len(here) < scheme.buffer:
            continue
        agents, age = [e["agent"] for e in here], np.array([merged - e["version"] for e in here])
        np.testing.assert_array_equal(timetable.ticks.agents[0, merged], agents)
        np.testing.assert_array_equal(timetable.ticks.age[0, merged], age)
        assert len(set(agents)) == len(agents) and now > before
        if isinstance(scheme.staleness, fp.staleness.Hinge):
            s = np.where(age <= 1, 1.0, 1 / (2.0 * (age - 1) + 1))
        else:
            s = (1.0 + age) ** -scheme.staleness.power
        weight = scheme.mixing * s * P[agents] * K / scheme.buffer
        np.testing.assert_allclose(timetable.ticks.weight[0, merged], weight, rtol=1e-14)
        np.testing.assert_allclose(timetable.clock[0, merged], now, rtol=1e-13)
        assert timetable.ticks.heard[0, merged].all() and timetable.ticks.merge[0, merged]
        answers += scheme.buffer
        np.testing.assert_array_equal(run(name).used[0, merged + 1], [asked, answers, STEPS * answers])
        merged, before, here = merged + 1, now, []
        for k in agents:
            replace(k, now)
    assert asked > at_work + (ROUNDS - 1) * scheme.buffer or scheme.dropout == 0


def test_arrivals_by_hand():
    """Agent 0 takes 1 second, agent 1 takes 2.5. Both are there at 5: agent 1, asked at 2.5, was asked first."""
    clock = fp.Clock([1.0, 2.5], law="constant")
    quad, method = fp.problems.Quadratic(1.0, [[0.0], [1.0]]), fp.FedAvg(0.1)
    timetable = fp.Arrivals(clock).bind(Context(quad, method, rounds=7))
    np.testing.assert_array_equal(timetable.ticks.agents[0, :, 0], [0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(timetable.ticks.age[0, :, 0], [0, 0, 2, 1, 0, 2, 1])
    np.testing.assert_array_equal(timetable.clock[0], [1, 2, 2.5, 3, 4, 5, 5])
    np.testing.assert_array_equal(timetable.ticks.asked[0], [2, 1, 1, 1, 1, 1, 1])
    # Two at a time: agent 0 waits for agent 1.
    timetable = fp.Arrivals(clock, buffer=2).bind(Context(quad, method, rounds=3))
    np.testing.assert_array_equal(timetable.ticks.agents[0], [[0, 1]] * 3)
    np.testing.assert_array_equal(timetable.clock[0], [2.5, 5, 7.5])
    assert not timetable.ticks.age.any()
    # Given up after 2 seconds, agent 1 is never heard; at 2 and 4 it is asked again before agent 0's answer is merged.
    timetable = fp.Arrivals(clock, deadline=2.0).bind(Context(quad, method, rounds=6))
    assert not timetable.ticks.agents.any() and (timetable.ticks.age[0, :, 0] == 0).all()
    np.testing.assert_array_equal(np.cumsum(timetable.ticks.asked[0]), [2, 4, 5, 7, 8, 10])


def test_waiting_by_hand():
    clock = fp.Clock([1.0, 2.0, 3.0, 4.0, 5.0], law="constant", travel=0.5)

    def timetable(**options):
        return fp.Waiting(clock, **options).bind(Context(problem(), fp.FedAvg(0.1), rounds=2))

    for options, heard, end in (
        ({}, [0, 1, 2, 3, 4], 6.0),
        ({"keep": 2}, [0, 1], 3.0),
        ({"deadline": 4.0}, [0, 1, 2], 4.0),  # there and back again in exactly 4
        ({"deadline": 3.5, "keep": 3}, [0, 1], 3.5),
    ):
        made = timetable(**options)
        np.testing.assert_array_equal(np.flatnonzero(made.ticks.heard[0, 1]), heard)
        np.testing.assert_allclose(made.clock[0], [end, 2 * end])
        np.testing.assert_allclose(made.ticks.weight[0, 0][heard], P[heard] * K / len(heard), rtol=1e-15)
        assert (
            made.ticks.merge.all()
            and (made.ticks.asked == K).all()
            and made.ticks.weight[0, 0].sum() == made.ticks.weight[0, 0][heard].sum()
        )
        np.testing.assert_array_equal(made.ticks.share[0, 0], np.where(made.ticks.heard[0, 0], P, 0))
    assert not timetable(deadline=3.5, minimum=3).ticks.merge.any()


def test_of_answers_that_come_at_once_only_so_many_are_kept():
    same = fp.Clock(1.0, law="constant")
    made = fp.Waiting(same, keep=2).bind(Context(problem(), fp.FedAvg(0.1), rounds=3))
    assert (made.ticks.heard.sum(-1) == 2).all()
    np.testing.assert_allclose(made.ticks.weight[0, 0, :2], P[:2] * K / 2)


def test_lost_answers_are_as_many_as_said():
    scheme = fp.Waiting(CLOCK, deadline=1e9, dropout=0.3)
    heard = scheme.bind(Context(problem(), fp.FedAvg(0.1), seed=1, repeats=2, rounds=400)).ticks.heard
    assert abs(heard.mean() - 0.7) < 4 * np.sqrt(0.21 / heard.size)
    assert (heard[0] != heard[1]).any()  # repeats have their own luck


@pytest.mark.parametrize(
    ("law", "by_hand"),
    [
        (fp.staleness.Constant(), [1, 1, 1, 1, 1, 1]),
        (fp.staleness.Polynomial(2.0), [1, 1 / 4, 1 / 9, 1 / 16, 1 / 25, 1 / 36]),
        (fp.staleness.Polynomial(), [1, 2**-0.5, 3**-0.5, 1 / 2, 5**-0.5, 6**-0.5]),
        (fp.staleness.Polynomial(0.0), [1, 1, 1, 1, 1, 1]),
        (fp.staleness.Hinge(2.0, 3.0), [1, 1, 1, 1, 1 / 3, 1 / 5]),
        (fp.staleness.Hinge(), [1, 1, 1, 1, 1, 1 / 11]),
    ],
)
def test_staleness_by_hand(law, by_hand):
    np.testing.assert_allclose(law.weight(np.arange(6)), by_hand, rtol=1e-15)
