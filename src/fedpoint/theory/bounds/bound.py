"""What is a bound? A formula of a lecture with its assumptions checked: a value, or the reason why it is void."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.types import Model
from fedpoint.theory.bounds.case import Assumption

FACTOR = "factor of E|w - w*|^2 per round"
FLOOR = "E|w - w*|^2 in the long run"
DEVIATION = "E|w - w* - bias|^2 in the long run"
GRADIENT = "E|noise of a round's gradient|^2 at the start"
SLOPE = "beta^2, the growth of a round's gradient noise with |w - w*|^2"
POWER = "sigma^2, the noise power of a round's gradient at w*"
NOISE = "sigma_fed^2, the noise power of a round's gradient"
EXCESS = "E f(x_T) - f*"
STEP_NOISE = "E|g - E g|^2, the noise of a step's mean gradient"
DRIFT = "E sum p_k |x_k - mean|^2 before a merge"

Curve = Callable[[ArrayLike], np.ndarray]  # the bound after so many rounds
Need = Callable[[], Assumption | list[Assumption]]  # what a bound assumes, looked at when it is asked

FIRST_ORDER: tuple[Assumption, ...] = (
    ("the step is small: terms O(mu^2), O(mu^3) are left out", None, "first order, not strict"),
)
ORDER: tuple[Assumption, ...] = (("up to a constant and terms O(mu^2)", None, "an order of magnitude"),)


class Value(NamedTuple):
    """What a bound says where it applies."""

    number: float
    curve: Curve | None = None
    at: Callable[[Model], float] | None = None


@dataclass(frozen=True)
class Bound:
    """A bound of a lecture: what it bounds, its value here, and whether it applies."""

    name: str
    lecture: str  # for instance "000 (40)"
    formula: str
    quantity: str
    value: float | None  # None when void
    assumptions: list[Assumption]  # text, whether it holds (None: not known, or not checkable), detail
    void: str = ""  # why it does not apply; empty when it does
    curve: Curve | None = None  # the bound after so many rounds, where it is one per round
    at: Callable[[Model], float] | None = None  # the bound at a model, where it is one per model
    strict: bool = True  # False: to first order in the step, or up to a constant

    @property
    def kind(self) -> str:
        """How a bound that is not strict is to be read; empty where it is."""
        return "" if self.strict else self.assumptions[-1][2]

    def without_value(self, text: str, detail: str) -> Bound:
        """The same, void because another assumption, which it is not asked for itself, does not hold."""
        more: Assumption = (text, False, detail)
        void = broken(text, detail)
        return replace(self, value=None, curve=None, at=None, void=void, assumptions=[more, *self.assumptions])


def broken(text: str, detail: str) -> str:
    """Why a bound is void whose assumption does not hold."""
    return f"it assumes: {text}; here: {detail or 'no'}"


def bound(
    name: str,
    lecture: str,
    formula: str,
    quantity: str,
    needs: list[Need],
    value: Callable[[], Value],
    notes: tuple[Assumption, ...] = (),
) -> Bound:
    """Check the assumptions in order, the later ones (which may need the earlier) only while all hold.

    With notes on what it leaves out, it is not strict.
    """
    found: list[Assumption] = []
    void = ""
    for need in needs:
        checked = need()
        for text, holds, detail in checked if isinstance(checked, list) else [checked]:
            found.append((text, None if holds is None else bool(holds), detail))
            if not holds and not void:
                void = broken(text, detail)
        if void:
            break
    got = None if void else value()
    if got is not None and not math.isfinite(got.number):
        got, void = None, "it is infinite here"
    number, curve, at = (None, None, None) if got is None else got
    return Bound(name, lecture, formula, quantity, number, [*found, *notes], void, curve, at, strict=not notes)
