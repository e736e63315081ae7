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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import finite, rounded
from fedpoint.core.types import Plain
from fedpoint.metrics import Fairness, fairness
from fedpoint.results.forecast import Forecast
from fedpoint.results.verdict import Verdict
from fedpoint.show.expected import Expected, expected
from fedpoint.show.lines import Numbers
from fedpoint.show.svg import MOST_NODES
from fedpoint.verbs.load import LoadedRun

POINTS = 400  # of a forecast curve
LOOK = 0.2  # seconds between looks at whether to stop


class Part(TypedDict, total=False):
    """What needs the data: empty where there is no such thing, and otherwise there or missing."""

    missing: str  # why


class TimePart(Part, total=False):
    """Virtual time of runs on a clock, at the recorded rounds."""

    seconds: Numbers


class NetworkPart(Part, total=False):
    """A network as it is drawn, its nodes coloured by `values`; `variation` at the recorded rounds."""

    nodes: int
    links: int
    places: list[list[float]]
    edges: list[list[int]]
    weights: Numbers
    names: list[str]
    values: Numbers
    label: str
    variation: Numbers


class AgentsPart(Part, total=False):
    """Every agent's loss at the final model, a mean over repeats, and how fair that is."""

    names: list[str]
    weights: Numbers
    losses: Numbers
    fairness: dict[str, float | None]


class CheckPart(TypedDict):
    """One comparison of a run with its forecast."""

    name: str
    ok: bool | None
    words: str
    z: float | None


class VerdictPart(TypedDict):
    """All of them."""

    good: bool | None
    headline: str
    checks: list[CheckPart]


class ForecastPart(Part, Expected, total=False):
    """What must happen, as it is drawn and in words, and whether it did."""

    text: str
    rate: float | None
    reason: str
    verdict: VerdictPart


class Parts(TypedDict):
    """All that needs the data of a run."""

    time: TimePart
    network: NetworkPart
    agents: AgentsPart
    forecast: ForecastPart


def all_of(run: LoadedRun) -> Parts:
    """Every part, in this process."""
    return cast(Parts, dict(compute_parts(run)))


def compute_parts(run: LoadedRun) -> Iterator[tuple[str, Part]]:
    """The parts one after the other; one that cannot be made is {"missing": why}, one that is not there is empty."""
    for name, make in PARTS.items():
        try:
            yield name, make(run)
        except FedpointError as error:
            yield name, {"missing": _where_less(str(error), run)}
        except Exception as error:  # a report never fails for what it would only have liked to say
            yield name, {"missing": _where_less(f"{type(error).__name__}: {error}", run)}


def _where_less(message: str, run: LoadedRun) -> str:
    """The message in one line, without the place of the folder: the same run gives the same report anywhere."""
    path = run.stored.path
    return " ".join(message.replace(str(path), path.name).split())


def _time(run: LoadedRun) -> TimePart:
    if not _has("time", run.config):
        return {}
    return {"seconds": rounded(np.asarray(run.time).mean(0))}


def _network(run: LoadedRun) -> NetworkPart:
    network = run.network
    if network is None:
        return {}
    from fedpoint.show.network import layout

    found: NetworkPart = {"nodes": int(network.nodes), "links": len(network.edges)}
    if network.nodes > MOST_NODES:
        return {**found, "missing": f"{network.nodes:,} nodes are too many to be drawn (at most {MOST_NODES:,})"}
    models = [np.asarray(a, float).reshape(len(a), network.nodes, -1) for a in jax.tree.leaves(run.models)]
    flat = np.concatenate(models, axis=2)[0]  # of the first repeat
    values, label = flat[:, 0], "the model"
    if flat.shape[1] > 1:
        values, label = np.linalg.norm(flat - flat.mean(0), axis=1), "distance to the nodes' mean model"
    variation = run.variation
    assert variation is not None  # on a network it is there
    return {
        **found,
        "places": np.round(layout(network), 4).tolist(),
        "edges": network.edges.tolist(),
        "weights": rounded(network.weights),
        "names": [str(name) for name in network.names],
        "values": rounded(values),
        "label": label,
        "variation": rounded(variation.mean(0)),
    }


def _agents(run: LoadedRun) -> AgentsPart:
    problem = run.problem
    if not run.has_loss:
        return {"missing": "the field of this problem is not a gradient: agents have no losses"}
    session = run.session  # refuses other data than the run's, and gives the models their structure
    losses = session.agent_losses(run.last, {name: values[:, -1] for name, values in run.metrics.items()})
    fair = [dataclasses.asdict(fairness(row)) for row in losses]
    return {
        "names": [str(name) for name in problem.names],
        "weights": rounded(problem.weights),
        "losses": rounded(losses.mean(0)),
        "fairness": {f.name: _mean([row[f.name] for row in fair]) for f in dataclasses.fields(Fairness)},
    }


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _forecast(run: LoadedRun) -> ForecastPart:
    from fedpoint.verbs.check import check
    from fedpoint.verbs.forecast import forecast

    try:
        verdict = check(run)
    except FedpointError:  # no rounds yet, or no limit: a forecast may say something all the same
        return _expectation(forecast(run.session.experiment), run)
    return {**_expectation(verdict.forecast, run), "verdict": _verdict(verdict)}


def _verdict(verdict: Verdict) -> VerdictPart:
    checks: list[CheckPart] = [{"name": c.name, "ok": c.ok, "words": c.words, "z": c.z} for c in verdict.checks]
    return {"good": verdict.good, "headline": verdict.headline, "checks": checks}


def _expectation(f: Forecast, run: LoadedRun) -> ForecastPart:
    """What a forecast says, with its curve over the rounds of the run."""
    reached, asked = int(run.rounds[-1]), int(run.config["rounds"])
    drawn = expected(f, reached if run.finished else max(reached, asked), POINTS)
    if not run.has_error:
        why = "the solution is not known, so that there is no error to draw the forecast beside"
        drawn = {**drawn, "no_curve": why}
    return {"text": f.text(), "rate": finite(f.rate), "reason": f.reason, **drawn}


PARTS: dict[str, Callable[[LoadedRun], Part]] = {
    "time": _time,
    "network": _network,
    "agents": _agents,
    "forecast": _forecast,
}


def _has(part: str, config: Mapping[str, Plain]) -> bool:
    """Whether there is such a part at all: virtual time of runs on a clock, a network of runs on one."""
    schedule = config.get("schedule")
    on_clock = isinstance(schedule, dict) and "clock" in schedule
    return {"time": on_clock, "network": "network" in config}.get(part, True)


# The other process


def ask(folders: Sequence[Path], patience: float, stop: threading.Event | None = None) -> list[Parts]:
    """The parts of every run, made by another process; one that takes longer than `patience` seconds is given up.

    stop: set by another thread, it ends the process at once.
    """
    from fedpoint.store.folder import RunFolder

    found: list[Parts] = []
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
            found.append(cast(Parts, parts))
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
        run = load(folder)
        assert isinstance(run, LoadedRun)  # a folder is
        for name, part in compute_parts(run):
            print(json.dumps([name, part]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
