"""What is it instead? The likely reason why a run contradicts its forecast, in words."""

from __future__ import annotations

import math

import numpy as np

from fedpoint.algorithms import FedAvg
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.record import values_of
from fedpoint.experiment.experiment import Experiment
from fedpoint.results.verdict import Check
from fedpoint.timing.schemes import Participation, Uniform
from fedpoint.verbs.check.comparisons import OF_FORECAST, Comparisons
from fedpoint.verbs.forecast import prepare


def diagnosis(c: Comparisons, failed: list[Check]) -> str:
    """From the most telling comparison on."""
    found = {check.name: check for check in failed}
    broken = [check for check in failed if check.name not in OF_FORECAST]
    if broken:
        return f"{broken[0].name} {broken[0].words}: the conserved quantity is lost, and the limit with it"
    if "limit" in found:
        place = _nearest(c)
        if place:
            return place
    for name, why in (("floor", _noise), ("unbiasedness", _mean), ("step", _step), ("noise", _noise), ("rate", _pace)):
        if name in found:
            return why(found[name])
    return f"leaves the forecast: {failed[0].words}"


def _noise(check: Check) -> str:
    more = (check.measured or 0) > (check.expected or 0)
    why = "noisier than its samples allow: samples or participants are not independent" if more else "quieter"
    return f"{check.words}: {why}"


def _mean(check: Check) -> str:
    return f"{check.words}: weights or samples do not average out"


def _step(check: Check) -> str:
    return f"takes other steps than it says: {check.words}"


def _pace(check: Check) -> str:
    return f"contracts by {check.words}"


def _nearest(c: Comparisons) -> str:
    """Which known point the run ends at."""
    tail = c.tail or slice(len(c.rounds) // 2, len(c.rounds))
    mean = c.models[:, tail].mean((0, 1))
    w = c.f.optimum
    if w is None:
        return ""
    spread = math.sqrt(max(c.models[:, tail].var((0, 1)).sum(), 0.0) / max(1, c.repeats)) + 1e-9
    known = [(c.goal, w), *([] if c.f.by_node else _other_points(c))]
    distances = [float(np.linalg.norm(mean - point)) for _, point in known]
    best = int(np.argmin(distances))
    own, away = float(np.linalg.norm(mean - c.target)), float(np.linalg.norm(mean - w))
    nowhere = own <= distances[best] or distances[best] > max(3 * spread, 0.2 * away)
    if nowhere or (known[best][0] == c.goal and not c.f.bias):
        return f"does not end where {c.title} does: {away:.3g} from {c.goal}, at no point known here"
    name = known[best][0]
    if name == c.goal:
        return f"ends at {name}, where {c.title} would end {c.f.bias:.3g} from it"
    why = "the control variates have no effect" if name.startswith("FedAvg") and c.f.bias == 0 else "not forecast"
    return f"ends at {name}, {away:.2g} from w*: {why}"


def _other_points(c: Comparisons) -> list[tuple[str, np.ndarray]]:
    """Where runs with usual mistakes end."""
    a, K = c.method, c.problem.agents
    found: list[tuple[str, Algorithm, Participation | None]] = []
    if a.step is not None and a.local_steps is not None and not a.scheduled():
        biased = FedAvg(a.step, a.local_steps, bool(values_of(a).get("normalise", False)))
        found.append(("FedAvg's biased point", biased, None))
    if not np.allclose(c.problem.weights, 1 / K):
        found.append(("the solution with equal weights", FedAvg(1e-3), Uniform(K, plain=True)))
    points = [(name, _limit_of(c, method, who)) for name, method, who in found]
    return [(name, point) for name, point in points if point is not None]


def _limit_of(c: Comparisons, algorithm: Algorithm, participation: Participation | None) -> np.ndarray | None:
    """A point to compare with, where there is one."""
    try:
        f = prepare(Experiment(algorithm, c.problem, participation=participation, exact=True))
    except FedpointError:
        return None
    return None if f.state is None else f.setting.read(f.state)
