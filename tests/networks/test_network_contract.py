"""What every method for networks owes: the contract of tests/contract, on a weighted graph of unequal degrees."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import plain_network as plain
import pytest

import fedpoint as fp
from fedpoint.core.algorithm import CATALOGUE, samples_per_round
from fedpoint.engine.program import PROGRAMS
from fedpoint.engine.session import Session, unflatten
from fedpoint.store.folder import RunFolder
from fedpoint.timing.base import Context

WORLD = plain.world()
NET = WORLD.network()
EXACT, NOISY = WORLD.problem(), WORLD.problem(noise=0.2)
K, COUPLING, STEP, OTHER = 7, 0.15, 0.21, 0.13
OWN_STEPS = STEP * np.array([1.0, 0.4, 1.2, 0.7, 0.9, 1.1, 0.5])
DECAYING = fp.steps.InverseTime(8.0 * STEP, 8.0)
METHODS = {
    "FedGD": fp.FedGD(STEP, COUPLING),
    "FedSGD": fp.FedSGD(STEP, COUPLING, local_steps=2),
    "FedRelax": fp.FedRelax(COUPLING),
    "Diffusion": fp.Diffusion(STEP, local_steps=2),
    "ExactDiffusion": fp.ExactDiffusion(STEP),
    "Extra": fp.Extra(STEP),
    "PushSum": fp.PushSum(STEP),
    "GradientTracking": fp.GradientTracking(STEP),
}
NETWORKS = {name: NET.mixing() if method.mixes else NET for name, method in METHODS.items()}
# Each under another schedule: some of the nodes, all in some of the ticks, one after the other; two of them hear late.
UNDER = {
    "FedGD": fp.RandomActivation(3),
    "FedSGD": fp.WorstCase(2),
    "FedRelax": fp.OwnPace(fp.Clock(np.array([0.2, 0.3, 0.25, 0.5, 0.4, 0.35, 9.0]), law="constant"), loss=0.1),
    "Diffusion": fp.PartiallyAsynchronous(3, delay=2, loss=0.2),
    **dict.fromkeys(("ExactDiffusion", "Extra", "GradientTracking", "PushSum"), fp.Synchronous()),
}
every_method = pytest.mark.parametrize("name", METHODS)
# To the engine ExactDiffusion is EXTRA again, and PushSum is Diffusion. All are in `make test-all`.
SAME = ("ExactDiffusion", "Extra", "PushSum")
under_the_engine = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SAME else n for n in METHODS]
)


def session(name, schedule=None, problem=NOISY, seed=3, repeats=1, **layout):
    schedule = UNDER[name] if schedule is None else schedule
    asked = fp.Experiment(METHODS[name], problem, network=NETWORKS[name], schedule=schedule, seed=seed, repeats=repeats)
    made = Session(asked.bind(), 1)
    made.layout = dataclasses.replace(made.layout, **layout)
    return made


def histories(made, rounds):
    kept = []
    made.advance(rounds, keep=lambda at, records: kept.append(records))
    return np.concatenate([records.model for records in kept], axis=1)


def same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b)


def test_every_card_for_networks_is_held_to_the_contract():
    assert {type(m).card.name for m in METHODS.values()} == {name for name, card in CATALOGUE.items() if card.network}


# The mathematics of a tick.


@every_method
def test_permuting_nodes_permutes_the_result(name):
    """Problem and network together; to the rounding of sums in another order."""
    order = np.array([3, 6, 0, 5, 1, 4, 2])
    moved = plain.World(WORLD.H[order], WORLD.c[order], WORLD.A[np.ix_(order, order)])
    there = moved.network().mixing() if METHODS[name].mixes else moved.network()
    one = fp.run(METHODS[name], EXACT, network=NETWORKS[name], rounds=12, exact=True)
    two = fp.run(METHODS[name], moved.problem(), network=there, rounds=12, exact=True)
    np.testing.assert_allclose(two.history, one.history[:, :, order], rtol=0, atol=1e-12)
    for a, b in zip(jax.tree.leaves(two.memories), jax.tree.leaves(one.memories), strict=True):
        np.testing.assert_allclose(a, b[:, order], rtol=0, atol=1e-12)
    np.testing.assert_allclose(two.variation, one.variation, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(two.error, one.error, rtol=1e-9, atol=1e-14)
    np.testing.assert_array_equal(two.used, one.used)


def test_names_of_nodes_put_the_network_in_the_agents_order():
    order = np.array([3, 6, 0, 5, 1, 4, 2])
    names = np.array(list("abcdefg"))
    quad = fp.problems.Quadratic(WORLD.H, WORLD.c)
    quad.names = list(names)
    shuffled = fp.Network.from_matrix(WORLD.A[np.ix_(order, order)], names=list(names[order]))
    one = fp.run(METHODS["FedGD"], EXACT, network=NET, rounds=12)
    np.testing.assert_array_equal(fp.run(METHODS["FedGD"], quad, network=shuffled, rounds=12).history, one.history)


@every_method
def test_one_node_alone_is_the_centralised_method(name):
    H, c, w = WORLD.H[0], WORLD.c[0], np.array([1.0, -2.0])
    quad, alone = fp.problems.Quadratic(H[None], c[None]), fp.Network.from_edges([], nodes=1)
    run = fp.run(METHODS[name], quad, network=alone, rounds=7, exact=True, start=w)
    path = [w]
    for _ in range(7):
        for _ in range(METHODS[name].local_steps):
            w = c if name == "FedRelax" else w - STEP * H @ (w - c)
        path.append(w)
    np.testing.assert_allclose(run.history[0, :, 0], path, rtol=0, atol=1e-13)
    assert run.used[0, -1, 1] == 0 and not run.variation.any()


def local_steps(method, coupling, step, steps):
    """FedSGD with exact gradients: some steps of FedGD, what neighbours said held fixed."""

    def update(i, k, own, heard):
        for e in range(steps):
            own = plain.fedgd(WORLD, coupling, step)(i, k * steps + e, own, heard)
        return own

    return update


@pytest.mark.parametrize(
    ("method", "update"),
    [
        (METHODS["FedGD"], plain.fedgd(WORLD, COUPLING, STEP)),
        (fp.FedGD(OWN_STEPS, COUPLING), plain.fedgd(WORLD, COUPLING, OWN_STEPS)),
        (fp.FedGD(DECAYING, COUPLING), plain.fedgd(WORLD, COUPLING, lambda k: 8.0 * STEP / (8.0 + k))),
        (METHODS["FedSGD"], local_steps(fp.FedSGD, COUPLING, STEP, 2)),
        (METHODS["FedRelax"], plain.fedrelax(WORLD, COUPLING)),
        pytest.param(fp.FedSGD(OWN_STEPS, COUPLING), plain.fedgd(WORLD, COUPLING, OWN_STEPS), marks=pytest.mark.slow),
        pytest.param(
            fp.FedSGD(DECAYING, COUPLING, local_steps=3),
            local_steps(fp.FedSGD, COUPLING, lambda t: 8.0 * STEP / (8.0 + t), 3),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["FedGD", "FedGD, own steps", "FedGD, decaying", "FedSGD", "FedRelax", "FedSGD, own steps", "FedSGD, decaying"],
)
def test_trajectories_are_those_of_dense_matrices(method, update):
    start = np.random.default_rng(1).standard_normal((K, 2))
    run = fp.run(method, EXACT, network=NET, rounds=40, exact=True, start=start)
    expected = plain.simulate(update, start, plain.in_step(K, 40))
    np.testing.assert_allclose(run.history[0], expected, rtol=0, atol=1e-12)
    gaps = [sum(WORLD.A[i, j] * ((w[i] - w[j]) ** 2).sum() for i, j in plain.EDGES) for w in expected]
    np.testing.assert_allclose(run.variation[0], gaps, rtol=1e-10, atol=1e-13)


def test_fedsgd_has_the_lectures_prefactor():
    """L_i = (1/m)|y - X w|^2: the gradient of a batch is -(2/|B|) sum x (y - x'w)."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((3, 2)), rng.standard_normal(3)
    net = fp.Network.from_edges([(0, 1), (1, 2)], [1.0, 0.5])
    A = net.adjacency.toarray()
    rows = [np.tile(x[i], (5, 1)) for i in range(3)], [np.full(5, y[i]) for i in range(3)]  # every batch is the same
    run = fp.run(fp.FedSGD(0.05, 0.3), fp.problems.LeastSquares(*rows, mean=True, half=False, batch=3), 10, network=net)
    w = np.zeros((3, 2))
    for k in range(10):
        gradient = np.array([-2 * x[i] * (y[i] - x[i] @ w[i]) for i in range(3)])
        w = w - 0.05 * (gradient + 2 * 0.3 * (A.sum(1)[:, None] * w - A @ w))
        np.testing.assert_allclose(run.history[0, k + 1], w, rtol=0, atol=1e-13)


# The program of a run.


@pytest.mark.parametrize("name", ["FedGD", "FedSGD"])
def test_traced_once(name):
    """Another step, coupling, weights of edges, noise and seed: the same program."""
    session(name).advance(9)
    compiled = [p._cache_size() for p in PROGRAMS.values()]
    method = dataclasses.replace(METHODS[name], step=OTHER, coupling=0.4)
    other = fp.Network.from_edges(plain.EDGES, np.linspace(0.2, 3, 7))
    run = fp.run(
        method, WORLD.problem(noise=0.1), network=other, schedule=UNDER[name], rounds=5, seed=8, record_every=2
    )
    run.extend(9)
    assert [p._cache_size() for p in PROGRAMS.values()] == compiled


@under_the_engine
def test_state_survives_serialisation_and_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    """Hubs, memories and what is under way, through an npz on disk, to the bit."""
    straight = session(name)
    path = histories(straight, 60)
    first = session(name)
    part = histories(first, 20)
    saved = first.save()
    assert any(".mail" in key for key in saved)
    with RunFolder.create(tmp_path / "run", {}, meta={}) as folder:
        folder.commit(20, saved, {})
    with RunFolder.open(tmp_path / "run") as folder:
        found = folder.latest()
    same_bits(found.state, saved)
    same_bits(jax.tree.map(np.asarray, unflatten(first.state, found.state)), jax.tree.map(np.asarray, first.state))
    second = session(name)
    second.restore(found.state, 20)
    rest = histories(second, 60)
    same_bits(np.concatenate([part, rest], axis=1), path)
    same_bits(histories(first, 60), rest)  # extended, where the other was resumed
    same_bits(second.memories(), straight.memories())
    same_bits(second.save(), first.save())


TRACE = fp.Replay(((0, "0", "1", 0), (0, "3", None, 0), (2, "1", "0", 1), (40, "5", "0", 38), (41, "2", "0", 40)))


def test_room_is_kept_for_what_a_trace_asks_for_later():
    assert TRACE.bind(Context(network=NET, rounds=5)).depth(5) >= 41


@pytest.mark.slow  # quick: nodes at their own pace, where both grow, above
@pytest.mark.parametrize(
    "schedule",
    [fp.TotallyAsynchronous(growth=0.5), fp.PartiallyAsynchronous(3, delay=2, loss=0.2), TRACE],
    ids=["total", "partial", "replay"],
)
def test_an_extended_run_is_the_longer_one(schedule):
    """Also where it turns out later how old what is heard can be: the room for messages and the timetable grow."""
    straight, pieces = (session("FedGD", schedule) for _ in range(2))
    path = histories(straight, 60)
    parts = [histories(pieces, rounds) for rounds in (20, 60)]
    same_bits(np.concatenate(parts, axis=1), path)
    ticks = plain.plan(schedule, NET, 60, 3)
    expected = plain.simulate(plain.fedgd(WORLD, COUPLING, STEP), np.zeros((K, 2)), ticks)
    np.testing.assert_allclose(path[0], expected[1:], rtol=0, atol=1e-12)


# What the engine may choose without changing the result.


def test_drawn_ahead_and_batched_is_drawn_on_the_spot_and_mapped():
    plainly = session("FedSGD")
    path = histories(plainly, 30)
    assert plainly.layout.samples == samples_per_round(METHODS["FedSGD"]) == 2 and not plainly.layout.mapped
    other = session("FedSGD", samples=None, mapped=True)
    np.testing.assert_allclose(histories(other, 30), path, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"samples": None}, {"mapped": True}], ids=["on the spot", "mapped"])
def test_drawn_ahead_is_drawn_on_the_spot(layout):
    np.testing.assert_allclose(
        histories(session("FedSGD", **layout), 30), histories(session("FedSGD"), 30), rtol=0, atol=1e-13
    )


@pytest.mark.slow
@every_method
def test_chunks_do_not_change_a_bit(name):
    same_bits(histories(session(name, chunk=7), 30), histories(session(name), 30))


@pytest.mark.slow
@every_method
def test_batched_is_mapped_under_its_schedule(name):
    one, two = (session(name, mapped=mapped, repeats=2) for mapped in (False, True))
    np.testing.assert_allclose(histories(one, 30), histories(two, 30), rtol=0, atol=1e-12)
    for a, b in zip(jax.tree.leaves(one.memories()), jax.tree.leaves(two.memories()), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_a_sweep_is_separate_runs_also_with_a_timetable_for_each_repeat():
    """Points have the same luck, repeats have not."""
    values = [0.05, COUPLING, 0.4]
    options = {"network": NET, "schedule": UNDER["FedRelax"], "rounds": 60, "seed": 3}
    swept = fp.sweep(fp.FedRelax(0.1), NOISY, over={"coupling": values}, repeats=2, **options)
    second = plain.plan(UNDER["FedRelax"], NET, 60, seed=3, repeat=1)
    for i, value in enumerate(values):  # the first repeat is the run without repeats, the second a simulation
        alone = fp.run(fp.FedRelax(value), NOISY, **options)
        np.testing.assert_allclose(swept.run.history[2 * i], alone.history[0], rtol=0, atol=1e-13)
        np.testing.assert_array_equal(swept.used[i, 0], alone.used[0])
        np.testing.assert_array_equal(swept.run.time[2 * i], alone.time[0])
        np.testing.assert_allclose(swept.error[i, 0], alone.error[0], rtol=1e-9, atol=1e-15)
        expected = plain.simulate(plain.fedrelax(WORLD, value), np.zeros((K, 2)), second)
        np.testing.assert_allclose(swept.run.history[2 * i + 1], expected, rtol=0, atol=1e-12)
        gaps = ((expected - WORLD.gtvmin(value)) ** 2).sum((1, 2)) / K
        np.testing.assert_allclose(swept.error[i, 1], gaps, rtol=1e-9, atol=1e-15)
    assert np.abs(swept.run.history[0] - swept.run.history[1]).max() > 1e-3
    other = fp.run(fp.FedRelax(value), NOISY, **options | {"seed": 4})
    assert np.abs(other.history - alone.history).max() > 1e-3


@pytest.mark.slow
def test_repeats_of_drawn_schedules_differ_and_the_first_is_the_single_run():
    both = histories(session("FedGD", fp.RandomActivation(3), repeats=2), 20)
    single = histories(session("FedGD", fp.RandomActivation(3)), 20)
    np.testing.assert_allclose(both[:1], single, rtol=0, atol=1e-13)
    assert np.abs(both[0] - both[1]).max() > 1e-2
    for repeat in range(2):  # who worked: those whose model changed
        changed = (np.diff(both[repeat], axis=0) != 0).any(-1)
        ticks = plain.plan(fp.RandomActivation(3), NET, 20, 3, repeat)
        for k in range(1, 20):
            np.testing.assert_array_equal(np.flatnonzero(changed[k - 1]), np.sort(ticks[k].who))


# Models that are not arrays of doubles.

SMALL = fp.Network.from_edges([(0, 1), (0, 2), (0, 3)], [1.0, 0.5, 2.0])
SIZES = (6, 6, 6, 6)


def loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["V"] + params["b"])
    data = jnp.mean(0.5 * (hidden @ params["u"] - batch["y"]) ** 2)
    return data + 0.25 * sum(jnp.sum(a**2) for a in jax.tree.leaves(params))


def flat_loss(w, batch):
    return loss({"V": w[:6].reshape(3, 2), "b": w[6:8], "u": w[8:]}, batch)


@functools.cache
def neural(kind):
    """A small neural network a node, its model a dictionary (in double or single precision) or one flat array."""
    rng = np.random.default_rng(5)
    data = {"x": rng.normal(size=(24, 3)), "y": rng.normal(size=24)}
    w = rng.normal(size=10).astype(np.float32 if kind == "single" else np.float64)
    params = {"V": w[:6].reshape(3, 2), "b": w[6:8], "u": w[8:]}
    groups = np.repeat(np.arange(4), SIZES)
    start = w if kind == "flat" else params
    return fp.problems.Loss(flat_loss if kind == "flat" else loss, start, data, groups=groups, batch=3), data, groups


@functools.cache
def train(name, kind):
    method = fp.FedGD(0.1, 0.3) if name == "FedGD" else fp.FedRelax(0.6)
    return fp.run(method, neural(kind)[0], network=SMALL, schedule=fp.WorstCase(1), rounds=4)


def joined(parts):
    return np.concatenate([a.reshape(1, 5, 4, -1) for a in (parts["V"], parts["b"], parts["u"])], axis=-1)


@jax.jit
def gradients(w, x, y):
    return jax.grad(flat_loss)(w, {"x": x, "y": y})


def gradient(i, w):
    """Of L_i at a flat model, in double precision."""
    _, data, groups = neural("flat")
    with jax.enable_x64(True):
        return np.asarray(gradients(jnp.asarray(w, float), *(data[name][groups == i] for name in "xy")))


def old(history, k):
    """With B = 1 all work in every tick, and hear what is one tick old."""
    return history[max(k - 1, 0)]


SMALL_A = SMALL.adjacency.toarray()


@pytest.mark.parametrize(("kind", "tolerance"), [("single", 1e-6), pytest.param("tree", 1e-13, marks=pytest.mark.slow)])
def test_fedgd_of_a_tree_of_arrays_is_that_of_the_flat_array(kind, tolerance):
    history = joined(train("FedGD", kind).history)[0].astype(float)
    for k in range(4):
        for i in range(4):
            pull = sum(SMALL_A[i, j] * (history[k, i] - old(history, k)[j]) for j in range(4))
            expected = history[k, i] - 0.1 * (gradient(i, history[k, i]) + 2 * 0.3 * pull)
            np.testing.assert_allclose(history[k + 1, i], expected, rtol=0, atol=tolerance)
    run = train("FedGD", kind)
    gaps = [sum(SMALL_A[0, j] * ((w[0] - w[j]) ** 2).sum() for j in (1, 2, 3)) for w in history]
    np.testing.assert_allclose(run.variation[0], gaps, rtol=10 * tolerance, atol=10 * tolerance)
    assert run.cost.floats_up == 4 * 6 * 10 and run.cost.bytes_up == (8 if kind == "tree" else 4) * run.cost.floats_up


@pytest.mark.slow  # Newton's method takes five seconds to compile
@pytest.mark.parametrize(("kind", "tolerance"), [("single", 1e-5), ("tree", 1e-10)])
def test_fedrelax_of_a_tree_solves_its_own_problem(kind, tolerance):
    """grad L_i(w_i+) + 2 alpha sum_j A_ij (w_i+ - w_j) = 0, whatever the loss, to the model's precision."""
    history = joined(train("FedRelax", kind).history)[0].astype(float)
    for k in range(4):
        for i in range(4):
            pull = sum(SMALL_A[i, j] * (history[k + 1, i] - old(history, k)[j]) for j in range(4))
            left = gradient(i, history[k + 1, i]) + 2 * 0.6 * pull
            np.testing.assert_allclose(left, 0, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["FedGD", pytest.param("FedRelax", marks=pytest.mark.slow)])
def test_single_precision_stays_single(name):
    """Model, hubs, memories and what is under way."""
    single = train(name, "single")
    for leaf in jax.tree.leaves((single.history, single.models, single.memories, single.session.state[:3])):
        assert leaf.dtype in (np.float32, np.int32), leaf.dtype
    assert single.cost.bytes_up == single.cost.floats_up * 4


# Rarer ways to run.


def test_divergence_names_the_step_that_the_coupling_allows():
    """2/lambda_max of the Hessian of GTVMin, which is far below the nodes' own limits."""
    Q = np.kron(2 * 1.0 * (np.diag(WORLD.d) - WORLD.A), np.eye(2))
    for i in range(K):
        Q[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] += WORLD.H[i]
    limit = 2 / np.linalg.eigvalsh(Q)[-1]
    with pytest.raises(fp.Diverged, match=f"largest stable step here is {limit:.4g}. Take a smaller step"):
        fp.run(fp.FedGD(0.9, 1.0), EXACT, network=NET, rounds=200)
    settled = fp.run(fp.FedGD(0.98 * limit, 1.0), EXACT, network=NET, rounds=2000)
    np.testing.assert_allclose(settled.models[0], WORLD.gtvmin(1.0), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_fedrelax_says_which_node_has_no_minimiser():
    task = fp.problems.LeastSquares([np.ones((1, 2)), np.eye(2), np.ones((1, 2))], [[1.0], [1.0, 2.0], [3.0]])
    with pytest.raises(fp.Diverged, match=r"a node without any edge \(0\) needs a loss with one minimiser"):
        fp.run(fp.FedRelax(0.3), task, network=fp.Network.from_edges([(1, 2)], nodes=3), rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [fp.RandomActivation(3), fp.WorstCase(3)], ids=["random", "worst"])
def test_diffusion_under_a_schedule(schedule):
    """Who works combines first what it has heard by then and its own last result, and then adapts."""
    net, ticks = NET.mixing(), 30
    A = net.adjacency.toarray()
    run = fp.run(fp.FedAvg(STEP), EXACT, network=net, schedule=schedule, rounds=ticks, seed=3, exact=True)
    made = plain.plan(schedule, net, ticks + 1, 3)
    hubs = np.zeros((K, 2))
    said, path = [hubs.copy()], [hubs]
    for k in range(ticks):
        results, hubs = said[-1].copy(), hubs.copy()
        for i in made[k].who:
            results[i] = hubs[i] - STEP * WORLD.gradient(i, hubs[i])
        said.append(results)
        for i in made[k + 1].who:
            heard = sum(A[i, j] * said[k + 1 - made[k + 1].age[i, j]][j] for j in range(K))
            hubs[i] = heard + (1 - A[i].sum()) * results[i]
        path.append(hubs)
    np.testing.assert_allclose(run.history[0], path, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_run_folder_is_the_run(tmp_path):
    """Stored, loaded and gone on with, where the room for messages and the timetable had to grow."""
    options = {"network": NET, "schedule": UNDER["FedRelax"], "seed": 3, "repeats": 2}
    straight = fp.run(METHODS["FedRelax"], EXACT, rounds=60, **options)
    fp.run(METHODS["FedRelax"], EXACT, rounds=20, folder=tmp_path / "run", **options)
    longer = fp.load(tmp_path / "run", problem=EXACT).extend(60)
    for name in ("history", "used", "time"):
        np.testing.assert_array_equal(getattr(longer, name), getattr(straight, name))


@pytest.mark.slow
def test_records_of_some_ticks_are_those_of_all():
    some, every = (
        fp.run(METHODS["FedGD"], EXACT, network=NET, schedule=UNDER["FedGD"], rounds=31, record_every=n) for n in (4, 1)
    )
    assert some.rounds.tolist() == [*range(0, 31, 4), 31]
    np.testing.assert_array_equal(some.history, every.history[:, some.rounds])
    np.testing.assert_array_equal(some.used, every.used[:, some.rounds])
