"""FedGD and FedSGD: gradient steps on GTVMin, by messages between neighbours. Lecture 003."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fedpoint.algorithms.neighbours import Near
from fedpoint.algorithms.references import SARCHESHMEH
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, nonnegative, positive
from fedpoint.core.steps import LocalSteps, Step, at
from fedpoint.core.types import Message, Model, Number, State
from fedpoint.problems.base import Problem

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network


class OnNetwork(Algorithm):
    """What methods for networks share: a node's model is its memory, and neighbours hear it."""

    at_agents = True
    coupled = True
    goal = "GTVMin's solution"

    coupling = 0.0  # a field of each of them

    def init(self, w: Model) -> tuple[State, State]:
        return Near(w * 0.0, 0.0), w

    def hello(self, w: Model) -> Message:
        return w

    def remembered(self, heard: Near, w: Model, arrived: Message) -> Model:
        return arrived

    def combine(self, near: Near, inbox: Inbox) -> Near:
        return Near(inbox.total, inbox.mass)

    def read(self, near: Near, w: Model) -> Model:
        return w

    def advice(self, problem: Problem, network: Network | None, exact: bool) -> str:
        """A step that the coupling allows; a minimiser for nodes without an edge."""
        placed = cast("Network", network)  # without one it is refused
        if self.step is None:
            alone = ", ".join(placed.isolated[:5])
            return f"; a node without any edge ({alone}) needs a loss with one minimiser." if alone else "."
        try:
            limit = placed.step_limit(problem, self.coupling)
        except FedpointError:
            return ". Take a smaller step."
        return (
            f"; with exact fields and a synchronous schedule the largest stable step here is {limit:.4g}. Take a "
            "smaller step."
        )

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        """GTVMin's solution for this coupling; None where it is not unique or cannot be known."""
        try:
            return cast("Network", network).minimum(problem, self.coupling)
        except FedpointError:
            return None

    def why_no_aim(self, problem: Problem, network: Network | None) -> str:
        try:
            cast("Network", network).minimum(problem, self.coupling)
        except FedpointError as error:
            return str(error)
        return ""


def coupled_step(self: OnNetwork, w: Model, near: Near, gradient: Model, rate: Number) -> Model:
    """One gradient step on L_i(w) + alpha sum_j A_ij |w - w_j|^2."""
    return w - rate * (gradient + 2 * self.coupling * (near.mass * w - near.total))


class FedGD(OnNetwork):
    r"""Federated gradient descent over a network, with exact gradients.

    $$w_i \leftarrow w_i - \eta\,\Big[\nabla L_i(w_i) + 2\alpha \sum_j A_{ij} (w_i - w_j)\Big]$$

    is gradient descent for GTVMin, $\min \sum_i L_i(w_i) + \alpha \sum_{\{i,j\}} A_{ij} |w_i - w_j|^2$.

    Args:
        step: $\eta$: a number, one per node, or a schedule.
        coupling: $\alpha$; 0 is everyone alone.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 1.0], [[0.0], [1.0]])
    >>> run = fp.run(fp.FedGD(step=0.2, coupling=0.5), quad, network=fp.Network.complete(2), rounds=200)
    >>> run.models[0].ravel().round(6)       # w_1 + (w_1 - w_2) = 0 and w_2 - 1 + (w_2 - w_1) = 0
    array([0.333333, 0.666667])

    References: SarcheshmehPour et al. (2023).
    """

    card = Card(
        name="fedgd",
        title="FedGD",
        summary="gradient steps on total variation minimisation over a network",
        lecture="003 (FedGD)",
        references=(SARCHESHMEH,),
        limit="GTVMin's solution",
        fails="a large coupling: steps must be short, and it is slow; FedRelax is not",
    )
    exact_moments = True

    full = True

    step: Step = positive(per_agent=True, scheduled=True)
    coupling: float = nonnegative(default=1.0)

    def local(self, near: Near, w: Model, agent: Agent) -> tuple[Message, Model]:
        new = coupled_step(self, w, near, agent.field(w), at(self.step, agent.round))
        return new, new


class FedSGD(OnNetwork):
    r"""Federated stochastic gradient descent over a network: FedGD with sampled gradients.

    $$w_i \leftarrow w_i - \eta\,\Big[\hat g_i(w_i) + 2\alpha \sum_j A_{ij} (w_i - w_j)\Big]$$

    For $L_i(w) = \frac{1}{m_i} |y - X w|^2$ (`LeastSquares(..., mean=True, half=False, batch=b)`) the gradient of a
    batch is $-\frac{2}{|B|} \sum_{r \in B} x_r (y_r - x_r^\top w)$.

    Args:
        step: $\eta$: a number, one per node, or a schedule.
        coupling: $\alpha$, how strongly neighbours are held together; 0 is everyone alone.
        local_steps: local steps in a tick, with the neighbours' models held fixed.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 1.0], [[0.0], [1.0]], noise=0.1)
    >>> run = fp.run(fp.FedSGD(step=0.05, coupling=0.5), quad, network=fp.Network.complete(2), rounds=200)
    >>> bool(abs(run.models[0].ravel() - [1 / 3, 2 / 3]).max() < 0.2)
    True

    References: SarcheshmehPour et al. (2023).
    """

    card = Card(
        name="fedsgd",
        title="FedSGD",
        summary="FedGD with gradients of batches, one or several local steps a tick",
        lecture="003 (FedSGD)",
        references=(SARCHESHMEH,),
        limit="near GTVMin's solution; local steps between messages move it",
        fails="high accuracy: noise proportional to the step remains",
    )
    exact_moments = True

    step: Step = positive(per_agent=True, scheduled=True)
    coupling: float = nonnegative(default=1.0)
    local_steps: LocalSteps = counts()

    def local(self, near: Near, w: Model, agent: Agent) -> tuple[Message, Model]:
        steps = agent.steps(self.local_steps)

        def advance(y: Model, e: Number) -> Model:
            return coupled_step(self, y, near, agent.field(y, e), at(self.step, agent.round * steps + e))

        new = descend(agent, w, steps, advance)
        return new, new
