"""Two ways to run an algorithm, that the laws are held against: the library's engine, and by hand.

`by_hand` calls its functions one agent after the other, as plain Python: no compilation (and at most two local steps,
for which the inner loop is Python's). Both on a star and on a network; fields are exact. "few" and "drawn" let two of
five agents take part.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import plain

import fedpoint as fp

WORLD = plain.bowls(seed=3)  # shapes and steps as in the other files: compiled once
START = np.array([1.5, -2.0, 1.0])
ROUNDS = 12
TOLERANCE = 1e-12
PAIRS = np.array([[0, 1], [2, 3], [4, 0], [1, 3], [2, 4]])
WHO = {
    "all": None,
    "few": fp.Answering(fp.Everyone(), trace=[[int(k in pair) for k in range(5)] for pair in PAIRS.tolist()]),
    "drawn": fp.Uniform(2),
}


@functools.cache
def ticks(who):
    """Everyone; or a given pair of agents a round, each with v = p K/2; or the draws of two of five."""
    if who == "all":
        return plain.everyone(WORLD.p, ROUNDS)
    if who == "drawn":
        return plain.drawn(WHO[who], WORLD.p, ROUNDS, seed=5)
    heard = [np.isin(np.arange(5), PAIRS[r % len(PAIRS)]) for r in range(ROUNDS)]
    return [plain.Tick(h * WORLD.p * 5 / 2, h) for h in heard]


class Result(NamedTuple):
    """Models (rounds + 1, d), the agents' memories and the hub at the end, field evaluations a round.

    asked: by hand, the samples that each agent asked for in each round.
    """

    history: np.ndarray
    memories: Any
    hub: Any
    evaluations: np.ndarray
    asked: Any = None


def engine(algorithm, who="all"):
    """Twelve rounds as the library runs them."""
    run = fp.run(algorithm, WORLD.problem(), rounds=ROUNDS, start=START, participation=WHO[who], exact=True, seed=5)
    memories, hub = jax.tree.map(lambda a: np.asarray(a)[0], (run.memories, run.session.state.hub))
    return Result(run.history[0], memories, hub, np.diff(run.used[0, :, 2]))


class Agent:
    """What `local` may ask: the exact field, the loss, the prox of one agent, as plain arithmetic."""

    def __init__(self, k, round):
        self.k, self.round, self.share, self.evaluations, self.asked = k, round, WORLD.p[k], 0, []

    def field(self, w, e=0):
        self.evaluations += 1
        self.asked.append(int(e))
        return WORLD.H[self.k] @ np.asarray(w - WORLD.c[self.k])

    loop, _step = fp.Agent.loop, 0

    def loss(self, w):
        return WORLD.loss(self.k, w)

    losses_along = fp.Agent.losses_along

    def hessian(self, w):
        return jnp.asarray(WORLD.H[self.k])

    def hessian_times(self, w, v):
        return jnp.asarray(WORLD.H[self.k] @ np.asarray(v))

    def prox(self, center, weight):
        H, c = WORLD.H[self.k], WORLD.c[self.k]
        return np.linalg.solve(H + 2 * weight * np.eye(3), H @ c + 2 * weight * center)

    def steps(self, local_steps):
        return local_steps


def own(algorithm, k):
    """The algorithm as agent k has it: its own number, or vector, where there is one for each agent."""
    mine = copy.copy(algorithm)
    if isinstance(algorithm, fp.Wrapped):
        object.__setattr__(mine, "inner", own(algorithm.inner, k))
        return mine
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if field.metadata.get("per_agent") and np.shape(value) == (5,):
            object.__setattr__(mine, field.name, value[k].item())
        if field.metadata.get("axes") == 2 and np.ndim(value) == 2:
            object.__setattr__(mine, field.name, value[k])
    return mine


def by_hand(algorithm, who="all"):
    """Twelve rounds of say, local, gather, combine, called one after the other; asked: in the last exchange."""
    with jax.enable_x64(True):
        row = fp.Key.of(5).row()  # laws by hand draw nothing
        hub, one = algorithm.init(START)

        def read():  # every agent's own where it has one
            own = memories if algorithm.personal else [one]
            models = np.array([np.asarray(algorithm.read(hub, memory)) for memory in own])
            return models if algorithm.personal else models[0]

        memories, counts, asked = [one] * 5, [], []
        history = [read()]
        exchanges = [one for one, times in algorithm.exchanges() for _ in range(times)]
        for r, (v, heard) in enumerate(ticks(who)):
            spent = 0
            for method in exchanges:
                said = method.say(hub, row)
                agents, messages = [Agent(k, r) for k in np.flatnonzero(heard)], []
                for agent in agents:
                    message, memories[agent.k] = own(method, agent.k).local(said, memories[agent.k], agent)
                    messages.append(message)

                def total(weights, messages=messages, heard=heard):
                    pairs = functools.partial(zip, weights[heard], strict=True)
                    return jax.tree.map(lambda *m: sum(w * x for w, x in pairs(m)), *messages)

                hub = method.combine(hub, fp.Inbox(total(v), total(WORLD.p), WORLD.p[heard].sum(), v.sum()))
                spent += sum(agent.evaluations for agent in agents)
            history.append(read())
            counts.append(spent)
            asked.extend(agent.asked for agent in agents)
        memories = [algorithm.settle(hub, m) for m in memories]
        stacked = jax.tree.map(lambda *m: np.stack([np.asarray(a) for a in m]), *memories)
        return Result(np.array(history), stacked, hub, np.array(counts), asked)


engine.steps = (1, 1, 2, 6, 2)
by_hand.steps = (1, 2, 2, 1, 2)


# Lecture 003, on a graph of unequal degrees and weights; nodes take turns, and what they hear is some ticks old.

EDGES = ((0, 1, 1.0), (0, 2, 0.5), (0, 3, 2.0), (3, 4, 0.8))
A = np.zeros((5, 5))
for _i, _j, _w in EDGES:
    A[_i, _j] = A[_j, _i] = _w
NODES = np.random.default_rng(9).standard_normal((5, 3))  # where they start
TRACE = (  # (tick, who works, the age of all that is heard in it, by neighbour where it differs)
    ((0, 1, 2, 3, 4), {}),
    ((0, 3), {(0, 1): 1, (3, 4): 1}),
    ((1, 2, 4), {(1, 0): 2, (2, 0): 1}),
    ((0, 2, 3), {(0, 3): 3, (0, 2): 1, (3, 0): 2}),
)


@functools.cache
def turns():
    made = []
    for k in range(ROUNDS):
        who, old = TRACE[k % len(TRACE)]
        age = np.zeros((5, 5), int)
        for (i, j), a in old.items():
            age[i, j] = min(a, k)
        made.append(plain.Turn(who, age))
    return made


def engine_on_network(algorithm):
    """Twelve ticks as the library runs them."""
    events = []
    for k, (who, old) in enumerate(TRACE):
        events += [(k, str(i), None, 0) for i in who] + [(k, str(i), str(j), a) for (i, j), a in old.items()]
    net, trace = fp.Network.from_edges([e[:2] for e in EDGES], [e[2] for e in EDGES]), fp.Replay(tuple(events))
    run = fp.run(algorithm, WORLD.problem(), ROUNDS, network=net, schedule=trace, start=NODES, exact=True)
    return Result(run.history[0], run.memories[0], None, np.diff(run.used[0, :, 2]))


def by_hand_on_network(algorithm):
    """Twelve ticks of combine, say, local, called one node after the other; every message is kept."""
    with jax.enable_x64(True):
        row, mass = fp.Key.of(5).row(), A.sum(1)
        state = [algorithm.init(w) for w in NODES]
        hubs, memories = [s[0] for s in state], [s[1] for s in state]
        said, history, counts, asked = [np.array([algorithm.hello(w) for w in NODES])], [NODES], [], []
        for k, (who, age) in enumerate(turns()):
            new, agents = said[-1].copy(), []
            for i in who:
                total = sum(A[i, j] * said[k - age[i, j]][j] for j in np.flatnonzero(A[i]))
                hubs[i] = algorithm.combine(hubs[i], fp.Inbox(total / mass[i], total, mass[i], 1.0))
                agents.append(Agent(i, k))
                new[i], memories[i] = own(algorithm, i).local(algorithm.say(hubs[i], row), memories[i], agents[-1])
            said.append(new)
            history.append(np.array([algorithm.read(h, m) for h, m in zip(hubs, memories, strict=True)]))
            counts.append(sum(agent.evaluations for agent in agents))
            asked.extend(agent.asked for agent in agents)
        return Result(np.array(history), np.array(memories), hubs, np.array(counts), asked)


engine.network, by_hand.network = engine_on_network, by_hand_on_network
