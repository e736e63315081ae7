"""What is known of a problem whose data are elsewhere? Names, weights, how many rows; never the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Data, Model, Number
from fedpoint.problems.base import Problem
from fedpoint.problems.oracle import Mine, Oracle


@dataclass(frozen=True)
class _Blank(Oracle):
    """An agent without data: all its answers are of the model's shape."""

    def mean_field(self, mine: Mine, w: Model) -> Model:
        return w

    def loss(self, mine: Mine, w: Model) -> Array:
        return jnp.zeros(())

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        return center


class Outline(Problem):
    """A problem as its hub knows it. An experiment on it is checked and bound as any other; only sites can run it."""

    oracle = _Blank()
    own = common = ()

    def __init__(
        self,
        names: Sequence[str],
        start: Model,
        weights: Sequence[float] | None = None,
        rows: np.ndarray | None = None,
        batch: int | None = None,
    ):
        self.names, self.batch, self._start, self._rows = list(names), batch, start, rows
        self.weights = np.full(len(names), 1 / len(names)) if weights is None else np.asarray(weights, float)

    def start(self) -> Model:
        return self._start

    def local_rows(self) -> np.ndarray | None:
        return self._rows

    def own_for(self, algorithm: Algorithm) -> Data:
        raise FedpointError("the data of this experiment are at its sites: replace(problem=...) to run it here")

    def fields(self, w: Model) -> np.ndarray:
        raise FedpointError("this takes everybody's data, which are at the sites: give edges, or points")

    def sampling_probabilities(self, algorithm: Algorithm, exact: bool = False) -> np.ndarray:
        raise FedpointError("the best probabilities take everybody's data: give probabilities")
