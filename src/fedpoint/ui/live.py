"""How does a slider rerun an experiment at once? One program, whose numbers are exchanged from run to run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.random import Key
from fedpoint.core.record import with_leaves
from fedpoint.core.vector import unwrap
from fedpoint.engine.program import go_on
from fedpoint.engine.session import Session, cast
from fedpoint.timing.participation import Participation, Tick


class SomeOf(Participation):
    """`Uniform(count)` with a traced count (an array): `most` places, of which the first `count` are heard.

    A round costs `most` agents, and another count does not compile again. The first agents of a uniformly random order
    are a uniform subset, so that the law is that of `Uniform`; the agents drawn are not the same.
    """

    count: Any
    most: int

    def slots(self, agents: int) -> int:
        return self.most

    def tick(self, key: Key, p: Array, round: Any) -> Tick:
        agents = key.row().subset(self.most, p.shape[0])
        heard = jnp.arange(self.most) < self.count
        share = jnp.where(heard, p[agents], 0.0)
        weight = share * (p.shape[0] / self.count)
        return Tick(agents, heard, weight, share, jnp.asarray(self.count, jnp.int32), jnp.asarray(True))


class Live:
    """Runs of one length on problems of one shape. The first `run` compiles, later ones exchange numbers.

    local_steps: whether the number of local steps is exchanged too; the session's is then the largest.
    """

    def __init__(self, session: Session, rounds: int, local_steps: bool = False):
        session.prepare(rounds)
        self.session, self.rounds, self._steps = session, rounds, local_steps
        self._layout = replace(session.layout, capacity=rounds)
        self._fresh = session.state

    def run(self, algorithm: Algorithm, problem: Any = None, participation: Participation | None = None) -> np.ndarray:
        """(repeats, rounds + 1, ...): the models, from the start on, with these numbers."""
        session = self.session
        if self._steps:
            algorithm = with_leaves(algorithm, {"local_steps": np.int32(algorithm.local_steps)})
        start = jax.tree.leaves(session.start)[0]
        with jax.enable_x64(True):
            inputs = session.inputs._replace(algorithm=jax.device_put(cast(algorithm, start.dtype)))
            if problem is not None:
                inputs = inputs._replace(own=problem.own, common=problem.common)
            if participation is not None:
                inputs = inputs._replace(timing=participation)
            state = jax.tree.map(jnp.copy, self._fresh)  # it is donated
            _, records = go_on(self._layout, session.swept, inputs, state, session.seeds, 0, self.rounds, 1)
            models = np.asarray(unwrap(records.model))
        first = np.broadcast_to(start, (len(models), 1, *start.shape))
        return np.concatenate([first, models], axis=1)
