"""Which closed forms apply here? They stand below each algorithm, in its own file; this collects them."""

from __future__ import annotations

import inspect

import numpy as np

from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.problems.base import Problem
from fedpoint.timing.base import Context, Timing
from fedpoint.timing.participation import as_participation


def closed_forms(
    algorithm: Algorithm, problem: Problem, participation: Timing | int | None = None, exact: bool = False
) -> dict[str, float | np.ndarray]:
    """What the algorithm gives in closed form for this problem and participation, by name.

    fixed_point, bias: of the expected round. rate: the factor of the mean per round. floor: where E|w - w*|^2 settles.
    stability: the step below which exact fields converge; ..._by_agent for each agent's own steps. ..._small_step: to
    first order in the step. rate_bound, rate_bound_round: Scaffnew's bounds. What does not apply is left out; a
    user's own algorithm has none. Floors are those of sampled fields, and left out when fields are exact.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> found = closed_forms(fp.FedAvg(0.5, local_steps=2, normalise=True), quad)
    >>> {name: np.round(found[name], 4).tolist() for name in ("bias", "rate", "stability")}
    {'bias': [-0.0351], 'rate': 0.4062, 'stability': 2.0}
    """
    forms = algorithm.closed_forms()
    scheme = participation if isinstance(participation, Timing) else as_participation(participation)
    if not forms or algorithm.invalid_under(scheme):
        return {}
    scheme = scheme.bind(Context(problem, bind_algorithm(algorithm, problem), exact=exact))
    moments = scheme.moments(problem.weights)
    if moments.sampled or not np.allclose(moments.mean, problem.weights, rtol=1e-9, atol=0):
        return {}  # another mean than with everyone: a plain mean of unequal agents, or a trace
    found = {}
    for name, form in forms.items():
        slower = moments.merge < 1 and name.startswith("rate")  # abandoned rounds
        if slower or (exact and name.startswith("floor")):
            continue
        takes = "participation" in inspect.signature(form).parameters
        value = form(algorithm, problem, scheme) if takes else form(algorithm, problem)
        if value is not None:
            found[name] = value
    return found
