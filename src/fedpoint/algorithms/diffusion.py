"""Diffusion: local steps, then a mean over the neighbours. Sayed (2014)."""

from __future__ import annotations

from fedpoint.algorithms.consensus import Consensus, mixed
from fedpoint.algorithms.neighbours import Near
from fedpoint.algorithms.references import SAYED
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps, Step, at
from fedpoint.core.types import Message, Model, Number, State

ORDERS = ("adapt_then_combine", "combine_then_adapt")


class Diffusion(Consensus):
    r"""Every node takes local steps and averages the results with its neighbours.

    $$\psi_i = w_i - \mu\, \hat g_i(w_i), \qquad w_i^+ = \sum_j W_{ij} \psi_j$$

    adapts, then combines. Combine, then adapt: $\phi_i = \sum_j W_{ij} w_j$, $w_i^+ = \phi_i - \mu\, \hat g_i(\phi_i)$.
    Both are one recursion, read before or after the mean. With a constant step they end at a distance of $O(\mu)$ from
    w* where the nodes' data differ.

    Args:
        step: $\mu$: a number, one per node, or a schedule.
        local_steps: local steps between two averages.
        order: "adapt_then_combine" or "combine_then_adapt".

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> net = fp.Network.complete(2, weight=0.25)
    >>> run = fp.run(fp.Diffusion(step=0.5), quad, network=net, rounds=100)
    >>> run.models[0].ravel().round(6)       # w = W (w - (w - c)/2): 1 -+ 1/3
    array([0.666667, 1.333333])

    References: Sayed (2014).
    """

    card = Card(
        name="diffusion",
        title="Diffusion",
        summary="local steps at every node of a network, then a mean over the neighbours",
        lecture="",
        references=(SAYED,),
        limit="biased by O(step) when nodes differ, the more the sparser the network",
        fails="where nodes differ much on a sparse network: ExactDiffusion and GradientTracking end at w*",
    )
    exact_moments = True

    step: Step = positive(per_agent=True, scheduled=True)
    local_steps: LocalSteps = counts()
    order: str = "adapt_then_combine"

    def check(self) -> None:
        if self.order not in ORDERS:
            raise FedpointError(f'Diffusion: order must be "{ORDERS[0]}" or "{ORDERS[1]}", got {self.order!r}')

    def init(self, w: Model) -> tuple[State, State]:
        return Near(w * 0.0, 0.0), w

    def local(self, near: Near, own: Model, agent: Agent) -> tuple[Message, Model]:
        steps = agent.steps(self.local_steps)

        def advance(y: Model, e: Number) -> Model:
            return y - at(self.step, agent.round * steps + e) * agent.field(y, e)

        new = descend(agent, mixed(near, own), steps, advance)
        return new, new

    def remembered(self, heard: Near, own: Model, arrived: Message) -> Model:
        return arrived

    def read(self, near: Near, own: Model) -> Model:
        return mixed(near, own) if self.order == ORDERS[0] else own
