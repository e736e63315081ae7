"""What does a report say that is not in the run's folder? Virtual time, the network, losses per agent, the forecast.

All of it needs the problem, and may take long or be refused; so it is made by another process, with a time limit, and
whatever is missing comes with its reason. `python -m fedpoint.show.from_data FOLDER ...` is that process: a line of
JSON for every part.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import finite, rounded
from fedpoint.metrics import Fairness, fairness
from fedpoint.show.svg import MOST_NODES

Part = dict[str, Any]

POINTS = 400  # of a forecast curve
LOOK = 0.2  # seconds between looks at whether to stop


def all_of(run: Any) -> dict[str, Part]:
    """Every part, in this process."""
    return dict(parts_of(run))


def parts_of(run: Any) -> Iterator[tuple[str, Part]]:
    """The parts one after the other; one that cannot be made is {"missing": why}, one that is not there is empty."""
    for name, make in PARTS.items():
        try:
            yield name, make(run)
        except FedpointError as error:
            yield name, {"missing": _where_less(str(error), run)}
        except Exception as error:  # a report never fails for what it would only have liked to say
            yield name, {"missing": _where_less(f"{type(error).__name__}: {error}", run)}


def _where_less(message: str, run: Any) -> str:
    """The message in one line, without the place of the folder: the same run gives the same report anywhere."""
    path = run.stored.path
    return " ".join(message.replace(str(path), path.name).split())


def _time(run: Any) -> Part:
    if not _has("time", run.config):
        return {}
    return {"seconds": rounded(np.asarray(run.time).mean(0))}


def _network(run: Any) -> Part:
    if not _has("network", run.config):
        return {}
    from fedpoint.show.network import layout

    network = run.network
    counts = {"nodes": int(network.nodes), "links": len(network.edges)}
    if network.nodes > MOST_NODES:
        return {**counts, "missing": f"{network.nodes:,} nodes are too many to be drawn (at most {MOST_NODES:,})"}
    models = [np.asarray(a, float).reshape(len(a), network.nodes, -1) for a in jax.tree.leaves(run.models)]
    flat = np.concatenate(models, axis=2)[0]  # of the first repeat
    values, label = flat[:, 0], "the model"
    if flat.shape[1] > 1:
        values, label = np.linalg.norm(flat - flat.mean(0), axis=1), "distance to the nodes' mean model"
    return {
        **counts,
        "places": np.round(layout(network), 4).tolist(),
        "edges": network.edges.tolist(),
        "weights": rounded(network.weights),
        "names": [str(name) for name in network.names],
        "values": rounded(values),
        "label": label,
        "variation": rounded(run.variation.mean(0)),
    }


def _agents(run: Any) -> Part:
    problem = run.problem
    if not run.has_loss:
        return {"missing": "the field of this problem is not a gradient: agents have no losses"}
    run.session  # noqa: B018 - refuses other data than the run's, and gives the models their structure
    losses = np.asarray([_losses(run, r) for r in range(run.repeats)], float)
    fair = [dataclasses.asdict(fairness(row)) for row in losses]
    names = problem.names
    return {
        "names": [str(i) for i in range(problem.agents)] if names is None else [str(name) for name in names],
        "weights": rounded(problem.weights),
        "losses": rounded(losses.mean(0)),
        "fairness": {f.name: _mean([row[f.name] for row in fair]) for f in dataclasses.fields(Fairness)},
    }


def _losses(run: Any, repeat: int) -> np.ndarray:
    if run.network is not None:
        return np.asarray(run.problem.own_losses(jax.tree.map(lambda a: a[repeat : repeat + 1], run.models))[0])
    return np.asarray(run.problem.losses(jax.tree.map(lambda a: a[repeat], run.model)))


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _forecast(run: Any) -> Part:
    from fedpoint.verbs.check import check
    from fedpoint.verbs.forecast import forecast

    reached, asked = int(run.rounds[-1]), int(run.config["rounds"])
    last = reached if run.finished else max(reached, asked)
    verdict = None
    try:
        verdict = check(run)
        f: Any = verdict.forecast
    except FedpointError:  # no rounds yet, or no limit: a forecast may say something all the same
        where = {"participation": run.participation}
        if run.network is not None:
            where = {"network": run.network, "schedule": run.participation}
        start = jax.tree.map(lambda a: a[0, 0], run.history)
        f = forecast(run.algorithm, run.problem, start=start, exact=run.session.exact, **where)
    part: Part = {"text": f.text()}
    for name in ("bias", "bias2", "rate", "floor"):
        part[name] = finite(getattr(f, name))
    part["diverges"], part["reason"], part["proviso"] = bool(f.diverges), f.reason, f.proviso
    if verdict is not None:
        part["verdict"] = verdict.to_dict()
    if run.error is None:
        part["no_curve"] = "the solution is not known, so that there is no error to draw the forecast beside"
        return part
    try:
        with np.errstate(all="ignore"):
            expected = np.asarray(f.curve(last))
    except FedpointError as error:
        part["no_curve"] = str(error)
        return part
    near = expected <= 1e30 * (1 + expected[0])  # one that diverges is drawn until it has done so
    at = np.unique(np.linspace(0, int(np.flatnonzero(near)[-1]), min(last + 1, POINTS)).round().astype(int))
    return {**part, "at": at.tolist(), "curve": rounded(expected[at])}


PARTS = {"time": _time, "network": _network, "agents": _agents, "forecast": _forecast}


def _has(part: str, config: Any) -> bool:
    """Whether there is such a part at all: virtual time of runs on a clock, a network of runs on one."""
    return {"time": "clock" in config["participation"], "network": "network" in config}.get(part, True)


# The other process


def ask(folders: Sequence[Path], patience: float, stop: threading.Event | None = None) -> list[dict[str, Part]]:
    """The parts of every run, made by another process; one that takes longer than `patience` seconds is given up.

    stop: set by another thread, it ends the process at once.
    """
    from fedpoint.store.folder import RunFolder

    found: list[dict[str, Part]] = []
    worker = None
    try:
        for number, folder in enumerate(folders):
            worker = worker or _Worker(folders[number:])
            parts, why = worker.read(patience, stop)
            if why:
                worker.end()
                worker = None
                config = RunFolder.open(folder).config
                parts = {name: parts.get(name, {"missing": why} if _has(name, config) else {}) for name in PARTS}
            found.append(parts)
    finally:
        if worker is not None:
            worker.end()
    return found


class _Worker:
    """The process for some runs, and the lines that it has written; None at their end."""

    def __init__(self, folders: Sequence[Path]):
        command = [sys.executable, "-m", "fedpoint.show.from_data", *map(str, folders)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._pump, daemon=True)
        self.reader.start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.put(line)
        self.lines.put(None)

    def read(self, patience: float, stop: threading.Event | None = None) -> tuple[dict[str, Part], str]:
        """The parts of the next run, and why they are not all there."""
        parts: dict[str, Part] = {}
        until = time.monotonic() + patience
        while len(parts) < len(PARTS):
            left = until - time.monotonic()
            try:
                line = self.lines.get(timeout=max(min(left, LOOK), 0.0))
            except queue.Empty:
                if stop is not None and stop.is_set():
                    return parts, "it was not waited for"
                if left <= LOOK:
                    return parts, f"it takes longer than {patience:g} seconds"
                continue
            if line is None:
                return parts, "the process that computes it ended early (out of memory?)"
            name, part = json.loads(line)
            parts[name] = part
        return parts, ""

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()


def main(folders: Sequence[str]) -> None:
    from fedpoint import load  # with files' runs built again: this is the main module of a process

    for folder in folders:
        for name, part in parts_of(load(folder)):
            print(json.dumps([name, part]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
