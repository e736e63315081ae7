"""Which algorithm, with which step? By name, as an object, or planned; the step from the problem's smoothness."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from fedpoint.algorithms import FedNewton, FedNova, FedProx
from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.errors import FedpointError, notify
from fedpoint.core.steps import LocalSteps, most_steps
from fedpoint.problems.penalised import Penalised
from fedpoint.problems.rows import RowsProblem
from fedpoint.results.plan import Plan
from fedpoint.timing.participation import as_participation
from fedpoint.timing.schemes import Everyone, Participation
from fedpoint.verbs.plan import plan
from fedpoint.verbs.plan.search import Method, method_of

FEW = 300  # numbers of a model up to which agents send their Hessians
PLANNED_STEPS = (4, 16)  # beside gradient exchange, which takes one
# Numbers of all memories, up to which forecasts of a noisy SCAFFOLD are quick: with affine fields, and with others.
LARGE = {True: 1000, False: 100}


class PlanNotice(UserWarning):
    """algorithm="auto" could not be planned; the message names the method that is used instead."""


class Chosen(NamedTuple):
    algorithm: Algorithm
    rounds: int
    plan: Plan | None


def choose(
    algorithm: Algorithm | str | None,
    task: RowsProblem,
    step: float | str,
    local_steps: LocalSteps,
    rounds: int,
    target: float,
    participation: Participation | int | None,
) -> Chosen:
    """The algorithm object and the number of rounds."""
    if algorithm is None:
        if newton_suits(task, step, participation):
            return Chosen(FedNewton(), rounds, None)
        algorithm = "scaffold"
    if isinstance(algorithm, str) and algorithm == "auto":
        return planned(task, step, local_steps, rounds, target, participation)
    if isinstance(algorithm, Algorithm):
        if algorithm.at_agents:
            raise FedpointError(f"{algorithm.card.title} runs on a network: use NetworkRegressor or NetworkClassifier")
        return Chosen(algorithm, rounds, None)
    return Chosen(by_name(algorithm, task, step, local_steps, participation), rounds, None)


def newton_suits(task: RowsProblem, step: float | str, participation: Participation | int | None) -> bool:
    """Few parameters, full gradients, everyone in every round, and nobody asks for a step."""
    everyone = as_participation(participation).everyone
    return isinstance(task, Penalised) and task.batch is None and everyone and step == "auto" and _few(task)


def _few(task: RowsProblem) -> bool:
    return sum(np.size(a) for a in jax.tree.leaves(task.start())) <= FEW


def by_name(
    name: str,
    task: RowsProblem,
    step: float | str,
    local_steps: LocalSteps,
    participation: Participation | int | None = None,
) -> Algorithm:
    """An algorithm of the catalogue with its step chosen."""
    method = method_of(name)
    probe = _make(method, 1e-3, local_steps)
    if probe.at_agents:
        raise FedpointError(f"{method.title} runs on a network: use NetworkRegressor or NetworkClassifier")
    if isinstance(step, str):
        if step != "auto":
            raise FedpointError(f'step must be a number or "auto", got {step!r}')
        step = stable_step(probe, task) * (1.0 if as_participation(participation).everyone else 0.5)
    return _make(method, step, local_steps)


def _make(method: Method, step: float | str, local_steps: LocalSteps) -> Algorithm:
    return method.make(step=step, local_steps=local_steps) if method.local else method.make(step=step)


def stable_step(algorithm: Algorithm, task: RowsProblem) -> float:
    r"""$1/L$ with L the largest smoothness of an agent: no agent's local steps overshoot, and their mean does not.

    Where a round is one step of all together, L is that of the aggregate. A method whose steps are divided by their
    number gets that many times more; a proximal term adds to L. With a batch, L is twice the smoothness that a batch is
    expected to have. SCAFFOLD with that step was stable, with everyone, on thousands of random problems, however
    different their agents; with few participants half of it got nearer to w*, and is taken (`by_name`). Should a run
    diverge all the same, it is begun again with half the step.
    """
    if not isinstance(task, Penalised):
        return 1.0 / sharpness(task)
    whole, each = task.smoothness()
    bound = bind_algorithm(algorithm, task)
    steps = most_steps(bound.local_steps)
    pull = algorithm.pull if isinstance(algorithm, FedNova | FedProx) else 0.0
    one = bound.local_steps is not None and bool((steps == 1).all()) and not pull
    smooth = whole if one else float(each.max()) + pull
    if not smooth > 0:
        smooth = 1.0  # only zeros: any step will do
    return float(np.min(algorithm.work_of_a_step())) / smooth


def sharpness(task: RowsProblem, iterations: int = 20) -> float:
    """The largest curvature of the aggregate at the start, by power iteration; for losses without known constants."""
    from fedpoint.estimators.neural import curvature_along

    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(a.dtype), task.start())
    size = 1.0
    for _ in range(iterations):
        norm = np.sqrt(sum(float((a**2).sum()) for a in jax.tree.leaves(direction)))
        if not norm > 0:
            break
        direction = jax.tree.map(lambda a, n=norm: (a / n).astype(a.dtype), direction)
        direction = curvature_along(task, direction)
        size = np.sqrt(sum(float((a**2).sum()) for a in jax.tree.leaves(direction)))
    return float(size) if size > 0 and np.isfinite(size) else 1.0


def planned(
    task: RowsProblem,
    step: float | str,
    local_steps: LocalSteps,
    rounds: int,
    target: float,
    participation: Participation | int | None,
) -> Chosen:
    """By `fp.plan`: E|w - w*|^2 at most `target` times that of the start, with the least communication."""
    if isinstance(target, bool) or not isinstance(target, int | float | np.number) or not target > 0:
        raise FedpointError(f"target must be a number above 0, got {target!r}")
    try:
        solution = task.solution()
        if solution is None:
            raise FedpointError("the solution of this problem is not known, so there is no distance to plan for")
        away = sum(
            float(((a - b) ** 2).sum()) for a, b in zip(*map(jax.tree.leaves, (solution, task.start())), strict=True)
        )
        if not away > 0:
            return Chosen(by_name("gradient_exchange", task, step, local_steps, participation), rounds, None)
        methods = ["gradient_exchange", "fedavg"]
        silent = task.batch is None and as_participation(participation).everyone
        if silent or (task.agents + 1) * np.size(solution) <= LARGE[bool(task.linear)]:
            methods.append("scaffold")
        made = plan(
            task,
            target=target * away,
            rounds=rounds,
            methods=methods,
            local_steps=PLANNED_STEPS,
            participation=[Everyone() if participation is None else participation],
        )
        if not made.choices:
            raise FedpointError(
                "; ".join(f"{e.method}: {e.reason}" for e in made.excluded) or "no method reaches the target"
            )
        best = made.choices[0]
        return Chosen(best.algorithm, int(best.rounds), made)
    except FedpointError as error:
        notify(f"no plan, SCAFFOLD with local_steps={local_steps} is taken: {error}", PlanNotice)
        return Chosen(by_name("scaffold", task, step, local_steps, participation), rounds, None)
