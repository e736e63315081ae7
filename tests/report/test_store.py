"""A run in its folder: what is on disk, what is read back, and that a run killed anywhere ends with the same bits."""

import itertools
import json
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedpoint as fp
from fedpoint.engine import base
from fedpoint.engine.session import Session
from fedpoint.engine.state import Records
from fedpoint.results.drive import Recorder
from fedpoint.store import writer as store
from fedpoint.store.folder import RunFolder, load_model
from fedpoint.store.records import Measures

OPTIONS = {"participation": 2, "repeats": 2, "seed": 5, "record_every": 4}
ARRAYS = ("rounds", "error", "loss", "used", "history", "model", "models", "memories")


def quadratic(seed=0, noise=0.1):
    centers = np.random.default_rng(seed).standard_normal((4, 2))
    return fp.problems.Quadratic([1.0, 2.0, 3.0, 4.0], centers, noise=noise)


def scaffold():
    return fp.Scaffold(step=0.05, local_steps=2)


def same_bits(a, b, names=ARRAYS):
    for name in names:
        one, other = np.asarray(getattr(a, name)), np.asarray(getattr(b, name))
        assert one.dtype == other.dtype and one.shape == other.shape, name
        assert one.tobytes() == other.tobytes(), name
    assert a.cost == b.cost


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run whose last round is not a multiple of record_every, and its folder."""
    folder = tmp_path_factory.mktemp("store") / "run"
    return fp.run(scaffold(), quadratic(), rounds=50, folder=folder, **OPTIONS), folder


@pytest.fixture
def segments(monkeypatch):
    """Short segments, and a commit after each."""
    monkeypatch.setattr(base, "PATIENCE", 0.0)
    monkeypatch.setattr(store, "PERIOD", 0.0)


class Killed(BaseException):
    """Stands for a kill: nothing of the library catches it."""


def kill_at(*rounds):
    left = sorted(rounds)

    def callback(progress):
        if left and progress.round >= left[0]:
            left.pop(0)
            raise Killed

    return callback


# Reading back.


def test_a_loaded_run_shows_everything_without_the_data(made):
    run, folder = made
    loaded = fp.load(folder)
    same_bits(loaded, run, [n for n in ARRAYS if n != "loss"])
    same_bits(fp.load(folder, quadratic()), run)  # losses are computed when asked for, from the data
    assert loaded.rounds.tolist() == [*range(0, 49, 4), 50]
    assert loaded.seed == 5 and loaded.finished and "50 rounds" in repr(loaded)
    assert loaded.engine == run.engine and loaded.speed == run.speed
    assert loaded.algorithm == scaffold() and loaded.participation == fp.Uniform(2)


def test_the_folder_states_what_the_run_is(made):
    config = RunFolder.open(made[1]).config
    assert config["algorithm"] == {"name": "scaffold", "step": 0.05, "local_steps": 2, "server_step": 1.0, "option": 2}
    assert config["participation"] == {"class": "Uniform", "count": 2, "plain": False}
    assert {k: config[k] for k in ("seed", "repeats", "record_every", "exact")} == {
        "seed": 5,
        "repeats": 2,
        "record_every": 4,
        "exact": False,
    }
    problem = config["problem"]
    assert problem["class"] == "Quadratic" and problem["agents"] == 4 and len(problem["sha256"]) == 64
    assert problem["shapes"]["own.center"] == [4, 2] and problem["shapes"]["weights"] == [4]


def test_events_and_summary(made):
    run, folder = made
    opened = RunFolder.open(folder)
    events = [event["event"] for event in opened.events()]
    assert events[0] == "started" and events[-1] == "finished"
    assert opened.standing().summary["rounds"] == 50
    assert opened.standing().summary["error"] == pytest.approx(run.error[:, -1].mean(), rel=1e-15)


def test_the_losses_are_those_of_the_problem(made):
    run, _ = made
    flat = run.history.reshape(-1, 2)
    np.testing.assert_allclose(run.loss, quadratic().objective(flat).reshape(run.loss.shape), rtol=1e-13)


def test_losses_do_not_depend_on_how_records_are_cut(rng):
    session = Session(fp.Experiment(scaffold(), quadratic(), repeats=3).bind(), 1)
    recorder = Recorder(session, Measures(losses_every=2))
    models, used = rng.standard_normal((3, 200, 2)), np.zeros((3, 200, 3), int)

    def losses(first, last):
        return recorder.take(np.arange(first, last), Records(models[:, first:last], used[:, first:last])).loss

    whole = losses(0, 200)
    assert np.isnan(whole[:, 1::2]).all() and np.isfinite(whole[:, ::2]).all()
    for cut in (1, 63, 64, 65, 130):
        assert np.concatenate([losses(0, cut), losses(cut, 200)], axis=1).tobytes() == whole.tobytes()


def test_evaluation_is_kept(tmp_path):
    def evaluate(model):
        return {"norm": float(np.abs(model).sum())}

    run = fp.run(scaffold(), quadratic(), rounds=8, folder=tmp_path / "r", evaluate=evaluate, **OPTIONS)
    loaded = fp.load(tmp_path / "r")
    assert loaded.evaluation["norm"].tobytes() == run.evaluation["norm"].tobytes()
    assert loaded.evaluated_rounds.tolist() == [0, 4, 8]


# Going on.


def test_a_finished_run_is_extended_in_its_folder(tmp_path):
    fp.run(scaffold(), quadratic(), rounds=30, folder=tmp_path / "r", **OPTIONS)
    longer = fp.load(tmp_path / "r", quadratic()).extend(75)
    whole = fp.run(scaffold(), quadratic(), rounds=75, **OPTIONS)
    same_bits(longer, whole, [n for n in ARRAYS if n != "loss"])
    same_bits(fp.load(tmp_path / "r", quadratic()), longer)
    with pytest.raises(fp.FedpointError, match="75 rounds already"):
        fp.load(tmp_path / "r", quadratic()).extend(75)


def test_a_run_in_memory_is_extended_in_its_folder(tmp_path):
    run = fp.run(scaffold(), quadratic(), rounds=30, folder=tmp_path / "r", **OPTIONS)
    longer = run.extend(50)
    same_bits(fp.load(tmp_path / "r", quadratic()), longer)
    with pytest.raises(fp.FedpointError, match="load it again"):
        run.folder.round = 30
        run.session.round = 30
        run.extend(60)


def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path, segments):
    rounds, folder = 400, tmp_path / "r"
    whole = fp.run(scaffold(), quadratic(), rounds=rounds, folder=tmp_path / "whole", **OPTIONS)
    with pytest.raises(Killed):
        fp.run(scaffold(), quadratic(), rounds=rounds, folder=folder, callbacks=[kill_at(1)], **OPTIONS)
    for kill in (70, 200, 330, 400):  # at the last round too, before anything says that it is finished
        with pytest.raises(Killed):
            fp.load(folder, quadratic()).extend(rounds, callbacks=[kill_at(kill)])
        assert not fp.load(folder).finished
    done = fp.load(folder, quadratic()).extend(rounds)
    same_bits(done, whole)
    same_bits(fp.load(folder, quadratic()), whole)
    state = [RunFolder.open(path).latest().state for path in (folder, tmp_path / "whole")]
    assert all(state[0][n].tobytes() == state[1][n].tobytes() for n in state[0] if n != "pace")


def test_records_between_commits_are_recomputed(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "PATIENCE", 0.0)
    monkeypatch.setattr(store, "PERIOD", 1e9)  # nothing but the start is on disk
    with pytest.raises(Killed):
        fp.run(scaffold(), quadratic(), rounds=50, folder=tmp_path / "r", callbacks=[kill_at(30)], **OPTIONS)
    loaded = fp.load(tmp_path / "r", quadratic())
    assert loaded.rounds.tolist() == [0]
    same_bits(loaded.extend(50), fp.run(scaffold(), quadratic(), rounds=50, **OPTIONS), ["history", "memories"])


def test_ctrl_c_loses_nothing(tmp_path, made, segments):
    reached = []

    def press(progress):
        reached.append(progress.round)
        if progress.round >= 30 and len(reached) > 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fp.run(scaffold(), quadratic(), rounds=5000, folder=tmp_path / "r", callbacks=[press], **OPTIONS)
    loaded = fp.load(tmp_path / "r", quadratic())
    assert loaded.rounds[-1] >= reached[-1]  # up to the segment in which it was pressed
    last = RunFolder.open(tmp_path / "r").events()[-1]
    assert last["event"] == "interrupted" and last["round"] == loaded.session.round
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    goal = int(loaded.rounds[-1]) + 10
    whole = fp.run(scaffold(), quadratic(), rounds=goal, **OPTIONS)
    same_bits(loaded.extend(goal), whole, ["history", "error", "used", "memories"])


def test_killed_before_the_first_commit(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "start", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            fp.run(scaffold(), quadratic(), rounds=12, folder=tmp_path / "r", **OPTIONS)
    with pytest.raises(fp.FedpointError, match=r"give fp\.load"):
        fp.load(tmp_path / "r")
    done = fp.load(tmp_path / "r", quadratic()).extend(12)
    same_bits(done, fp.run(scaffold(), quadratic(), rounds=12, **OPTIONS), ["history", "error", "memories"])


def test_a_tolerance_ends_a_resumed_run_where_it_would_have_ended(tmp_path, segments):
    tolerance, slow = {"stop": 0.02}, fp.Scaffold(step=0.003, local_steps=2)
    whole = fp.run(slow, quadratic(noise=0.01), rounds=500, **tolerance, **OPTIONS)
    end = int(whole.rounds[-1])
    assert 64 < end < 500
    for kill in (1, end):  # in the middle, and when the last record has met the tolerance but nothing says so yet
        folder = tmp_path / f"{kill}"
        options = {"folder": folder, "callbacks": [kill_at(kill)], **tolerance, **OPTIONS}
        with pytest.raises(Killed):
            fp.run(slow, quadratic(noise=0.01), rounds=500, **options)
        done = fp.load(folder, quadratic(noise=0.01)).extend(500, **tolerance)
        same_bits(done, whole, ["rounds", "history"])


def test_a_commit_that_falls_due_while_it_is_looked_at_is_whole(tmp_path, segments, monkeypatch):
    """The clock goes on, and Ctrl-C comes, between two looks: off the grid of records nothing may be left out."""
    answers = itertools.cycle([False, True])
    monkeypatch.setattr(store.Store, "due", property(lambda _: next(answers)))
    whole = fp.run(scaffold(), quadratic(), rounds=50, **OPTIONS)
    off_grid = 0
    for kill in (1, 6, 11, 18, 27):
        folder = tmp_path / f"{kill}"
        with pytest.raises(Killed):
            fp.run(scaffold(), quadratic(), rounds=50, folder=folder, callbacks=[kill_at(kill)], **OPTIONS)
        loaded = fp.load(folder, quadratic())
        off_grid += bool(loaded.rounds[-1] % OPTIONS["record_every"])
        same_bits(loaded.extend(50), whole, ["rounds", "history", "error", "memories"])
    assert off_grid, "no commit was off the grid: the test tests nothing"


def test_divergence_is_an_event(tmp_path):
    with pytest.raises(fp.Diverged, match="largest stable step"):
        fp.run(fp.Scaffold(step=50.0, local_steps=2), quadratic(), rounds=90, folder=tmp_path / "r", **OPTIONS)
    last = RunFolder.open(tmp_path / "r").events()[-1]
    assert last["event"] == "diverged" and last["round"] > 0 and "step 50" in last["message"]


# What agents remember, without the data.


def named_parts():
    """A model with two parts, of three agents."""
    rng = np.random.default_rng(3)
    data = rng.standard_normal((12, 2)), rng.standard_normal(12)

    def loss(model, batch):
        x, y = batch
        return jnp.mean((x @ model["body"] + model["head"] - y) ** 2)

    return fp.problems.Loss(loss, {"body": np.zeros(2), "head": np.zeros(())}, data, groups=np.arange(12) % 3)


NOTED = {
    "a correction": (fp.Scaffold(step=0.05, local_steps=2), quadratic(), {"participation": 2}),
    "a correction in single precision": (fp.Scaffold(step=0.05), quadratic(), {"start": np.zeros(2, np.float32)}),
    "completed by the hub": (fp.Scaffnew(step=0.05, local_steps=2), quadratic(), {}),
    "and in single precision": (fp.Scaffnew(step=0.05, local_steps=2), quadratic(), {"start": np.zeros(2, "f4")}),
    "own parts": (fp.FedAvg(step=0.05, local_steps=2), named_parts(), {"share": ["body"]}),
    "nothing": (fp.FedAvg(step=0.05), quadratic(), {}),
    "a model of a node": (fp.FedGD(step=0.05, coupling=0.1), quadratic(), {"network": fp.Network.ring(4)}),
    "late answers": (fp.Scaffold(step=0.05), quadratic(), {"schedule": fp.Arrivals(fp.Clock([1.0, 2.0, 3.0, 4.0]), 2)}),
}


@pytest.mark.parametrize("kind", NOTED)
def test_memories_come_back_without_the_data(tmp_path, kind):
    method, problem, options = NOTED[kind]
    run = fp.run(method, problem, rounds=7, repeats=2, seed=3, folder=tmp_path / "r", **options)
    for loaded in (fp.load(tmp_path / "r"), fp.load(tmp_path / "r", problem)):
        assert jax.tree.structure(loaded.memories) == jax.tree.structure(run.memories)
        for one, other in zip(jax.tree.leaves(loaded.memories), jax.tree.leaves(run.memories), strict=True):
            assert one.dtype == other.dtype and one.tobytes() == other.tobytes()


class Counting(fp.Algorithm):
    """Remembers as much as its number says."""

    step: float = 0.1
    kept: int = 2

    def init(self, w):
        return w, {str(i): w for i in range(self.kept)}

    def local(self, heard, memory, agent):
        return -self.step * agent.field(heard, 0), memory

    def combine(self, hub, inbox):
        return hub + inbox.mean


def test_memories_that_cannot_be_told_say_why(tmp_path):
    fp.run(fp.FedAvg(step=0.1, optimiser=optax.trace(0.5)), quadratic(), rounds=2, folder=tmp_path / "r")
    with pytest.raises(fp.FedpointError, match=r"give fp.load\(folder, algorithm="):
        fp.load(tmp_path / "r").memories  # noqa: B018
    fp.run(Counting(), quadratic(), rounds=2, folder=tmp_path / "own")
    assert len(fp.load(tmp_path / "own", allow=[__name__]).memories) == 2
    with pytest.raises(fp.FedpointError, match="remember does not fit Counting"):
        fp.load(tmp_path / "own", algorithm=Counting(kept=3)).memories  # noqa: B018


# What is refused.


@pytest.mark.parametrize("other", [quadratic(seed=1), quadratic(noise=0.2)], ids=["centers", "noise"])
def test_other_data_are_refused(made, other):
    with pytest.raises(fp.FedpointError, match=r"other data \(problem.sha256 was"):
        fp.load(made[1], other)


def test_another_algorithm_is_refused(made):
    with pytest.raises(fp.FedpointError, match=r"algorithm.step was 0.05 and is now 0.06"):
        fp.load(made[1], quadratic(), algorithm=fp.Scaffold(step=0.06, local_steps=2))


def test_without_data_a_python_run_cannot_go_on(made):
    with pytest.raises(fp.FedpointError, match=r"give fp.load\(folder, problem="):
        fp.load(made[1]).extend(100)


def test_a_folder_is_not_overwritten(made):
    with pytest.raises(fp.FedpointError, match="already holds a run"):
        fp.run(scaffold(), quadratic(), rounds=2, folder=made[1], **OPTIONS)


# Anything that can be run.


def test_a_tree_of_parameters(tmp_path, segments):
    def loss(params, batch):
        x, y = batch
        (w,), b = params["layers"], params["bias"]
        return jnp.mean((x @ w + b - y) ** 2)

    rng = np.random.default_rng(3)
    data = rng.standard_normal((12, 2)), rng.standard_normal(12)
    params = {"layers": (np.zeros(2),), "bias": np.zeros(())}
    problem = fp.problems.Loss(loss, params, data, groups=np.arange(12) % 3)
    whole = fp.run(fp.FedAvg(step=0.1), problem, rounds=150)
    with pytest.raises(Killed):
        fp.run(fp.FedAvg(step=0.1), problem, rounds=150, folder=tmp_path / "r", callbacks=[kill_at(70)])
    bare = fp.load(tmp_path / "r")  # dictionaries and lists, without the problem
    assert bare.model["layers"][0].shape == (1, 2) and not bare.has_error
    done = fp.load(tmp_path / "r", problem).extend(150)
    assert done.model["layers"][0].tobytes() == whole.model["layers"][0].tobytes()
    assert done.history["bias"].tobytes() == whole.history["bias"].tobytes()
    np.testing.assert_allclose(done.loss, whole.loss, rtol=1e-13)


def test_what_the_folder_only_names_is_given_again(tmp_path):
    mine = fp.FedAvg(step=0.1, optimiser=optax.trace(0.5))
    fp.run(mine, quadratic(), rounds=5, folder=tmp_path / "r", **OPTIONS)
    loaded = fp.load(tmp_path / "r")
    assert loaded.error.shape == (2, 3)
    with pytest.raises(fp.FedpointError, match=r"trace.*give fp.load\(folder, algorithm="):
        fp.load(tmp_path / "r", quadratic())
    longer = fp.load(tmp_path / "r", quadratic(), algorithm=mine).extend(9)
    same_bits(longer, fp.run(mine, quadratic(), rounds=9, **OPTIONS), ["history"])


@pytest.mark.parametrize(
    "scheme",
    [fp.Importance(3), fp.Answering(fp.Uniform(3), probability=0.7, keep=2)],
    ids=["importance", "answering"],
)
def test_participation_is_rebuilt(tmp_path, scheme):
    options = {**OPTIONS, "participation": scheme}
    fp.run(scaffold(), quadratic(), rounds=9, folder=tmp_path / "r", **options)
    loaded = fp.load(tmp_path / "r", quadratic())
    assert loaded.participation == scheme
    whole = fp.run(scaffold(), quadratic(), rounds=17, **options)
    same_bits(loaded.extend(17), whole, ["history", "used", "memories"])


@pytest.mark.parametrize(
    "algorithm",
    [
        fp.FedAvg(step=fp.steps.InverseTime(2.0, 30.0), local_steps=fp.steps.Stragglers(4, 0.5), normalise=True),
        fp.FedNova(step=[0.01, 0.02, 0.03, 0.04], local_steps=[1, 2, 3, 4], momentum=0.5),
        fp.GeneralRule(step=0.01, local_steps=3, coefficients=[1.0, 0.5, 0.25], effective=2.0),
        fp.GeneralRule(step=0.01, local_steps=[1, 2, 3], coefficients=[[1.0], [0.5, 2.0], [1.0, 0.0, 1.0]]),
        fp.FedAdam(step=0.1, local_steps=2),
        fp.FedProx(exact=True, pull=2.0),
    ],
    ids=lambda a: type(a).__name__,
)
def test_algorithms_are_described_and_rebuilt(algorithm):
    from fedpoint.core.describe import describe_record, rebuild

    assert rebuild(json.loads(json.dumps(describe_record(algorithm)))) == algorithm


# Models.


def test_export(made, tmp_path):
    run, folder = made
    for source, name in ((run, "a.npz"), (fp.load(folder), "b.npz")):
        source.export(tmp_path / name, repeat=1)
        arrays, manifest = load_model(tmp_path / name)
        assert arrays["model"].tobytes() == run.model[1].tobytes()
        assert manifest["problem"] == "Quadratic" and manifest["features"] == 2 and manifest["classes"] is None
        assert manifest["rounds"] == 50 and manifest["seed"] == 5 and manifest["repeat"] == 1
        assert manifest["algorithm"]["name"] == "scaffold" and manifest["versions"]["fedpoint"] == fp.__version__
    fp.export(run, tmp_path / "c.npz")
    assert load_model(tmp_path / "c.npz")[0]["model"].tobytes() == run.model[0].tobytes()
    with pytest.raises(fp.FedpointError, match="no repeat 2"):
        run.export(Path(tmp_path / "d.npz"), repeat=2)


# What is evaluated while a run goes on, and what is recorded beside the model.


class Counted(fp.problems.Quadratic):
    """Counts how often everybody's data are looked at."""

    asked = solved_for = 0

    def objective(self, models):
        self.asked += len(models)
        return super().objective(models)

    def solution(self):
        self.solved_for += 1
        return super().solution()

    @property
    def solved(self):
        return False


def counted():
    return Counted([1.0, 2.0, 3.0, 4.0], np.random.default_rng(0).standard_normal((4, 2)), noise=0.1)


def test_a_folder_asks_for_one_loss_and_for_no_solution(tmp_path, segments):
    problem = counted()
    run = fp.run(scaffold(), problem, rounds=400, seed=5, participation=2, folder=tmp_path / "r")
    assert (problem.asked, problem.solved_for) == (1, 0)
    assert RunFolder.open(tmp_path / "r").standing().summary["loss"] == pytest.approx(problem.objective(run.model)[0])
    at, known = run.known_loss()
    assert at.tolist() == [400] and known.shape == (1, 1)
    loaded = fp.load(tmp_path / "r")
    assert not loaded.has_error and not loaded.has_loss and set(loaded.absent()) == {"the loss", "the error"}
    assert loaded.known_loss()[1].tobytes() == known.tobytes()
    with pytest.raises(fp.FedpointError, match=r"has no loss: none was evaluated.*give fp.load\(folder, problem="):
        _ = loaded.loss
    with pytest.raises(fp.FedpointError, match=r"has no error: the solution was not known.*give fp.load\(folder, pro"):
        _ = loaded.error
    given = fp.load(tmp_path / "r", counted())
    same_bits(given, run)
    assert given.error.shape == (1, 401) and problem.solved_for == 1


def test_losses_are_evaluated_where_they_are_asked_for(tmp_path, segments):
    options = {"rounds": 60, "losses_every": 8, **OPTIONS}
    with pytest.raises(Killed):
        fp.run(scaffold(), counted(), folder=tmp_path / "r", callbacks=[kill_at(20)], **options)
    problem = counted()
    fp.load(tmp_path / "r", problem).extend(60)
    bare = fp.load(tmp_path / "r")
    there = ~np.isnan(bare.loss).any(axis=0)
    assert bare.rounds[there].tolist() == [*range(0, 57, 8)]
    assert bare.known_loss()[0].tolist() == [*range(0, 57, 8), 60] and "the loss" not in bare.absent()
    whole = fp.run(scaffold(), counted(), folder=tmp_path / "whole", **options)
    assert bare.loss.tobytes() == fp.load(tmp_path / "whole").loss.tobytes()
    np.testing.assert_allclose(bare.loss[:, there], whole.loss[:, there], rtol=1e-13)
    with pytest.raises(fp.FedpointError, match="losses_every must be a whole number, at least 1"):
        fp.run(scaffold(), counted(), losses_every=0)


def distance(state):
    """From the hub's model to where agents' control variates say that they are."""
    return jnp.sum(state.memory**2)


def size_by_agent(state):
    return {"model": jnp.sum(state.memory**2, axis=1) + state.round}["model"]


METRICS = {"distance": distance, "by agent": size_by_agent}


def test_metrics_are_recorded_beside_the_model(tmp_path, segments):
    whole = fp.run(scaffold(), quadratic(), rounds=50, metrics=METRICS, **OPTIONS)
    n = len(whole.rounds)
    assert whole.metrics["distance"].shape == (2, n) and whole.metrics["by agent"].shape == (2, n, 4)
    plain = fp.run(scaffold(), quadratic(), rounds=50, **OPTIONS)
    same_bits(whole, plain)
    assert plain.metrics == {}
    by_hand = (np.asarray(plain.session.whole().memory) ** 2).sum((1, 2))
    np.testing.assert_allclose(whole.metrics["distance"][:, -1], by_hand, rtol=1e-12)
    np.testing.assert_allclose(
        whole.metrics["by agent"].sum(2), whole.metrics["distance"] + 4 * whole.rounds, rtol=1e-12
    )
    with pytest.raises(Killed):
        options = {"folder": tmp_path / "r", "callbacks": [kill_at(20)], "metrics": METRICS, **OPTIONS}
        fp.run(scaffold(), quadratic(), rounds=50, **options)
    with pytest.raises(fp.FedpointError, match=r"metrics by agent, distance are not in .*give fp.load"):
        fp.load(tmp_path / "r", quadratic())
    done = fp.load(tmp_path / "r", quadratic(), metrics=METRICS).extend(50)
    for run in (done, fp.load(tmp_path / "r")):
        assert run.metrics.keys() == METRICS.keys()
        assert all(run.metrics[name].tobytes() == whole.metrics[name].tobytes() for name in METRICS)


def test_metrics_on_a_network_and_of_a_tree():
    def spread(state):
        return jnp.var(state.model, axis=0).sum()

    run = fp.run(
        fp.FedGD(step=0.05, coupling=1.0), quadratic(), rounds=9, network=fp.Network.ring(4), metrics={"spread": spread}
    )
    np.testing.assert_allclose(run.metrics["spread"], run.history.var(axis=2).sum(-1), rtol=1e-12)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([1], "metrics must be a dictionary whose values are a function"),
        ({"drift": 3}, "metrics must be a dictionary whose values are a function"),
        ({"drift": lambda state: "far"}, "metric 'drift' must return a number or an array of numbers; got str"),
        ({"drift": lambda state: None}, "metric 'drift' must return a number or an array of numbers; got None"),
        ({"drift": lambda state: state.weights}, "metric 'drift' failed .*no attribute 'weights'"),
        ({"drift": lambda state: 1.0 if state.round > 3 else 0.0}, "metric 'drift' asks for the value .*jnp.where"),
    ],
)
def test_a_wrong_metric_is_named(metrics, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(scaffold(), quadratic(), rounds=2, metrics=metrics)
    with pytest.raises(fp.FedpointError, match="not for several processes"):
        fp.run(scaffold(), quadratic(), rounds=2, metrics=METRICS, processes=2)
