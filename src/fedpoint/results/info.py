"""What is known of a run without its data, and the parts of models that lead with repeats and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.types import Model, Tree
from fedpoint.engine.base import Engine

if TYPE_CHECKING:  # matplotlib, and scipy, which runs with a fusion center can do without
    pass  # pydantic, which runs without a folder can do without


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run without its data."""

    seed: int
    repeats: int
    every: int  # rounds between records
    agents: int
    message: tuple[float, float, float, float]  # numbers in one down and up, bytes of a number down, of a message up
    weights: np.ndarray | None  # p_k, where agents are the nodes of a network
    engine: str  # what the engine chose
    speed: float  # rounds a second, as `Pace` defines them
    hub: float = 0  # numbers that a hub holds
    fitted: Sequence[list[Tree]] = ()  # the final models of each repeat's nodes, where these are no arrays

    @classmethod
    def of(cls, session: Engine) -> RunInfo:
        message = session.message
        return cls(
            session.seed,
            session.repeats,
            session.every,
            session.problem.agents,
            (message.down, message.up, message.width, message.up_bytes),
            session.weights,
            session.explain(),
            session.speed,
            message.hub,
            session.fitted(),
        )


def mean_model(models: Model, weights: np.ndarray) -> Model:
    """sum_k p_k w_k over the second axis."""
    return jax.tree.map(lambda a: np.tensordot(a, weights.astype(a.dtype), axes=(1, 0)), models)


def take_repeat(model: Model, repeat: int) -> Model:
    return jax.tree.map(lambda a: a[repeat], model)


def take_record(history: Model, repeat: int, i: int) -> Model:
    return jax.tree.map(lambda a: a[repeat, i], history)
