"""Evaluation while a run goes on: against numbers by hand, and the same bits however a run is cut."""

import dataclasses

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.config.experiment import parse
from fedpoint.config.runner import perform, prepare
from fedpoint.metrics.evaluation import _best
from fedpoint.verbs.watch import Watch

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = X @ np.ones(4) + 2 * RNG.normal(size=120)
WHOSE = np.arange(120) % 4
ROWS, HELD = slice(0, 24), slice(24, 80)
PROBLEM = fp.problems.LeastSquares(X[ROWS], Y[ROWS], groups=WHOSE[ROWS], batch=2, mean=True)
NEW = (X[80:], Y[80:], np.where(WHOSE[80:] % 2, "x", "y"))
AT = fp.Evaluation((X[HELD], Y[HELD], WHOSE[HELD]), every=4, patience=3, new=NEW)
FEDAVG = fp.FedAvg(step=0.1, local_steps=4)


@pytest.mark.parametrize(
    "values, patience, best",
    [
        ([1.0, 3.0, 2.0, 2.5, 4.0], None, (4, False)),
        ([1.0, 3.0, 2.0, 2.5, 4.0], 2, (1, True)),  # 4 comes too late
        ([1.0, 3.0, 2.0, 4.0], 2, (3, False)),
        ([1.0, 1.0, 1.0], 2, (0, True)),  # as good is not better
        ([np.nan, 1.0, np.nan], 1, (1, True)),
        ([2.0], 1, (0, False)),
    ],
)
def test_patience_by_hand(values, patience, best):
    assert _best(np.array(values), patience) == best


def test_a_run_ends_with_its_patience_and_keeps_the_best_model():
    """Metrics are those of the recorded models; the best one is the first of the least mse before patience ran out."""
    done = fp.run(FEDAVG, PROBLEM, 400, evaluate=AT, seed=2)
    full = fp.run(FEDAVG, PROBLEM, int(done.rounds[-1]), seed=2)
    np.testing.assert_array_equal(done.history, full.history)  # looking changes nothing
    mse = [((X[HELD] @ w - Y[HELD]) ** 2).mean() for w in full.history[0, ::4]]
    np.testing.assert_allclose(done.evaluation["mse"][0], mse, rtol=1e-12)
    np.testing.assert_array_equal(done.evaluated_rounds, full.rounds[::4])
    best, over = _best(-np.array(mse), 3)
    assert over and best + 3 == len(mse) - 1 and done.rounds[-1] < 400
    assert done.best_rounds == [4 * best]
    np.testing.assert_array_equal(done.best[0], full.history[0, 4 * best])
    new = [((X[80:] @ w - Y[80:]) ** 2) for w in full.history[0, ::4]]
    worst = [max(rows[NEW[2] == name].mean() for name in "xy") for rows in new]
    np.testing.assert_allclose(done.evaluation["new_mse"][0], np.mean(new, axis=1), rtol=1e-12)
    np.testing.assert_allclose(done.evaluation["new_worst_tenth"][0], worst, rtol=1e-12)


class Enough(Exception):
    pass


def killed(round):
    """A callback that ends a run like a power cut would, but for what is on disk."""

    def stop(progress):
        if progress.round >= round:
            raise Enough

    return stop


def test_killed_and_resumed_it_ends_where_it_would_have_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("fedpoint.store.writer.PERIOD", 0.0)
    monkeypatch.setattr("fedpoint.engine.base.Engine.next_size", lambda *_: 3)
    whole = fp.run(FEDAVG, PROBLEM, 400, evaluate=AT, folder=tmp_path / "whole")
    for round in (2, 11):
        with pytest.raises(Enough):
            fp.run(FEDAVG, PROBLEM, 400, evaluate=AT, folder=tmp_path / f"cut{round}", callbacks=killed(round))
        cut = fp.load(tmp_path / f"cut{round}", PROBLEM)
        assert cut.unfinished and cut.rounds[-1] < whole.rounds[-1]
        with pytest.raises(fp.FedpointError, match=r"give evaluate=fp\.Evaluation"):
            cut.extend(400)
        cut.extend(400, evaluate=AT)
        again = fp.load(tmp_path / f"cut{round}", PROBLEM)
        for a, b in ((again, whole), (fp.load(tmp_path / "whole"), whole)):
            np.testing.assert_array_equal(a.history, b.history)
            np.testing.assert_array_equal(a.best_rounds, b.best_rounds)
            np.testing.assert_array_equal(a.best, b.best)
            jax.tree.map(np.testing.assert_array_equal, a.evaluation, b.evaluation)
    with pytest.raises(fp.FedpointError, match="patience of its evaluation ran out"):
        again.extend(500, evaluate=AT)
    longer = again.extend(int(again.rounds[-1]) + 4, evaluate=dataclasses.replace(AT, patience=None))
    assert len(longer.evaluated_rounds) == len(whole.evaluated_rounds) + 1


@pytest.mark.slow
def test_on_several_processes_it_sees_the_same_and_ends_at_the_same_round():
    one, two = (fp.run(FEDAVG, PROBLEM, 200, evaluate=AT, processes=count) for count in (1, 2))
    jax.tree.map(np.testing.assert_array_equal, one.evaluation, two.evaluation)
    here = fp.run(FEDAVG, PROBLEM, 200, evaluate=AT)
    assert one.best_rounds == two.best_rounds == here.best_rounds and one.rounds[-1] == here.rounds[-1] < 200
    np.testing.assert_allclose(here.evaluation["mse"], two.evaluation["mse"], rtol=1e-9)


def test_repeats_have_their_own_best_models():
    done = fp.run(FEDAVG, PROBLEM, 60, evaluate=dataclasses.replace(AT, patience=None), participation=2, repeats=3)
    assert len(set(done.best_rounds)) > 1, "a seed that tells repeats apart"
    for r, round in enumerate(done.best_rounds):
        np.testing.assert_array_equal(done.best[r], done.history[r, round])


def test_networks_are_judged_by_each_nodes_own_model():
    net = fp.run(fp.FedGD(step=0.02, coupling=0.1), PROBLEM, 8, network=fp.Network.ring(4), evaluate=AT)
    own = [((np.sum(X[HELD] * net.history[0, i][WHOSE[HELD]], 1) - Y[HELD]) ** 2).mean() for i in (0, 4, 8)]
    np.testing.assert_allclose(net.evaluation["mse"][0], own, rtol=1e-12)


def test_a_function_and_the_metric_that_is_watched():
    def look(model):
        return {"size": float(np.abs(model).sum()), "accuracy": -float(np.abs(model).sum())}

    def run(**more):
        return fp.run(FEDAVG, PROBLEM, 8, evaluate=fp.Evaluation(look, every=4, **more)).best_rounds.tolist()

    with pytest.raises(fp.FedpointError, match="name the metric to watch"):
        run()
    assert run(on="size") == run(on="accuracy") == [0]  # the least size, the highest accuracy
    assert run(on="size", higher=True) != [0]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: fp.Evaluation((X, Y), every=0), "every must be a whole number, at least 1"),
        (lambda: fp.Evaluation(None), "needs held-out rows"),
        (lambda: fp.run(FEDAVG, PROBLEM, 4, record_every=3, evaluate=AT), "must be a multiple of the 3 rounds"),
        (lambda: fp.run(FEDAVG, PROBLEM, 4, evaluate=fp.Evaluation((X, Y), on="los")), "is not a metric here"),
        (
            lambda: fp.run(FEDAVG, PROBLEM, 4, evaluate=fp.Evaluation((X, Y), new=(X, Y, WHOSE))),
            "'0' is an agent of the problem",
        ),
        (lambda: fp.run(FEDAVG, PROBLEM, 4).extend(8, evaluate=AT), "begun without an fp.Evaluation"),
        (lambda: fp.run(FEDAVG, PROBLEM, 4).best, "this run was not evaluated"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(fp.FedpointError, match=message):
        make()


FILE = {
    "problem": {"kind": "digits", "agents": 5},
    "algorithm": {"name": "fedavg", "step": 0.5, "local_steps": 2},
    "rounds": 12,
    "evaluation": {"every": 6, "on": "accuracy"},
}


def test_files_say_it_too(tmp_path):
    file = parse(FILE, "digits")
    prepare(file, tmp_path / "run")
    (outcome,) = perform(file, tmp_path / "run", Watch())
    assert outcome.run.evaluated_rounds.tolist() == [0, 6, 12]
    assert outcome.run.best_rounds == [6 * outcome.run.evaluation["accuracy"][0].argmax()]
    (longer,) = perform(parse(file.content, "digits"), tmp_path / "run", Watch(), 18)
    assert longer.run.evaluated_rounds.tolist() == [0, 6, 12, 18]
    nothing = {**FILE, "problem": {**FILE["problem"], "test": 0.0}}
    with pytest.raises(fp.FedpointError, match="no rows are held out"):
        parse(nothing, "digits")
    outcome.run.export(tmp_path / "best.npz", best=True)
    warm = parse({**FILE, "start": {"file": str(tmp_path / "best.npz")}}, "digits")[0].experiment
    np.testing.assert_array_equal(warm.start_model, outcome.run.best[0])
    with pytest.raises(fp.FedpointError, match="does not fit the problem"):
        fp.warm_start(tmp_path / "best.npz", PROBLEM)
