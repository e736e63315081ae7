"""Grade an exercise: five answers to "write one round of SCAFFOLD, option II, step 0.05, four local steps".

Run it: python examples/certify.py
"""

import numpy as np

import fedpoint as fp

STEP, E = 0.05, 4


def anna(w, agents):
    """Right: weights p_k K/L on the changes of the model, p_k alone on those of c."""
    c = agents.server.get("c", np.zeros_like(w))
    new, change = w.copy(), np.zeros_like(w)
    for agent in agents:
        c_k = agent.memory.get("c", np.zeros_like(w))
        y = w
        for _ in range(E):
            y = y - STEP * (agent.field(y) - c_k + c)
        agent.memory["c"] = c_k - c + (w - y) / (E * STEP)
        new += agent.weight * agent.population / len(agents) * (y - w)
        change += agent.weight * (agent.memory["c"] - c_k)
    agents.server["c"] = c + change
    return new


def bela(w, agents):
    """Forgets to store what the agents remember."""
    c = agents.server.get("c", np.zeros_like(w))
    new, change = w.copy(), np.zeros_like(w)
    for agent in agents:
        c_k = np.zeros_like(w)
        y = w
        for _ in range(E):
            y = y - STEP * (agent.field(y) - c_k + c)
        c_k_new = c_k - c + (w - y) / (E * STEP)
        new += agent.weight * agent.population / len(agents) * (y - w)
        change += agent.weight * (c_k_new - c_k)
    agents.server["c"] = c + change
    return new


def cleo(w, agents):
    """Divides by the number of agents selected, also for c."""
    c = agents.server.get("c", np.zeros_like(w))
    new, change = w.copy(), np.zeros_like(w)
    for agent in agents:
        c_k = agent.memory.get("c", np.zeros_like(w))
        y = w
        for _ in range(E):
            y = y - STEP * (agent.field(y) - c_k + c)
        agent.memory["c"] = c_k - c + (w - y) / (E * STEP)
        share = agent.weight * agent.population / len(agents)
        new += share * (y - w)
        change += share * (agent.memory["c"] - c_k)
    agents.server["c"] = c + change
    return new


def dora(w, agents):
    """Has not begun."""
    return w


def emil(w, agents):
    """Right as far as it was tested: no model leaves his box here, and the certificate says so."""
    return np.clip(anna(w, agents), -1000.0, 1000.0)


def main() -> None:
    for answer in (anna, bela, cleo, dora, emil):
        print(fp.certify(answer, claims="scaffold", step=STEP, local_steps=E), end="\n\n")


if __name__ == "__main__":
    main()
