"""What should local steps and participants be, where nothing can be forecast? `fp.probe` measures along a short run."""

from __future__ import annotations

from typing import Unpack

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count
from fedpoint.engine.session import Session
from fedpoint.experiment import Experiment
from fedpoint.problems.base import Problem
from fedpoint.results.probe import Probe
from fedpoint.theory.probing import asked, measure
from fedpoint.verbs.run import MethodOptions, as_experiment

LOOKS = 3


@checked
def probe(
    algorithm: Algorithm | Experiment | str,
    problem: Problem | None = None,
    *,
    rounds: Count = 10,
    samples: Count = 8,
    **options: Unpack[MethodOptions],
) -> Probe:
    """Measure gradient noise, heterogeneity and curvature along the first rounds of a run, and predict from them which
    local steps and participants stop paying, and whether SCAFFOLD would help.

    It takes about two hundred passes over the data of at most 64 agents at each of three models, and works where
    `fp.forecast` does not: for neural networks, and for modules of PyTorch, whose products with Hessians are
    differences of gradients.

    Args:
        algorithm: a method with a local step, for instance `fp.FedAvg(step=0.1, local_steps=5)`; or an experiment.
        problem: from `fp.problems`, or your own, with a loss.
        rounds: how long the path is; it is measured at its beginning, middle and end.
        samples: of each agent, for the noise.
        options: as in `fp.Experiment`.

    >>> import fedpoint as fp
    >>> rows = fp.problems.LeastSquares([[[1.0], [2.0]], [[1.0], [3.0]]], [[1.0, 2.0], [0.0, 0.0]], mean=True, batch=1)
    >>> made = fp.probe(fp.FedAvg(step=0.05), rows, rounds=2)
    >>> round(made.points[0].largest, 6)                    # the mean of 2.5 and 5
    3.75
    """
    given = as_experiment(algorithm, problem, options)
    experiment = given.replace(repeats=1, record_every=rounds)
    step = _checked_step(experiment)
    session, bound = Session(experiment.bind(), rounds), experiment.bind()
    at = asked(bound.data.own_for(bound.algorithm), bound.data.common, experiment.problem.weights, experiment.seed)
    looks = sorted({0, rounds // 2, rounds})
    points = []
    for round in looks:
        if round:
            session.advance(round)
        model = jax.tree.map(lambda a: a[0], session.model())
        points.append(measure(bound.oracle, at, model, step, samples, (experiment.seed, round)))
    slots = bound.timing.slots(experiment.problem.agents)
    expected = float(bound.timing.moments(experiment.problem.weights).heard.sum())
    heard = max(1, min(slots, int(np.rint(expected))))
    return Probe(tuple(looks), tuple(points), step, experiment.problem.agents, heard)


def _checked_step(experiment: Experiment) -> float:
    """The step that predictions are for, of an experiment that can be probed."""
    if not experiment.problem.has_loss:
        raise FedpointError("a probe needs losses, and the field of this problem is not a gradient")
    if experiment.bind().topology.own_models or experiment.timing.on_clock:
        raise FedpointError(
            "a probe is for one model at a fusion center, in rounds: leave out network=, share=, clocks"
        )
    if experiment.bind().oracle.moves:
        raise FedpointError("a probe draws independent samples, and this problem samples along trajectories")
    step = experiment.algorithm.step
    if not isinstance(step, float) or step <= 0:
        raise FedpointError(f"a probe needs a step that is a number above 0; got {step!r}")
    return step
