"""Fusion centers on a clock: answers that come late, get lost, or are not waited for.

Trajectories against a NumPy replay of the run's own timetable (`test_timetables.py`), which keeps every version of the
hub.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from late_world import (
    ARRIVALS,
    CLOCK,
    EVERY,
    ROUNDS,
    SEED,
    START,
    STEP,
    STEPS,
    WORK,
    D,
    K,
    P,
    descent,
    problem,
    replay,
    run,
    solution,
    table,
)

import fedpoint as fp
from fedpoint.engine.session import Session


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


def test_equal_times_and_a_full_buffer_are_the_synchronous_method():
    """Everyone's answer to the same model, with weight p: to the rounding of a sum in another order."""
    same = fp.Arrivals(fp.Clock(1.0, law="constant"), buffer=K)
    options = {"rounds": 30, "start": START, "seed": SEED}
    late = fp.run(fp.FedAvg(STEP, STEPS, normalise=True), problem(noise=0.3), schedule=same, **options)
    plain = fp.run(fp.FedAvg(STEP, STEPS, normalise=True), problem(noise=0.3), **options)
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
    asked = fp.Experiment(method, problem(), schedule=LOSSY[name](loss), start=START, exact=True, seed=SEED)
    session = Session(asked.bind(), 1)
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
        t = session.timing
        rounds = [
            tuple(getattr(t.ticks, n)[0, r] for n in ("agents", "age", "weight", "heard", "merge")) for r in range(40)
        ]
        xs, cs, c_k = scaffold_replay(rounds, STEP, 0.5)
        np.testing.assert_allclose([x for x, _, _ in seen], xs[1:], rtol=0, atol=1e-12)
        np.testing.assert_allclose([c for _, c, _ in seen], cs[1:], rtol=0, atol=1e-12)
        np.testing.assert_allclose(seen[-1][2], c_k, rtol=0, atol=1e-12)
        assert name == "arrivals" or not t.ticks.heard[0, :40].all()


def test_a_round_with_too_few_answers_changes_nothing_but_costs():
    scheme = fp.Waiting(fp.Clock(WORK, law="constant"), deadline=1.0, minimum=4)
    method = fp.Scaffold(STEP, STEPS, server_step=0.5)  # the program of `scaffold`
    done = fp.run(method, problem(), rounds=LONG, schedule=scheme, start=START, exact=True)
    np.testing.assert_array_equal(done.history[0], np.tile(START, (LONG + 1, 1)))
    assert not done.memories.any()
    np.testing.assert_array_equal(done.used[0, -1, :2], [5 * LONG, 3 * LONG])  # 0, 1 and 3 answered in time
    assert done.time[0, -1] == LONG


def test_scaffnew_is_refused_with_the_reason():
    for schedule in (fp.Arrivals(CLOCK), fp.Waiting(CLOCK, keep=3)):
        with pytest.raises(fp.FedpointError, match="Scaffnew cannot run with participation") as caught:
            fp.run(fp.Scaffnew(0.1, probability=0.5), problem(), rounds=1, schedule=schedule)
        assert "stay balanced" in str(caught.value)


# Hubs on a graph.


def test_a_star_is_a_graph_whose_hubs_agree():
    """FedAvg on the complete graph with weights 1/K: every node's hub is the fusion center's, samples and all."""
    p, method = np.full(K, 1 / K), fp.FedAvg(STEP, STEPS, normalise=True)
    options = {"rounds": 25, "start": START, "seed": SEED}
    star = fp.run(method, problem(p, noise=0.3), **options)
    graph = fp.run(method, problem(p, noise=0.3), network=fp.Network.complete(K, 1 / K), **options)
    np.testing.assert_allclose(graph.history, np.repeat(star.history[:, :, None], K, axis=2), rtol=0, atol=1e-12)
    np.testing.assert_allclose(graph.model, star.model, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(graph.used[0, :, 1], K * (K - 1) * np.arange(26))
    np.testing.assert_allclose(graph.error, star.error, rtol=0, atol=1e-12)


def test_fedavg_on_a_graph_is_adapt_then_combine():
    net = fp.Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4)])
    done = fp.run(fp.FedAvg(STEP, STEPS, normalise=True), problem(), network=net.mixing(), rounds=25, start=START)
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
    with pytest.raises(fp.FedpointError, match=r"at 0 they sum to 4: use network.mixing\(\)"):
        fp.run(fp.FedAvg(STEP), problem(), network=fp.Network.star(K), rounds=1)
    for method in (fp.Scaffold(STEP), fp.Scaffnew(STEP, probability=0.5), fp.FedAdam(STEP)):
        with pytest.raises(fp.FedpointError, match="needs a fusion center"):
            fp.run(method, problem(), network=fp.Network.ring(K).mixing(), rounds=1)


# What makes no sense.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.Waiting(1.0), "clock must be a Clock; got 1.0"),
        (lambda: fp.Waiting(CLOCK, dropout=0.1), "would wait forever for an answer that never comes: give deadline="),
        (lambda: fp.Waiting(CLOCK, deadline=0.0), "deadline must be above 0"),
        (lambda: fp.Waiting(CLOCK, keep=0), "keep must be a whole number, at least 1"),
        (lambda: fp.Arrivals(CLOCK, buffer=0), "buffer must be a whole number, at least 1"),
        (lambda: fp.Arrivals(CLOCK, working=0), "working must be a whole number, at least 1"),
        (lambda: fp.Arrivals(CLOCK, dropout=1.0), "no answer ever comes"),
        (lambda: fp.Arrivals(CLOCK, mixing=0.0), "mixing must be above 0"),
        (lambda: fp.Arrivals(CLOCK, staleness=0.5), "staleness must be"),
        (lambda: fp.Arrivals(CLOCK, staleness=fp.staleness.Constant), "staleness must be"),
        (lambda: fp.staleness.Polynomial(-1.0), "power must be at least 0"),
        (lambda: fp.staleness.Hinge(-1.0), "slope and after must be at least 0"),
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
    asked = fp.Experiment(method, problem(), schedule=scheme, start=START, exact=exact, seed=SEED)
    session = Session(asked.bind(), 1)
    session.prepare(rounds)
    right = session.timing
    wrong = right.ticks._replace(**{name: make(right.ticks) for name, make in mistakes.items()})
    with jax.enable_x64(True):
        session.inputs = session.inputs._replace(timing=jax.device_put(right.replace(ticks=wrong)))
    models = []
    session.advance(40, keep=lambda at, records: models.append(records.model))
    table = [
        tuple(getattr(right.ticks, n)[0, r] for n in ("agents", "age", "weight", "heard", "merge")) for r in range(40)
    ]
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
