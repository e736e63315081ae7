"""What is known of agents of a whole class? That their fields answer: each answer is a new vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import batching

from fedpoint.core.errors import FedpointError, Misused
from fedpoint.core.types import Model, Number
from fedpoint.problems.base import Problem
from fedpoint.problems.oracle import Mine, Oracle
from fedpoint.proofs.symbols import WIDTH

KNOWN = "fp.prove knows agents by their fields and proximal points"

FIELD, PROX, LOSS = Primitive("agent.field"), Primitive("agent.prox"), Primitive("agent.loss")


def _like_model(agent: jax.core.ShapedArray, w: jax.core.ShapedArray, *numbers: object) -> jax.core.ShapedArray:
    return w


def _number(agent: jax.core.ShapedArray, w: jax.core.ShapedArray) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(w.shape[:-1], w.dtype)


FIELD.def_abstract_eval(_like_model)
PROX.def_abstract_eval(_like_model)
LOSS.def_abstract_eval(_number)


def _batched(primitive: Primitive) -> None:
    """All operands lead with the same axes: a batched one asks every agent of the batch."""

    def rule(operands: Sequence[Array], axes: Sequence[int | None]) -> tuple[Array, int]:
        size = next(a.shape[axis] for a, axis in zip(operands, axes, strict=True) if axis is not None)

        def led(a: Array, axis: int | None) -> Array:
            return jnp.broadcast_to(a, (size, *jnp.shape(a))) if axis is None else jnp.moveaxis(a, axis, 0)

        return primitive.bind(*(led(a, axis) for a, axis in zip(operands, axes, strict=True))), 0

    batching.primitive_batchers[primitive] = rule


for _primitive in (FIELD, PROX, LOSS):
    _batched(_primitive)


@dataclass(frozen=True)
class AnyOracle(Oracle):
    """An agent of whom nothing is known but the class of its loss."""

    noisy = False

    def mean_field(self, mine: Mine, w: Model) -> Model:
        return FIELD.bind(mine.own, w)

    def loss(self, mine: Mine, w: Model) -> Array:
        return LOSS.bind(mine.own, w)

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        return PROX.bind(mine.own, center, jnp.asarray(weight, center.dtype))

    def hessian(self, mine: Mine, w: Model) -> Array:
        raise Misused(f"{KNOWN}: there is no agent.hessian")

    def hessian_times(self, mine: Mine, w: Model, v: Model) -> Model:
        raise Misused(f"{KNOWN}: there is no agent.hessian_times")


class AnyAgents(Problem):
    """So many agents of equal weight, to trace a method with."""

    def __init__(self, agents: int) -> None:
        if agents < 1:
            raise FedpointError(f"fp.prove: agents must be at least 1, got {agents}")
        self.weights = np.full(agents, 1.0 / agents)
        self.names = [str(k) for k in range(agents)]
        self.own, self.common = np.arange(agents), ()
        self.oracle = AnyOracle()

    def start(self) -> np.ndarray:
        return np.zeros(WIDTH)
