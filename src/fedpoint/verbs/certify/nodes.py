"""How do consensus methods go, and how do they go wrong? Plain rounds of all nodes, as in `methods.py`.

A node keeps its model in `memory["v"]`, where the start is before the first round; `agents.mixing` is the matrix W by
which nodes average. The common model that other methods hand around stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedpoint.verbs.certify.method import COMMON, Mistake
from fedpoint.verbs.certify.methods import Recipe, walk
from fedpoint.verbs.certify.world import Participants

COMBINE_FIRST = "combine_then_adapt"


def mixing(r: Recipe, agents: Participants) -> np.ndarray:
    """The weights as they are used."""
    W = agents.mixing
    near = W > 0
    if r.graph == "own":
        return np.eye(len(W))
    if r.graph == "others":
        others = W * ~np.eye(len(W), dtype=bool)
        return others / others.sum(1, keepdims=True)
    if r.graph == "plain":
        return near / near.sum(1, keepdims=True)
    if r.graph == "incomplete":
        return W * ~np.eye(len(W), dtype=bool)
    if r.graph == "rows":
        return W / W.sum(1, keepdims=True)
    return W.T if r.graph == "turned" else W


def kept(agents: Participants, name: str, first: np.ndarray) -> np.ndarray:
    """What all nodes remember under a name."""
    return np.array([agent.memory.get(name, own) for agent, own in zip(agents, first, strict=True)])


def keep(agents: Participants, **values: np.ndarray) -> None:
    for name, rows in values.items():
        for agent, row in zip(agents, rows, strict=True):
            agent.memory[name] = row


def walked(r: Recipe, agents: Participants, models: np.ndarray) -> np.ndarray:
    """Each node's local steps from its model."""
    return np.array([walk(r, agent, y) for agent, y in zip(agents, models, strict=True)])


def models_of(agents: Participants) -> np.ndarray:
    return np.array([agent.memory["v"] for agent in agents])


def diffusion(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """W (w - step g(w)), or v - step g(v) at v = W w."""
    W, x = mixing(r, agents), models_of(agents)
    if r.evaluated == "before":
        new = W @ x + walked(r, agents, x) - x
    else:
        new = walked(r, agents, W @ x) if r.order == COMBINE_FIRST else W @ walked(r, agents, x)
    keep(agents, v=new)
    return w


def exact_diffusion(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """psi = w - step g(w), w+ = (I + W)/2 (psi + w - psi before)."""
    W, x = mixing(r, agents), models_of(agents)
    half = (np.eye(len(W)) + W) / 2 if r.lazy else W
    psi, correction = walked(r, agents, x), r.correction * (x - kept(agents, "before", x))
    phi = psi + correction
    new = half @ psi + correction if r.place == "after" else half @ phi
    keep(agents, v=new, before=phi if r.stored == "last" else psi)
    return w


def extra(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """w+ = w + W w - (I + W)/2 w before - step (g(w) - g before); W w - step g(w) at first."""
    W, x = mixing(r, agents), models_of(agents)
    half = (np.eye(len(W)) + W) / 2 if r.lazy else W
    moves = np.array([r.rate(agent.index) * agent.field(y) for agent, y in zip(agents, x, strict=True)])
    if "before" not in agents[0].memory:
        new = W @ x - moves
    else:
        new = x + W @ x - half @ kept(agents, "before", x) - (moves - r.subtract * kept(agents, "moved", 0 * x))
    keep(agents, v=new, before=x, moved=moves)
    return w


def gradient_tracking(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """y += g(w) - g before, w -= step y, as often as there are local steps; then both are averaged."""
    W, x = mixing(r, agents), models_of(agents)
    y, own, ends, last = kept(agents, "y", 0 * x), kept(agents, "g", 0 * x), [], []
    for i, agent in enumerate(agents):
        model, step = x[i], np.zeros_like(w)
        sample = agent.sample() if r.reuse else None
        for e in range(r.steps(agent.index) + r.more):
            g = agent.field(model, sample)
            before = g if not r.started and "g" not in agent.memory else own[i]
            before = before if r.kept or e else 0 * g
            y[i], own[i] = y[i] + g - r.subtract * before, g
            step = r.rate(agent.index) * y[i]
            model = model - step
        ends.append(model)
        last.append(step)
    led, steps = np.array(ends), np.array(last)
    new = W @ (led + steps) - steps if r.order == COMBINE_FIRST else W @ led
    keep(agents, v=new, y=W @ y if r.tracked else y, g=own)
    return w


def push_sum(r: Recipe, w: np.ndarray, agents: Participants) -> np.ndarray:
    """v = W x, y = W y, x = v - step g(v/y); a node's model is v/y of what it hears next."""
    W, x = mixing(r, agents), kept(agents, "x", models_of(agents))
    ones = kept(agents, "ones", np.ones((len(W), 1)))
    v, ones = W @ x, W @ ones if r.ones else ones
    at = v if r.evaluated == "sum" else v / ones
    x = v + walked(r, agents, at) - at
    heard, counted = W @ x, W @ ones if r.ones else ones
    keep(agents, v=heard if r.shown == "sum" else heard / counted, x=x, ones=ones)
    return w


# Known mistakes.

NOT_MIXED = Mistake("neighbours_not_heard", "what neighbours say has no effect: nodes learn alone", ({"graph": "own"},))
UNEVEN = (
    NOT_MIXED,
    Mistake("own_left_out", "a node averages its neighbours and leaves itself out", ({"graph": "others"},)),
    Mistake(
        "edges_count_alike",
        "the weights of the edges are dropped: nodes of many neighbours then count for more than others",
        ({"graph": "plain"},),
    ),
    Mistake(
        "weights_not_completed",
        "the neighbours' weights do not sum to one, and what is left is not the node's own: models shrink",
        ({"graph": "incomplete"},),
    ),
)
LAZY = Mistake(
    "identity_missing", "nodes average with W where (I + W)/2 belongs: half of it stays their own", ({"lazy": False},)
)
LOCAL = tuple(m for m in COMMON if m.name in ("ascent", "gradient_frozen", "step_divided", "wrong_number_of_steps"))

DIFFUSION = (
    *UNEVEN,
    Mistake(
        "gradient_before_mean",
        "fields are evaluated at the node's model before the mean: this is decentralised gradient descent, W w - step "
        "g(w), which is stable for shorter steps only",
        ({"evaluated": "before"},),
    ),
    Mistake(
        "order_swapped",
        "combine and adapt change places",
        (lambda r: {"order": {COMBINE_FIRST: "adapt_then_combine"}.get(r.order, COMBINE_FIRST)},),
        claimed=True,
    ),
)
BALANCED = (
    *UNEVEN,
    LAZY,
    Mistake(
        "correction_sign_flipped",
        "the correction has the wrong sign: phi = psi + w - (psi of the tick before)",
        ({"correction": -1.0},),
    ),
    Mistake("correction_missing", "the correction has no effect: this is diffusion", ({"correction": 0.0},)),
    Mistake(
        "correction_after_mean",
        "the correction is added after the mean: it belongs into what neighbours hear",
        ({"place": "after"},),
    ),
    Mistake(
        "corrected_kept",
        "the corrected phi is kept for the next tick: the correction is by psi, where the node's own steps had led",
        ({"stored": "last"},),
    ),
)
DIFFERENCES = (
    *UNEVEN,
    LAZY,
    Mistake(
        "old_gradient_forgotten",
        "the gradient of the tick before is not subtracted: its step counts twice",
        ({"subtract": 0.0},),
    ),
    Mistake(
        "correction_sign_flipped", "the gradient of the tick before is added: it is subtracted", ({"subtract": -1.0},)
    ),
)
TRACKED = (
    *UNEVEN,
    Mistake(
        "tracker_not_averaged",
        "the estimates of the gradient are not averaged: each then follows its node's own gradient only",
        ({"tracked": False},),
    ),
    replace(DIFFERENCES[-2], switches=({"subtract": 0.0}, {"kept": False})),
    DIFFERENCES[-1],
    Mistake(
        "tracker_not_started",
        "the estimates begin at zero and not as the first gradients: their sum then lacks these forever",
        ({"started": False},),
    ),
)
PUSHED = (
    NOT_MIXED,
    Mistake(
        "shares_do_not_add_up",
        "nodes average what they hear: in push-sum they divide what they have among those who hear them, so that "
        "nothing is lost (columns of W sum to one)",
        ({"graph": "rows"}, {"graph": "plain"}, {"graph": "turned"}),
    ),
    Mistake(
        "gradient_at_sum", "fields are evaluated at the sum of models: they belong at v/y", ({"evaluated": "sum"},)
    ),
    Mistake("ones_not_handed_on", "the sums of ones stay one: they are handed on like the models", ({"ones": False},)),
    Mistake("sum_for_ratio", "a node reads its sum of models: its model is v/y", ({"shown": "sum"},)),
)
