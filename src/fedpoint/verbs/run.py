"""What happens? `fp.run` runs an experiment and returns a `Run`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.types import Data
from fedpoint.engine.base import Callback, Stop
from fedpoint.engine.memory import check_records
from fedpoint.engine.session import Session
from fedpoint.experiment.experiment import Experiment, Options
from fedpoint.problems.any_model import AnyModel
from fedpoint.problems.base import Problem
from fedpoint.results.drive import begin, drive
from fedpoint.results.follow import Following
from fedpoint.results.run import Run
from fedpoint.store.records import Measures, Place

if TYPE_CHECKING:
    from fedpoint.verbs.processes.supervisor import Processes


def as_experiment(
    algorithm: Algorithm | Experiment, problem: Problem | AnyModel | None, options: Options
) -> Experiment:
    """The experiment that a verb was given, whole or in its parts."""
    for name in options:
        if name not in Options.__annotations__:
            raise FedpointError(f"an experiment has no {name!r}: {nearest(name, Options.__annotations__)}")
    if not isinstance(algorithm, Experiment):
        return Experiment(algorithm, problem, **options)  # type: ignore[arg-type]
    if problem is not None:
        raise FedpointError("an experiment has its problem: leave out problem=, or use experiment.replace(problem=...)")
    return algorithm.replace(**options) if options else algorithm


def run(
    algorithm: Algorithm | Experiment,
    problem: Problem | AnyModel | None = None,
    rounds: int = 100,
    *,
    folder: str | Path | Place | None = None,
    losses_every: int | None = None,
    evaluate: Data = None,
    stop: Stop | None = None,
    callbacks: Callback | Iterable[Callback | Following] = (),
    processes: int | Processes | None = None,
    **options: Unpack[Options],
) -> Run:
    """Run an algorithm on a problem.

    Args:
        algorithm: for instance `fp.FedAvg(step=0.02, local_steps=10)`, or an `fp.Experiment`, without a problem then.
        problem: from `fp.problems`, or your own.
        rounds: how many.
        folder: a run folder, from which the run can be resumed.
        losses_every: evaluate the loss of records that are so many rounds apart while the run goes on, so that whoever
            reads the folder without the data can see it: each is a pass over all data. Default: when it is asked for.
        evaluate: held-out data (X, y), or (X, y, groups): then `run.held_out` has the agents' own metrics, and
            `evaluation` the worst tenth's loss; or a function model -> {name: number}.
        stop: a tolerance on the mean squared error (or, without a known solution, on the squared change of the
            model between records), or a function (round, model, error) -> bool; models and errors lead with repeats.
        callbacks: called with a `Progress` after every segment of rounds; trackers (`fp.trackers`) among them follow
            the run from its start to its end.
        processes: over how many processes the agents are shared out, or `fp.Processes` with more to say about it. The
            same bits whatever their number; those of a run in this process but for rounding. In a script, call it below
            `if __name__ == "__main__"`.
        options: the other arguments of `fp.Experiment`: participation, network, schedule, channel, gather, share,
            start, exact, seed, repeats, record_every, metrics.
    """
    check_count("rounds", rounds, 0)
    if losses_every is not None:
        check_count("losses_every", losses_every, 1)
    experiment = as_experiment(algorithm, problem, options)
    given = [callbacks] if callable(callbacks) else list(callbacks)
    if isinstance(experiment.problem, AnyModel):
        _check_any_model(experiment, folder=folder, losses_every=losses_every, processes=processes)
        from fedpoint.engine.any_model import AnyModelSession

        # Models are gone after their round: their losses are recorded with what they say.
        fitted = begin(AnyModelSession(experiment, rounds), Measures(losses_every=1))
        return drive(fitted, rounds, stop, given, evaluate)
    if losses_every is not None and not experiment.problem.has_loss:
        raise FedpointError("losses_every= needs a problem with losses: the field of this one is not a gradient")
    if processes is not None:
        from fedpoint.verbs.processes.run_on import RunGoal, run_on

        if experiment.metrics or losses_every is not None:
            raise FedpointError("metrics= and losses_every= are not for several processes: none of them has all agents")
        return run_on(processes, experiment, RunGoal(rounds, stop, evaluate), folder, given)
    if stop is None:  # else it may end before that
        check_records(experiment, rounds, experiment.repeats)
    session = Session(experiment.bind(), experiment.every(rounds))
    errors = folder is not None and (stop is not None or bool(given) or session.knows_solution)
    begun = begin(session, Measures(errors, losses_every))
    if folder is not None:
        from fedpoint.store.writer import create  # loads pydantic

        begun.folder = create(Place.of(folder), session, begun.records, rounds, begun.measures)
    return drive(begun, rounds, stop, given, evaluate)


def _check_any_model(experiment: Experiment, **given: object) -> None:
    for name, value in {**given, "metrics": experiment.metrics or None}.items():
        if value is not None:
            raise FedpointError(f"{name}= is not for models that only fit and predict: leave it out")
