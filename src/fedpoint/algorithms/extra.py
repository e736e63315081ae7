"""EXTRA: an exact first-order method over a network, by the difference of two ticks. Shi, Ling, Wu and Yin (2015)."""

from __future__ import annotations

from typing import NamedTuple

from fedpoint.algorithms.consensus import Corrected, mixed
from fedpoint.algorithms.neighbours import Near
from fedpoint.algorithms.references import SHI
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Card
from fedpoint.core.settings import positive
from fedpoint.core.types import Message, Model, State


class TwoTicks(NamedTuple):
    """A node's model, and of the tick before what is subtracted: half of the model and its mean, less the step."""

    model: Model
    before: Model


class Extra(Corrected):
    r"""Two ticks of decentralised gradient descent, subtracted so that their biases cancel.

    $$w^{1} = W w^0 - \mu\, \hat g(w^0), \qquad
    w^{t+2} = (I + W) w^{t+1} - \frac{1}{2} (I + W) w^t - \mu (\hat g(w^{t+1}) - \hat g(w^t))$$

    It ends at w* at every node.

    Args:
        step: $\mu$: a number, or one per node.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> run = fp.run(fp.Extra(step=0.5), quad, network=fp.Network.complete(2, weight=0.25), rounds=200)
    >>> run.models[0].ravel().round(6)
    array([1., 1.])

    References: Shi, Ling, Wu and Yin (2015).
    """

    card = Card(
        name="extra",
        title="EXTRA",
        summary="gradient steps over a network, corrected by the difference of two successive ticks",
        lecture="",
        references=(SHI,),
        limit="w*",
        fails="noise, where ExactDiffusion takes longer steps; asynchronous schedules",
    )
    exact_moments = True

    step: float = positive(per_agent=True)

    def init(self, w: Model) -> tuple[State, State]:
        # w^1 follows from w^0 by the second formula if w^0 is what is subtracted
        return Near(w * 0.0, 0.0), TwoTicks(w, w)

    def local(self, near: Near, own: TwoTicks, agent: Agent) -> tuple[Message, TwoTicks]:
        w, mean, move = own.model, mixed(near, own.model), self.step * agent.field(own.model)
        both = w + mean
        new = both - own.before - move
        return new, TwoTicks(new, 0.5 * both - move)

    def remembered(self, heard: Near, own: TwoTicks, arrived: Message) -> None:
        return None  # its last gradient is its own

    def read(self, near: Near, own: TwoTicks) -> Model:
        return own.model
