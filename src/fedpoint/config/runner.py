"""An experiment at work: each of its runs in its folder, begun, or gone on with where it stopped."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from fedpoint.config.experiment import parse, read
from fedpoint.config.file import Entry, File
from fedpoint.config.load import load_run
from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.experiment.experiment import Experiment
from fedpoint.metrics.evaluation import Evaluation
from fedpoint.results.labels import slug
from fedpoint.results.run import Run
from fedpoint.store import disk
from fedpoint.store.comparison import COMPARISON, is_comparison
from fedpoint.store.folder import RunFolder
from fedpoint.store.records import Place
from fedpoint.verbs.load import LoadedRun
from fedpoint.verbs.processes.supervisor import Processes
from fedpoint.verbs.run import run
from fedpoint.verbs.watch import Watch

LOSSES = 100  # of a run, at most, that are evaluated while it goes on


@dataclass(frozen=True)
class RunOutcome:
    """What became of one run."""

    label: str
    folder: Path
    run: Run | None
    diverged: Diverged | None = None


def free_folder(name: str) -> Path:
    """runs/NAME-N with the first N that is not taken."""
    number = 1
    while (path := Path("runs") / f"{slug(name)}-{number}").exists():
        number += 1
    return path


def prepare(file: File, folder: Path) -> None:
    """A new folder; that of a comparison knows the whole of it, so that an interrupted one can be resumed."""
    with disk.os_errors(f"make the folder {folder}"):
        if (folder / "run.json").exists() or (folder / COMPARISON).exists():
            raise FedpointError(f"{folder} already holds a run: fedpoint resume {folder}, or choose another name")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FedpointError(f"{folder} exists and is not an empty folder; choose another name")
        if file.comparison:
            folder.mkdir(parents=True, exist_ok=True)
    if file.comparison:
        state(file, folder)


def state(file: File, folder: Path) -> None:
    """Write the experiment into the folder of its comparison."""
    disk.write_bytes(folder / COMPARISON, disk.to_toml(file.content))


def reopen(folder: Path) -> File:
    """The experiment of a folder that `perform` has written."""
    if is_comparison(folder):
        made = read(folder / COMPARISON)
        return parse(made.content, folder.name)
    config = RunFolder.open(folder).config
    if "experiment" not in config:
        raise FedpointError(
            f"the run in {folder} was begun from Python: continue it there with fp.load(folder, problem).extend(rounds)"
        )
    return parse(config["experiment"], folder.name, source=str(folder / "config.toml"))


def perform(
    file: File, folder: Path, watch: Watch, rounds: int | None = None, processes: Processes | None = None
) -> list[RunOutcome]:
    """Every run of the file to its end. One that diverges does not keep the others from running.

    rounds: go on to so many; default: as many as were asked for. processes: over which a run is shared out.
    """
    outcomes = []
    for number, entry in enumerate(file, 1):
        path = folder / f"{number}-{slug(entry.name)}" if file.comparison else folder
        try:
            outcomes.append(RunOutcome(entry.name, path, _one(entry, path, watch, rounds, processes)))
        except Diverged as error:
            outcomes.append(RunOutcome(entry.name, path, None, error))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_interrupted(entry, path, folder, file)) from None
        except disk.Refused as error:  # a full disk, say: what is on it is whole
            if not (path / "run.json").is_file():
                raise
            raise FedpointError(f"{error}.\n{_interrupted(entry, path, folder, file)}") from error
    return outcomes


def _one(entry: Entry, path: Path, watch: Watch, rounds: int | None, processes: Processes | None) -> Run:
    e = entry.experiment
    if (path / "run.json").exists() and (processes is None or processes.driver):
        loaded = load_run(path, e.problem if processes is None else None)  # several processes check it themselves
        return _resume(loaded, entry, watch, rounds, processes)
    goal = entry.rounds if rounds is None else rounds
    with watch.following(entry.name, goal) as callback:
        return run(
            e,
            rounds=goal,
            folder=Place(path, entry.content),
            losses_every=_losses_every(e, goal) if processes is None else None,
            callbacks=callback,
            processes=processes,
            stop=entry.stop,
            evaluate=entry.held_out,
        )


def _losses_every(e: Experiment, rounds: int) -> int | None:
    """So that pages can show curves of losses without the data: some of them, each a pass over all data."""
    return -(-max(rounds, 1) // LOSSES) if e.problem.has_loss else None


def _resume(loaded: LoadedRun, entry: Entry, watch: Watch, rounds: int | None, processes: Processes | None) -> Run:
    last, asked = int(loaded.rounds[-1]), loaded.goal
    goal = asked if rounds is None else rounds
    if loaded.finished and (rounds is None or goal <= last):
        return loaded
    met = loaded.finished and last < asked  # its tolerance, and it is now told to go on all the same
    with watch.following(entry.name, goal) as callback:
        held_out = entry.held_out
        if met and isinstance(held_out, Evaluation):
            held_out = dataclasses.replace(held_out, patience=None)
        return loaded.extend(goal, None if met else entry.stop, callback, held_out, processes)


def _interrupted(entry: Entry, path: Path, folder: Path, file: File) -> str:
    begun = (path / "run.json").is_file()
    if not begun and not file.comparison:
        return "interrupted before the first round"
    point = RunFolder.open(path).latest() if begun else None
    which = f" of {entry.name}" if file.comparison else ""
    return f"interrupted at round {point.round if point else 0}{which}; resume with: fedpoint resume {folder}"
