"""What must happen? `fp.forecast` says where a run ends, how far from the optimum, how fast and how noisy."""

from __future__ import annotations

from typing import Any

from fedpoint.core.errors import FedpointError
from fedpoint.experiment.checks import check_place
from fedpoint.results.forecast import Forecast
from fedpoint.theory.operator import Setting
from fedpoint.timing.participation import as_participation
from fedpoint.verbs.network_forecast import network_forecast
from fedpoint.verbs.run import check_inputs, check_schedule, check_start

FLOORS = ("auto", "exact", "sampled")


def forecast(
    algorithm: Any,
    problem: Any,
    participation: Any = None,
    start: Any = None,
    exact: bool = False,
    around: Any = None,
    floor: str = "auto",
    measure: str = "error",
    seed: int = 0,
    network: Any = None,
    schedule: Any = None,
) -> Any:
    """Where a run will end, how far from the optimum, how fast and how noisy.

    Args:
        algorithm, problem, participation, start, exact: as in `fp.run`.
        network, schedule: likewise; a `NetworkForecast` then says where every node ends, how fast, and what is certain
            under the schedule.
        around: a model: the forecast is local, around the fixed point near it. Needed where convexity is not known.
        floor: "auto", "exact" (by a Lyapunov equation, the method's own samples taken as independent) or "sampled"
            (from drawn rounds, with a standard error: the default for your own algorithms).
        measure: what floor, variance and curve are in: "error" (squared distance to w*) or "loss" (the objective
            above its minimum, to second order around it).
        seed: of the sampled rounds.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    >>> f = fp.forecast(fp.FedAvg(step=0.5, local_steps=5), quad)
    >>> print(f"{f.bias:.4f} {f.rate:.4f} {f.floor:.4f} {f.rounds_to(1e-2)}")
    0.0452 0.4591 0.0039 4
    """
    if network is not None:
        return network_forecast(algorithm, problem, network, schedule, start, exact)
    scheme = check_schedule(participation, schedule, None)
    return prepare(algorithm, problem, scheme, start, exact, around, floor, measure, seed)


def prepare(
    algorithm: Any,
    problem: Any,
    participation: Any = None,
    start: Any = None,
    exact: bool = False,
    around: Any = None,
    floor: str = "auto",
    measure: str = "error",
    seed: int = 0,
    **known: Any,
) -> Forecast:
    """The forecast of checked arguments; `known` are those of `Setting` by which many forecasts share work."""
    check_inputs(algorithm, problem, seed)
    if floor not in FLOORS:
        raise FedpointError(f'floor must be "auto", "exact" or "sampled", got {floor!r}')
    if measure not in ("error", "loss"):
        raise FedpointError(f'measure must be "error" or "loss", got {measure!r}')
    if measure == "loss" and not problem.has_loss:
        raise FedpointError(f"{type(problem).__name__} has no loss: its field is not a gradient. Forecast the error")
    model = check_start(problem, start)
    if around is not None:
        around = check_start(problem, around)
    elif problem.convex is None:
        raise FedpointError(
            "this loss may have many minima: a forecast would promise too much. Give around=, a model near which to "
            "forecast (for instance the end of a run), or promise convexity: Loss(..., convex=True)"
        )
    scheme = as_participation(participation)
    if getattr(scheme, "timetable", False):
        raise FedpointError(
            f"{type(scheme).__name__} is worked out on a clock, event by event: it has no expected round to forecast. "
            "Forecast the synchronous method, and compare with a run"
        )
    check_place(algorithm, None)
    setting = Setting(algorithm, problem, scheme, model, exact, **known)
    return Forecast(setting, floor, around, measure, seed)
