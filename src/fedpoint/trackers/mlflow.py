"""MLflow: a run of an experiment, with parameters and metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedpoint.core.arguments import checked
from fedpoint.trackers.base import FINISHED, Description, Tracker, flat, name_of, package

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

LONGEST = 500  # characters of a parameter: older servers take no more
BATCH = 500  # metrics sent at once


@checked
class MLflow(Tracker):
    """Parameters and metrics of a run of `experiment`; the package `mlflow-skinny` is enough.

    uri: of the store or server ("sqlite:///mlflow.db", "http://..."); default: MLflow's own, by MLFLOW_TRACKING_URI.
    name: of the run; default: its algorithm. MLflow's active run is left alone.
    """

    def __init__(self, experiment: str = "fedpoint", uri: str | None = None, name: str | None = None):
        self.experiment, self.uri, self.name = experiment, uri, name
        self._client: MlflowClient | None = None
        self._run = ""
        self._waiting: list[Metric] = []

    def start(self, statement: Description) -> None:
        mlflow = package("mlflow", "mlflow-skinny", "MLflow")
        self._client = mlflow.MlflowClient(tracking_uri=self.uri)
        known = self._client.get_experiment_by_name(self.experiment)
        number = known.experiment_id if known else self._client.create_experiment(self.experiment)
        self._run = self._client.create_run(number, run_name=self.name or name_of(statement)).info.run_id
        self._waiting = []
        said = [mlflow.entities.Param(_key(k), str(v)[:LONGEST]) for k, v in flat(statement).items()]
        for first in range(0, len(said), 100):  # the most that a request takes
            self._client.log_batch(self._run, params=said[first : first + 100])

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        entities = package("mlflow.entities", "mlflow-skinny", "MLflow")
        now = int(1000 * time.time())
        self._waiting += [entities.Metric(_key(name), value, now, round) for name, value in metrics.items()]
        if len(self._waiting) >= BATCH:
            self._send()

    def _send(self) -> None:
        assert self._client is not None  # start comes first
        for first in range(0, len(self._waiting), BATCH):
            self._client.log_batch(self._run, metrics=self._waiting[first : first + BATCH])
        self._waiting = []

    def finish(self, summary: Description) -> None:
        if self._client is None:
            return
        self._send()
        good = summary["status"] == FINISHED
        self._client.set_tag(self._run, "fedpoint.status", str(summary["status"])[:LONGEST])
        self._client.set_terminated(self._run, status="FINISHED" if good else "FAILED")
        self._client = None


def _key(name: str) -> str:
    """Letters, digits, and what MLflow allows between them."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)
