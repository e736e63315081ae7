"""What must happen? `fp.forecast` says where a run ends, how far from the optimum, how fast and how noisy."""

from __future__ import annotations

from typing import Unpack

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model
from fedpoint.experiment.checks import fitting
from fedpoint.experiment.experiment import Experiment
from fedpoint.problems.any_model import AnyModel
from fedpoint.problems.base import Problem
from fedpoint.results.forecast import Forecast
from fedpoint.results.mean_forecast import MeanForecast
from fedpoint.theory.operator import Setting
from fedpoint.timing.schemes import Participation
from fedpoint.verbs.run import MethodOptions, as_experiment

FLOORS = ("auto", "exact", "sampled")
MEASURES = ("error", "loss")


@checked
def forecast(
    algorithm: Algorithm | Experiment | str,
    problem: Problem | AnyModel | None = None,
    *,
    around: Model | None = None,
    floor: str = "auto",
    measure: str = "error",
    **options: Unpack[MethodOptions],
) -> Forecast:
    """Predict where a run ends, how far from the optimum, how fast and how noisily.

    Args:
        algorithm, problem: as in `fp.run`: a method, or its name with its hyper-parameters among the options; or an
            `fp.Experiment`, without a problem then.
        around: a model: the forecast is local, around the fixed point near it. Needed where convexity is not known.
        floor: "auto", "exact" (by a Lyapunov equation, the method's own samples taken as independent) or "sampled"
            (from drawn rounds, with a standard error: the default for your own algorithms and lossy channels).
        measure: what floor, variance and curve are in: "error" (squared distance to w*) or "loss" (the objective
            above its minimum, to second order around it).
        options: the other arguments of `fp.Experiment`; with `network=` the forecast says where every node ends, how
            fast, and what is certain under the schedule. `seed` is that of sampled rounds.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    >>> f = fp.forecast(fp.FedAvg(step=0.5, local_steps=5, normalise=True), quad)
    >>> print(f"{f.bias:.4f} {f.rate:.4f} {f.floor:.4f} {f.rounds_to(1e-2)}")
    0.0452 0.4591 0.0039 4
    """
    return prepare(as_experiment(algorithm, problem, options), around, floor, measure)


def prepare(
    experiment: Experiment,
    around: Model | None = None,
    floor: str = "auto",
    measure: str = "error",
    coarse: int = 0,
    merges_linearly: bool | None = None,
) -> Forecast:
    """The forecast of an experiment; `coarse` and `merges_linearly`, of `Setting`, let many forecasts share work."""
    experiment = in_rounds(experiment)
    _check(experiment, around, floor, measure)
    if around is not None:
        around = fitting("around", experiment.problem.start(), experiment.problem.learnt(around))

    def made(experiment: Experiment) -> Forecast:
        f = Forecast(Setting(experiment.bind(), coarse, merges_linearly), floor, around, measure)
        _check_clock(f)
        return f

    method = experiment.algorithm
    mean = method.averaging()
    if mean is None:
        return made(experiment)
    return MeanForecast(method, made(experiment.replace(algorithm=mean.method)), mean.burn_in, lambda: made(experiment))


def _check(experiment: Experiment, around: Model | None, floor: str, measure: str) -> None:
    problem = experiment.problem
    if not isinstance(problem, Problem):
        raise FedpointError("models that only fit and predict have no round to differentiate: there is no forecast")
    if problem.oracle.derivatives:
        raise FedpointError(
            f"{type(problem).__name__} has no forecast: {problem.oracle.derivatives}. fp.probe(experiment) measures a "
            "few rounds, and says which local steps still pay"
        )
    adapting = [type(stage).__name__ for stage in experiment.channel.stages() if stage.adapts]
    if adapting:
        raise FedpointError(
            f"{adapting[0]} has no forecast: its norm follows counts of messages, which jump, so the expected "
            "round has no fixed point. Forecast with fp.channel.Clip(norm), at the norm where a run's clip settles"
        )
    if floor not in FLOORS:
        raise FedpointError(f'floor must be "auto", "exact" or "sampled", got {floor!r}')
    if measure not in MEASURES:
        raise FedpointError(f'measure must be "error" or "loss", got {measure!r}')
    if measure == "loss" and not problem.has_loss:
        raise FedpointError(f"{type(problem).__name__} has no loss: its field is not a gradient. Forecast the error")
    on_network = experiment.network is not None
    if on_network and (around is not None or measure == "loss"):
        raise FedpointError("around= and measure= are for a fusion center: leave them out with network=")
    if around is None and problem.convex is None:
        near = "Give around=, a model near which to forecast (for instance the end of a run), or promise convexity"
        raise FedpointError(
            "this loss may have many minima: a forecast would promise too much. "
            f"{'Promise convexity' if on_network else near}: Loss(..., convex=True)"
        )


def in_rounds(experiment: Experiment) -> Experiment:
    """The same without a clock, where the hub waits for its answers and time decides nothing."""
    plain = experiment.timing.in_rounds(experiment.problem.agents) if experiment.timing.on_clock else None
    return experiment.replace(schedule=None, participation=plain) if isinstance(plain, Participation) else experiment


def _check_clock(f: Forecast) -> None:
    """Refuse rounds on a clock that are not followed: they have no expected round."""
    if f.timing.on_clock and f.noise_if_settled != "jumps":
        raise FedpointError(
            f"{type(f.timing).__name__} is not forecast here: {f.noise_if_settled}. What is certain of merges that "
            "contract by kappa, with answers at most B merges late, is fp.theory.asynchronous(kappa, B, merges)"
        )
