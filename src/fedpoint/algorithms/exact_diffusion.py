"""Exact diffusion: diffusion with a correction that removes its bias. Yuan, Ying, Zhao and Sayed (2019)."""

from __future__ import annotations

from typing import NamedTuple

from fedpoint.algorithms.consensus import Corrected, mixed
from fedpoint.algorithms.neighbours import Near
from fedpoint.algorithms.references import YUAN
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Card
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Message, Model, Number, State


class Adapted(NamedTuple):
    """What a node told its neighbours, and where its own steps had led before the correction."""

    told: Model
    before: Model


class ExactDiffusion(Corrected):
    r"""Diffusion whose bias is corrected by what the last tick's steps did.

    $$\psi_i = w_i - \mu\, \hat g_i(w_i), \qquad \phi_i = \psi_i + w_i - \psi_i^{\text{before}}, \qquad
    w_i^+ = \frac{1}{2} (\phi_i + \sum_j W_{ij} \phi_j)$$

    with $\psi^{\text{before}} = w$ at the start. It ends at w* at every node. With several local steps before each mean
    the nodes still agree in the end, but at FedAvg's point.

    Args:
        step: $\mu$: a number, or one per node.
        local_steps: local steps between two averages.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> net = fp.Network.complete(2, weight=0.25)
    >>> run = fp.run(fp.ExactDiffusion(step=0.5), quad, network=net, rounds=200)
    >>> run.models[0].ravel().round(6)
    array([1., 1.])

    References: Yuan, Ying, Zhao and Sayed (2019).
    """

    card = Card(
        name="exact_diffusion",
        title="Exact diffusion",
        summary="diffusion over a network, with a correction that removes its bias",
        lecture="",
        references=(YUAN,),
        limit="w* with one local step; with more, FedAvg's point",
        fails="much noise on a dense network, where plain diffusion settles lower; asynchronous schedules",
    )
    exact_moments = True

    step: float = positive(per_agent=True)
    local_steps: LocalSteps = counts()

    def init(self, w: Model) -> tuple[State, State]:
        return Near(w * 0.0, 0.0), Adapted(w, w)

    def local(self, near: Near, own: Adapted, agent: Agent) -> tuple[Message, Adapted]:
        w, steps = self.read(near, own), agent.steps(self.local_steps)

        def advance(y: Model, e: Number) -> Model:
            return y - self.step * agent.field(y, e)

        psi = descend(agent, w, steps, advance)
        phi = psi + w - own.before
        return phi, Adapted(phi, psi)

    def remembered(self, heard: Near, own: Adapted, arrived: Message) -> None:
        return None  # where a node's own steps led is its own

    def read(self, near: Near, own: Adapted) -> Model:
        return 0.5 * (own.told + mixed(near, own.told))
