"""What do the lectures' bounds promise here, and do their assumptions hold?

Every bound comes with its assumptions, each checked against the problem and the algorithm. Where one fails the bound
is void: it has a reason and no value. One file a lecture.
"""

from __future__ import annotations

from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.types import Model
from fedpoint.problems.base import Problem
from fedpoint.theory.bounds import lecture000, lecture001, lecture004
from fedpoint.theory.bounds.bound import Bound
from fedpoint.theory.bounds.case import Case
from fedpoint.timing.base import Timing
from fedpoint.timing.participation import as_participation

AS_SENT = "messages arrive as they were sent, and are summed with their weights"
MAKERS = (*lecture000.MAKERS, *lecture001.MAKERS, *lecture004.MAKERS)


def bounds(
    algorithm: Algorithm,
    problem: Problem,
    participation: Timing | int | None = None,
    start: Model | None = None,
    exact: bool = False,
    rounds: int = 1000,
    changed: str = "",
) -> list[Bound]:
    """The bounds of lectures 000 and 001 and of lecture 004's theorem 1, each with its assumptions checked.

    Args:
        start: where the run starts (default: the problem's own start), for what depends on it.
        exact: fields are exact, as in `fp.run(..., exact=True)`.
        rounds: for the value of theorem 1, which is about the model after so many rounds.
        changed: what becomes of messages that do not arrive as sent, or are not summed: then every bound is void.

    >>> import fedpoint as fp
    >>> lab = fp.problems.LinearStream.sample(agents=100, dim=10, spread=0.1, noise=0.01)
    >>> found = {b.lecture: b for b in bounds(fp.FedAvg(0.02), lab)}
    >>> f"{found['000 (40)'].value:.2e}", f"{fp.theory.lms_floor(lab, 0.02):.2e}"
    ('4.15e-03', '1.06e-03')
    >>> found["000 (52)"].void
    'it assumes: one agent a round; here: Everyone'
    """
    scheme = participation if isinstance(participation, Timing) else as_participation(participation)
    case = Case(bind_algorithm(algorithm, problem), problem, scheme, start, exact, rounds)
    found = [make(case) for make in MAKERS]
    return [b.without_value(AS_SENT, changed) for b in found] if changed else found
