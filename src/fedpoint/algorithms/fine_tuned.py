"""Local fine-tuning: FedAvg, and at each agent some steps of its own from the common model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.algorithms import fedavg
from fedpoint.algorithms.beside import Beside, Field
from fedpoint.algorithms.references import CHENG
from fedpoint.closed import linear
from fedpoint.core.algorithm import Card
from fedpoint.core.settings import counts
from fedpoint.core.types import Form, Model, Number

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network
    from fedpoint.problems.base import Problem


class FineTuned(Beside):
    r"""FedAvg with local fine-tuning.

    $$v_k = w - \mu \hat g_k(w; z) - \dots \quad (\text{own steps of descent from } w), \qquad
      w^+ \text{ as in FedAvg}$$

    v_k is the agent's model: made anew from the w that it hears, with samples of its own, and never sent. An agent that
    is not asked keeps its last one.

    Args:
        step, local_steps, normalise, optimiser: of FedAvg; the step is that of fine-tuning too.
        own_steps: how many steps of fine-tuning.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 1.0], [[0.0], [2.0]])
    >>> fp.run(fp.FineTuned(step=0.5, own_steps=2), quad, rounds=60).models[0].round(4)  # from w* = 1, twice half-way
    array([[0.25],
           [1.75]])

    References: Cheng et al. (2021).
    """

    card = Card(
        name="fine_tuned",
        title="Fine-tuning",
        summary="FedAvg, whose model each agent fine-tunes by some steps of its own",
        lecture="",
        references=(CHENG,),
        limit="each agent: own_steps steps from the common model, which is FedAvg's",
        fails="many own steps at agents with few rows: they forget the others and fit their noise",
    )
    exact_moments = True
    goal = "each agent's own steps from w*"

    own_steps: int = counts(default=5, per_agent=False)

    def begins(self, w: Model, v: Model) -> Model:
        return w

    def own(self, steps: Number) -> Number:
        return self.own_steps

    def slope(self, w: Model, v: Model, field: Field) -> Model:
        return field(v)

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        return tuned(self, problem, linear.solution(problem))

    def why_no_aim(self, problem: Problem, network: Network | None) -> str:
        return "the agents' tuned models are known only for linear problems and constant steps"

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "rate": rate}


# What theory says, in closed form: on problems whose fields are affine, for constant steps.


def tuned(algorithm: FineTuned, problem: Problem, w: np.ndarray | None) -> np.ndarray | None:
    r"""(K, d): $w - s_k \sum_{e<F} (I - s_k A_k)^e (A_k w - b_k)$, F own steps from w."""
    setting, fields = linear.local(algorithm, problem), problem.linear_fields()
    if setting is None or setting.counts is None or fields is None or w is None:
        return None
    A, b = fields
    step = setting.step / setting.counts if algorithm.normalise else setting.step
    work = linear.LocalWork(step, [(1.0, np.full(problem.agents, algorithm.own_steps))])
    return w - np.einsum("kij,kj->ki", linear.descent(A, work), A @ w - b)


def fixed_point(algorithm: FineTuned, problem: Problem) -> np.ndarray | None:
    """(K, d): `tuned` from FedAvg's fixed point."""
    return tuned(algorithm, problem, fedavg.fixed_point(algorithm, problem))


def rate(algorithm: FineTuned, problem: Problem) -> float | None:
    """FedAvg's: tuned models follow the common one."""
    return fedavg.rate(algorithm, problem)
