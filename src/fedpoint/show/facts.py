"""What does a report know of a run? What is in its folder, and what needed its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.metrics.means import mean_and_error
from fedpoint.results.labels import labels_of, short
from fedpoint.show.from_data import ForecastPart, Parts, all_of, ask
from fedpoint.store.comparison import run_folders
from fedpoint.store.folder import RunFolder
from fedpoint.verbs.load import LoadedRun, load

Source: TypeAlias = str | Path | LoadedRun  # the folder of a run or of a comparison, or a run that was read from one
MOST_RUNS = 24
IN_FULL = 8  # runs up to which each has its own charts and configuration on a common page


@dataclass(frozen=True)
class Facts:
    """A run as a report knows it: what is in its folder, and what needed its data; `among` so many on the page."""

    run: LoadedRun
    label: str
    colour: int
    parts: Parts
    among: int = 1

    @property
    def several(self) -> bool:
        return self.among > 1

    @property
    def in_full(self) -> bool:
        return self.among <= IN_FULL

    @property
    def anchor(self) -> str:
        return f"run-{self.colour + 1}"

    @cached_property
    def across(self) -> dict[str, np.ndarray]:
        """Where the records lie, by what `charts.WAYS` lists; means over repeats. Virtual time only on a clock."""
        used, message = np.asarray(self.run.used, float).mean(0), self.run.stored.meta["message"]
        sent = used[:, 0] * message["down"] + used[:, 1] * message["up"]
        found = {"rounds": np.asarray(self.run.rounds, float), "floats": sent, "evaluations": used[:, 2]}
        if "seconds" in self.parts["time"]:
            found["time"] = np.asarray(self.parts["time"]["seconds"], float)
        return found

    @property
    def forecast(self) -> ForecastPart:
        return self.parts["forecast"]

    def final(self, what: str) -> tuple[float | None, float | None]:
        """The mean over repeats of the last record, and its standard error."""
        values = self.measure(what)
        return mean_and_error(None if values is None else values[:, -1])

    def measure(self, what: str) -> np.ndarray | None:
        if what == "error":
            return self.run.error if self.run.has_error else None
        return self.run.loss if self.run.has_loss else None


def loaded(runs: Sequence[Source]) -> tuple[list[LoadedRun], str]:
    """The runs, those of comparisons one by one, and what they are called together."""
    found: list[LoadedRun] = []
    for run in runs:
        if isinstance(run, LoadedRun):
            found.append(run)
        elif isinstance(run, str | Path):
            found += [readable(path) for path in run_folders(Path(run))]
        else:
            raise FedpointError(
                f"a report is made from the folder of a run, got {type(run).__name__}: give fp.run(..., folder=...), "
                "and then the folder or fp.load(folder, problem). Runs of models that only fit and predict (AnyModel) "
                "have none: they show themselves in a notebook, and by run.plot()"
            )
    if len(found) > MOST_RUNS:
        raise FedpointError(f"{len(found)} runs are too many for a page: at most {MOST_RUNS}")
    if not found:
        raise FedpointError(f"{runs[0]} holds no run yet: nothing to report")
    only = runs[0] if len(runs) == 1 else None
    name = "" if only is None else (only.stored.path if isinstance(only, LoadedRun) else Path(only).resolve()).name
    return found, name or counted(len(found), "run")


def readable(path: Path) -> LoadedRun:
    """The run in a folder that has rounds."""
    # Not by load alone, which would commit the start of a run that was killed before: a report writes into no run.
    if RunFolder.open(path).latest() is None:
        raise FedpointError(f"{path} holds no rounds yet: nothing to report")
    return load(path)


def parts_of(runs: Sequence[LoadedRun], patience: float) -> list[Parts]:
    """What needs the data. Runs whose data are given are forecast here, the others in another process."""
    given = ["problem" in run.origin.given for run in runs]
    asked = iter(ask([r.stored.path for r, here in zip(runs, given, strict=True) if not here], patience))
    return [all_of(run) if here else next(asked) for run, here in zip(runs, given, strict=True)]


def facts_of(runs: Sequence[LoadedRun], parts: Sequence[Parts]) -> list[Facts]:
    """What a page says of each run."""
    rows = zip(runs, labels(runs), parts, strict=True)
    return [Facts(run, label, i, found, len(runs)) for i, (run, label, found) in enumerate(rows)]


def labels(runs: Sequence[LoadedRun]) -> list[str]:
    try:
        return labels_of([run.algorithm for run in runs], [short(run.participation) for run in runs])
    except FedpointError:  # somebody's own class, which the folder can only name
        names = [run.config["algorithm"]["name"] for run in runs]
        return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def status(run: LoadedRun) -> str:
    """How it ended, in a sentence."""
    asked, last = run.goal, int(run.rounds[-1])
    if run.finished:
        return "Finished." if last >= asked else f"Stopped at its tolerance, before round {asked:,}."
    if run.wrong:
        why = " ".join(f"{said}." for said in run.wrong)
        return f"Not finished: {last:,} of {counted(asked, 'round')} on disk. {why}"
    ends = [e for e in run.stored.events() if e.get("event") in ("diverged", "failed", "interrupted", "started")]
    if ends and ends[-1]["event"] == "diverged":
        return f"Diverged by round {ends[-1].get('round')}: the curves end at the last round on disk."
    if ends and ends[-1]["event"] == "failed":
        return f"Failed: {ends[-1].get('message', '')}"
    return f"Not finished: {last:,} of {counted(asked, 'round')} on disk."
