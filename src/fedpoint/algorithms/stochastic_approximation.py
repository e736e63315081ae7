"""Federated linear stochastic approximation: FedAvg and Scaffnew on fields A_k w - b_k. Lecture 001.

FedLSA is FedAvg with steps as they are. SCAFFLSA is Scaffnew with a fixed number H of local steps and p = 1/H, whose
correction h_k is SCAFFLSA's control variate: neither needs its field to be a gradient.
"""

from __future__ import annotations

from fedpoint.algorithms.fedavg import FedAvg
from fedpoint.algorithms.references import DOAN, MANGOLD, MISHCHENKO
from fedpoint.algorithms.scaffnew import Scaffnew
from fedpoint.core.arguments import checked
from fedpoint.core.steps import LocalSteps, Step


@checked
def FedLSA(step: Step, local_steps: LocalSteps = 1) -> FedAvg:
    r"""FedAvg on a linear system (Doan, 2020; Mangold et al., 2024): H steps of size $\eta$, then the mean.

    $$\theta_c \leftarrow \theta_c - \eta (A(Z) \theta_c - b(Z)) \quad (H \text{ times}), \qquad
      \theta^+ = \sum_c p_c \theta_c$$

    It ends at $\theta^\star + (I - G)^{-1} \sum_c p_c (I - (I - \eta A_c)^H)(\theta_c^\star - \theta^\star)$,
    $G = \sum_c p_c (I - \eta A_c)^H$, on average.

    Args:
        step: $\eta$: a number, one per agent, or a schedule.
        local_steps: H, 1 by default.

    >>> import fedpoint as fp
    >>> system = fp.problems.LinearSystem([[[1.0, 1.0], [-1.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]], [[1, 0], [0, 1]])
    >>> fp.forecast(fp.FedLSA(step=0.1, local_steps=10), system).closed["bias"].round(4)
    array([0.0689, 0.0835])
    """
    return FedAvg(step, local_steps, normalise=False)


@checked
def ScaffLSA(step: float, local_steps: int) -> Scaffnew:
    r"""FedLSA with control variates (Mangold et al., 2024): it ends at $\theta^\star$ itself.

    $$\theta_c \leftarrow \theta_c - \eta (A(Z) \theta_c - b(Z) - \xi_c) \quad (H \text{ times}), \qquad
      \theta^+ = \sum_c p_c \theta_c, \qquad \xi_c \leftarrow \xi_c + \frac{1}{\eta H} (\theta^+ - \theta_c)$$

    (The lecture prints minus in the last formula, which diverges.) $\xi_c = 0$ at first, $\sum_c p_c \xi_c = 0$
    always, and $\xi_c \to A_c \theta^\star - b_c$: `run.memories.h`, completed by `settle`.

    Args:
        step: $\eta$, one number for all agents.
        local_steps: H.

    >>> import fedpoint as fp
    >>> system = fp.problems.LinearSystem([[[1.0, 1.0], [-1.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]], [[1, 0], [0, 1]])
    >>> bool(fp.run(fp.ScaffLSA(step=0.1, local_steps=10), system, rounds=200).error[0, -1] < 1e-20)
    True
    """
    return Scaffnew(step, local_steps=local_steps)


REFERENCES = {"FedLSA": (MANGOLD, DOAN), "ScaffLSA": (MANGOLD, MISHCHENKO)}  # beside those of the class
