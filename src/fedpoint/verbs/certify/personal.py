"""How do Ditto, fine-tuning, APFL and pFedMe go, and how do they go wrong? Plain rounds, as in `methods.py`.

An agent keeps in `memory["v"]` what is its own; the start is there before the first round. `reads` makes of it the
agent's model.
"""

from __future__ import annotations

import numpy as np

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
