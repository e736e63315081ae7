"""How does a slider rerun an experiment at once? One program, whose numbers are exchanged from run to run."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.precision import double
from fedpoint.core.random import Key
from fedpoint.core.record import values_of, with_leaves
from fedpoint.core.types import Number
from fedpoint.core.vector import unwrap
from fedpoint.engine.program import go_on
from fedpoint.engine.session import Session, cast
from fedpoint.experiment import Experiment
from fedpoint.timing.schemes import Moments, Participation, Tick, Uniform


class SomeOf(Participation):
    """`Uniform(count)` with a traced count (an array): `most` places, of which the first `count` are heard.

    A round costs `most` agents, and another count does not compile again. The first agents of a uniformly random order
    are a uniform subset, so that the law is that of `Uniform`; the agents drawn are not the same.
    """

    count: Number
    most: int

    def slots(self, agents: int) -> int:
        return self.most

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        agents = key.row().subset(self.most, p.shape[0])
        heard = jnp.arange(self.most) < self.count
        share = jnp.where(heard, p[agents], 0.0)
        weight = share * (p.shape[0] / self.count)
        return Tick(agents, heard, weight, share, jnp.asarray(self.count, jnp.int32), jnp.asarray(True))

    def known_moments(self, p: np.ndarray) -> Moments:
        return Uniform(int(self.count)).known_moments(p)


class Live:
    """Runs of one length of experiments that differ in their numbers alone: the first compiles, the others do not.

    like: one of them, with the most local steps of all.
    """

    def __init__(self, like: Experiment, rounds: int):
        self.session, self.rounds = Session(like.bind(), 1), rounds
        self.session.prepare(rounds)
        self._layout = replace(self.session.layout, capacity=rounds)
        self._fresh = self.session.state

    @double
    def run(self, experiment: Experiment) -> np.ndarray:
        """(repeats, rounds + 1, ...): the models, from the start on."""
        session = self.session
        bound = experiment.bind().for_rounds(session.ready + 1)
        algorithm, start = bound.algorithm, np.asarray(bound.start)
        if "local_steps" in values_of(algorithm):
            algorithm = with_leaves(algorithm, {"local_steps": np.asarray(algorithm.local_steps, np.int32)})
        inputs = session.inputs._replace(
            algorithm=jax.device_put(cast(algorithm, start.dtype)),
            timing=bound.timing,
            own=bound.problem.own_for(bound.algorithm),
            common=bound.problem.common,
        )
        state = jax.tree.map(jnp.copy, self._fresh)  # it is donated
        _, records = go_on(self._layout, session.swept, inputs, state, session.seeds, 0, self.rounds, 1)
        models = np.asarray(unwrap(records.model))
        first = np.broadcast_to(start, (len(models), 1, *start.shape))
        return np.concatenate([first, models], axis=1)
