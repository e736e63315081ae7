"""How far did a fit stop from the solution? Told by one of Newton's steps, and warned of where it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedpoint.core.errors import notify
from fedpoint.core.numbers import counted
from fedpoint.core.types import Model
from fedpoint.problems.penalised import DENSE_SPEED, Penalised

NEWTON = 30  # steps that find a minimum, if there is one
TOLERANCE = 1e-3  # relative distance of coefficients, and of predictions, above which a fit is warned of


class Distance(NamedTuple):
    """How far a fit is from the solution, about.

    Attributes:
        coefficients: |coef - coef*| / |coef*|.
        with_intercept: the same of (coef, intercept).
        predictions: the largest change of a fitted row's probability, or of its prediction over the spread of y.
        at_least: whether the numbers are bounds from below, as they are for large models.
    """

    coefficients: float
    with_intercept: float
    predictions: float
    at_least: bool

    @property
    def shows(self) -> bool:
        return max(self.coefficients, self.with_intercept, self.predictions) > TOLERANCE


Shown = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # coefficients and intercepts of a model
Predicted = Callable[[np.ndarray], np.ndarray]  # what a model says of the fitted rows, in units that mean something


def distance(w: np.ndarray, there: np.ndarray, shown: Shown, predicted: Predicted, at_least: bool = False) -> Distance:
    """Of the model w from the model `there`."""
    (coef, intercept), (coef_there, intercept_there) = shown(w), shown(there)
    away, size = np.linalg.norm(coef - coef_there) ** 2, np.linalg.norm(coef_there) ** 2
    more, larger = np.linalg.norm(intercept - intercept_there) ** 2, np.linalg.norm(intercept_there) ** 2
    change = float(np.abs(predicted(w) - predicted(there)).max(initial=0.0))
    return Distance(_ratio(away, size), _ratio(away + more, size + larger), change, at_least)


def _ratio(away: float | np.floating, size: float | np.floating) -> float:
    return float(np.sqrt(away / size)) if size > 0 else 0.0


def has_no_minimum(task: Penalised, w: np.ndarray, products: int) -> bool:
    """Whether the objective falls for ever: classes that can be separated, and no penalty.

    Looked for by Newton's method from w, where that takes no more than so many products with the Hessian.
    """
    if task.linear or task.ridge.any() or NEWTON * w.size > DENSE_SPEED * products:
        return False
    return task.solution_near(w, NEWTON) is None


class Ending(NamedTuple):
    """How a fit ended, for the words of a warning."""

    title: str  # of the method
    rounds: int
    settled: bool  # the last round changed the model by no more than tol
    by_weight: bool  # agents are heard by their weights, on average, or the method corrects that
    at_solution: bool  # more rounds lead to the solution
    bias: Distance | None  # of the method's own limit, where that is known
    faster: tuple[str, ...]  # what would make it faster
    quieter: tuple[str, ...]  # and less noisy, where rounds are random


def warn_of_no_minimum(title: str) -> None:
    notify(
        f"{title} has no solution to converge to: the classes can be separated, and without a penalty the coefficients "
        "grow with every round. Take a smaller C.",
        ConvergenceWarning,
    )


def warn_of_distance(left: Distance, end: Ending, probabilities: bool) -> None:
    """Say that a fit stopped away from the solution, how far, and what to do."""
    word = "has not reached the pooled solution in" if end.at_solution else "is away from the pooled solution after"
    rounds = f"{end.rounds} round{'s' if end.rounds > 1 else ''}"
    text = f"{end.title} {word} {rounds}: {_how_far(left, probabilities)}. {_what_to_do(end)}"
    notify(text, ConvergenceWarning)


def _how_far(left: Distance, probabilities: bool) -> str:
    word, change = "at least" if left.at_least else "about", f"by up to {left.predictions:.2g}"
    moved = f"probabilities {change}" if probabilities else f"predictions {change} standard deviations of y"
    return (
        f"coef_ is off by {word} {percent(left.coefficients)} of its size ({percent(left.with_intercept)} with "
        f"intercept_), {moved}"
    )


def percent(ratio: float) -> str:
    return f"{100 * ratio:.2g} %" if ratio < 0.995 else f"{100 * ratio:.0f} %"


def _what_to_do(end: Ending) -> str:
    if not end.by_weight:
        return (
            "Agents are not heard in proportion to their weights, so more rounds lead elsewhere. Use another "
            "participation=."
        )
    if not end.at_solution:
        return f'{_why_elsewhere(end)}. Take algorithm="scaffold", fewer local steps or a shorter step.'
    noise = ""
    if end.quieter:
        noise = f" Rounds are random: what is left may also be noise, and then {' or '.join(end.quieter)} helps."
    return f"Take {', '.join(end.faster[:-1])}{' or ' if end.faster[1:] else ''}{end.faster[-1]}.{noise}"


def _why_elsewhere(end: Ending) -> str:
    if end.bias is not None:
        off = f"{percent(end.bias.coefficients)} ({percent(end.bias.with_intercept)})"
        return f"More rounds lead to its own limit, which is off by {off}: local steps drift where agents differ"
    if end.settled:
        return "More rounds do not help: local steps drift where agents differ, and it has settled elsewhere"
    return "Local steps drift where agents differ, so more rounds may end elsewhere (forecast_.bias says how far)"


def warn_of_change(before: Model, after: Model, apart: int, title: str, rounds: int) -> None:
    """The same for neural networks, which have no solution to compare with: where their last rounds still moved them.

    before, after: the last two models that were recorded, so many rounds apart.
    """
    then, now = (np.concatenate([np.ravel(a) for a in jax.tree.leaves(model)]) for model in (before, after))
    change = _ratio(np.linalg.norm(now - then) ** 2, np.linalg.norm(now) ** 2) / apart
    if change > TOLERANCE:
        notify(
            f"{title} has not converged in {counted(rounds, 'round')}: the last one still changed the network's "
            f"weights by {percent(change)}. Take more rounds= or local_steps=.",
            ConvergenceWarning,
        )
