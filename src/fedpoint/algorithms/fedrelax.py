"""FedRelax: every node minimises its own loss, tied to its neighbours' last models. Lecture 003."""

from __future__ import annotations

import jax.numpy as jnp

from fedpoint.algorithms.fedgd import OnNetwork
from fedpoint.algorithms.neighbours import Near
from fedpoint.algorithms.references import SARCHESHMEH
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Card
from fedpoint.core.settings import nonnegative
from fedpoint.core.types import Message, Model
from fedpoint.core.vector import where


class FedRelax(OnNetwork):
    r"""Federated relaxation: block-coordinate minimisation (Jacobi) of GTVMin.

    $$w_i \leftarrow \arg\min_w L_i(w) + \alpha \sum_j A_{ij} |w - w_j|^2
        = \arg\min_w L_i(w) + \alpha d_i |w - \bar w_i|^2,$$

    $\bar w_i$ the weighted mean of the neighbours' models, $d_i = \sum_j A_{ij}$; in closed form for linear models, by
    Newton's method to rounding for other smooth losses. With `fp.problems.AnyModel` the models are whatever has fit
    and predict, and neighbours exchange predictions.

    Args:
        coupling: $\alpha$; 0 is everyone alone, which needs a loss with one minimum at every node.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 1.0], [[0.0], [1.0]])
    >>> run = fp.run(fp.FedRelax(coupling=0.5), quad, network=fp.Network.complete(2), rounds=60)
    >>> run.models[0].ravel().round(6)
    array([0.333333, 0.666667])

    References: SarcheshmehPour et al. (2023).
    """

    card = Card(
        name="fedrelax",
        title="FedRelax",
        summary="each node solves its own problem, tied to its neighbours; any model with fit and predict too",
        lecture="003 (FedRelax)",
        references=(SARCHESHMEH,),
        limit="GTVMin's solution",
        fails="losses that are nearly flat with a strong coupling: it then contracts slowly",
    )
    exact_moments = True

    full = True
    proximal = True
    fits_any_model = True

    coupling: float = nonnegative(default=1.0)

    def local(self, near: Near, w: Model, agent: Agent) -> tuple[Message, Model]:
        alone = near.mass <= 0  # nothing ties it: it keeps to its own loss
        centre = where(alone, w, near.total / jnp.where(alone, 1.0, near.mass))
        new = agent.prox(centre, self.coupling * near.mass)
        return new, new
