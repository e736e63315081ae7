"""Trackers are told what is run, what is measured and how it ended; the real packages write it where they are there.

MLflow is heavy and not among the development tools: its test runs where `pip install mlflow-skinny` was done.
"""

import importlib.util
import json
import sys
import time
import warnings

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.trackers import MLflow, TensorBoard, Tracker, WandB

QUAD = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
FEDAVG = fp.FedAvg(step=0.1, local_steps=2, normalise=True)


class Notes(Tracker):
    def __init__(self):
        self.told = []

    def start(self, statement):
        json.dumps(statement)  # plain types
        self.told.append(("start", statement))

    def log(self, round, metrics):
        assert all(type(value) is float for value in metrics.values())
        self.told.append((round, metrics))

    def finish(self, summary):
        self.told.append(("finish", summary))


def test_a_run_is_followed_from_its_start_to_its_end():
    notes, seen = Notes(), []
    run = fp.run(
        FEDAVG, QUAD, rounds=30, repeats=2, record_every=7, callbacks=[notes, lambda p: seen.append(p.round)],
        evaluate=lambda model: {"size": float(np.abs(model).sum())},
    )  # fmt: skip
    (first, statement), *logged, (last, summary) = notes.told
    assert (first, last) == ("start", "finish") and seen[-1] == 30
    assert statement["algorithm"] == {"name": "fedavg", "step": 0.1, "local_steps": 2, "normalise": True}
    assert statement["rounds"] == 30 and "jax" in statement["versions"]
    errors = {round: metrics["error"] for round, metrics in logged if "error" in metrics}
    assert sorted(errors) == run.rounds.tolist() == [0, 7, 14, 21, 28, 30]
    np.testing.assert_allclose([errors[r] for r in run.rounds], run.error.mean(0), rtol=1e-12)
    sent = {r: m for r, m in logged if "numbers sent" in m}[30]
    assert sent["numbers sent"] == run.cost.floats_down + run.cost.floats_up
    held_out = {round: metrics["held-out size"] for round, metrics in logged if "held-out size" in metrics}
    np.testing.assert_allclose([held_out[r] for r in run.rounds], run.evaluation["size"].mean(0))
    assert summary["status"] == "finished" and summary["cost"]["rounds"] == 30


def test_more_rounds_are_more_records_and_no_round_twice():
    notes = Notes()
    run = fp.run(FEDAVG, QUAD, rounds=5, callbacks=notes)
    run.extend(9, callbacks=[notes])
    assert [name for name, _ in notes.told if isinstance(name, str)] == ["start", "finish"] * 2
    assert [name for name, _ in notes.told if isinstance(name, int)] == list(range(10))


def test_the_end_is_told_once_whatever_it_is():
    notes = Notes()
    with pytest.raises(fp.Diverged):
        fp.run(fp.FedAvg(step=50.0, local_steps=9, normalise=False), QUAD, rounds=4000, callbacks=[notes])
    ends = [summary for name, summary in notes.told if name == "finish"]
    assert len(ends) == 1 and ends[0]["status"].startswith("Diverged: ")


def test_runs_that_only_call_back_are_followed_too():
    from fedpoint.engine.base import Progress

    notes = Notes()
    for round in (1, 2):
        notes(Progress(round, 2, 0.1, 10.0, None, None))
    assert [name for name, _ in notes.told] == ["start", 1, 2, "finish"]


@pytest.mark.parametrize(
    ("tracker", "command"),
    [
        (lambda tmp: TensorBoard(tmp), "pip install tensorboard"),
        (lambda tmp: MLflow(), "pip install mlflow-skinny"),
        (lambda tmp: WandB(), "pip install wandb"),
    ],
    ids=["tensorboard", "mlflow", "wandb"],
)
def test_a_missing_package_is_said_with_the_command(tracker, command, tmp_path, monkeypatch):
    for name in ("tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
        monkeypatch.delitem(sys.modules, f"{name}.summary", raising=False)
    notes = [Notes(), Notes()]
    with pytest.raises(fp.FedpointError, match=command):
        fp.run(FEDAVG, QUAD, rounds=2, callbacks=[notes[0], tracker(tmp_path), notes[1]])
    assert [name for name, _ in notes[0].told] == ["start", "finish"] and not notes[1].told


def installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


@installed("tensorboard")
@pytest.mark.filterwarnings("ignore")  # of the packages themselves
def test_tensorboard_reads_what_was_written(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard(tmp_path / "logs")
    both = fp.compare([FEDAVG, fp.FedAvg(step=0.2, local_steps=2, normalise=True)], QUAD, rounds=6, callbacks=[tracker])
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["fedavg", "fedavg-2"]
    for run, name in zip(both.runs, ("fedavg", "fedavg-2"), strict=True):
        events = EventAccumulator(str(tmp_path / "logs" / name)).Reload()
        found = events.Tensors("error")
        assert [e.step for e in found] == list(range(7))
        values = [e.tensor_proto.float_val[0] for e in found]
        np.testing.assert_allclose(values, run.error[0], rtol=1e-6)
    assert json.loads((tmp_path / "logs" / "fedavg-2" / "statement.json").read_text())["algorithm"]["step"] == 0.2


@installed("wandb")
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_a_run_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    fp.run(FEDAVG, QUAD, rounds=3, callbacks=[WandB(mode="offline", folder=tmp_path, name="mine")])
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    words = (b"error", b"numbers sent", b"fedavg", b"mine", b"finished")
    until = time.monotonic() + 20
    while time.monotonic() < until and not all(word in file.read_bytes() for word in words):
        time.sleep(0.1)  # its own process writes on after `finish`
    assert all(word in file.read_bytes() for word in words)


@installed("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_stores_parameters_and_metrics(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the light package has no other store without a server
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow
    uri = (tmp_path / "store").as_uri()
    run = fp.run(FEDAVG, QUAD, rounds=3, callbacks=[MLflow("lab", uri=uri)])
    client = mlflow.MlflowClient(tracking_uri=uri)
    (stored,) = client.search_runs([client.get_experiment_by_name("lab").experiment_id])
    assert stored.info.status == "FINISHED" and stored.data.params["algorithm.step"] == "0.1"
    history = client.get_metric_history(stored.info.run_id, "error")
    assert [m.step for m in history] == [0, 1, 2, 3]
    np.testing.assert_allclose([m.value for m in history], run.error[0])
