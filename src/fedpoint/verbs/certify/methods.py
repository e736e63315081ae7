"""How does each method go, and how does it go wrong? One plain round each, with a switch for every known mistake.

A `Recipe` holds the settings of a method (above) and its switches (below), which are right by default. The rounds are
written for `world.play`; they share no code with the library's algorithms, which are held against them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from fedpoint.results.certificate import Setting
from fedpoint.verbs.certify.world import AGENTS, Participant, Participants

Settings: TypeAlias = dict[str, Setting]  # of a method, by name


@dataclass(frozen=True)
class Recipe:
    """Settings by their usual names (step and local_steps one per agent), and what is done wrong."""

    step: float | np.ndarray | None = None
    local_steps: int | np.ndarray | None = 1
    normalise: bool = False
    pull: float = 0.0
    exact: bool = False
    server_step: float = 1.0
    option: int = 2
    q: float = 0.0
    probability: float | None = None
    momentum: float = 0.0
    decay: float = 1.0
    effective: float | None = None
    coefficients: np.ndarray | None = None  # (n,), or (agents, n)
    weights: str | Sequence[float] | np.ndarray = "fedavg"
    server: str = "sgd"
    second: float = 0.99
    mix: float = 0.5
    own_steps: int = 5
    order: str = "adapt_then_combine"
    adaptivity: float = 1e-3
    products: int | None = None  # of the Hessian in a round, for conjugate gradients; None: FedNewton solves
    corrected: bool = True  # Adam's and Yogi's bias correction
    lengths: tuple[int, ...] | None = None  # Scaffnew's H by round, as observed

    # Switches of all methods.
    merge: str = "scaled"  # weights of the changes: p_k K/L; "plain", "renormalised", "unscaled", "models"
    sign: float = 1.0  # of the local step
    divide: int = 0  # the step is divided by E_k to this power
    more: int = 0  # local steps too many
    frozen: bool = False  # one gradient for all local steps
    reuse: bool = False  # one sample for all local steps
    # FedProx.
    term: str = "squared"  # or "norm", "zero"
    stretch: float = 1.0  # factor on the pull
    # SCAFFOLD and Scaffnew.
    stored: str = "both"  # controls stored by "both", "hub", "agents" or "none"; "last": not added up
    correction: float = 1.0  # sign of the correction in the local steps
    update: float = 1.0  # sign of the new information in c_k+
    minus: float = 1.0  # sign of c in c_k+ = c_k - c + ...
    hub: float = 1.0  # factor on the hub's change of c
    control: str = "share"  # weights of the change of c: p_k; "scaled", "selected", "all"
    per: str = "E"  # c_k+ divides x - y by E_k eta; or "one", "more", "less", "square", "most"
    begin: str = "zero"  # or "field", "one": what c_k starts with
    scale: str = "probability"  # Scaffnew's h += (p/gamma) ...; or "one"
    # FedNova.
    tau: str = "mean"  # tau_eff; or "plain", "most", "sum", "one", "unscaled", "counted"
    normalised: bool = True
    counted: bool = True  # |a|_1 knows momentum, pull and decay
    # q-FedAvg and FedNewton.
    curvature: str = "whole"  # or "no slope", "summed"; FedNewton's: "own", "summed", "diagonal", "equal"
    at_end: bool = False  # F_k after the local steps
    # Server optimisers, and Mime's momentum.
    kept: bool = True  # the server's state
    # FedExP.
    measure: str = "squares"  # of the changes; or "lengths"
    halved: float = 2.0  # what the ratio is divided by
    bounded: bool = True  # from below, by 1
    # FedLin and Mime.
    stale: bool = False  # everybody's gradient is that of the round before
    everybody: float = 1.0  # factor on everybody's gradient
    subtract: float = 1.0  # factor on the own gradient at the received model
    moved: bool = False  # agents change the momentum in their local steps
    undamped: bool = False  # gradients are not multiplied by 1 - momentum
    # Methods with a model of its own at each agent.
    anew: bool = False  # own steps begin where they should not: at the common model, or (fine-tuning) at the last own
    near: str = "common"  # where own models are pulled, begin or are evaluated; or "end", "zero", "own"
    sent: str = "common"  # whose change is sent; or "own"
    swapped: str = ""  # where APFL has 1 - a for a: words of "point factor read"
    # Consensus methods.
    graph: str = "given"  # the weights of edges; or "own", "others", "plain", "incomplete", "rows", "turned"
    evaluated: str = "mean"  # where fields are: diffusion's also "before" the mean, push-sum's at the "sum"
    lazy: bool = True  # (I + W)/2 where it belongs
    place: str = "before"  # the correction comes before the mean; or "after"
    tracked: bool = True  # estimates of the gradient are averaged
    started: bool = True  # and begin as the first gradients
    ones: bool = True  # push-sum's are handed on
    shown: str = "ratio"  # what its nodes read; or "sum"
    chained: bool = False  # the factor of the chain rule (a, or pull) is missing in a step

    @classmethod
    def of(cls, settings: Settings) -> Recipe:
        """With settings whose names are known."""
        return cls(**settings)  # type: ignore[arg-type]

    def but(self, settings: Settings) -> Recipe:
        """The same but for these settings or switches."""
        return replace(self, **settings)  # type: ignore[arg-type]

    @cached_property
    def counts(self) -> list[int]:
        """E_k; 1 where the length is drawn."""
        return np.broadcast_to(1 if self.local_steps is None else self.local_steps, AGENTS).astype(int).tolist()

    @cached_property
    def rates(self) -> list[float]:
        """The local step of each agent as it takes it."""
        step = np.broadcast_to(np.asarray(self.step, dtype=float), AGENTS)
        return (self.sign * step / np.array(self.counts, dtype=float) ** (self.divide + self.normalise)).tolist()

    def steps(self, k: int) -> int:
        return self.counts[k]

    def rate(self, k: int) -> float:
        return self.rates[k]


Round: TypeAlias = Callable[[Recipe, np.ndarray, Participants], np.ndarray]


def walk(
    r: Recipe, agent: Participant, w: np.ndarray, shift: np.ndarray | float = 0.0, steps: int | None = None
) -> np.ndarray:
    """Local steps y <- y - rate (g(y) + shift + the pull)."""
    y, gradient = w, None
    rate = r.rate(agent.index)
    sample = agent.sample() if r.reuse else None
    for _ in range((r.steps(agent.index) if steps is None else steps) + r.more):
        if gradient is None or not r.frozen:
            gradient = agent.field(y, sample)
        y = y - rate * (gradient + shift + pulled(r, y, w))
    return y


def pulled(r: Recipe, y: np.ndarray, w: np.ndarray) -> np.ndarray | float:
    """The gradient of the proximal term."""
    strength = r.stretch * r.pull
    if not strength:
        return 0.0
    if r.term == "zero":
        return strength * y
    if r.term == "norm":
        distance = np.linalg.norm(y - w)
        return strength * (y - w) / distance if distance > 0 else 0.0
    return strength * (y - w)


def merging(r: Recipe, agents: Participants) -> np.ndarray:
    """The weights v of those heard."""
    p = np.array([agent.weight for agent in agents])
    if r.merge == "plain":
        return np.full(len(agents), 1 / len(agents))
    if r.merge == "renormalised":
        return p / p.sum()
    return p if r.merge == "unscaled" else p * (agents.population / len(agents))


def merged(r: Recipe, w: np.ndarray, agents: Participants, ends: list[np.ndarray], factor: float = 1.0) -> np.ndarray:
    v, models = merging(r, agents), np.array(ends)
    return v @ models if r.merge == "models" else w + factor * (v @ (models - w))


def average(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """Gradient and parameter exchange, FedAvg, FedProx: w + sum v_k (y_k - w)."""
    if r.exact:
        return merged(r, w, agents, [agent.prox(w, r.stretch * r.pull / 2) for agent in agents])
    return merged(r, w, agents, [walk(r, agent, w) for agent in agents])


def scaffold(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    c = agents.server.get("c", np.zeros_like(w))
    p = np.array([agent.weight for agent in agents])
    ends, changes = [], []
    for agent in agents:
        k = agent.index
        own = agent.memory.get("c", beginning(r, agent, w))
        y = walk(r, agent, w, shift=r.correction * (c - own))
        E = r.steps(k)
        per = {"E": E, "one": 1, "more": E + 1, "less": max(E - 1, 1), "square": E * E, "most": max(r.counts)}
        if r.option == 1:
            new = r.update * agent.field(w)
        else:
            new = own - r.minus * c + r.update * (w - y) / (per[r.per] * r.rate(k))
        ends.append(y)
        changes.append(new - own)
        if r.stored in ("both", "agents"):
            agent.memory["c"] = new
    L, K = len(agents), agents.population
    weights = {"share": p, "scaled": p * K / L, "selected": np.full(L, 1 / L), "all": np.full(L, 1 / K)}[r.control]
    if r.stored in ("both", "hub"):
        agents.server["c"] = c + r.hub * (weights @ np.array(changes))
    return merged(r, w, agents, ends, r.server_step)


def beginning(r: Recipe, agent: Participant, w: np.ndarray) -> np.ndarray:
    if r.begin == "field":
        return agent.field(w)
    return np.full_like(w, 1.0 if r.begin == "one" else 0.0)


def scaffnew(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """h_k is completed at once: here the hub is at hand when the agents hear of the merged model."""
    steps = length(r, agents)
    p = r.probability if r.probability is not None else 1 / steps
    ends = [walk(r, a, w, -r.correction * a.memory.get("h", beginning(r, a, w)), steps) for a in agents]
    new = merged(r, w, agents, ends)
    for agent, x in zip(agents, ends, strict=True):
        if r.stored != "none":
            h = 0.0 if r.stored == "last" else agent.memory.get("h", beginning(r, agent, w))
            agent.memory["h"] = h + r.update * (p if r.scale == "probability" else 1.0) / r.rate(agent.index) * (
                new - x
            )
    return new


def length(r: Recipe, agents: Participants) -> int:
    """H of this round: as observed, or fixed, or drawn."""
    if r.lengths is not None:
        return r.lengths[agents.round]
    if r.local_steps is not None:
        return int(np.max(r.local_steps))
    agent = agents[0]
    return int(agent._rng.geometric(r.probability))


def rule(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """FedNova and the general rule: w - tau_eff sum v_k (w_k/p_k) eta d_k."""
    v = merging(r, agents)
    directions, lengths = zip(*[solved(r, agent, w) for agent in agents], strict=True)
    lengths = np.array(lengths)
    counts = np.array([r.steps(agent.index) for agent in agents], dtype=float)
    if not r.normalised:
        return w - v @ (np.array(directions) * lengths[:, None])
    if r.effective is not None:
        effective = r.effective
    else:
        effective = {
            "mean": v @ lengths / v.sum(),
            "plain": lengths.mean(),
            "most": lengths.max(),
            "sum": lengths.sum(),
            "one": 1.0,
            "unscaled": v @ lengths,
            "counted": v @ counts / v.sum(),
        }[r.tau]
    if isinstance(r.weights, str):
        factor = lengths / (v @ lengths / v.sum()) if r.weights == "fedavg" else np.ones(len(agents))
    else:
        factor = np.array([r.weights[agent.index] / agent.weight for agent in agents])
    return w - effective * ((v * factor) @ np.array(directions))


def solved(r: Recipe, agent: Participant, w: np.ndarray) -> tuple[np.ndarray, float]:
    """eta d and |a|_1 of the local solver: how far it goes when every gradient is 1."""
    k, eta = agent.index, r.rate(agent.index)
    y, buffer, reach, unit, total = w, np.zeros_like(w), 0.0, 0.0, np.zeros_like(w)
    sample = agent.sample() if r.reuse else None
    a = None if r.coefficients is None else r.coefficients[k] if r.coefficients.ndim == 2 else r.coefficients
    gradient = None
    for e in range(r.steps(k) + r.more):
        if gradient is None or not r.frozen:
            gradient = agent.field(y, sample)
        buffer = r.momentum * buffer + gradient + pulled(r, y, w)
        unit = r.momentum * unit + 1.0 - eta * r.pull * reach
        if a is not None:
            total, reach = total + a[e] * gradient, reach + a[e]
            y = y - eta * gradient
        else:
            y, reach = y - eta * r.decay**e * buffer, reach + r.decay**e * unit
    if a is not None:
        return eta * total / reach, reach
    if not r.counted:
        reach = float(r.steps(k))
    return (w - y) / reach, reach


def qfedavg(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    v = merging(r, agents)
    directions, curvatures = [], []
    for agent in agents:
        y, eta = walk(r, agent, w), r.rate(agent.index)
        D, F = (w - y) / eta, agent.loss(y if r.at_end else w)
        slope = 0.0 if not r.q or r.curvature == "no slope" else r.q * F ** (r.q - 1) * (D @ D)
        directions.append(F**r.q * D)
        curvatures.append(slope + F**r.q / eta)
    mean = v @ np.array(curvatures)
    if r.curvature != "summed":
        mean = mean / v.sum()
    return w - v @ np.array(directions) / mean


def optimised(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """Server optimisers: minus the mean change is a gradient."""
    g = w - merged(r, w, agents, [walk(r, agent, w) for agent in agents])
    first = 1e-6 if r.server == "yogi" else 0.0
    second = {"yogi": 1e-6, "adagrad": r.adaptivity**2}.get(r.server, 0.0)
    m, s, t = agents.server.get("state", (np.full_like(w, first), np.full_like(w, second), 0))
    t = t + 1
    if r.server == "sgd":
        update = g
    elif r.server == "momentum":
        m = r.momentum * m + g
        update = m
    elif r.server == "adagrad":
        s = s + g * g
        update = g / (np.sqrt(s) + r.adaptivity)
    else:
        m = r.momentum * m + (1 - r.momentum) * g
        if r.server == "adam":
            s = r.second * s + (1 - r.second) * g * g
        else:
            s = s - (1 - r.second) * np.sign(s - g * g) * g * g
        bias = (1 - r.momentum**t, 1 - r.second**t) if r.corrected else (1.0, 1.0)
        update = m / bias[0] / (np.sqrt(s / bias[1]) + r.adaptivity)
    if r.kept:
        agents.server["state"] = (m, s, t)
    return w - r.server_step * update


def newton(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """w - (sum p_k H_k)^-1 sum p_k g_k: on quadratics no step has to be shortened."""
    v = merging(r, agents)
    fields = np.array([agent.field(w) for agent in agents])
    hessians = np.array([agent.hessian(w) for agent in agents])
    if r.curvature == "own":
        return w - r.sign * (v @ np.linalg.solve(hessians, fields[..., None])[..., 0])
    weights = {"summed": np.ones(len(agents)), "equal": np.full(len(agents), 1 / len(agents))}.get(r.curvature, v)
    H = np.tensordot(weights, hessians, 1)
    H = np.diag(np.diag(H)) if r.curvature == "diagonal" else H
    return w - r.sign * (np.linalg.solve(H, v @ fields) if not r.products else nearly(H, v @ fields, r.products))


def nearly(H: np.ndarray, g: np.ndarray, products: int) -> np.ndarray:
    """H^-1 g after so many steps of conjugate gradients from zero: the best point of their directions."""
    found, basis = np.zeros_like(g), np.zeros((len(g), 0))
    for _ in range(min(products, len(g))):
        left = g - H @ found
        basis = np.linalg.qr(np.column_stack([basis, left / max(np.linalg.norm(left), 1e-300)]))[0]
        found = basis @ np.linalg.solve(basis.T @ H @ basis, basis.T @ g)
        if np.linalg.norm(g - H @ found) <= 1e-13 * np.linalg.norm(g):
            break
    return found
