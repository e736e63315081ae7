"""The mistakes that certificates found, made on purpose in NumPy: each loop makes the rounds of a framework's method.

A loop is round(w, agents) as `fp.certify` calls it. `apart` plays it beside the framework: the same agents, the same
participants, round for round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from bridge import PULL, STEP, STEPS, Q

Loop: TypeAlias = Callable[[np.ndarray, Any], np.ndarray]
WHO = [range(5), range(5), (0, 2), (1, 3, 4), range(5), (2, 4), (0, 1), range(5)]  # who takes part, round for round


def shares(agents: Any, weighted: bool) -> np.ndarray:
    """By numbers of examples among those who take part, or alike. (p_k, not renormalised, would be right.)"""
    p = np.array([a.weight if weighted else 1.0 for a in agents])
    return p / p.sum()


def prox(weighted: bool, squared: bool = True) -> Loop:
    """FedProx with the mean of those who take part; squared: the pull is (mu/2)|y - w|^2, not (mu/2)|y - w|."""

    def round(w: np.ndarray, agents: Any) -> np.ndarray:
        ends = []
        for agent in agents:
            y = w
            for _ in range(STEPS[agent.index]):
                apart = y - w
                far = 1.0 if squared else 2.0 * np.linalg.norm(apart)
                y = y - STEP * (agent.field(y) + PULL * apart / (far or 1.0))
            ends.append(y)
        return shares(agents, weighted) @ ends

    return round


def scaffold(sign: float = 1.0, whole: bool = False, weighted: bool = False) -> Loop:
    """SCAFFOLD with plain means.

    sign: of what an agent's control learns from its change of the model. weighted: models are averaged by numbers of
    examples, controls are not. whole: the hub's control moves by the mean change of those who took part, averaged as
    models are, whatever part of all agents they are.
    """

    def round(w: np.ndarray, agents: Any) -> np.ndarray:
        c = agents.server.setdefault("c", np.zeros_like(w))
        ends, changes = [], []
        for agent in agents:
            own, y = agent.memory.setdefault("c", np.zeros_like(w)), w
            for _ in range(STEPS[agent.index]):
                y = y - STEP * (agent.field(y) - own + c)
            change = sign * (w - y) / (STEPS[agent.index] * STEP) - c
            agent.memory["c"] = own + change
            ends.append(y)
            changes.append(change)
        share = 1.0 if whole else len(ends) / agents.population
        agents.server["c"] = c + share * shares(agents, weighted and whole) @ changes
        return shares(agents, weighted) @ ends

    return round


def fednova(models: bool = False, scaled: bool = False) -> Loop:
    """FedNova with plain means of normalised changes, and of numbers of steps.

    models: the weights are there, p_k tau / tau_k, but put on models in place of changes; they do not sum to one.
    scaled: a selection's mean change is multiplied by K / L on top of being a mean.
    """

    def round(w: np.ndarray, agents: Any) -> np.ndarray:
        found, steps = [], []
        for agent in agents:
            y = w
            for _ in range(STEPS[agent.index]):
                y = y - STEP * agent.field(y)
            found.append((w - y) / STEPS[agent.index])
            steps.append(STEPS[agent.index])
        p, changes = shares(agents, weighted=models), np.array(found)
        if models:
            return (p * (p @ steps) / steps) @ (w - changes * np.array(steps)[:, None])
        factor = agents.population / len(steps) if scaled else 1.0
        return w - factor * (p @ steps) * (p @ changes)

    return round


def qfedavg(along: bool = False) -> Loop:
    """q-FedAvg whose agents all count alike.

    along: what counts is the sum of the losses met in local steps, not the loss of the model that was received.
    """

    def round(w: np.ndarray, agents: Any) -> np.ndarray:
        up, down = 0.0 * w, 0.0
        for agent in agents:
            y, met = w, []
            for _ in range(STEPS[agent.index]):
                met.append(agent.loss(y))
                y = y - STEP * agent.field(y)
            loss = (sum(met) if along else met[0]) + 1e-10
            change = (w - y) / STEP
            up = up + loss**Q * change
            down += Q * loss ** (Q - 1) * change @ change + loss**Q / STEP
        return w - up / down

    return round


LOOPS: dict[tuple[str, str], Loop] = {
    ("fedlab", "scaffold"): scaffold(),
    ("fedlab", "fedprox"): prox(weighted=False),
    ("fedlab", "fednova"): fednova(scaled=True),
    ("fedlab", "qfedavg"): qfedavg(along=True),
    ("pfl", "scaffold"): scaffold(sign=-1.0),
    ("pfl", "fedprox"): prox(weighted=True),
    ("flower", "fedprox"): prox(weighted=True, squared=False),
    ("flower", "qfedavg"): qfedavg(),
    ("fedjax", "fedprox"): prox(weighted=True),
    ("nvflare", "scaffold"): scaffold(whole=True, weighted=True),
    ("nvflare", "fedprox"): prox(weighted=True),
    ("fluke", "scaffold"): scaffold(weighted=True),
    ("fluke", "fedprox"): prox(weighted=True),
    ("fluke", "fednova"): fednova(models=True),
    ("appfl", "fedprox"): prox(weighted=True),
}


class Agent:
    """A quadratic with a matrix, a minimiser and a weight of its own, as certify's."""

    def __init__(self, index: int, weight: float, luck: np.random.Generator):
        root = luck.normal(size=(3, 3))
        self.index, self.weight, self.population = index, weight, 5
        self.matrix, self.centre, self.memory = root @ root.T / 3 + np.eye(3), luck.normal(size=3), {}

    def field(self, w: Sequence[float] | np.ndarray) -> np.ndarray:
        return self.matrix @ (np.asarray(w) - self.centre)

    def loss(self, w: Sequence[float] | np.ndarray) -> float:
        return 1.0 + 0.5 * float((np.asarray(w) - self.centre) @ self.field(w))


class Agents(list):
    """Those who take part in a round, with the hub's dictionary."""

    def __init__(self, who: Sequence[Agent], server: dict[str, Any]):
        super().__init__(who)
        self.server, self.population = server, 5


def play(subject: Loop, rounds: Sequence[Sequence[int]] = WHO) -> np.ndarray:
    """The models of its rounds, from the same beginning."""
    luck = np.random.default_rng(7)
    everyone = [Agent(k, p, luck) for k, p in enumerate((0.1, 0.15, 0.2, 0.25, 0.3))]
    w, server, models = luck.normal(size=3), {}, []
    for who in rounds:
        w = np.asarray(subject(w, Agents([everyone[k] for k in who], server)))
        models.append(w)
    return np.array(models)


def apart(subject: Loop, loop: Loop) -> float:
    """How far the two are from each other at most, relative to the model."""
    models = play(loop)
    return float(np.abs(play(subject) - models).max() / (1 + np.abs(models).max()))
