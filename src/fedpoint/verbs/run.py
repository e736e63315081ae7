"""What happens? `fp.run` runs an experiment and returns a `Run`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from fedpoint.algorithms.catalogue import Hyperparameters, make_method
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, LostSum, notify
from fedpoint.core.kinds import Count, Whole
from fedpoint.core.types import Data, Setting
from fedpoint.engine.base import Stop
from fedpoint.engine.memory import check_records
from fedpoint.engine.session import Session
from fedpoint.experiment.experiment import Experiment, Options
from fedpoint.metrics.evaluation import Evaluation
from fedpoint.problems.any_model import AnyModel
from fedpoint.problems.base import Problem
from fedpoint.results.drive import begin, drive
from fedpoint.results.follow import Callbacks, as_callbacks
from fedpoint.results.run import Run
from fedpoint.store.records import Measures, Place

if TYPE_CHECKING:
    from fedpoint.verbs.processes.supervisor import Processes


class MethodOptions(Options, Hyperparameters, total=False):
    """The arguments of an experiment beside method and problem, and those of a method that is given by its name."""


def as_experiment(
    algorithm: Algorithm | Experiment | str, problem: Problem | AnyModel | None, given: MethodOptions
) -> Experiment:
    """The experiment that a verb was given, whole or in its parts."""
    options: dict[str, Setting] = {name: value for name, value in given.items() if name in Options.__annotations__}
    algorithm = as_method(algorithm, {name: value for name, value in given.items() if name not in options})
    if not isinstance(algorithm, Experiment):
        return Experiment(algorithm, problem, **options)  # type: ignore[arg-type]
    if problem is not None:
        raise FedpointError("an experiment has its problem: leave out problem=, or use experiment.replace(problem=...)")
    return algorithm.replace(**options) if options else algorithm


def as_method(algorithm: Algorithm | Experiment | str, given: Mapping[str, Setting]) -> Algorithm | Experiment:
    """A method, by its name with its hyper-parameters, or as it is."""
    if isinstance(algorithm, str):
        return make_method(algorithm, given)
    for name in given:
        raise FedpointError(
            f"{name}= belongs to a method that is given by its name: write it into the method, as in "
            f'fp.FedAvg({name}=...), or give its name, as in fp.run("fedavg", problem, {name}=...)'
        )
    return algorithm


@checked
def run(
    algorithm: Algorithm | Experiment | str,
    problem: Problem | AnyModel | None = None,
    rounds: Whole = 100,
    *,
    folder: str | Path | Place | None = None,
    losses_every: Count | None = None,
    evaluate: Data = None,
    stop: Stop | None = None,
    callbacks: Callbacks = (),
    processes: int | Processes | None = None,
    **options: Unpack[MethodOptions],
) -> Run:
    """Run an algorithm on a problem.

    Args:
        algorithm: for instance `fp.FedAvg(step=0.02, local_steps=10)`, or its name in the catalogue, with its
            hyper-parameters among the options: `fp.run("fedavg", problem, step=0.02, local_steps=10)`; or an
            `fp.Experiment`, without a problem then.
        problem: from `fp.problems`, or your own.
        rounds: how many.
        folder: a run folder, from which the run can be resumed.
        losses_every: evaluate the loss of records that are so many rounds apart while the run goes on, so that whoever
            reads the folder without the data can see it: each is a pass over all data. Default: when it is asked for.
        evaluate: held-out data (X, y), or (X, y, groups): then `run.held_out` has the agents' own metrics, and
            `evaluation` the worst tenth's loss; or a function model -> {name: number}. An `fp.Evaluation` of them looks
            every so many rounds while the run goes on, may end it, and keeps the best model.
        stop: a tolerance on the mean squared error (or, without a known solution, on the squared change of the
            model between records), or a function (round, model, error) -> bool; models and errors lead with repeats.
        callbacks: functions that get a `Progress` after every segment of rounds, and trackers (`fp.trackers`), which
            follow the run from start to end.
        processes: the number of processes to split the agents over, or an `fp.Processes`. The bits do not depend on
            the number, and equal those of a run in this process up to rounding. In a script, call it
            below `if __name__ == "__main__"`.
        options: the other arguments of `fp.Experiment`: participation, network, schedule, channel, gather, share,
            start, exact, seed, repeats, record_every, memories, metrics.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> fp.run("fedavg", quad, step=0.5, rounds=20).model.round(3)
    array([[0.667]])
    """
    experiment = _recorded(as_experiment(algorithm, problem, options), rounds, evaluate)
    given = as_callbacks(callbacks)
    if isinstance(experiment.problem, AnyModel):
        _check_any_model(experiment, folder=folder, losses_every=losses_every, processes=processes)
        from fedpoint.engine.any_model import AnyModelSession

        # Models are gone after their round: their losses are recorded with what they say.
        if isinstance(evaluate, Evaluation):
            raise FedpointError("models that only fit and predict take evaluate=(X, y, groups): no fp.Evaluation")
        fitted = begin(AnyModelSession(experiment, rounds), Measures(losses_every=1))
        return drive(fitted, rounds, stop, given, evaluate)
    if losses_every is not None and not experiment.problem.has_loss:
        raise FedpointError("losses_every= needs a problem with losses: the field of this one is not a gradient")
    if processes is not None:
        from fedpoint.verbs.processes.run_on import RunGoal, run_on

        if experiment.memories == "disk":
            raise FedpointError('memories="disk" is for one process: leave out processes=')
        if experiment.metrics or losses_every is not None:
            raise FedpointError("metrics= and losses_every= are not for several processes: none of them has all agents")
        return run_on(processes, experiment, RunGoal(rounds, stop, evaluate), folder, given)
    if stop is None:  # else it may end before that
        check_records(experiment, rounds, experiment.repeats)
    if experiment.bind().loses_a_sum:
        notify(experiment.bind().loses_a_sum, LostSum)
    session = Session(experiment.bind(), experiment.every(rounds))
    errors = folder is not None and (stop is not None or bool(given) or session.knows_solution)
    begun = begin(session, Measures(errors, losses_every), evaluate)
    if folder is not None:
        from fedpoint.store.writer import create  # loads pydantic

        begun.folder = create(Place.of(folder), session, begun.records, rounds, begun.measures)
    return drive(begun, rounds, stop, given, evaluate)


def _recorded(experiment: Experiment, rounds: int, evaluate: Data) -> Experiment:
    """With records at the rounds at which models are evaluated, unless it says itself where they are."""
    if not isinstance(evaluate, Evaluation) or isinstance(experiment.problem, AnyModel):
        return experiment
    every = experiment.every(rounds)
    if evaluate.every % every == 0 or experiment.record_every is not None:
        return experiment
    fitting = [n for n in range(every, evaluate.every) if evaluate.every % n == 0]
    return experiment.replace(record_every=min(fitting, default=evaluate.every))


def _check_any_model(experiment: Experiment, **given: object) -> None:
    for name, value in {**given, "metrics": experiment.metrics or None}.items():
        if value is not None:
            raise FedpointError(f"{name}= is not for models that only fit and predict: leave it out")
