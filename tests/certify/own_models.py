"""Methods with a model of its own at each agent, as plain functions: right, and with one mistake each.

An agent keeps its own in `agent.memory["v"]`, where the start is in the beginning.
"""

STEP = 0.05
ALL = {"step": STEP, "local_steps": 3}
PULL, MIX, OWN = 0.6, 0.4, 2
DITTO, APFL, TUNED, PFEDME = ALL | {"pull": PULL}, ALL | {"mix": MIX}, ALL | {"own_steps": OWN}, ALL | {"pull": PULL}


def descent(agent, y, steps=3):
    for _ in range(steps):
        y = y - STEP * agent.field(y)
    return y


def beside(own, first=lambda w, v, y: v, sent=lambda y, v: y):
    """FedAvg, and beside it own(agent, v, w, y) from first(w, v, y); y is where the agent's common steps end."""

    def round(w, agents):
        new = w.copy()
        for agent in agents:
            y = descent(agent, w)
            v = agent.memory["v"] = own(agent, first(w, agent.memory["v"], y), w, y)
            new += agent.weight * agent.population / len(agents) * (sent(y, v) - w)
        return new

    return round


def pulled(pull=PULL, near=lambda w, y: w):
    def own(agent, v, w, y):
        for _ in range(3):
            v = v - STEP * (agent.field(v) + pull * (v - near(w, y)))
        return v

    return own


def tuned(agent, v, w, y):
    return descent(agent, v, OWN)


def mixed(a=MIX, at=lambda v, w: MIX * v + (1 - MIX) * w):
    def own(agent, v, w, y):
        for _ in range(3):
            v = v - STEP * a * agent.field(at(v, w))
        return v

    return own


def pfedme(factor=PULL, pull=PULL, server_step=1.0, sent=lambda y, theta: y):
    def round(w, agents):
        new = w.copy()
        for agent in agents:
            y = w
            for _ in range(3):
                theta = agent.prox(y, pull / 2)
                y = y - STEP * factor * (y - theta)
            agent.memory["v"] = theta
            new += server_step * agent.weight * agent.population / len(agents) * (sent(y, theta) - w)
        return new

    return round


def of_common(w, v, y):
    return w


def of_end(w, v, y):
    return y


def its_own(y, v):
    return v


# name: (function, claim, settings)
RIGHT = {
    "Ditto": (beside(pulled()), "ditto", DITTO),
    "Fine-tuning": (beside(tuned, of_common), "fine_tuned", TUNED),
    "APFL": (beside(mixed()), "apfl", APFL),
    "pFedMe": (pfedme(server_step=0.8), "pfedme", PFEDME | {"server_step": 0.8}),
}

# (mistake, variant): (function, claim, settings)
BROKEN = {
    ("own_model_sent", "Ditto"): (beside(pulled(), sent=its_own), "ditto", DITTO),
    ("own_model_sent", "fine-tuning"): (beside(tuned, of_common, its_own), "fine_tuned", TUNED),
    ("own_model_sent", "APFL"): (beside(mixed(), sent=its_own), "apfl", APFL),
    ("own_model_sent", "pFedMe"): (pfedme(sent=its_own), "pfedme", PFEDME),
    ("own_model_forgotten", "Ditto"): (beside(pulled(), of_common), "ditto", DITTO),
    ("own_model_forgotten", "APFL"): (beside(mixed(), of_common), "apfl", APFL),
    ("pull_sign_flipped", "Ditto"): (beside(pulled(-PULL)), "ditto", DITTO),
    ("pull_doubled", "Ditto"): (beside(pulled(2 * PULL)), "ditto", DITTO),
    ("pull_missing", "Ditto"): (beside(pulled(0.0)), "ditto", DITTO),
    ("pull_to_zero", "Ditto"): (beside(pulled(near=lambda w, y: 0 * w)), "ditto", DITTO),
    ("pulled_to_own_steps", ""): (beside(pulled(near=lambda w, y: y)), "ditto", DITTO),
    ("tuning_goes_on", ""): (beside(tuned), "fine_tuned", TUNED),
    ("tuned_from_own_steps", ""): (beside(tuned, of_end), "fine_tuned", TUNED),
    ("mixture_swapped", ""): (beside(mixed(1 - MIX, lambda v, w: MIX * w + (1 - MIX) * v)), "apfl", APFL),
    ("mixture_not_evaluated", ""): (beside(mixed(at=lambda v, w: v)), "apfl", APFL),
    ("chain_rule_missing", "APFL"): (beside(mixed(1.0)), "apfl", APFL),
    ("chain_rule_missing", "pFedMe"): (pfedme(factor=1.0), "pfedme", PFEDME),
    ("pull_doubled", "pFedMe"): (pfedme(pull=2 * PULL), "pfedme", PFEDME),
    ("server_step_missing", "pFedMe"): (pfedme(), "pfedme", PFEDME | {"server_step": 0.8}),
}
