"""Consensus methods as plain functions of all nodes, with matrices: right, and with one mistake each.

A node keeps its model in `agent.memory["v"]`, where the start is in the beginning; `agents.mixing` is W.
"""

import numpy as np

STEP = 0.05
ONE = {"step": STEP}
MANY = ONE | {"local_steps": 3}


def models(agents):
    return np.array([agent.memory["v"] for agent in agents])


def remember(agents, new):
    for agent, row in zip(agents, new, strict=True):
        agent.memory["v"] = row


def fields(agents, x):
    return np.array([agent.field(row) for agent, row in zip(agents, x, strict=True)])


def stepped(agents, x, steps, step=STEP):
    for _ in range(steps):
        x = x - step * fields(agents, x)
    return x


def given(agents):
    return agents.mixing


def alone(agents):
    return np.eye(len(agents))


def neighbours(agents):
    W = agents.mixing - np.diag(np.diag(agents.mixing))
    return W / W.sum(1)[:, None]


def unweighted(agents):
    near = 1.0 * (agents.mixing > 0)
    return near / near.sum(1)[:, None]


def unfinished(agents):
    return agents.mixing - np.diag(np.diag(agents.mixing))


def of_rows(agents):
    return agents.mixing / agents.mixing.sum(1)[:, None]


def diffusion(steps=1, W=given, first=False, old=False, step=STEP):
    def round(w, agents):
        x, M = models(agents), W(agents)
        if old:
            new = M @ x + stepped(agents, x, steps, step) - x
        else:
            new = stepped(agents, M @ x, steps, step) if first else M @ stepped(agents, x, steps, step)
        remember(agents, new)
        return w

    return round


def exact_diffusion(steps=1, W=given, sign=1.0, lazy=True, after=False, keeps_phi=False):
    def round(w, agents):
        x, M = models(agents), W(agents)
        M = 0.5 * (np.eye(len(M)) + M) if lazy else M
        psi = stepped(agents, x, steps)
        extra = sign * (x - agents.server.get("psi", x))
        phi = psi + extra
        remember(agents, M @ psi + extra if after else M @ phi)
        agents.server["psi"] = phi if keeps_phi else psi
        return w

    return round


def extra(W=given, lazy=True, old=1.0):
    def round(w, agents):
        x, M = models(agents), W(agents)
        half = 0.5 * (np.eye(len(M)) + M) if lazy else M
        g = fields(agents, x)
        if "x" in agents.server:
            before, g_before = agents.server["x"], agents.server["g"]
            new = x + M @ x - half @ before - STEP * (g - old * g_before)
        else:
            new = M @ x - STEP * g
        agents.server.update(x=x, g=g)
        remember(agents, new)
        return w

    return round


def tracking(W=given, follows=True, old=1.0, started=True, diging=False):
    """w+ = W (w - step y), y+ = W y + g+ - g; diging: w+ = W w - step y."""

    def round(w, agents):
        x, M = models(agents), W(agents)
        g = fields(agents, x)
        if "y" in agents.server:
            y = (M if follows else np.eye(len(M))) @ agents.server["y"] + g - old * agents.server["g"]
        else:
            y = g if started else 0 * g
        remember(agents, M @ x - STEP * y if diging else M @ (x - STEP * y))
        agents.server.update(y=y, g=g)
        return w

    return round


def push_sum(W=given, at_sum=False, ones_stay=False, reads_sum=False):
    def round(w, agents):
        x, M = agents.server.get("x", models(agents)), W(agents)
        y = agents.server.get("y", np.ones((len(M), 1)))
        v, y = M @ x, y if ones_stay else M @ y
        where = v if at_sum else v / y
        x = v - STEP * fields(agents, where)
        agents.server.update(x=x, y=y)
        remember(agents, M @ x if reads_sum else M @ x / (y if ones_stay else M @ y))
        return w

    return round


# name: (function, claim, settings)
RIGHT = {
    "Diffusion": (diffusion(3), "diffusion", MANY),
    "Diffusion, combine first": (diffusion(first=True), "diffusion", ONE),
    "Exact diffusion": (exact_diffusion(3), "exact_diffusion", MANY),
    "EXTRA": (extra(), "extra", ONE),
    "Gradient tracking": (tracking(), "gradient_tracking", ONE),
    "Gradient tracking, DIGing": (tracking(diging=True), "gradient_tracking", ONE),
    "Push-sum": (push_sum(), "push_sum", ONE),
}

UNEVEN = {
    "neighbours_not_heard": alone,
    "own_left_out": neighbours,
    "edges_count_alike": unweighted,
    "weights_not_completed": unfinished,
}
CLAIMS = {"diffusion": diffusion, "exact_diffusion": exact_diffusion, "extra": extra, "gradient_tracking": tracking}

# (mistake, variant): (function, claim, settings)
BROKEN = {(name, c): (make(W=W), c, ONE) for name, W in UNEVEN.items() for c, make in CLAIMS.items()} | {
    ("neighbours_not_heard", "push_sum"): (push_sum(alone), "push_sum", ONE),
    ("shares_do_not_add_up", "rows"): (push_sum(of_rows), "push_sum", ONE),
    ("shares_do_not_add_up", "plain"): (push_sum(unweighted), "push_sum", ONE),
    ("gradient_at_sum", ""): (push_sum(at_sum=True), "push_sum", ONE),
    ("ones_not_handed_on", ""): (push_sum(ones_stay=True), "push_sum", ONE),
    ("sum_for_ratio", ""): (push_sum(reads_sum=True), "push_sum", ONE),
    ("gradient_before_mean", ""): (diffusion(old=True), "diffusion", ONE),
    ("order_swapped", ""): (diffusion(first=True), "diffusion", ONE | {"order": "adapt_then_combine"}),
    ("ascent", "diffusion"): (diffusion(step=-STEP), "diffusion", ONE),
    ("wrong_number_of_steps", "diffusion"): (diffusion(2), "diffusion", MANY),
    ("identity_missing", "exact diffusion"): (exact_diffusion(lazy=False), "exact_diffusion", ONE),
    ("identity_missing", "EXTRA"): (extra(lazy=False), "extra", ONE),
    ("correction_sign_flipped", "exact diffusion"): (exact_diffusion(sign=-1.0), "exact_diffusion", ONE),
    ("correction_sign_flipped", "EXTRA"): (extra(old=-1.0), "extra", ONE),
    ("correction_sign_flipped", "tracking"): (tracking(old=-1.0), "gradient_tracking", ONE),
    ("correction_missing", "exact diffusion"): (exact_diffusion(sign=0.0), "exact_diffusion", ONE),
    ("correction_after_mean", ""): (exact_diffusion(after=True), "exact_diffusion", ONE),
    ("corrected_kept", ""): (exact_diffusion(keeps_phi=True), "exact_diffusion", ONE),
    ("old_gradient_forgotten", "EXTRA"): (extra(old=0.0), "extra", ONE),
    ("old_gradient_forgotten", "tracking"): (tracking(old=0.0), "gradient_tracking", ONE),
    ("tracker_not_averaged", ""): (tracking(follows=False), "gradient_tracking", ONE),
    ("tracker_not_started", ""): (tracking(started=False), "gradient_tracking", ONE),
}
