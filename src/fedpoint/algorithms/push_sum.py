"""Push-sum: one model over a directed network, where nodes know what they give away and not what they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.algorithms.consensus import Consensus, mixed
from fedpoint.algorithms.neighbours import Near
from fedpoint.algorithms.references import NEDIC_PUSH
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Card
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Message, Model, Number, State

if TYPE_CHECKING:
    from fedpoint.timing.base import Timing


class Pushed(NamedTuple):
    """What nodes hand on: a sum of models, and of how many ones it is."""

    value: Model
    ones: Array


class PushSum(Consensus):
    r"""Nodes pass on shares of a sum of models and of a sum of ones; a node's model is the ratio of the two.

    $$v_i = \sum_j W_{ij} x_j, \qquad y_i^+ = \sum_j W_{ij} y_j, \qquad w_i = v_i / y_i^+, \qquad
    x_i^+ = v_i - \mu\, \hat g_i(w_i)$$

    with y = 1 at the start and W column-stochastic: a node divides what it has between itself and those who hear it.
    Nothing is lost on the way, so the sum of the y is the number of nodes at all times. With a constant step it ends at
    a distance of $O(\mu)$ from w* where the nodes' data differ.

    Args:
        step: $\mu$: a number, or one per node.
        local_steps: so many steps from $w_i$ between two ticks, whose change is added to $v_i$.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0], [4.0]])
    >>> net = fp.Network.directed([(0, 1), (1, 2), (2, 0), (0, 2)]).mixing()
    >>> run = fp.run(fp.PushSum(step=0.01), quad, network=net, rounds=2000)
    >>> run.models[0].ravel().round(2)           # w* = 2
    array([2.01, 1.99, 2.  ])

    References: Nedic and Olshevsky (2015).
    """

    card = Card(
        name="push_sum",
        title="Push-sum",
        summary="one model over a directed network: nodes pass on shares of two sums, whose ratio is the model",
        lecture="",
        references=(NEDIC_PUSH,),
        limit="biased by O(step) when nodes differ",
        fails="edges that go both ways, where ExactDiffusion and GradientTracking end at w*; asynchronous schedules",
    )
    exact_moments = True
    directed = True

    step: float = positive(per_agent=True)
    local_steps: LocalSteps = counts()

    def conserves_a_sum(self) -> bool:
        return True

    def divides(self) -> bool:
        return True

    def invalid_under(self, timing: Timing) -> str:
        if timing.in_step:
            return ""
        return (
            f"{self.card.title} cannot run with {timing.names()[0]}: its sums are conserved only if all nodes work in "
            "every tick and no message is late. Leave out schedule="
        )

    def hello(self, w: Model) -> Pushed:
        return Pushed(w, _one(w))

    def init(self, w: Model) -> tuple[State, State]:
        none = Pushed(w, _one(w))
        return Near(jax.tree.map(lambda a: a * 0.0, none), 0.0), none

    def local(self, near: Near, own: Pushed, agent: Agent) -> tuple[Message, Pushed]:
        heard = mixed(near, own)
        w, steps = _ratio(heard), agent.steps(self.local_steps)

        def advance(y: Model, e: Number) -> Model:
            return y - self.step * agent.field(y, e)

        new = Pushed(heard.value + (descend(agent, w, steps, advance) - w), heard.ones)
        return new, new

    def remembered(self, heard: Near, own: Pushed, arrived: Message) -> Pushed:
        return arrived

    def read(self, near: Near, own: Pushed) -> Model:
        return _ratio(mixed(near, own))


def _ratio(pushed: Pushed) -> Model:
    return pushed.value / pushed.ones


def _one(w: Model) -> Array:
    return jnp.ones((), jnp.result_type(*jax.tree.leaves(w)))
