"""No field of a method is without effect: it is sought in the program of a round, traced and not compiled."""

import dataclasses

import jax
import numpy as np
from instances import INSTANCES
from jax.interpreters.partial_eval import dce_jaxpr

import fedpoint as fp
from fedpoint.core.agent import Agent
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.record import one_agent
from fedpoint.core.vector import take, wrap
from fedpoint.experiment.rehearsal import inbox_like
from fedpoint.problems.oracle import Mine
from fedpoint.ui import examples

TASK = fp.problems.Quadratic([1.0, 2.0, 3.0, 4.0], [[0.0], [1.0], [2.0], [3.0]])
RING = fp.Network.ring(4)
# Which of several ways a method goes: words and objects have no value beside them that could be tried.
WORDS = (str, fp.Algorithm)


def methods():
    """Every instance of the contract, and those for networks as the examples call them."""
    ways = np.arange(4)
    yield from (one.make(0.1, ways, 1.0) for name, one in INSTANCES.items() if one.card != "own")
    for name in examples.CALLS:
        method = examples.method(name)
        if method.card.network:
            yield method


@double
def program(method):
    """The jaxpr of an agent's round and of what the hub makes of it, as a function of the method's numbers."""
    network = (RING.mixing() if method.mixes else RING) if method.at_agents is True else None
    bound = fp.Experiment(method, TASK, network=network).bind()
    model = wrap(bound.topology.one(bound.start))
    at = Stream(NO_LUCK, np.int32(0), np.int32(0))

    def round(method):
        one = one_agent(method, 0)
        for played in (asked for asked, times in one.exchanges() for _ in range(times)):
            agent = Agent(bound.oracle, Mine(take(TASK.own, 0), TASK.common), at, None, None, True, 0.25)
            hub, memory = played.init(model)
            if played.at_agents:
                hub = played.combine(hub, inbox_like(played.hello(model)))
            message, memory = played.local(played.say(hub, at.row()), memory, agent)
            hub = played.combine(hub, inbox_like(message))
        return hub, message, played.settle(hub, memory), played.read(hub, memory)

    return bound.algorithm, jax.make_jaxpr(round)(bound.algorithm)


def numbers_with_effect(method):
    """The fields that hold numbers, and of these the ones that the round's outcome depends on."""
    bound, made = program(method)
    used = dce_jaxpr(made.jaxpr, [True] * len(made.jaxpr.outvars))[1]
    paths = [bound._leaves[path[0].key] for path, _ in jax.tree_util.tree_flatten_with_path(bound)[0]]
    return set(paths), {path for path, one in zip(paths, used, strict=True) if one}


def structure_with_effect(method, known):
    """Whole numbers and truth values that are structure: another one makes another program, or is refused."""
    own = str(program(method)[1])
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if field.name in known or not isinstance(value, int):
            continue
        try:
            changed = dataclasses.replace(method, **{field.name: not value if isinstance(value, bool) else value + 1})
            if str(program(changed)[1]) != own:
                yield field.name
        except fp.FedpointError:
            yield field.name


def without_effect(methods):
    """By class: fields that no instance depends on."""
    fields, used = {}, {}
    for method in methods:
        cls = type(method)
        words = {f.name for f in dataclasses.fields(cls) if isinstance(getattr(method, f.name), WORDS)}
        held, effect = numbers_with_effect(method)
        fields[cls] = {f.name for f in dataclasses.fields(cls) if f.init}
        used.setdefault(cls, set()).update(effect, words, structure_with_effect(method, held))
    return {cls.__name__: sorted(fields[cls] - used[cls]) for cls in fields if fields[cls] - used[cls]}


def test_every_field_has_an_effect():
    objects = {"optimiser"}  # of optax: a function, which is tried by the instances that have one
    found = {name: sorted(set(missing) - objects) for name, missing in without_effect(methods()).items()}
    assert not any(found.values()), found


def test_a_field_without_effect_is_found():
    class Idle(fp.FedAvg):
        idle: float = 0.5
        rest: int = 3

    assert {"idle", "rest"} <= set(without_effect([Idle(0.1, 2)])["Idle"])
