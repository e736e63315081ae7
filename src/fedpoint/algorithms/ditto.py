"""Ditto: beside FedAvg every agent learns a model of its own, which a proximal term holds near the common one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.algorithms import fedavg
from fedpoint.algorithms.beside import Beside, Field, held, own_rate
from fedpoint.algorithms.references import DITTO
from fedpoint.closed import linear
from fedpoint.core.algorithm import Card
from fedpoint.core.settings import nonnegative
from fedpoint.core.types import Form, Model

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network
    from fedpoint.problems.base import Problem


class Ditto(Beside):
    r"""Ditto.

    $$v_k \leftarrow v_k - \mu_k (\hat g_k(v_k; z) + \text{pull}\,(v_k - w)), \qquad w^+ \text{ as in FedAvg}$$

    $E_k$ such steps a round, with samples of their own, at the w that the agent has heard. v_k is the agent's model and
    stays with it; what is sent is FedAvg's. A pull of 0 is learning alone, a large one the common model.

    Args:
        step, local_steps, normalise, optimiser: of FedAvg; the step and the number of steps are those of v_k too, the
            optimiser is not.
        pull: $\lambda$ of the paper.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 1.0], [[0.0], [2.0]])
    >>> fp.run(fp.Ditto(step=0.5, pull=1.0), quad, rounds=60).models[0].round(4)  # half-way from their own to w* = 1
    array([[0.5],
           [1.5]])

    References: Li et al. (2021).
    """

    card = Card(
        name="ditto",
        title="Ditto",
        summary="beside FedAvg each agent learns a model of its own, held near the common one by a proximal term",
        lecture="",
        references=(DITTO,),
        limit="each agent: the minimum of its loss and the pull to the common model, which is FedAvg's",
        fails="an untuned pull: agents with few rows need a strong one, agents that differ a weak one",
    )
    exact_moments = True
    goal = "each agent's minimum of its loss and the pull to w*"

    pull: float = nonnegative(default=1.0)

    def slope(self, w: Model, v: Model, field: Field) -> Model:
        return field(v) + self.pull * (v - w)

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        return held(problem, linear.solution(problem), self.pull)

    def why_no_aim(self, problem: Problem, network: Network | None) -> str:
        return "the agents' best models are known only for linear problems"

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "rate": rate}


# What theory says, in closed form: on problems whose fields are affine, for constant steps.


def fixed_point(algorithm: Ditto, problem: Problem) -> np.ndarray | None:
    r"""(K, d): `held` at FedAvg's fixed point, whatever the number of local steps."""
    return held(problem, fedavg.fixed_point(algorithm, problem), algorithm.pull)


def rate(algorithm: Ditto, problem: Problem) -> float | None:
    r"""The larger of FedAvg's and of the spectral radii of $(I - s_k (A_k + \text{pull}\,I))^{E_k}$."""
    common = fedavg.rate(algorithm, problem)
    own = own_rate(algorithm, problem, 1.0, algorithm.pull)
    return None if common is None or own is None else max(common, own)
