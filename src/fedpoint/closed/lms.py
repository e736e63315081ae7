"""How far from the solution is federated LMS after i rounds, and where does it settle? Exactly, not a bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Whole
from fedpoint.core.numbers import counted
from fedpoint.core.steps import Step
from fedpoint.problems.base import Problem
from fedpoint.problems.linear_stream import LinearStream
from fedpoint.problems.models import check_one
from fedpoint.timing.participation import Who, as_participation
from fedpoint.timing.schemes import ByWeight, Everyone, Uniform


@checked
def lms_msd(
    problem: LinearStream,
    step: float,
    local_steps: int = 1,
    participants: int | None = None,
    rounds: Whole = 100,
    start: ArrayLike | None = None,
    normalise: bool = False,
    replacement: bool = False,
) -> np.ndarray:
    r"""The mean-square deviation $E|w_i - w^\star|^2$ of FedAvg on streaming linear regression, (rounds + 1,).

    With regressors $h \sim N(0, \sigma_h^2 I_M)$ common to all, $p_k = 1/K$, E local steps of length m on fresh samples
    (m = step/E when normalised), L of K agents a round, $w^\star$ the mean of the $w_k$ and D the mean of
    $|w_k - w^\star|^2$, it obeys the recursion

    $$MSD_i = \lambda\, MSD_{i-1} + \kappa, \qquad \lambda = a^{2E} + q\,(r^E - a^{2E}), \qquad
      \kappa = q\,s + D\,[\,q\,(r^E - a^{2E}) + g\,(1 - a^E)^2\,],$$

    $$a = 1 - m\sigma_h^2, \qquad r = 1 - 2 m \sigma_h^2 + m^2 (M + 2) \sigma_h^4, \qquad
      s = m^2 M \sigma_h^2 \sigma_v^2\, \frac{1 - r^E}{1 - r}.$$

    Without replacement q = 1/L and g = (K - L)/((K - 1) L), which is 0 for K = 1; with replacement, an agent drawn
    twice working once with twice the weight, q = 1/L + (1 - 1/L)/K and g = 1/L. Noise variances that differ between
    agents enter by their mean.

    Args:
        problem: isotropic, with the same regressor variance and weight for every agent.
        step, local_steps, normalise: as in `fp.FedAvg`, common to all agents.
        participants: L; None for everyone.
        rounds: i goes up to this number.
        start: the model at round 0 (default: the problem's own start).
        replacement: L draws with replacement (`fp.ByWeight`) rather than L different agents (`fp.Uniform`).

    >>> import fedpoint as fp
    >>> alone = fp.problems.LinearStream([[1.0, 1.0]], noise=0.01)
    >>> lms_msd(alone, step=0.1, rounds=3).round(4)
    array([2.    , 1.6802, 1.4116, 1.1859])

    References: Sayed (2008), Adaptive Filters, for one agent; lecture 000, (82)-(87), for the setting.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int | np.integer) or rounds < 0:
        raise FedpointError(f"rounds must be a whole number, at least 0; got {rounds!r}")
    contraction, added = _recursion(problem, step, local_steps, participants, normalise, replacement)
    begin = problem.start() if start is None else check_one("start", problem.start(), start)
    first = float(((begin - problem.own.model.mean(0)) ** 2).sum())
    i = np.arange(rounds + 1)
    if math.isinf(contraction):
        return np.where(i == 0, first, math.inf)
    if contraction == 1:
        return first + added * i
    fixed = added / (1 - contraction)
    if first == fixed:
        return np.full(rounds + 1, first)
    with np.errstate(over="ignore"):  # the step is too long: infinity is the answer
        return fixed + contraction**i * (first - fixed)


@checked
def lms_floor(
    problem: LinearStream,
    step: float,
    local_steps: int = 1,
    participants: int | None = None,
    normalise: bool = False,
    replacement: bool = False,
) -> float:
    r"""Where the mean-square deviation settles: $\kappa / (1 - \lambda)$, see `lms_msd`; inf when the step is too long.

    For E = 1 and without replacement that is
    $(\mu/L)\,[M\sigma_v^2 + \sigma_h^2 D (M + 1 + c)] / (2 - \mu\sigma_h^2 (1 + (M + 1)/L))$, c = (K - L)/(K - 1).

    Args:
        problem: as in `lms_msd`.
        step, local_steps, normalise: as in `fp.FedAvg`, common to all agents.
        participants: L; None for everyone.
        replacement: L draws with replacement rather than L different agents.

    >>> import fedpoint as fp
    >>> same = fp.problems.LinearStream.sample(agents=100, dim=10, spread=0.0, noise=0.01)
    >>> [f"{lms_floor(same, 0.05, participants=L):.2e}" for L in (10, 100)]      # ten times the agents
    ['2.64e-04', '2.57e-05']
    """
    contraction, added = _recursion(problem, step, local_steps, participants, normalise, replacement)
    return added / (1 - contraction) if contraction < 1 else math.inf


def lms_floor_small_step(
    problem: LinearStream,
    step: float,
    local_steps: int = 1,
    participants: int | None = None,
    normalise: bool = False,
    replacement: bool = False,
) -> float:
    r"""`lms_floor` to first order in the step $\mu$ of a round ($\mu = E m$, m the local step):

    $$\frac{\mu}{2} \left[ \frac{q}{E} \left( M\sigma_v^2 + (M + 1)\sigma_h^2 D \right) + g\,\sigma_h^2 D \right]$$

    The noise falls with L and E, the cost of sampling agents that differ with L only.

    >>> import fedpoint as fp
    >>> lab = fp.problems.LinearStream.sample(agents=100, dim=10, spread=0.1, noise=0.01)
    >>> exact, first = (f(lab, 1e-4, 5, 10) for f in (lms_floor, lms_floor_small_step))
    >>> round(exact / first, 3)
    1.0
    """
    _recursion(problem, step, local_steps, participants, normalise, replacement)  # refuses what it does not cover
    K, M, variance, noise, spread = _numbers(problem)
    q, g = _sampling(K, K if participants is None else int(participants), replacement)
    mu = float(step) if normalise else float(step) * local_steps
    return mu / 2 * (q / local_steps * (M * noise + (M + 1) * variance * spread) + g * variance * spread)


def where_covered(
    form: Callable[..., float],
    problem: Problem,
    step: Step | None,
    local_steps: int,
    participation: Who,
    normalise: bool,
) -> float | None:
    """A form such as `lms_floor` for FedAvg under a participation; None where the recursion does not hold."""
    scheme = as_participation(participation)
    if not isinstance(scheme, Everyone | Uniform | ByWeight) or not isinstance(problem, LinearStream):
        return None
    count = None if isinstance(scheme, Everyone) else scheme.count
    try:
        return form(problem, step, local_steps, count, normalise=normalise, replacement=isinstance(scheme, ByWeight))
    except FedpointError:
        return None


def _sampling(K: int, L: int, replacement: bool) -> tuple[float, float]:
    """E sum_k v_k^2 and the variance that sampling agents adds, relative to their spread."""
    if replacement:
        return 1 / L + (1 - 1 / L) / K, 1 / L
    return 1 / L, (K - L) / ((K - 1) * L) if K > 1 else 0.0


def _recursion(
    problem: LinearStream, step: float, local_steps: int, participants: int | None, normalise: bool, replacement: bool
) -> tuple[float, float]:
    """lambda and kappa."""
    K, M, variance, noise, spread = _numbers(problem)
    E = _whole("local_steps", local_steps)
    L = K if participants is None else _whole("participants", participants)
    if L > K and not replacement:
        raise FedpointError(f"{counted(L, 'participant')} of {counted(K, 'agent')}: choose at most {K}")
    if not (np.ndim(step) == 0 and isinstance(step, int | float | np.number) and 0 < step < math.inf):
        raise FedpointError(f"the exact prediction needs one step above 0, common to all; got {step!r}")
    m = float(step) / E if normalise else float(step)
    a = 1 - m * variance
    r = 1 - 2 * m * variance + m**2 * (M + 2) * variance**2
    try:
        grown = r**E
        s = m**2 * M * variance * noise * (E if r == 1 else (1 - grown) / (1 - r))
        # r^E - a^(2E) without cancellation for small steps: r - a^2 is known exactly.
        part = m**2 * (M + 1) * variance**2 / r
        jitter = -grown * math.expm1(E * math.log1p(-part)) if part < 1 else grown
    except OverflowError:
        return math.inf, math.inf
    q, g = _sampling(K, L, replacement)
    return a ** (2 * E) + q * jitter, q * s + spread * (q * jitter + g * (1 - a**E) ** 2)


def _numbers(problem: Problem) -> tuple[int, int, float, float, float]:
    """K, M, the regressors' and the noise variance, and D; refused where the recursion does not hold."""
    if not isinstance(problem, LinearStream):
        raise FedpointError(f"the exact prediction is for fp.problems.LinearStream, not {type(problem).__name__}")
    K, M = problem.own.model.shape
    root = np.asarray(problem.own.root)
    if root.ndim != 1 or not np.allclose(root, root[0], rtol=1e-12, atol=0):
        raise FedpointError(
            "the exact prediction needs regressors N(0, variance I) with one variance for all: give `covariance` "
            "as one number"
        )
    if not np.allclose(problem.weights, 1 / K, rtol=1e-12, atol=0):
        raise FedpointError("the exact prediction needs equal weights 1/K")
    models = problem.own.model
    spread = ((models - models.mean(0)) ** 2).sum(1).mean()
    return K, M, float(root[0] ** 2), float((problem.own.deviation**2).mean()), float(spread)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise FedpointError(f"the exact prediction needs {name} as one whole number, common to all; got {value!r}")
    return int(value)
