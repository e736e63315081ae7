"""A run on several processes: `fp.run(..., processes=)`. Its result is read from its folder, as any run's is."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.system import need_posix
from fedpoint.engine.base import Progress
from fedpoint.engine.cluster.session import Known
from fedpoint.experiment.describe import facts_of
from fedpoint.experiment.experiment import Experiment
from fedpoint.results.follow import Callbacks, Following, as_callbacks
from fedpoint.results.run import Run
from fedpoint.store.folder import RunFolder
from fedpoint.store.records import Place
from fedpoint.verbs.load import LoadedRun, RunOrigin
from fedpoint.verbs.processes.job import Job, RunGoal, Word, digest
from fedpoint.verbs.processes.supervisor import Ended, Processes, as_processes, check_processes, supervise


def run_on(
    processes: int | Processes,
    experiment: Experiment,
    goal: RunGoal,
    folder: str | Path | Place | None,
    callbacks: Callbacks,
) -> Run:
    """The run, or None where the driver is on another host."""
    need_posix("a run on several processes", "run it without processes=")
    given, problem = as_processes(processes), experiment.problem
    check_processes(given, problem.agents)
    asked_for = as_callbacks(callbacks)
    told = [callback for callback in asked_for if not isinstance(callback, Following)]
    if len(told) < len(asked_for):
        raise FedpointError("trackers do not follow runs on several processes: follow the run's folder instead")
    if not experiment.gather.conserves or experiment.attack is not None:
        named = type(experiment.attack or experiment.gather).__name__
        raise FedpointError(f"{named} needs all messages of a round in one place: run it without processes=")
    if experiment.regions is not None:
        raise FedpointError("regions= run in one process: run it without processes=")
    if experiment.timing.links_fail:
        named = type(experiment.timing).__name__
        raise FedpointError(f"{named}: which links fail is worked out in one place: run it without processes=")
    bound = experiment.bind()
    bound.oracle  # noqa: B018 - what a user got wrong is said here, before processes are started
    own_folder = folder is None
    wanted = Place.of(Path(tempfile.mkdtemp(prefix="fedpoint-run-")) / "run" if folder is None else folder)
    place = Place(Path(wanted.path).absolute(), wanted.experiment)
    content = {k: v for k, v in place.experiment.items() if k != "rounds"}
    asked = experiment.replace(record_every=experiment.every(goal.rounds))  # without what was bound here
    numbers = (problem.agents, asked.seed, asked.repeats, asked.record_every, asked.exact, given.fast_reduce)
    same = digest(content, type(asked.algorithm).__name__, *numbers)
    known = Known(facts_of(problem), bound.solution) if given.driver else None
    # Built from a file, the problem is nobody else's.
    job = Job(asked, goal, place, given.fast_reduce, same, known, given_up=bool(content), models=bool(told))

    def tell(word: Word, arrays: dict[str, np.ndarray]) -> None:
        leaves = [a for name, a in arrays.items() if name.startswith("model")]
        current = jax.tree.unflatten(jax.tree.structure(asked.start_model), leaves) if leaves else None
        held_out = {n.removeprefix("evaluation."): a for n, a in arrays.items() if n.startswith("evaluation.")}
        at, spent = (int(word["round"]), int(word["rounds"])), (float(word["seconds"]), float(word["rate"]))
        for callback in told:
            callback(Progress(*at, *spent, current, arrays.get("error"), held_out))

    resume = f"fedpoint resume {place.path} --processes {given.count}"
    if not content:
        resume = f"fp.load({str(place.path)!r}, problem).extend({goal.rounds})"
    try:
        supervise(job, given, resume, tell)
        if not given.driver:
            return None  # type: ignore[return-value] # no caller on this host goes on with it
        given_parts = {name: part for name, part in asked.arguments().items() if part is not None}
        done = LoadedRun(RunFolder.open(place.path), RunOrigin(given_parts))
        done.shaped_as(asked.start_model)
    except BaseException as error:
        if own_folder and not isinstance(error, Ended):  # which says how to go on from it
            shutil.rmtree(place.path.parent, ignore_errors=True)
        raise
    if own_folder:  # it lasts as long as the run that reads it
        weakref.finalize(done, shutil.rmtree, place.path.parent, ignore_errors=True)
    return done
