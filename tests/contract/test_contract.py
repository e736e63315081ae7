"""What every algorithm owes: enumerated from the catalogue, so that a new one is held to it from its first day."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instances import ALL, ENGINE, INSTANCES, OTHER, STEP, Central, Damped

import fedpoint as fp
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import CATALOGUE, bind_algorithm, samples_per_round
from fedpoint.core.random import Key, Stream
from fedpoint.core.record import one_agent, values_of
from fedpoint.engine.program import PROGRAMS
from fedpoint.engine.session import Session, flatten, unflatten
from fedpoint.experiment import Experiment
from fedpoint.problems import Mine
from fedpoint.store.folder import RunFolder, export_model, load_model

SIZES = (5, 8, 6, 7)
every_instance = pytest.mark.parametrize("name", INSTANCES)
WRAPPED = ("Extrapolated", "Averaged")
# To the engine these are FedAvg again (one hub, no memory, local steps) or SCAFFOLD twice. All are in `make test-all`.
LIKE_FEDAVG = (
    *("GradientExchange", "ParameterExchange", "FedProx", "FedProx, exact", "GeneralRule", "FedNova", "q-FedAvg"),
    *("FedDyn", "FedExP", "Mime", "Fine-tuning", "APFL", "pFedMe"),
    *WRAPPED,
)
under_the_engine = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LIKE_FEDAVG else n for n in ENGINE]
)


def algorithm(name, step=STEP, agents=ALL, part=1.0):
    return INSTANCES[name].make(step, np.asarray(agents), part)


def of_agents(name, models, agents):
    """The models as these agents have them: the same for all, but of methods with own ones."""
    return models[:, :, agents] if INSTANCES[name].personal else models


def bowls(agents=ALL, part=None, noise=0.0):
    """A quadratic with unequal weights; `agents` repeats or permutes the four, `part` is how much of each is meant."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 3, 3))
    H, c, p = root @ np.swapaxes(root, 1, 2) / 3 + 0.5 * np.eye(3), rng.normal(size=(4, 3)), np.array([4, 1, 3, 2.0])
    k = np.asarray(agents)
    return fp.problems.Quadratic(H[k], c[k], noise=noise, weights=p[k] * (1.0 if part is None else part))


NOISY = bowls(noise=0.2)


def session(name, step=STEP, seed=3, repeats=1, participation=None, problem=NOISY, **layout):
    asked = Experiment(algorithm(name, step), problem, participation=participation, seed=seed, repeats=repeats)
    made = Session(asked.bind(), 1)
    made.layout = dataclasses.replace(made.layout, **layout)
    return made


def few(name):
    """Few participants where the method allows them, so that memories age."""
    card = CATALOGUE.get(INSTANCES[name].card)
    return None if card is not None and card.restriction else 3


def histories(made, rounds):
    kept = []
    made.advance(rounds, keep=lambda at, records: kept.append(records))
    return jax.tree.map(lambda *a: np.concatenate(a, axis=1), *kept).model


def same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b)


# Methods for networks have a contract of their own: tests/networks/test_network_contract.py.
STAR = sorted(name for name, card in CATALOGUE.items() if not card.network)


def test_every_card_has_an_instance():
    assert {one.card for one in INSTANCES.values()} >= set(STAR)
    assert {INSTANCES[name].card for name in ENGINE} >= set(STAR)
    assert set(CATALOGUE) - set(STAR) == {card.name for card in CATALOGUE.values() if card.cls.at_agents}


# The mathematics of a round.


@every_instance
def test_permuting_agents_permutes_the_result(name):
    order = np.array([2, 0, 3, 1])
    plain = fp.run(algorithm(name), bowls(), rounds=6, exact=True)
    moved = fp.run(algorithm(name, agents=order), bowls(order), rounds=6, exact=True)
    np.testing.assert_allclose(moved.history, of_agents(name, plain.history, order), rtol=1e-12, atol=1e-12)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b[:, order], rtol=1e-10, atol=1e-11), moved.memories, plain.memories
    )
    np.testing.assert_allclose(moved.loss, plain.loss, rtol=1e-12)


@every_instance
def test_splitting_an_agent_into_halves_changes_nothing(name):
    agents, part = np.array([0, 1, 1, 2, 3]), np.array([1, 0.5, 0.5, 1, 1])
    whole = fp.run(algorithm(name), bowls(), rounds=6, exact=True)
    split = fp.run(algorithm(name, agents=agents, part=part), bowls(agents, part), rounds=6, exact=True)
    np.testing.assert_allclose(split.history, of_agents(name, whole.history, agents), rtol=1e-10, atol=1e-10)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b[:, agents], rtol=1e-9, atol=1e-10), split.memories, whole.memories
    )


@every_instance
def test_one_agent_is_the_centralised_method(name):
    problem, rounds = bowls([0]), 7
    H, c = problem.own.H[0], problem.own.center[0]
    run = fp.run(algorithm(name, agents=[0]), problem, rounds=rounds, exact=True, start=[1.0, -2.0, 0.5])
    w, path = np.array([1.0, -2.0, 0.5]), [np.array([1.0, -2.0, 0.5])]
    plain = Central(
        lambda w: H @ (w - c),
        lambda w: 0.5 * (w - c) @ H @ (w - c),
        lambda v, weight: np.linalg.solve(H + 2 * weight * np.eye(3), H @ c + 2 * weight * v),
    )
    if INSTANCES[name].central is None:  # the number of steps is random; how many there were is part of the cost
        steps = np.diff(run.used[0, :, 2])
        assert (steps >= 1).all() and len(set(steps)) > 1
        for n in steps:
            for _ in range(n):
                w = plain.gradient(w, 0, STEP)
            path.append(w)
    else:
        for r in range(rounds):
            w = getattr(plain, INSTANCES[name].central)(w, r, STEP)
            path.append(plain.own if INSTANCES[name].personal else w)
    np.testing.assert_allclose(run.history[0].reshape(rounds + 1, 3), path, rtol=1e-12, atol=1e-13)


# The program of a run.


@under_the_engine
def test_traced_once(name):
    """Other steps, seeds, weights, rounds, records: the same program."""
    fp.run(algorithm(name), NOISY, rounds=4, participation=few(name))
    compiled = [p._cache_size() for p in PROGRAMS.values()]
    other = bowls(noise=0.1)
    other.weights = np.array([0.1, 0.2, 0.3, 0.4])
    run = fp.run(algorithm(name, OTHER), other, rounds=9, participation=few(name), seed=8, record_every=2)
    run.extend(11)
    assert [p._cache_size() for p in PROGRAMS.values()] == compiled


def test_local_is_traced_once_a_program():
    traced = []

    class Counted(Damped):
        def local(self, w, last, agent):
            traced.append(agent)
            return super().local(w, last, agent)

    fp.run(Counted(0.1), NOISY, rounds=200)
    assert len(traced) <= 6  # shapes, the loop's body (which JAX may look at more than once), never once a round
    before = len(traced)
    fp.run(Counted(0.05), NOISY, rounds=300, seed=4)
    assert len(traced) - before <= 1  # the shapes of a message only


@under_the_engine
def test_hub_and_memory_survive_serialisation(name, tmp_path):
    """Flat, named arrays, through an npz on disk, to the bit; and then the run goes on to the same bits."""
    one = session(name, participation=few(name))
    one.advance(5)
    saved = one.save()
    with RunFolder.create(tmp_path / "run", {}, meta={}) as folder:
        folder.commit(5, saved, {})
    with RunFolder.open(tmp_path / "run") as folder:
        found = folder.latest()
    assert found.round == 5 and set(found.state) == set(saved)
    same_bits(found.state, saved)
    same_bits(jax.tree.map(np.asarray, unflatten(one.state, found.state)), jax.tree.map(np.asarray, one.state))
    two = session(name, participation=few(name), seed=3)
    two.restore(found.state, 5)
    same_bits(histories(two, 9), histories(one, 9))
    same_bits(two.memories(), one.memories())


@every_instance
def test_messages_survive_serialisation(name, tmp_path):
    """What goes down and what comes up, as a site would send it: named arrays in an npz, nothing pickled."""
    problem, method = bowls([0]), algorithm(name, agents=[0])
    method = one_agent(bind_algorithm(method, problem), 0)
    with jax.enable_x64(True):
        key, mine = (
            Key.of(0),
            Mine(*jax.tree.map(jnp.asarray, (jax.tree.map(lambda a: a[0], problem.own), problem.common))),
        )
        hub, memory = method.init(jnp.asarray([1.0, -2.0, 0.5]))
        for asked, _ in method.exchanges()[:-1]:
            agent = Agent(problem.oracle, mine, Stream(key, 0, 0), None, None, True, 1.0)
            told, memory = asked.local(asked.say(hub, key.row()), memory, agent)
            hub = asked.combine(hub, fp.Inbox(told, told, 1.0, 1.0))
        down = method.say(hub, key.row())
        agent = Agent(problem.oracle, mine, Stream(key, 0, 0), None, None, True, 1.0)
        up, memory = method.local(down, memory, agent)
    for label, message in (("down", down), ("up", up), ("memory", memory)):
        message = jax.tree.map(np.asarray, message)
        export_model(tmp_path / f"{label}.npz", flatten(message), {"kind": label})
        same_bits(jax.tree.map(np.asarray, unflatten(message, load_model(tmp_path / f"{label}.npz")[0])), message)
        assert not jax.tree.leaves(message) or any(np.any(a) for a in jax.tree.leaves(message))


def test_a_state_that_does_not_fit_is_refused():
    one = session("SCAFFOLD")
    saved = one.save()
    name = next(iter(saved))
    for wrong in ({k: v for k, v in saved.items() if k != name}, {**saved, name: saved[name][..., :1]}):
        with pytest.raises(fp.FedpointError, match="saved state does not fit this run"):
            one.restore(wrong, 1)


@under_the_engine
def test_a_resumed_run_is_the_uninterrupted_one(name):
    straight = session(name, participation=few(name))
    path = histories(straight, 9)
    first = session(name, participation=few(name))
    part = histories(first, 4)
    second = session(name, participation=few(name))
    second.restore(first.save(), first.round)
    rest = histories(second, 9)
    same_bits(jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), part, rest), path)
    same_bits(second.save(), straight.save())
    run = fp.run(algorithm(name), NOISY, rounds=4, participation=few(name), seed=3)
    longer = run.extend(9)
    same_bits(longer.history[:, 1:], path)
    same_bits(longer.memories, straight.memories())


# What the engine may choose without changing the result.


@under_the_engine
def test_drawn_ahead_is_drawn_on_the_spot(name):
    """The same numbers, up to what a fused multiplication and addition rounds."""
    one, two = session(name, participation=few(name)), session(name, participation=few(name), samples=None)
    if one.layout.samples is None:
        one.layout = dataclasses.replace(one.layout, samples=samples_per_round(one.algorithm))
    np.testing.assert_allclose(histories(one, 12), histories(two, 12), rtol=1e-13, atol=1e-14)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), one.memories(), two.memories())


def regression(**options):
    rng = np.random.default_rng(1)
    A = [rng.normal(size=(n, 3)) + 0.2 * k for k, n in enumerate(SIZES)]
    b = [rng.normal(size=n) + k for k, n in enumerate(SIZES)]
    return fp.problems.LeastSquares(A, b, weights=[4, 1, 3, 2], mean=True, **options)


def classes(**options):
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(4), SIZES)
    return fp.problems.Logistic(rng.normal(size=(26, 3)), rng.integers(0, 3, 26), groups=groups, **options)


@pytest.mark.parametrize(
    ("problem", "participation", "stored"),
    [
        (fp.problems.LinearStream.sample(agents=4, dim=3), None, False),
        (fp.problems.LinearStream(np.eye(4)[:, :3], covariance=np.diag([1.0, 2.0, 3.0])), 2, False),
        (regression(batch=1), 2, True),
        (regression(batch=30), None, True),
        (regression(batch=2, sampling="shuffle"), 2, True),
        (regression(batch=2, sampling="importance"), None, True),
        (classes(batch=2), fp.ByWeight(3), True),
    ],
    ids=["stream", "stream, covariance", "row", "wide", "shuffled", "importance", "softmax"],
)
def test_chunks_do_not_change_a_bit(problem, participation, stored):
    """Samples drawn ahead for 64 rounds or for 3, in one call or in many: the same bits.

    On the spot too where samples are rows. Where they are computed numbers, XLA fuses what makes them with what uses
    them, and a product and a sum are rounded once instead of twice.
    """
    plain, other, spot, pieces = (
        session("FedAvg", problem=problem, participation=participation, **layout)
        for layout in ({}, {"chunk": 3}, {"samples": None}, {})
    )
    path = histories(plain, 12)
    same_bits(histories(other, 12), path)
    near = histories(spot, 12)
    same_bits(near, path) if stored else np.testing.assert_allclose(near, path, rtol=1e-13, atol=1e-14)
    for rounds in (1, 3, 8, 12):
        pieces.advance(rounds)
    same_bits(pieces.save(), plain.save())


@under_the_engine
def test_agents_batched_are_agents_mapped(name):
    one, two = (session(name, participation=few(name), mapped=mapped) for mapped in (False, True))
    np.testing.assert_allclose(histories(one, 12), histories(two, 12), rtol=1e-12, atol=1e-13)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12), one.memories(), two.memories())


@pytest.mark.parametrize("participation", [fp.participation.Poisson(0.4), fp.ByWeight(3)], ids=["empty", "repeated"])
def test_rows_are_fetched_and_written_in_turn(participation):
    """One agent after the other, each with its own row of what it and the channel remember; places that are empty carry
    somebody's number, and repeated ones somebody's second time."""
    channel = fp.channel.TopK(0.4)
    asked = Experiment(fp.Scaffold(step=STEP, local_steps=2), NOISY, participation=participation, channel=channel)
    one, two = (Session(asked.bind(), 1) for _ in range(2))
    two.layout = dataclasses.replace(one.layout, mapped=True)
    assert not one.layout.mapped
    np.testing.assert_allclose(histories(one, 12), histories(two, 12), rtol=1e-12, atol=1e-13)
    for kept in ("memory", "wire"):
        a, b = (jax.tree.leaves(getattr(made.state, kept)) for made in (one, two))
        assert a and all(np.asarray(x).any() for x in a)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12), a, b)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LIKE_FEDAVG else n for n in ENGINE if INSTANCES[n].number],
)
def test_a_sweep_is_separate_runs(name):
    field = INSTANCES[name].number
    values = [STEP, OTHER, 0.02]
    options = {"rounds": 7, "participation": few(name), "seed": 2}
    swept = fp.sweep(algorithm(name), NOISY, over={field: values}, **options)
    assert swept.points == [{field: v} for v in values] and swept.error.shape == (3, 1, 8)
    for i, value in enumerate(values):
        alone = fp.run(dataclasses.replace(algorithm(name), **{field: value}), NOISY, **options)
        np.testing.assert_allclose(swept.error[i], alone.error, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(swept.model[i], alone.model, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(swept.used[i], alone.used)


def test_a_sweep_over_whole_numbers_and_pairs_is_separate_runs():
    """A number of local steps is compiled in when given, and traced when swept; repeats and points are told apart."""
    over = {"local_steps": [1, 4], "step": [STEP, OTHER]}
    options = {"rounds": 6, "seed": 2, "repeats": 2, "participation": fp.ByWeight(3)}
    swept = fp.sweep(fp.FedAvg(STEP), NOISY, over=over, **options)
    assert swept.points == [{"local_steps": E, "step": s} for E in (1, 4) for s in (STEP, OTHER)]
    for i, point in enumerate(swept.points):
        alone = fp.run(fp.FedAvg(**point), NOISY, **options)
        np.testing.assert_allclose(swept.model[i], alone.model, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(swept.loss[i], alone.loss, rtol=1e-11)
        np.testing.assert_array_equal(swept.used[i], alone.used)
    best = np.array([swept.error[i, :, -1].mean() for i in range(4)]).argmin()
    assert swept.best() == swept.points[best]


def test_a_sweep_reaches_what_is_wrapped():
    """A method's own fields inside of wrappers, whole numbers too, beside a wrapper's; and experiments are swept."""
    experiment = fp.Experiment(Around(fp.Averaged(fp.FedAvg(STEP), burn_in=1)), NOISY, seed=2, repeats=2)
    over = {"burn_in": [0, 3], "local_steps": [1, 4], "step": [STEP, OTHER]}
    swept = fp.sweep(experiment, over=over, rounds=6)
    for i, point in enumerate(swept.points):
        burn_in = point.pop("burn_in")
        alone = fp.run(experiment.replace(algorithm=fp.Averaged(fp.FedAvg(**point), burn_in=burn_in)), rounds=6)
        np.testing.assert_allclose(swept.model[i], alone.model, rtol=1e-12, atol=1e-13)
    assert len(swept.points) == 8


def test_a_sweep_keeps_what_is_not_swept():
    """Epochs, numbers per agent, schedules: bound to the problem as in a run."""
    rows = regression(batch=3)
    for method in (
        fp.FedAvg(STEP, local_steps=fp.steps.Epochs(2), normalise=True),
        fp.FedProx(STEP, local_steps=[1, 2, 3, 4], pull=0.1),
        fp.FedAvg(STEP, local_steps=fp.steps.Stragglers(3, 0.5), normalise=True),
    ):
        swept = fp.sweep(method, rows, over={"step": [STEP, OTHER]}, rounds=4)
        for i, step in enumerate((STEP, OTHER)):
            alone = fp.run(dataclasses.replace(method, step=step), rows, rounds=4)
            np.testing.assert_allclose(swept.model[i], alone.model, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"stepp": [0.1]}, "FedAvg has no field 'stepp': did you mean 'step'"),
        ({"step": 0.1}, "needs a list of numbers"),
        ({"step": []}, "needs a list of numbers"),
        ({"step": ["a"]}, "needs a list of numbers"),
        ({"step": [0.1, -0.1]}, "step must be above 0"),
    ],
)
def test_a_sweep_over_what_cannot_be_swept_is_refused(over, words):
    with pytest.raises(fp.FedpointError, match=words):
        fp.sweep(fp.FedAvg(STEP), NOISY, over=over, rounds=1)


# Models that are not arrays of doubles.


def network(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["V"] + params["b"])
    return jnp.mean(0.5 * (hidden @ params["u"] - batch["y"]) ** 2)


def flat_network(w, batch):
    return network({"V": w[:6].reshape(3, 2), "b": w[6:8], "u": w[8:]}, batch)


def networks(dtype):
    """The same small neural network with a dictionary of arrays and with one flat array for its model."""
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(4), SIZES)
    data = {"x": rng.normal(size=(26, 3)), "y": rng.normal(size=26)}
    w = rng.normal(size=10).astype(dtype)
    params = {"V": w[:6].reshape(3, 2), "b": w[6:8], "u": w[8:]}
    return [
        fp.problems.Loss(loss, start, data, groups=groups, batch=3)
        for loss, start in ((network, params), (flat_network, w))
    ]


TREE, FLAT = networks(np.float64)
SINGLE = networks(np.float32)[0]


def train(name, problem):
    step = 4.0 if INSTANCES[name].number == "pull" else STEP  # a pull that makes a network's local problem convex
    rounds = 2 if name == "FedNewton" else 4  # a curvature near zero amplifies roundings in a step or two
    return fp.run(algorithm(name, step), problem, rounds=rounds, seed=1)


@under_the_engine
def test_a_tree_of_arrays_is_the_flat_array(name):
    tree, flat = train(name, TREE), train(name, FLAT)
    parts = tree.history
    assert set(parts) == {"V", "b", "u"}
    joined = np.concatenate([parts["V"].reshape(*parts["b"].shape[:-1], 6), parts["b"], parts["u"]], axis=-1)
    np.testing.assert_allclose(joined, flat.history, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(tree.loss, flat.loss, rtol=1e-12)
    assert tree.cost == flat.cost
    assert np.abs(flat.history[0, -1] - flat.history[0, 0]).max() > 1e-4


@under_the_engine
def test_single_precision_stays_single(name):
    """The model, the hub and the memories; and the run is the double one to single precision."""
    single, double = train(name, SINGLE), train(name, TREE)
    for leaf in jax.tree.leaves((single.history, single.model, single.memories, single.session.state[:2])):
        assert leaf.dtype in (np.float32, np.int32), leaf.dtype
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), single.history, double.history)
    assert single.cost.bytes_up == single.cost.floats_up * 4 and double.cost.bytes_up == double.cost.floats_up * 8


def test_weights_of_ones_own_in_single_precision():
    rule = fp.GeneralRule(0.1, 2, weights=[0.4, 0.3, 0.2, 0.1])
    assert fp.run(rule, SINGLE, rounds=2).model["V"].dtype == np.float32


# What is put around a method, or in its place, without changing it.


class Around(fp.Wrapped):
    """A wrapper that changes nothing."""


class Nothing(fp.Channel):
    """A channel that changes nothing, but is asked."""


def subclass_of(method):
    """The same method as an object of a subclass that changes nothing."""
    kind = type(f"My{type(method).__name__}", (type(method),), {"__module__": __name__})
    return kind(**values_of(method))


def few_rounds(name, method=None, **options):
    method = algorithm(name) if method is None else method
    return fp.run(method, NOISY, rounds=6, participation=few(name), seed=2, **options)


def assert_same_run(one, two):
    same_bits(one.history, two.history)
    same_bits(one.memories, two.memories)
    same_bits(one.used, two.used)
    assert one.cost == two.cost


@under_the_engine
def test_a_wrapper_that_changes_nothing_gives_the_same_bits(name):
    assert_same_run(few_rounds(name, Around(Around(algorithm(name)))), few_rounds(name))


@under_the_engine
def test_a_subclass_that_changes_nothing_gives_the_same_bits(name):
    assert_same_run(few_rounds(name, subclass_of(algorithm(name))), few_rounds(name))


@every_instance
def test_a_subclass_that_changes_nothing_keeps_what_is_known_of_it(name):
    method, mine = algorithm(name), subclass_of(algorithm(name))
    assert mine.card == method.card
    assert mine.closed_forms().keys() == method.closed_forms().keys() and mine.own_kind() == method.own_kind()
    assert all(mine.invalid_under(scheme) == method.invalid_under(scheme) for scheme in (fp.Everyone(), fp.Uniform(2)))


@pytest.mark.parametrize("name", ["GradientExchange", "FedAvg", "SCAFFOLD"])
def test_a_subclass_that_changes_nothing_keeps_its_exact_floor(name):
    own, known = (
        fp.forecast(method, NOISY, participation=3) for method in (subclass_of(algorithm(name)), algorithm(name))
    )
    assert (own.floor, own.bias, own.rate, own.notes) == (known.floor, known.bias, known.rate, known.notes)
    assert any(note.startswith("exact") for note in own.notes)


def test_a_subclass_that_changes_the_update_has_no_closed_forms():
    class Longer(fp.FedAvg):
        def local(self, w, memory, agent):
            change, memory = super().local(w, memory, agent)
            return 2.0 * change, memory

    assert fp.FedAvg(STEP).closed_forms() and not Longer(STEP).closed_forms()
    assert Longer(STEP).own_kind() and not fp.FedAvg(STEP).own_kind()


def test_a_wrapped_method_is_refused_with_its_own_reason():
    inner = fp.Scaffnew(0.1, probability=0.5)
    with pytest.raises(fp.FedpointError) as plain:
        fp.run(inner, bowls(), rounds=1, participation=2)
    for wrapped in (Around(inner), Around(Around(inner)), fp.Averaged(Around(inner)), fp.Extrapolated(inner)):
        with pytest.raises(fp.FedpointError) as caught:
            fp.run(wrapped, bowls(), rounds=1, participation=2)
        assert str(caught.value) == str(plain.value)


@under_the_engine
def test_a_channel_that_changes_nothing_gives_the_same_bits(name):
    assert_same_run(few_rounds(name, channel=Nothing()), few_rounds(name))


@under_the_engine
def test_every_method_runs_with_half_precision(name):
    """Messages are rounded to 11 bits: the path stays near, and messages up weigh a quarter."""
    half, whole = few_rounds(name, channel=fp.channel.Cast("float16")), few_rounds(name)
    assert np.abs(half.history - whole.history).max() < 0.01 * (1 + np.abs(whole.history).max())
    assert not np.array_equal(half.history, whole.history)
    assert half.cost.bytes_up == whole.cost.bytes_up / 4 and half.cost.bytes_down == whole.cost.bytes_down


ON_NETWORKS = [
    fp.FedGD(step=0.1, coupling=0.2),
    fp.FedSGD(step=0.1, coupling=0.2),
    fp.FedRelax(coupling=0.5),
    *(algorithm(name) for name in ENGINE if algorithm(name).sends_changes() and not INSTANCES[name].personal),
]


@pytest.mark.parametrize("method", ON_NETWORKS, ids=lambda method: method.card.name)
def test_channels_on_networks(method):
    """One that changes nothing gives the same bits, and half precision stays near."""
    options = {"rounds": 6, "network": fp.Network.ring(4).mixing(), "seed": 2}
    whole = fp.run(method, NOISY, **options)
    assert_same_run(fp.run(method, NOISY, channel=Nothing(), **options), whole)
    half = fp.run(method, NOISY, channel=fp.channel.Cast("float16"), **options)
    assert np.abs(half.history - whole.history).max() < 0.01 * (1 + np.abs(whole.history).max())
    assert half.cost.bytes_up == whole.cost.bytes_up / 4


# Refusals.


def test_a_participation_that_breaks_the_method_is_refused_with_the_reason():
    for participation in (2, fp.ByWeight(2), fp.Importance(2), fp.Answering(fp.Everyone(), probability=0.5)):
        with pytest.raises(fp.FedpointError, match="Scaffnew cannot run with participation") as caught:
            fp.run(fp.Scaffnew(0.1, probability=0.5), bowls(), rounds=1, participation=participation)
        assert "stay balanced" in str(caught.value) and "Use Everyone" in str(caught.value)


@pytest.mark.parametrize("name", STAR)
def test_agents_that_do_not_answer_are_accepted(name):
    """Unless the card refuses them: weights that do not sum to one, memories that are not committed."""
    allowed = CATALOGUE[name].participation
    method = next(algorithm(label) for label in ENGINE if INSTANCES[label].card == name)
    if allowed is None or "Answering" in allowed:
        scheme = fp.Answering(fp.Everyone(), probability=0.7)
        assert np.isfinite(fp.run(method, bowls(), rounds=3, participation=scheme, exact=True).history).all()
