"""What methods share in which the nodes of a network agree on one model, by averaging with their neighbours.

A node averages with the weights of its edges and keeps what is left for itself: W = A + diag(1 - sum_j A_ij), which is
symmetric, and doubly stochastic where no node's weights exceed one (`network.mixing()`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.algorithms.neighbours import Near
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import Inbox
from fedpoint.core.types import Message, Model, State

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network
    from fedpoint.problems.base import Problem
    from fedpoint.timing.base import Timing


class Consensus(Algorithm):
    """Nodes that look for one model together: a node's hub holds what it heard of the neighbours.

    Models that are read as a mean with the neighbours' begin as one too, where nodes start at different models.
    """

    at_agents = True
    mixes = True

    def hello(self, w: Model) -> Message:
        return w

    def combine(self, near: Near, inbox: Inbox) -> Near:
        return Near(inbox.total, inbox.mass)

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        """w* at every node."""
        one = problem.solution()
        if one is None:
            return None
        return jax.tree.map(lambda a: np.broadcast_to(a, (problem.agents, *np.shape(a))).copy(), one)


class Corrected(Consensus):
    """Of these, those whose correction adds up over the nodes only where all of them keep step."""

    def conserves_a_sum(self) -> bool:
        return True

    def invalid_under(self, timing: Timing) -> str:
        if timing.in_step:
            return ""
        return (
            f"{self.card.title} cannot run with {timing.names()[0]}: its corrections cancel over the nodes only if "
            "all of them work in every tick and no message is late. Leave out schedule=, or use Diffusion."
        )


def mixed(near: Near, own: State) -> State:
    """sum_j W_ij x_j: what neighbours said, and a node's own with what is left of the weight."""
    return jax.tree.map(lambda total, mine: total + (1 - near.mass) * mine, near.total, own)


__all__ = ["Consensus", "Corrected", "mixed"]
