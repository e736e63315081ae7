"""What is recorded beside the model? Functions of the state, which a user gives by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.own_code import calling, is_array, layout
from fedpoint.core.types import Model, Number, State
from fedpoint.core.vector import unwrap, unwrap_all


@dataclass(frozen=True)
class Snapshot:
    """What a metric sees of one repeat after a round. On a network model, hub and memory lead with the nodes.

    model: the global model. hub: what the hub holds. memory: what agents hold, leading with the agents. round: how many
    rounds have been made.
    """

    model: Model
    hub: State
    memory: State
    round: Array


Metric: TypeAlias = Callable[[Snapshot], Number]
Metrics: TypeAlias = tuple[tuple[str, Metric], ...]  # in the order of their names


def measure(metrics: Metrics, model: Model, hub: State, memory: State, round: Number) -> dict[str, Array]:
    """Every metric at one state."""
    state = Snapshot(unwrap(model), unwrap_all(hub), unwrap_all(memory), jnp.asarray(round, jnp.int32))
    return {name: _number(name, function, state) for name, function in metrics}


def _number(name: str, function: Metric, state: Snapshot) -> Array:
    with calling(f"metric {name!r}"):
        value = function(state)
    if not is_array(value) or jnp.result_type(value).kind not in "biuf":
        raise FedpointError(f"metric {name!r} must return a number or an array of numbers; got {layout(value)}")
    return jnp.asarray(value)
