"""What does a hub do when nobody takes part? Nothing wrong: Poisson participation has such rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instances import ALL, INSTANCES, STEP

import fedpoint as fp
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import bind_algorithm
from fedpoint.core.inbox import Inbox, nothing_heard
from fedpoint.core.random import Key, Stream
from fedpoint.core.record import one_agent
from fedpoint.problems import Mine

PROBLEM = fp.problems.Quadratic([1.0, 2.0, 0.5, 1.5], [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [-1.0, 0.5]])
# The hub has a momentum, or a correction, which goes on by itself.
GOES_ON = {"FedAvgM", "FedAdam", "FedYogi", "FedDyn", "FedDyn, exact", "a user's own"}
MODEL = np.array([0.7, -0.4])


def message_of(method, hub, memory):
    """One agent's message, all of whose numbers are 0.3: only its shape is worked out."""

    def local(said, memory):
        mine = Mine(jax.tree.map(lambda a: jnp.asarray(a)[0], PROBLEM.own_for(method)), PROBLEM.common)
        agent = Agent(PROBLEM.prepare(method), mine, Stream(Key.of(5), 0, 0), None, None, True, 0.25)
        return one_agent(method, 0).local(said, memory, agent)[0]

    shapes = jax.eval_shape(local, method.say(hub, Key.of(5).row()), memory)
    return jax.tree.map(lambda a: jnp.full(a.shape, 0.3, a.dtype), shapes)


@pytest.mark.parametrize("name", [n for n in INSTANCES if "Scaffnew" not in n and n != "FedLin"])  # which need everyone
def test_an_empty_inbox_leaves_the_model_where_it_is(name):
    with jax.enable_x64(True):
        method = bind_algorithm(INSTANCES[name].make(STEP, np.asarray(ALL), 1.0), PROBLEM)
        hub, memory = method.init(jnp.asarray(MODEL))
        message = message_of(method, hub, memory)
        one = jnp.ones(())
        hub = method.combine(hub, Inbox(message, message, one, one))
        after = method.combine(hub, nothing_heard(message))
        assert all(np.isfinite(a).all() for a in jax.tree.leaves(after))
        moved = np.abs(np.asarray(method.shown(after, memory)) - np.asarray(method.shown(hub, memory))).max()
    assert moved < 1e-12 or name in GOES_ON, f"{name} moved by {moved}"
