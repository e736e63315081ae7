"""Fusion centers on a clock: answers that come late, get lost, or are not waited for.

Trajectories against a NumPy replay of the run's own timetable, which keeps every version of the hub; the timetable
against event simulations of its own, and by hand.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.clock import STREAM
from fedpoint.core.participation import as_participation
from fedpoint.runtimes.session import Session

K, D, ROUNDS, SEED = 5, 2, 60, 4
P = np.array([0.3, 0.1, 0.25, 0.2, 0.15])
WORK = np.array([0.4, 1.0, 2.0, 0.7, 6.0])
CLOCK = fp.Clock(WORK, travel=0.1)
START = np.array([1.5, -2.0])
STEP, STEPS = 0.11, 2


@functools.cache
def hessians():
    rng = np.random.default_rng(6)
    axes = [np.linalg.qr(rng.standard_normal((D, D)))[0] for _ in range(K)]
    H = np.stack([q @ np.diag(rng.uniform(0.5, 2.0, D)) @ q.T for q in axes])
    return (H + np.swapaxes(H, 1, 2)) / 2, rng.standard_normal((K, D))


def problem(p=P, noise=0.0):
    return fp.problems.Quadratic(*hessians(), noise=noise, weights=p)


def solution(p=P):
    H, c = hessians()
    return np.linalg.solve(np.tensordot(p, H, 1), np.einsum("k,kij,kj->i", p, H, c))


def descent(k, x, shift=0.0, steps=STEPS, step=STEP):
    H, c = hessians()
    for _ in range(steps):
        x = x - step * (H[k] @ (x - c[k]) + shift)
    return x


WAITING = {
    "keep": fp.Waiting(CLOCK, keep=3),
    "deadline": fp.Waiting(CLOCK, deadline=1.3),
    "count": fp.Waiting(CLOCK, count=4, deadline=2.0, dropout=0.3, minimum=2),
}
ARRIVALS = {
    "one by one": fp.Arrivals(CLOCK, staleness=fp.Polynomial(0.5), mixing=0.6),
    "buffer": fp.Arrivals(CLOCK, working=4, buffer=2, staleness=fp.Hinge(2.0, 1.0), dropout=0.2, deadline=3.0),
    "models": fp.Arrivals(CLOCK, staleness=fp.Polynomial(1.0), mixing=0.5, models=True),
}
EVERY = WAITING | ARRIVALS


@functools.cache
def run(name):
    method = fp.FedAvg(STEP, STEPS, normalise=False)
    return fp.run(method, problem(), rounds=ROUNDS, schedule=EVERY[name], start=START, seed=SEED)


def table(done, rounds=ROUNDS, repeat=0):
    """(agents, age, weight, heard, merge) of each round."""
    t = done.session.participation
    return [
        tuple(getattr(t, n)[repeat, r] for n in ("agents", "age", "weight", "heard", "merge")) for r in range(rounds)
    ]


def replay(rounds, models=False, step=STEP):
    """w+ = w + sum_l weight_l (y_l - x), y_l from the hub's version `age` rounds ago, x that version or (models) w."""
    versions = [START]
    for r, (agents, age, weight, heard, merge) in enumerate(rounds):
        w = new = versions[-1]
        for k, a, v, there in zip(agents, age, weight, heard, strict=True):
            if there and merge:
                then = versions[r - a]
                new = new + v * (descent(k, then, step=step) - (w if models else then))
        versions.append(new)
    return np.array(versions)


@pytest.mark.parametrize("name", EVERY)
def test_trajectories_are_the_replays(name):
    """60 rounds of a stable recursion on numbers of order 1: about 1e3 roundings of 1e-16."""
    rounds = table(run(name))
    ages = np.array([age for _, age, *_ in rounds])
    assert (ages.max() >= 2) == (name in ARRIVALS)
    np.testing.assert_allclose(run(name).history[0], replay(rounds, name == "models"), rtol=0, atol=1e-12)


def test_fedasync_by_hand():
    """w <- (1 - a s) w + a s w_k, with p = 1/K."""
    p = np.full(K, 1 / K)
    method = fp.FedAvg(STEP, STEPS, normalise=False)
    done = fp.run(method, problem(p), rounds=ROUNDS, schedule=ARRIVALS["models"], start=START, seed=SEED)
    versions = [START]
    for r, (agents, age, *_) in enumerate(table(done)):
        a = 0.5 / (1 + age[0])
        versions.append((1 - a) * versions[-1] + a * descent(agents[0], versions[r - age[0]]))
    np.testing.assert_allclose(done.history[0], versions, rtol=0, atol=1e-12)


# Timetables.


def seconds(rng, agents):
    """As the clock draws them: exponential around the agent's mean, and the way there and back."""
    return WORK[agents] * rng.exponential(size=np.shape(agents)) + 0.2


@pytest.mark.parametrize("name", WAITING)
def test_waiting_is_an_independent_simulation(name):
    scheme, rng, time = WAITING[name], np.random.default_rng([STREAM, SEED, 0]), 0.0
    timetable = run(name).session.participation
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
        np.testing.assert_array_equal(timetable.agents[0, r], agents)
        np.testing.assert_array_equal(np.flatnonzero(timetable.heard[0, r]), sorted(kept))
        weight = np.zeros(len(agents))
        weight[kept] = P[agents[kept]] * K / max(len(kept), 1)
        np.testing.assert_allclose(timetable.weight[0, r], weight, rtol=1e-14)
        np.testing.assert_allclose(timetable.clock[0, r], time, rtol=1e-13)
        assert timetable.merge[0, r] == (len(kept) >= scheme.minimum) and not timetable.age[0, r].any()
        answers, asked = answers + len(kept), asked + len(agents)
        np.testing.assert_array_equal(run(name).used[0, r + 1], [asked, answers, STEPS * answers])
    np.testing.assert_array_equal(run(name).time[0], [0.0, *timetable.clock[0, :ROUNDS]])
    assert name != "count" or not timetable.merge[0, :ROUNDS].all()  # some rounds were abandoned


@pytest.mark.parametrize("name", ARRIVALS)
def test_arrivals_are_an_independent_simulation(name):
    """All that is under way in one list, searched for what comes next; weights by the formula."""
    scheme, rng = ARRIVALS[name], np.random.default_rng([STREAM, SEED, 0])
    timetable = run(name).session.participation
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
        np.testing.assert_array_equal(timetable.agents[0, merged], agents)
        np.testing.assert_array_equal(timetable.age[0, merged], age)
        assert len(set(agents)) == len(agents) and now > before
        if isinstance(scheme.staleness, fp.Hinge):
            s = np.where(age <= 1, 1.0, 1 / (2.0 * (age - 1) + 1))
        else:
            s = (1.0 + age) ** -scheme.staleness.power
        weight = scheme.mixing * s * P[agents] * K / scheme.buffer
        np.testing.assert_allclose(timetable.weight[0, merged], weight, rtol=1e-14)
        np.testing.assert_allclose(timetable.clock[0, merged], now, rtol=1e-13)
        assert timetable.heard[0, merged].all() and timetable.merge[0, merged]
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
    timetable = fp.Arrivals(clock).timed(quad, method, 0, 1, 7)
    np.testing.assert_array_equal(timetable.agents[0, :, 0], [0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(timetable.age[0, :, 0], [0, 0, 2, 1, 0, 2, 1])
    np.testing.assert_array_equal(timetable.clock[0], [1, 2, 2.5, 3, 4, 5, 5])
    np.testing.assert_array_equal(timetable.asked[0], [2, 1, 1, 1, 1, 1, 1])
    # Two at a time: agent 0 waits for agent 1.
    timetable = fp.Arrivals(clock, buffer=2).timed(quad, method, 0, 1, 3)
    np.testing.assert_array_equal(timetable.agents[0], [[0, 1]] * 3)
    np.testing.assert_array_equal(timetable.clock[0], [2.5, 5, 7.5])
    assert not timetable.age.any()
    # Given up after 2 seconds, agent 1 is never heard; at 2 and 4 it is asked again before agent 0's answer is merged.
    timetable = fp.Arrivals(clock, deadline=2.0).timed(quad, method, 0, 1, 6)
    assert not timetable.agents.any() and (timetable.age[0, :, 0] == 0).all()
    np.testing.assert_array_equal(np.cumsum(timetable.asked[0]), [2, 4, 5, 7, 8, 10])


def test_waiting_by_hand():
    clock = fp.Clock([1.0, 2.0, 3.0, 4.0, 5.0], law="constant", travel=0.5)

    def timetable(**options):
        return fp.Waiting(clock, **options).timed(problem(), fp.FedAvg(0.1), 0, 1, 2)

    for options, heard, end in (
        ({}, [0, 1, 2, 3, 4], 6.0),
        ({"keep": 2}, [0, 1], 3.0),
        ({"deadline": 4.0}, [0, 1, 2], 4.0),  # there and back again in exactly 4
        ({"deadline": 3.5, "keep": 3}, [0, 1], 3.5),
    ):
        made = timetable(**options)
        np.testing.assert_array_equal(np.flatnonzero(made.heard[0, 1]), heard)
        np.testing.assert_allclose(made.clock[0], [end, 2 * end])
        np.testing.assert_allclose(made.weight[0, 0][heard], P[heard] * K / len(heard), rtol=1e-15)
        assert (
            made.merge.all() and (made.asked == K).all() and made.weight[0, 0].sum() == made.weight[0, 0][heard].sum()
        )
        np.testing.assert_array_equal(made.share[0, 0], np.where(made.heard[0, 0], P, 0))
    assert not timetable(deadline=3.5, minimum=3).merge.any()


def test_of_answers_that_come_at_once_only_so_many_are_kept():
    same = fp.Clock(1.0, law="constant")
    made = fp.Waiting(same, keep=2).timed(problem(), fp.FedAvg(0.1), 0, 1, 3)
    assert (made.heard.sum(-1) == 2).all()
    np.testing.assert_allclose(made.weight[0, 0, :2], P[:2] * K / 2)


def test_a_round_with_too_few_answers_changes_nothing_but_costs():
    scheme = fp.Waiting(fp.Clock(WORK, law="constant"), deadline=1.0, minimum=4)
    method = fp.Scaffold(STEP, STEPS, server_step=0.5)  # the program of `scaffold`
    done = fp.run(method, problem(), rounds=LONG, schedule=scheme, start=START, exact=True)
    np.testing.assert_array_equal(done.history[0], np.tile(START, (LONG + 1, 1)))
    assert not done.memories.any()
    np.testing.assert_array_equal(done.used[0, -1, :2], [5 * LONG, 3 * LONG])  # 0, 1 and 3 answered in time
    assert done.time[0, -1] == LONG


def test_lost_answers_are_as_many_as_said():
    scheme = fp.Waiting(CLOCK, deadline=1e9, dropout=0.3)
    heard = scheme.timed(problem(), fp.FedAvg(0.1), 1, 2, 400).heard
    assert abs(heard.mean() - 0.7) < 4 * np.sqrt(0.21 / heard.size)
    assert (heard[0] != heard[1]).any()  # repeats have their own luck


@pytest.mark.parametrize(
    ("law", "by_hand"),
    [
        (fp.Constant(), [1, 1, 1, 1, 1, 1]),
        (fp.Polynomial(2.0), [1, 1 / 4, 1 / 9, 1 / 16, 1 / 25, 1 / 36]),
        (fp.Polynomial(), [1, 2**-0.5, 3**-0.5, 1 / 2, 5**-0.5, 6**-0.5]),
        (fp.Polynomial(0.0), [1, 1, 1, 1, 1, 1]),
        (fp.Hinge(2.0, 3.0), [1, 1, 1, 1, 1 / 3, 1 / 5]),
        (fp.Hinge(), [1, 1, 1, 1, 1, 1 / 11]),
    ],
)
def test_staleness_by_hand(law, by_hand):
    np.testing.assert_allclose(law.weight(np.arange(6)), by_hand, rtol=1e-15)


def test_equal_times_and_a_full_buffer_are_the_synchronous_method():
    """Everyone's answer to the same model, with weight p: to the rounding of a sum in another order."""
    same = fp.Arrivals(fp.Clock(1.0, law="constant"), buffer=K)
    options = {"rounds": 30, "start": START, "seed": SEED}
    late = fp.run(fp.FedAvg(STEP, STEPS), problem(noise=0.3), schedule=same, **options)
    plain = fp.run(fp.FedAvg(STEP, STEPS), problem(noise=0.3), **options)
    np.testing.assert_allclose(late.history, plain.history, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(late.used, plain.used)
    np.testing.assert_allclose(late.time[0], np.arange(31.0))


# Longer runs.


def test_extending_a_run_of_late_answers_changes_no_bit():
    """Also where somebody was asked before the first end and answers long after it: that version must be there."""
    slow = dataclasses.replace(EVERY["models"], clock=fp.Clock([0.2, 0.3, 0.25, 0.35, 8.0], law="constant"))
    options = {"schedule": slow, "start": START, "seed": SEED}
    method = fp.FedAvg(STEP, STEPS, normalise=False)
    straight = fp.run(method, problem(), rounds=150, **options)
    ages = np.array([age for _, age, *_ in table(straight, 150)])
    assert ages.max() > 100
    pieces = fp.run(method, problem(), rounds=20, **options).extend(130).extend(150)
    np.testing.assert_array_equal(pieces.history, straight.history)
    np.testing.assert_array_equal(pieces.used, straight.used)
    np.testing.assert_array_equal(pieces.time, straight.time)
    np.testing.assert_allclose(straight.history[0], replay(table(straight, 150), models=True), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_repeats_have_timetables_of_their_own_and_the_first_is_the_single_run():
    method = fp.FedAvg(STEP, STEPS, normalise=False)
    both = fp.run(method, problem(), rounds=ROUNDS, schedule=EVERY["buffer"], start=START, seed=SEED, repeats=2)
    np.testing.assert_allclose(both.history[0], run("buffer").history[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(both.history[1], replay(table(both, repeat=1)), rtol=0, atol=1e-12)
    assert np.abs(both.history[1] - both.history[0]).max() > 1e-3 and (both.time[0, 1:] != both.time[1, 1:]).any()


def test_a_sweep_of_late_answers_is_separate_runs():
    values = [0.05, STEP]
    options = {"rounds": ROUNDS, "schedule": EVERY["buffer"], "start": START, "seed": SEED, "repeats": 2}
    swept = fp.sweep(fp.FedAvg(STEP, STEPS, normalise=False), problem(), over={"step": values}, **options)
    for i, step in enumerate(values):
        for repeat in range(2):
            expected = replay(table(swept.run, repeat=repeat), step=step)
            np.testing.assert_allclose(swept.run.history[2 * i + repeat], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(swept.run.history[2], run("buffer").history[0], rtol=0, atol=1e-13)
    np.testing.assert_array_equal(swept.used[1, 0], run("buffer").used[0])
    np.testing.assert_array_equal(swept.run.time[[0, 2]], run("buffer").time[[0, 0]])
    assert (swept.run.time[0, 1:] != swept.run.time[1, 1:]).any() and (swept.run.time[1] == swept.run.time[3]).all()


# What is conserved.


def scaffold_replay(rounds, eta, server):
    """Models and the hub's c of every round; c_k of those heard."""
    xs, cs, c_k = [START], [np.zeros(D)], np.zeros((K, D))
    for r, (agents, age, weight, heard, merge) in enumerate(rounds):
        x, c, new = xs[-1], cs[-1], c_k.copy()
        for k, a, v, there in zip(agents, age, weight, heard, strict=True):
            if there and merge:
                then, control = xs[r - a], cs[r - a]
                y = descent(k, then, control - c_k[k], step=eta)
                new[k] = c_k[k] - control + (then - y) / (STEPS * eta)
                x, c = x + server * v * (y - then), c + P[k] * (new[k] - c_k[k])
        xs.append(x)
        cs.append(c)
        c_k = new
    return np.array(xs), np.array(cs), c_k


LOSSY = {
    "waiting": lambda loss: fp.Waiting(CLOCK, deadline=20.0, dropout=loss),
    "answering": lambda loss: fp.Answering(fp.Everyone(), probability=1 - loss),
    "arrivals": lambda loss: fp.Arrivals(CLOCK, dropout=loss, mixing=0.5),
}
LONG = 1500


@functools.cache
def scaffold(name, loss):
    """A run of SCAFFOLD that was looked at after each of its first rounds, and then went on."""
    method = fp.Scaffold(STEP, STEPS, server_step=0.5)
    session = Session(method, problem(), as_participation(LOSSY[name](loss)), START, True, SEED, 1, 1)
    session.prepare(LONG)  # one timetable, one program
    seen = []
    for r in range(1, 41):
        session.advance(r)
        hub, memory = jax.tree.map(np.asarray, (session.state.hub, session.state.memory))
        seen.append((hub.w[0], hub.c[0], memory[0]))
    session.advance(LONG)
    return session, seen


@pytest.mark.parametrize("loss", [0.1, 0.3])
@pytest.mark.parametrize("name", LOSSY)
def test_scaffold_keeps_its_balance_when_answers_are_lost(name, loss):
    """c = sum p_k c_k after every round: memories are committed when an answer is heard, and only then."""
    session, seen = scaffold(name, loss)
    for _, c, c_k in seen:
        np.testing.assert_allclose(c, P @ c_k, rtol=0, atol=1e-12)
    assert any(np.abs(c_k).max() > 0.1 for _, _, c_k in seen)
    hub, memory = jax.tree.map(np.asarray, (session.state.hub, session.state.memory))
    np.testing.assert_allclose(hub.c[0], P @ memory[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(hub.w[0], solution(), rtol=0, atol=1e-9)  # and with it, it ends at w*
    if name != "answering":
        t = session.participation
        rounds = [tuple(getattr(t, n)[0, r] for n in ("agents", "age", "weight", "heard", "merge")) for r in range(40)]
        xs, cs, c_k = scaffold_replay(rounds, STEP, 0.5)
        np.testing.assert_allclose([x for x, _, _ in seen], xs[1:], rtol=0, atol=1e-12)
        np.testing.assert_allclose([c for _, c, _ in seen], cs[1:], rtol=0, atol=1e-12)
        np.testing.assert_allclose(seen[-1][2], c_k, rtol=0, atol=1e-12)
        assert name == "arrivals" or not t.heard[0, :40].all()


def test_scaffnew_is_refused_with_the_reason():
    for schedule in (fp.Arrivals(CLOCK), fp.Waiting(CLOCK, keep=3)):
        with pytest.raises(fp.FedpointError, match="Scaffnew cannot run with participation") as caught:
            fp.run(fp.Scaffnew(0.1, probability=0.5), problem(), rounds=1, schedule=schedule)
        assert "stay balanced" in str(caught.value)


# Hubs on a graph.


def test_a_star_is_a_graph_whose_hubs_agree():
    """FedAvg on the complete graph with weights 1/K: every node's hub is the fusion center's, samples and all."""
    p, method = np.full(K, 1 / K), fp.FedAvg(STEP, STEPS)
    options = {"rounds": 25, "start": START, "seed": SEED}
    star = fp.run(method, problem(p, noise=0.3), **options)
    graph = fp.run(method, problem(p, noise=0.3), network=fp.Network.complete(K, 1 / K), **options)
    np.testing.assert_allclose(graph.history, np.repeat(star.history[:, :, None], K, axis=2), rtol=0, atol=1e-12)
    np.testing.assert_allclose(graph.model, star.model, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(graph.used[0, :, 1], K * (K - 1) * np.arange(26))
    np.testing.assert_allclose(graph.error, star.error, rtol=0, atol=1e-12)


def test_fedavg_on_a_graph_is_adapt_then_combine():
    net = fp.Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4)])
    done = fp.run(fp.FedAvg(STEP, STEPS), problem(), network=net.metropolis(), rounds=25, start=START)
    counts = np.array([2, 2, 2, 3, 1])
    A = np.zeros((K, K))
    for i, j in net.edges:
        A[i, j] = A[j, i] = 1 / (1 + max(counts[i], counts[j]))
    A += np.diag(1 - A.sum(1))
    x = np.tile(START, (K, 1))
    path = [x]
    for _ in range(25):
        x = A @ np.array([descent(k, x[k], step=STEP / STEPS) for k in range(K)])
        path.append(x)
    np.testing.assert_allclose(done.history[0], path, rtol=0, atol=1e-12)


def test_weights_above_one_are_refused_with_the_advice():
    with pytest.raises(fp.FedpointError, match=r"at 0 they sum to 4: use network.metropolis\(\)"):
        fp.run(fp.FedAvg(STEP), problem(), network=fp.Network.star(K), rounds=1)
    for method in (fp.Scaffold(STEP), fp.Scaffnew(STEP, probability=0.5), fp.FedAdam(STEP)):
        with pytest.raises(fp.FedpointError, match="needs a fusion center"):
            fp.run(method, problem(), network=fp.Network.ring(K).metropolis(), rounds=1)


# What makes no sense.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.Waiting(1.0), "clock must be an fp.Clock"),
        (lambda: fp.Waiting(CLOCK, dropout=0.1), "waited for without end: give deadline="),
        (lambda: fp.Waiting(CLOCK, deadline=0.0), "deadline must be above 0"),
        (lambda: fp.Waiting(CLOCK, keep=0), "keep must be a whole number, at least 1"),
        (lambda: fp.Arrivals(CLOCK, buffer=0), "buffer must be a whole number, at least 1"),
        (lambda: fp.Arrivals(CLOCK, working=0), "working must be a whole number, at least 1"),
        (lambda: fp.Arrivals(CLOCK, dropout=1.0), "no answer ever comes"),
        (lambda: fp.Arrivals(CLOCK, mixing=0.0), "mixing must be above 0"),
        (lambda: fp.Arrivals(CLOCK, staleness=0.5), "staleness must be"),
        (lambda: fp.Arrivals(CLOCK, staleness=fp.Constant), "staleness must be"),
        (lambda: fp.Polynomial(-1.0), "power must be at least 0"),
        (lambda: fp.Hinge(-1.0), "slope and after must be at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(make, words):
    with pytest.raises(fp.FedpointError, match=words):
        make()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (fp.Waiting(CLOCK, count=6), "6 participants of 5 agents"),
        (fp.Waiting(CLOCK, count=2, keep=3), "minimum and keep must not exceed"),
        (fp.Waiting(CLOCK, keep=2, minimum=3), "of the 2 answers that are kept never 3"),
        (fp.Waiting(fp.Clock([1.0])), "1 times for 5 agents"),
        (fp.Arrivals(CLOCK, working=6), "6 working at a time, but there are 5"),
        (fp.Arrivals(CLOCK, working=2, buffer=3), "a buffer of 3 never fills"),
        (fp.Arrivals(CLOCK, deadline=0.2), "shorter than the messages travel"),
        (fp.Arrivals(fp.Clock(5.0, law="constant"), deadline=3.0), "none came: give a longer deadline"),
        (fp.Arrivals(fp.Clock([1, 1, 1, 1, 9.0], law="constant"), buffer=5, deadline=3.0), "none came"),
    ],
)
def test_what_does_not_fit_the_agents_is_refused(schedule, words):
    with pytest.raises(fp.FedpointError, match=words):
        fp.run(fp.FedAvg(STEP), problem(), rounds=1, schedule=schedule)


def test_models_are_merged_only_of_methods_that_send_changes():
    with pytest.raises(fp.FedpointError, match="cannot merge models that come late"):
        fp.run(fp.Scaffold(STEP), problem(), rounds=1, schedule=fp.Arrivals(CLOCK, models=True))
    with pytest.raises(fp.FedpointError, match="give participation= or schedule="):
        fp.run(fp.FedAvg(STEP), problem(), rounds=1, schedule=fp.Arrivals(CLOCK), participation=2)


# Would a mistake be found? Runs with a broken timetable, held against the right one.


def broken(scheme, method, rounds, exact, **mistakes):
    """A run in which some columns of the timetable are wrong, and the right timetable."""
    session = Session(method, problem(), scheme, START, exact, SEED, 1, 1)
    session.prepare(rounds)
    right = session.participation
    wrong = dataclasses.replace(right, **{name: make(right) for name, make in mistakes.items()})
    with jax.enable_x64(True):
        session.inputs = session.inputs._replace(participation=jax.device_put(wrong))
    models = []
    session.advance(40, keep=lambda at, records: models.append(records.model))
    table = [tuple(getattr(right, n)[0, r] for n in ("agents", "age", "weight", "heard", "merge")) for r in range(40)]
    return session, np.concatenate(models, axis=1)[0], table


LATE_MISTAKES = {
    "right": {},
    "answers to the current model": {"age": lambda t: 0 * t.age},
    "a version too old": {
        "age": lambda t: np.minimum(t.age + 1, np.arange(t.age.shape[1], dtype=np.int32)[None, :, None])
    },
    "staleness ignored": {"weight": lambda t: 0.6 * P[t.agents] * K},
    "mixing ignored": {"weight": lambda t: t.weight / 0.6},
    "renormalised": {"weight": lambda t: t.weight / t.weight.sum(-1, keepdims=True)},
    "shares ignored": {"weight": lambda t: t.weight / P[t.agents] / K},
}


@pytest.mark.parametrize("mistake", LATE_MISTAKES)
def test_a_mistake_in_late_answers_is_convicted(mistake):
    """By the replay and, of the weights, by their formula."""
    method = fp.FedAvg(STEP, STEPS, normalise=False)
    _, path, rounds = broken(ARRIVALS["one by one"], method, ROUNDS, False, **LATE_MISTAKES[mistake])
    gap = np.abs(path - replay(rounds)[1:]).max()
    assert gap < 1e-12 if mistake == "right" else gap > 1e-3


@pytest.mark.parametrize(
    ("mistake", "columns"),
    [
        ("right", {}),
        ("memory committed although the answer was lost", {"heard": lambda t: np.ones_like(t.heard)}),
        ("lost answers change c", {"share": lambda t: P[t.agents]}),
        ("abandoned rounds are merged", {"merge": lambda t: np.ones_like(t.merge)}),
        ("c takes the schedule's weights", {"share": lambda t: t.weight}),
    ],
)
def test_a_mistake_with_lost_answers_is_convicted(mistake, columns):
    """By SCAFFOLD's balance or, where it holds all the same, by its replay."""
    method = fp.Scaffold(STEP, STEPS, server_step=0.5)
    scheme = fp.Waiting(CLOCK, deadline=2.0, dropout=0.3, minimum=3)
    session, path, rounds = broken(scheme, method, LONG, True, **columns)
    hub, memory = jax.tree.map(np.asarray, (session.state.hub, session.state.memory))
    balance = np.abs(hub.c[0] - P @ memory[0]).max()
    gap = np.abs(path - scaffold_replay(rounds, STEP, 0.5)[0][1:]).max()
    if mistake == "right":
        assert balance < 1e-12 and gap < 1e-12
    else:
        assert (balance if "merged" not in mistake else gap) > 1e-3
