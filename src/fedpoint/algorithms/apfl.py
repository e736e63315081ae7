"""APFL: an agent's model mixes one of its own with the common one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.algorithms import fedavg
from fedpoint.algorithms.beside import Beside, Field, held, own_rate
from fedpoint.algorithms.references import DENG
from fedpoint.core.algorithm import Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.settings import positive
from fedpoint.core.types import Form, Model

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network
    from fedpoint.problems.base import Problem


class APFL(Beside):
    r"""Personalised learning by mixtures.

    $$\bar v_k = a\, v_k + (1 - a)\, w, \qquad v_k \leftarrow v_k - \mu_k\, a\, \hat g_k(\bar v_k; z), \qquad
      w^+ \text{ as in FedAvg}$$

    $\bar v_k$ is the agent's model: $E_k$ steps a round along the gradient of $f_k(a v + (1 - a) w)$, at the w that it
    has heard and with samples of its own. (The paper mixes with the agent's copy of w on its way, and offers to
    adapt a.) v_k stays with the agent; what is sent is FedAvg's.

    Args:
        step, local_steps, normalise, optimiser: of FedAvg; the step and the number of steps are those of v_k too, the
            optimiser is not.
        mix: a, above 0 and at most 1; 1 is learning alone.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 1.0], [[0.0], [2.0]])
    >>> fp.run(fp.APFL(step=0.5, mix=0.5), quad, rounds=200).models[0].round(4)  # in the end their own minima
    array([[0.],
           [2.]])

    References: Deng et al. (2020).
    """

    card = Card(
        name="apfl",
        title="APFL",
        summary="each agent's model is a mixture of one of its own and the common one",
        lecture="",
        references=(DENG,),
        limit="each agent's own minimum, whatever the mixture: with exact fields this is learning alone, more slowly",
        fails="long runs: the common model helps early and against noise, but not in the limit",
    )
    exact_moments = True
    goal = "each agent's own minimum"

    mix: float = positive(default=0.5)

    def check(self) -> None:
        if not self.mix <= 1:
            raise FedpointError(f"APFL: mix must be at most 1, got {self.mix}")

    def _mixed(self, v: Model, w: Model) -> Model:
        return w + self.mix * (v - w)  # w to the bit where both are it

    def read(self, w: Model, v: Model) -> Model:
        return self._mixed(v, w)

    def slope(self, w: Model, v: Model, field: Field) -> Model:
        return self.mix * field(self._mixed(v, w))

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        return fixed_point(self, problem)

    def why_no_aim(self, problem: Problem, network: Network | None) -> str:
        return "the agents' own minima are known only for linear problems, and only where they are unique"

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "rate": rate}


# What theory says, in closed form: on problems whose fields are affine, for constant steps.


def fixed_point(algorithm: APFL, problem: Problem) -> np.ndarray | None:
    r"""(K, d): $A_k^{-1} b_k$."""
    return held(problem, np.zeros(np.shape(problem.start())), 0.0) if problem.linear else None


def rate(algorithm: APFL, problem: Problem) -> float | None:
    r"""The larger of FedAvg's and of the spectral radii of $(I - s_k a^2 A_k)^{E_k}$."""
    common, own = fedavg.rate(algorithm, problem), own_rate(algorithm, problem, algorithm.mix**2, 0.0)
    return None if common is None or own is None else max(common, own)
