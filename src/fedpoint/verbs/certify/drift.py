"""How do FedDyn, FedExP, FedLin and Mime go, and how do they go wrong? Plain rounds, as in `methods.py`."""

from __future__ import annotations

import numpy as np

from fedpoint.verbs.certify.methods import Recipe, beginning, merged, merging, walk
from fedpoint.verbs.certify.world import Participant, Participants


def feddyn(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """h_k -= a (y_k - w), h -= a sum p_k (y_k - w), w + sum v_k (y_k - w) - h/a."""
    p = np.array([agent.weight for agent in agents])
    ends = []
    for agent in agents:
        h = agent.memory.get("h", beginning(r, agent, w))
        y = agent.prox(w + h / r.pull, r.pull / 2) if r.exact else walk(r, agent, w, shift=-r.correction * h)
        ends.append(y)
        if r.stored in ("both", "agents"):
            agent.memory["h"] = h - r.update * r.pull * (y - w)
    L, K = len(agents), agents.population
    weights = {"share": p, "scaled": p * K / L, "selected": np.full(L, 1 / L), "all": np.full(L, 1 / K)}[r.control]
    h = agents.server.get("h", np.zeros_like(w)) - r.hub * r.pull * (weights @ (np.array(ends) - w))
    if r.stored in ("both", "hub"):
        agents.server["h"] = h
    else:
        h = np.zeros_like(w)
    return merged(r, w, agents, ends) - r.minus * h / r.pull


def fedexp(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """The mean change times max(1, sum v_k |change_k|^2 / (2 (|mean|^2 + eps)))."""
    ends = [walk(r, agent, w) for agent in agents]
    changes = np.array(ends) - w
    mean = merged(r, w, agents, ends) - w
    lengths = {"squares": (changes**2).sum(1), "lengths": np.linalg.norm(changes, axis=1)}[r.measure]
    factor = merging(r, agents) @ lengths / (r.halved * ((mean**2).sum() + r.adaptivity))
    return w + (max(1.0, factor) if r.bounded else factor) * mean


def fedlin(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """Fields are asked for first; then y -= eta (g_k(y) - g_k(w) + g)."""
    own = [agent.field(w) for agent in agents]
    g = merging(r, agents) @ np.array(own)
    used = agents.server.get("g", np.zeros_like(w)) if r.stale else g
    agents.server["g"] = g
    shifts = [r.correction * (used * r.everybody - r.subtract * mine) for mine in own]
    ends = [walk(r, agent, w, shift=shift) for agent, shift in zip(agents, shifts, strict=True)]
    return merged(r, w, agents, ends)


def mime(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """Fields are asked for first; both fields of a local step are of one sample; the momentum is the hub's."""
    c = merging(r, agents) @ np.array([agent.field(w) for agent in agents])
    m = agents.server.get("m", np.zeros_like(w))
    ends = [_mimicked(r, agent, w, c, m) for agent in agents]
    if r.kept:
        agents.server["m"] = (1 - r.momentum) * c + r.momentum * m
    return merged(r, w, agents, ends)


def _mimicked(r: Recipe, agent: Participant, w: np.ndarray, c: np.ndarray, m: np.ndarray) -> np.ndarray:
    y, fresh, gradient = w, 1.0 if r.undamped else 1 - r.momentum, None
    sample = agent.sample() if r.reuse else None
    for _ in range(r.steps(agent.index) + r.more):
        z = agent.sample() if sample is None else sample
        if gradient is None or not r.frozen:
            gradient = agent.field(y, z) - r.subtract * agent.field(w, z) + c * r.everybody
        move = fresh * gradient + r.momentum * m
        m = move if r.moved else m
        y = y - r.rate(agent.index) * move
    return y
