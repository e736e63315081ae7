"""What is recorded beside the model? Functions of the state, which a user gives by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.vector import unwrap, unwrap_all
from fedpoint.experiment.experiment import Metric


@dataclass(frozen=True)
class Snapshot:
    """What a metric sees of one repeat after a round. On a network model, hub and memory lead with the nodes.

    model: the global model. hub: what the hub holds. memory: what agents hold, leading with the agents. round: how many
    rounds have been made.
    """

    model: Any
    hub: Any
    memory: Any
    round: Array


Metrics = tuple[tuple[str, Metric], ...]  # in the order of their names


def measure(metrics: Metrics, model: Any, hub: Any, memory: Any, round: Any) -> dict[str, Array]:
    """Every metric at one state."""
    state = Snapshot(unwrap(model), unwrap_all(hub), unwrap_all(memory), jnp.asarray(round, jnp.int32))
    return {name: _number(name, function, state) for name, function in metrics}


def _number(name: str, function: Metric, state: Snapshot) -> Array:
    try:
        value = function(state)
    except FedpointError:
        raise
    except jax.errors.ConcretizationTypeError as error:
        raise FedpointError(
            f"metric {name!r} asks for the value of a number that is still traced: use jnp.where instead of if, and "
            f"jax.numpy instead of numpy ({str(error).splitlines()[0]})"
        ) from None
    except Exception as error:
        raise FedpointError(
            f"metric {name!r} failed at the state (model, hub, memory, round): {type(error).__name__}: {error}"
        ) from error
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        array = None
    if value is None or array is None or array.dtype.kind not in "biuf":
        raise FedpointError(f"metric {name!r} must return a number or an array of numbers, got {value!r}")
    return array
