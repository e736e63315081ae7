"""How do Ditto, fine-tuning, APFL and pFedMe go, and how do they go wrong? Plain rounds, as in `methods.py`.

An agent keeps in `memory["v"]` what is its own; the start is there before the first round. `reads` makes of it the
agent's model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedpoint.verbs.certify.method import Mistake
from fedpoint.verbs.certify.methods import Recipe, merged, walk
from fedpoint.verbs.certify.world import Participant, Participants


def own_kept(r: Recipe, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """What an agent keeps is its model."""
    return v


def mixture(r: Recipe, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """APFL's model of an agent."""
    return w + _share(r, "read") * (v - w)


def _share(r: Recipe, where: str) -> float:
    return 1 - r.mix if where in r.swapped else r.mix


def ditto(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """v -= rate (g(v) + pull (v - w)), beside FedAvg."""

    def slope(field: np.ndarray, v: np.ndarray, near: np.ndarray) -> np.ndarray:
        return field + r.stretch * r.pull * (v - near)

    ends = []
    for agent in agents:
        y, v = walk(r.but({"pull": 0.0}), agent, w), w if r.anew else agent.memory["v"]
        near = y if r.near == "end" else np.zeros_like(w) if r.near == "zero" else w
        for _ in range(r.steps(agent.index)):
            v = v - r.rate(agent.index) * slope(agent.field(v), v, near)
        ends.append(_told(r, agent, y, v))
    return merged(r, w, agents, ends)


def fine_tuned(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """Own steps of descent from w, beside FedAvg."""
    ends = []
    for agent in agents:
        y = walk(r, agent, w)
        v = agent.memory["v"] if r.anew else y if r.near == "end" else w
        for _ in range(r.own_steps):
            v = v - r.rate(agent.index) * agent.field(v)
        ends.append(_told(r, agent, y, v))
    return merged(r, w, agents, ends)


def apfl(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """v -= rate a g(a v + (1 - a) w), beside FedAvg."""
    ends = []
    for agent in agents:
        y, v = walk(r, agent, w), w if r.anew else agent.memory["v"]
        for _ in range(r.steps(agent.index)):
            at = v if r.near == "own" else w + _share(r, "point") * (v - w)
            v = v - r.rate(agent.index) * (1.0 if r.chained else _share(r, "factor")) * agent.field(at)
        ends.append(_told(r, agent, y, v))
    return merged(r, w, agents, ends)


def pfedme(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """y -= rate pull (y - theta), theta the proximal point of y, from y = w; then the mean, times the server's step."""
    ends = []
    for agent in agents:
        y, theta = w, agent.memory["v"]
        for e in range(r.steps(agent.index) + r.more):
            if e == 0 or not r.frozen:
                theta = agent.prox(y, r.stretch * r.pull / 2)
            y = y - r.rate(agent.index) * (1.0 if r.chained else r.pull) * (y - theta)
        ends.append(_told(r, agent, y, theta))
    return merged(r, w, agents, ends, r.server_step)


def _told(r: Recipe, agent: Participant, y: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The model whose change is sent; the own one is kept."""
    agent.memory["v"] = v
    return v if r.sent == "own" else y


# Known mistakes.

OWN_SENT = Mistake(
    "own_model_sent",
    "the change of the agent's own model is sent, which never leaves it: what is averaged is the common one's",
    ({"sent": "own"},),
)
OWN_FORGOTTEN = Mistake(
    "own_model_forgotten",
    "an agent's own model begins anew from the common one in every round: it is to be kept",
    ({"anew": True},),
)

DITTO = (
    OWN_SENT,
    OWN_FORGOTTEN,
    Mistake("pull_sign_flipped", "the pull is a push: away from the common model", ({"stretch": -1.0},)),
    Mistake("pull_to_zero", "the pull is towards 0 instead of towards the common model", ({"near": "zero"},)),
    Mistake("pull_doubled", "the pull is off by a factor of two", ({"stretch": 2.0}, {"stretch": 0.5}), claimed=True),
    Mistake(
        "pulled_to_own_steps",
        "the own model is pulled to where the agent's common steps of this round end: it is to be pulled to the "
        "common model that was received",
        ({"near": "end"},),
    ),
    Mistake("pull_missing", "the pull has no effect: agents learn alone", ({"stretch": 0.0},), claimed=True),
)

TUNED = (
    OWN_SENT,
    Mistake(
        "tuning_goes_on",
        "fine-tuning goes on from the agent's last own model: it begins at the common model in every round",
        ({"anew": True},),
    ),
    Mistake(
        "tuned_from_own_steps",
        "fine-tuning begins where the agent's common steps of this round end: it begins at the common model received",
        ({"near": "end"},),
    ),
)

MIXED = (
    OWN_SENT,
    OWN_FORGOTTEN,
    Mistake(
        "mixture_swapped",
        "own and common model change places in the mixture: it is a v_k + (1 - a) w",
        tuple({"swapped": where} for where in ("point", "point factor", "point read", "point factor read")),
    ),
    Mistake(
        "mixture_not_evaluated",
        "the field is evaluated at the own model: it belongs at the mixture a v_k + (1 - a) w",
        ({"near": "own"},),
    ),
    Mistake(
        "chain_rule_missing",
        "the factor a of the chain rule is missing in the own step: the gradient of f_k(a v + (1 - a) w) is a g_k",
        ({"chained": True},),
    ),
)

ENVELOPES = (
    replace(OWN_SENT, reason="theta_k - w is sent: it is the change of w_k after its steps on the envelope"),
    Mistake(
        "chain_rule_missing",
        "the factor pull is missing in the local step: an envelope's gradient is pull (w - theta)",
        ({"chained": True},),
    ),
    Mistake("pull_doubled", "the pull is off by a factor of two", ({"stretch": 2.0}, {"stretch": 0.5}), claimed=True),
    Mistake("server_step_missing", "the server's step has no effect", ({"server_step": 1.0},), claimed=True),
)
