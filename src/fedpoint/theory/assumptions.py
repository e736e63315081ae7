"""What does theory assume, and does it hold here? Convexity, smoothness, length of the step, independent samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpoint.closed.linear import constant_step
from fedpoint.core.algorithm import Algorithm
from fedpoint.problems.base import Problem
from fedpoint.theory.operator import Setting


class Condition(NamedTuple):
    """What theory assumes, and whether it holds here (None: not known)."""

    text: str
    holds: bool | None
    detail: str = ""


def assumptions(setting: Setting, rate: float | None, rate_ms: float | None) -> list[Condition]:
    """What holds of a setting whose mean and mean square have these rates (None: not computed)."""
    found = [*_of_problem(setting.problem), *_of_step(setting)]
    if rate is not None:
        found.append(Condition("the mean settles", bool(rate < 1), f"rate {rate:.6g}"))
    if rate_ms is not None:
        found.append(Condition("the mean square settles", bool(rate_ms < 1), f"rate {rate_ms:.6g}"))
    if not setting.exact:
        found.append(Condition("samples of a round are independent", bool(setting.oracle.independent)))
    return found


def _of_problem(problem: Problem) -> list[Condition]:
    c, names, limit = problem.constants(), problem.names, problem.step_limits()
    if problem.has_loss:
        strong = None if c.nu is None else bool(c.nu > 0)
        smooth = f"delta = {c.delta:.4g}" if c.delta is not None else ""
        return [
            Condition("every agent's loss is convex", problem.convex),
            Condition("the aggregate is strongly convex", strong, f"nu = {c.nu:.4g}" if c.nu is not None else ""),
            Condition("the aggregate is smooth", None if c.delta is None else True, smooth),
        ]
    found = [Condition("every agent's field is monotone", problem.convex)]
    if limit is not None:
        bad = [names[k] for k in np.flatnonzero(~(limit > 0))]
        which = f"agent {bad[0]} is not" + (f", nor are {len(bad) - 1} more" if bad[1:] else "") if bad else ""
        found.append(Condition("every agent is stable by itself, with steps that are short", not bad, which))
    return found


def _of_step(setting: Setting) -> list[Condition]:
    step, limit, names = local_step(setting.algorithm), setting.problem.step_limits(), setting.problem.names
    if step is None or limit is None:
        return []
    over = np.flatnonzero(np.broadcast_to(step, limit.shape) >= limit)
    if len(over):
        worst = over[np.argmin(limit[over])]
        more = f" and {len(over) - 1} more" if len(over) > 1 else ""
        detail = f"agent {names[worst]} allows {limit[worst]:.4g}{more}"
    else:
        detail = f"the strictest agent, {names[int(limit.argmin())]}, allows {limit.min():.4g}"
    return [Condition("local steps are below every agent's limit", not len(over), detail)]


def local_step(algorithm: Algorithm) -> np.ndarray | None:
    """The length of a local step, one number or one for each agent; None where there is no such number."""
    step = constant_step(algorithm)
    if step is None or algorithm.proximal:
        return None
    return step / algorithm.work_of_a_step()
