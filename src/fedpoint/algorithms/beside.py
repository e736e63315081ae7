"""What methods have in common that learn a model of each agent beside FedAvg's common one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedpoint.algorithms.fedavg import FedAvg
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.types import Message, Model, Number, State

if TYPE_CHECKING:
    from fedpoint.problems.base import Problem

Field: TypeAlias = Callable[[Model], Model]  # an agent's field, of the sample of one step


class OwnModels(Algorithm):
    """The hub holds one model, and each agent keeps another, which is its own: the agent's memory."""

    personal = True

    def init(self, w: Model) -> tuple[State, State]:
        return w, w

    def read(self, w: Model, v: Model) -> Model:
        return v

    def shown(self, w: Model, newcomer: Model) -> Model:
        return w  # own models stay with their agents

    def begun_from(self, w: Model, v: Model) -> Model:
        return w

    def remembered(self, heard: Model, v: Model, arrived: Message) -> None:
        return None  # an agent's own model does not show in its message


class Beside(OwnModels, FedAvg):
    """FedAvg, and at each agent a model v of its own beside the common w; what is sent is FedAvg's.

    A subclass says how v moves (`slope`), and where needed from where (`begins`), for how many steps (`own`), and what
    of it is the agent's model (`read`).
    """

    def slope(self, w: Model, v: Model, field: Field) -> Model:
        """What an own step subtracts from v, times the step.

        Args:
            w: the common model that the agent has heard.
            v: its own.
            field: the agent's field at a model, of this step's sample.
        """
        raise NotImplementedError

    def begins(self, w: Model, v: Model) -> Model:
        """The model that an agent's own steps of a round begin from.

        Args:
            v: its own model of the last round.
        """
        return v

    def own(self, steps: Number) -> Number:
        """How many own steps go with so many common ones.

        Args:
            steps: common ones.
        """
        return steps

    def averages_descent(self) -> bool:
        return False  # it does more

    def samples(self, steps: int) -> int:
        return steps + int(self.own(steps))

    def local(self, w: Model, v: Model, agent: Agent) -> tuple[Message, Model]:
        change, _ = super().local(w, v, agent)
        steps, rate = agent.steps(self.local_steps), self._rate(agent)

        def advance(v: Model, e: Number) -> Model:
            return v - rate(e, steps) * self.slope(w, v, lambda at: agent.field(at, steps + e))

        return change, descend(agent, self.begins(w, v), self.own(steps), advance)


# What theory says, in closed form: on problems whose fields are affine, for constant steps.


def held(problem: Problem, w: np.ndarray | None, pull: float) -> np.ndarray | None:
    r"""(K, d): $(A_k + \text{pull}\,I)^{-1} (b_k + \text{pull}\,w)$, where each agent's pulled field vanishes."""
    fields = problem.linear_fields()
    if fields is None or w is None:
        return None
    A, b = fields
    try:
        return np.linalg.solve(A + pull * np.eye(A.shape[-1]), (b + pull * w)[..., None])[..., 0]
    except np.linalg.LinAlgError:
        return None


def own_rate(algorithm: FedAvg, problem: Problem, share: float, pull: float) -> float | None:
    r"""The largest spectral radius of $(I - s_k (\text{share}\,A_k + \text{pull}\,I))^{E_k}$."""
    setting, fields = linear.local(algorithm, problem), problem.linear_fields()
    if setting is None or setting.counts is None or fields is None:
        return None
    s = (setting.step / setting.counts if algorithm.normalise else setting.step)[:, None, None]
    step = np.eye(fields[0].shape[-1]) - s * (share * fields[0] + pull * np.eye(fields[0].shape[-1]))
    return max(linear.spectral_radius(B) ** int(n) for B, n in zip(step, setting.counts, strict=True))
