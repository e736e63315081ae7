"""Correct methods as plain functions, as a student would write them from the paper: none may be convicted.

They keep to the interface (`agent.field`, `agent.weight`, `agent.memory`, `agents.server`) and share nothing with the
references inside fedpoint. Unequal local steps are looked up by `agent.index`.
"""

import node_models
import numpy as np
import own_models

STEP = 0.05
STEPS = [1, 4, 2, 3, 2]


def scale(agent, agents):
    """p_k K / L."""
    return agent.weight * agent.population / len(agents)


def gradient_descent(w, agents):
    return w - STEP * sum(scale(a, agents) * a.field(w) for a in agents)


def parameter_exchange(w, agents):
    return w + sum(scale(a, agents) * ((w - STEP * a.field(w)) - w) for a in agents)


def fedavg(w, agents):
    new = w.copy()
    for agent in agents:
        y = w.copy()
        for _ in range(3):
            y -= STEP * agent.field(y)
        new += scale(agent, agents) * (y - w)
    return new


def fedavg_batches(w, agents):
    """Two samples a step: less variance, the same rounds."""
    new = w.copy()
    for agent in agents:
        y = w.copy()
        for _ in range(3):
            y -= STEP * (agent.field(y) + agent.field(y)) / 2
        new += scale(agent, agents) * (y - w)
    return new


def fedavg_normalised(w, agents):
    new = w.copy()
    for agent in agents:
        y, E = w.copy(), STEPS[agent.index]
        for _ in range(E):
            y -= STEP / E * agent.field(y)
        new += scale(agent, agents) * (y - w)
    return new


def fedprox(w, agents):
    new = w.copy()
    for agent in agents:
        y = w.copy()
        for _ in range(4):
            y -= STEP * (agent.field(y) + 0.6 * (y - w))
        new += scale(agent, agents) * (y - w)
    return new


def fedprox_exact(w, agents):
    return w + sum(scale(a, agents) * (a.prox(w, 0.6 / 2) - w) for a in agents)


def fednova(w, agents):
    weights = np.array([scale(a, agents) for a in agents])
    taus = np.array([STEPS[a.index] for a in agents])
    directions = []
    for agent in agents:
        y = w
        for _ in range(STEPS[agent.index]):
            y = y - STEP * agent.field(y)
        directions.append((w - y) / STEPS[agent.index])
    tau_eff = (weights * taus).sum() / weights.sum()
    return w - tau_eff * (weights @ np.array(directions))


def scaffold(option, server_step=1.0, steps=(3,) * 5):
    def scaffold_round(w, agents):
        zero = np.zeros_like(w)
        c = agents.server.setdefault("c", zero)
        move, change = zero.copy(), zero.copy()
        for agent in agents:
            c_k = agent.memory.get("c", zero)
            E, y = steps[agent.index], w
            for _ in range(E):
                y = y - STEP * (agent.field(y) - c_k + c)
            new = agent.field(w) if option == 1 else c_k - c + (w - y) / (E * STEP)
            move += scale(agent, agents) * (y - w)
            change += agent.weight * (new - c_k)
            agent.memory["c"] = new
        agents.server["c"] = c + change
        return w + server_step * move

    return scaffold_round


def scaffnew(probability=None, steps=None):
    def scaffnew_round(w, agents):
        if steps is None:
            rng = agents.server.setdefault("rng", np.random.default_rng())
            H, p = int(rng.geometric(probability)), probability
        else:
            H, p = steps, 1 / steps
        ends = []
        for agent in agents:
            x, h = w, agent.memory.setdefault("h", np.zeros_like(w))
            for _ in range(H):
                x = x - STEP * (agent.field(x) - h)
            ends.append(x)
        new = sum(a.weight * x for a, x in zip(agents, ends, strict=True))
        for agent, x in zip(agents, ends, strict=True):
            agent.memory["h"] = agent.memory["h"] + p / STEP * (new - x)
        return new

    return scaffnew_round


def qfedavg(w, agents):
    q, top, bottom, total = 1.5, np.zeros_like(w), 0.0, 0.0
    for agent in agents:
        y = w
        for _ in range(2):
            y = y - STEP * agent.field(y)
        D, F, v = (w - y) / STEP, agent.loss(w), scale(agent, agents)
        top = top + v * F**q * D
        bottom += v * (q * F ** (q - 1) * (D @ D) + F**q / STEP)
        total += v
    return w - top / (bottom / total)


def fedavgm(w, agents):
    gradient = w - fedavg(w, agents)
    agents.server["m"] = 0.8 * agents.server.get("m", 0.0) + gradient
    return w - 0.9 * agents.server["m"]


def feddyn(exact):
    def feddyn_round(w, agents):
        a, moved, total = 0.6, np.zeros_like(w), np.zeros_like(w)
        for agent in agents:
            h, y = agent.memory.get("h", np.zeros_like(w)), w
            if exact:
                y = agent.prox(w + h / a, a / 2)
            else:
                for _ in range(3):
                    y = y - STEP * (agent.field(y) - h + a * (y - w))
            agent.memory["h"] = h - a * (y - w)
            moved += scale(agent, agents) * (y - w)
            total += agent.weight * (y - w)
        agents.server["h"] = agents.server.get("h", 0.0) - a * total
        return w + moved - agents.server["h"] / a

    return feddyn_round


def fedexp(w, agents):
    change, square = np.zeros_like(w), 0.0
    for agent in agents:
        y = w
        for _ in range(3):
            y = y - STEP * agent.field(y)
        change += scale(agent, agents) * (y - w)
        square += scale(agent, agents) * ((y - w) ** 2).sum()
    return w + max(1.0, square / (2 * (change @ change + 1e-3))) * change


def fedlin(w, agents):
    fields = [agent.field(w) for agent in agents]
    everybody = sum(agent.weight * g for agent, g in zip(agents, fields, strict=True))
    new = w.copy()
    for agent, own in zip(agents, fields, strict=True):
        y = w
        for _ in range(3):
            y = y - STEP * (agent.field(y) - own + everybody)
        new += agent.weight * (y - w)
    return new


def mime(w, agents):
    c = sum(scale(agent, agents) * agent.field(w) for agent in agents)
    m, new = agents.server.get("m", np.zeros_like(w)), w.copy()
    for agent in agents:
        y = w
        for _ in range(3):
            z = agent.sample()
            y = y - STEP * (0.4 * (agent.field(y, z) - agent.field(w, z) + c) + 0.6 * m)
        new += scale(agent, agents) * (y - w)
    agents.server["m"] = 0.4 * c + 0.6 * m
    return new


# name: (function, claim, settings). Settings left out are found by fp.certify itself.
def hessian_of_all(w, agents):
    return sum(agent.weight * agent.hessian(w) for agent in agents)


def fednewton(w, agents):
    g = sum(agent.weight * agent.field(w) for agent in agents)
    return w - np.linalg.solve(hessian_of_all(w, agents), g)


FUNCTIONS = (
    own_models.RIGHT
    | node_models.RIGHT
    | {
        "gradient descent": (gradient_descent, "gradient_exchange", {"step": STEP}),
        "gradient descent, observed": (gradient_descent, "gradient_exchange", {}),
        "parameter exchange": (parameter_exchange, "parameter_exchange", {"step": STEP}),
        "FedAvg": (fedavg, "fedavg", {"step": STEP, "local_steps": 3}),
        "FedAvg, observed": (fedavg, "fedavg", {}),
        "FedAvg, batches": (fedavg_batches, "fedavg", {}),
        "FedAvg, normalised": (fedavg_normalised, "fedavg", {"step": STEP, "local_steps": STEPS}),
        "FedProx": (fedprox, "fedprox", {"step": STEP, "local_steps": 4, "pull": 0.6}),
        "FedProx, observed": (fedprox, "fedprox", {}),
        "FedProx, exact": (fedprox_exact, "fedprox", {"pull": 0.6, "exact": True}),
        "FedNova": (fednova, "fednova", {"step": STEP, "local_steps": STEPS}),
        "FedNova, observed": (fednova, "fednova", {}),
        "SCAFFOLD I": (scaffold(1), "scaffold", {"step": STEP, "local_steps": 3}),
        "SCAFFOLD I, observed": (scaffold(1, 0.7), "scaffold", {}),
        "SCAFFOLD II": (scaffold(2, 0.8), "scaffold", {"step": STEP, "local_steps": 3, "server_step": 0.8}),
        "SCAFFOLD II, observed": (scaffold(2, 1.0, STEPS), "scaffold", {}),
        "Scaffnew": (scaffnew(0.4), "scaffnew", {"step": STEP, "probability": 0.4}),
        "Scaffnew, fixed": (scaffnew(steps=3), "scaffnew", {"step": STEP, "local_steps": 3}),
        "q-FedAvg": (qfedavg, "qfedavg", {"step": STEP, "local_steps": 2, "q": 1.5}),
        "FedDyn": (feddyn(False), "feddyn", {"step": STEP, "local_steps": 3, "pull": 0.6}),
        "FedDyn, exact": (feddyn(True), "feddyn", {"pull": 0.6, "exact": True}),
        "FedExP": (fedexp, "fedexp", {"step": STEP, "local_steps": 3}),
        "FedLin": (fedlin, "fedlin", {"step": STEP, "local_steps": 3}),
        "Mime": (mime, "mime", {"step": STEP, "local_steps": 3, "momentum": 0.6}),
        "FedNewton": (fednewton, "fednewton", {}),
        "FedAvgM": (fedavgm, "fedavgm", {"step": STEP, "local_steps": 3, "momentum": 0.8, "server_step": 0.9}),
    }
)
