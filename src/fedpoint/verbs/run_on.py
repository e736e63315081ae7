"""A run on several processes: `fp.run(..., processes=)`. Its result is read from its folder, as any run's is."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from fedpoint.errors import FedpointError
from fedpoint.report.folder import RunFolder
from fedpoint.report.load import LoadedRun
from fedpoint.report.statement import state_problem
from fedpoint.runtimes.cluster import Known
from fedpoint.runtimes.job import Job, digest
from fedpoint.runtimes.session import Progress, bind_algorithm, check_place, check_valid, solution_of
from fedpoint.runtimes.supervisor import Ended, Processes, as_processes, check_processes, supervise
from fedpoint.trackers.base import Tracker


def run_on(
    processes: Any,
    algorithm: Any,
    problem: Any,
    scheme: Any,
    network: Any,
    model: Any,
    exact: bool,
    seed: int,
    repeats: int,
    every: int,
    rounds: int,
    stop: Any,
    evaluate: Any,
    folder: Any,
    callbacks: Iterable[Callable[[Progress], Any]],
) -> Any:
    """The run, or None where the driver is on another host."""
    given: Processes = as_processes(processes)
    check_processes(given, problem.agents)
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    if any(isinstance(callback, Tracker) for callback in callbacks):
        raise FedpointError("trackers do not follow runs on several processes: follow the run's folder instead")
    # What a user got wrong is said here, before processes are started.
    check_place(algorithm, network)
    check_valid(algorithm, scheme)
    bound = bind_algorithm(algorithm, problem)
    problem.prepare(bound)
    scheme.slots(problem.agents)
    own_folder = folder is None
    if own_folder:
        folder = Path(tempfile.mkdtemp(prefix="fedpoint-run-")) / "run"
    path = Path(getattr(folder, "path", folder)).absolute()
    content = {k: v for k, v in getattr(folder, "experiment", {}).items() if k != "rounds"}
    same = digest(content, type(algorithm).__name__, problem.agents, seed, repeats, every, exact, given.fast_reduce)
    known = Known(state_problem(problem), solution_of(bound, problem, network)) if given.driver else None
    job = Job(
        algorithm,
        problem,
        scheme,
        network,
        model,
        exact,
        seed,
        repeats,
        every,
        rounds,
        stop,
        evaluate,
        folder if hasattr(folder, "path") else path,
        given.fast_reduce,
        same,
        known,
        given_up=bool(content),  # it was built from a file, for this
        models=bool(callbacks),
    )

    def tell(word: dict[str, Any], arrays: dict[str, Any]) -> None:
        leaves = [a for name, a in arrays.items() if name.startswith("model")]
        current = jax.tree.unflatten(jax.tree.structure(model), leaves) if leaves else None
        said = {name: word[name] for name in ("round", "rounds", "seconds", "rate")}
        for callback in callbacks:
            callback(Progress(**said, model=current, error=arrays.get("error")))

    resume = f"fedpoint resume {path} --processes {given.count}"
    if not content:
        resume = f"fp.load({str(path)!r}, problem).extend({rounds})"
    try:
        supervise(job, given, resume, tell)
        if not given.driver:
            return None
        done = LoadedRun(RunFolder.open(path), None, algorithm, scheme, network)
        done.problem = problem
        done.history = jax.tree.unflatten(jax.tree.structure(model), done._leaves)
    except BaseException as error:
        if own_folder and not isinstance(error, Ended):  # which says how to go on from it
            shutil.rmtree(path.parent, ignore_errors=True)
        raise
    if own_folder:  # it lasts as long as the run that reads it
        weakref.finalize(done, shutil.rmtree, path.parent, ignore_errors=True)
    return done
