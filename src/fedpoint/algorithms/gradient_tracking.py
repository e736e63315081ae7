"""Gradient tracking: nodes average their models, and their estimates of everybody's gradient. Nedic et al. (2017)."""

from __future__ import annotations

from typing import NamedTuple

from fedpoint.algorithms.consensus import Corrected, mixed
from fedpoint.algorithms.neighbours import Near
from fedpoint.algorithms.references import NEDIC
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Card
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Message, Model, Number, State


class Tracked(NamedTuple):
    """What neighbours hear: a model after its step, and an estimate of the mean gradient."""

    model: Model
    gradient: Model


class Tracker(NamedTuple):
    """What a node told its neighbours, and its own gradient then."""

    told: Tracked
    own: Model


class GradientTracking(Corrected):
    r"""Every node follows an estimate y of the mean gradient, which is corrected as its own gradient changes.

    $$w_i^+ = \sum_j W_{ij} (w_j - \mu y_j), \qquad y_i^+ = \sum_j W_{ij} y_j + \hat g_i(w_i^+) - \hat g_i(w_i),
    \qquad y_i = \hat g_i(w_i) \text{ at the start}$$

    The mean of y is the mean of the gradients at all times, and the method ends at w* at every node. With several
    local steps a node goes on by itself, $w_i \leftarrow w_i - \mu y_i$ with y corrected as its own gradient changes,
    and both are averaged after the last: it still ends at w*.

    Args:
        step: $\mu$, one number for all nodes.
        local_steps: local steps between two averages.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> net = fp.Network.complete(2, weight=0.25)
    >>> run = fp.run(fp.GradientTracking(step=0.25), quad, network=net, rounds=200)
    >>> run.models[0].ravel().round(6)
    array([1., 1.])

    References: Nedic, Olshevsky and Shi (2017).
    """

    card = Card(
        name="gradient_tracking",
        title="Gradient tracking",
        summary="nodes of a network average their models and their estimates of the mean gradient",
        lecture="",
        references=(NEDIC,),
        limit="w*",
        fails="expensive messages, twice as long as diffusion's; asynchronous schedules",
    )
    exact_moments = True

    step: float = positive()
    local_steps: LocalSteps = counts()

    def init(self, w: Model) -> tuple[State, State]:
        zero = w * 0.0
        return Near(Tracked(zero, zero), 0.0), Tracker(Tracked(w, zero), zero)

    def hello(self, w: Model) -> Tracked:
        return Tracked(w, w * 0.0)

    def local(self, near: Near, memory: Tracker, agent: Agent) -> tuple[Tracked, Tracker]:
        def advance(now: Tracker, e: Number) -> Tracker:
            w, y = now.told
            gradient = agent.field(w, e)
            y = y + gradient - now.own
            return Tracker(Tracked(w - self.step * y, y), gradient)

        begun = Tracker(mixed(near, memory.told), memory.own)
        new = descend(agent, begun, agent.steps(self.local_steps), advance)
        return new.told, new

    def remembered(self, heard: Near, memory: Tracker, arrived: Message) -> None:
        return None  # its last gradient is its own

    def read(self, near: Near, memory: Tracker) -> Model:
        return mixed(near, memory.told).model
