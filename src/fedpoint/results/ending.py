"""Where does a run end, and what of that is bias? A forecast's fixed point, limit, drift and what noise adds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked_methods
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model
from fedpoint.problems.base import Problem
from fedpoint.theory.choice import in_step, kind_of
from fedpoint.theory.late_answers import Merges
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Outlook
from fedpoint.theory.steady import Iterated, NoLimit, fixed_point, iterate, limit_error

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network
    from fedpoint.timing.base import Timing

LARGEST_ROOT = 1000  # numbers of a model whose curvature is computed as a matrix


@checked_methods
class Ending(ABC):
    """Where a run ends. Arguments as those of `Forecast`, which says how noisy that is."""

    def __init__(self, setting: Setting, floor: str, around: Model | None, measure: str):
        self.setting, self._how, self.around, self.measure = setting, floor, around, measure

    # What noise has to do with it.

    @property
    @abstractmethod
    def outlook(self) -> Outlook | str:
        """The theory that answers about noise, or why there is none."""

    @property
    @abstractmethod
    def diverges(self) -> bool:
        """The mean, or the mean square, grows without bound."""

    # The experiment

    @property
    def algorithm(self) -> Algorithm:
        return self.setting.algorithm

    @property
    def problem(self) -> Problem:
        return self.setting.problem

    @property
    def timing(self) -> Timing:
        """Who works when, as it was given."""
        return self.setting.bound.experiment.timing

    @property
    def network(self) -> Network | None:
        return self.setting.bound.network

    @property
    def by_node(self) -> bool:
        """Every agent is the node of a network, with a model of its own."""
        return self.setting.topology.by_node

    @property
    def own_models(self) -> bool:
        """Every agent has a model of its own, on a network or beside a fusion center."""
        return self.setting.topology.own_models

    @property
    def in_step(self) -> bool:
        """With a fusion center that waits, or on a network where all nodes work in every round, hearing what is new."""
        return in_step(self.setting)

    @cached_property
    def noiseless(self) -> bool:
        """Nothing is random, but perhaps the turns of a network's nodes."""
        s = self.setting
        no_luck = (self.by_node or (self.in_step and not s.timing.drawn)) and not any(s.numbers.drawn)
        return bool(s.silent and no_luck and not s.lucky and not s.lossy and not s.timing.links_fail)

    @cached_property
    def noise_if_settled(self) -> str:
        """How second moments are computed, or why not, without looking for a limit: see `noise_by`."""
        return kind_of(self.setting, self._how)

    @cached_property
    def _merges(self) -> Merges | None:
        """Of a fusion center that merges answers as they come; None where it waits for them."""
        if self.by_node or self.noise_if_settled != "jumps":
            return None
        return Merges(self.setting, self.timing, self.origin)

    # Where it ends

    @cached_property
    def optimum(self) -> np.ndarray | None:
        """What a run is after, flattened: w*, or a model for every node; None where it is not known."""
        w = self.setting.bound.solution
        return None if w is None else self.setting.flatten(w)

    @cached_property
    def origin(self) -> np.ndarray:
        """The state from which the expected round is followed."""
        x = self.setting.origin.copy()
        if self.around is not None:  # the hub's model moved to the point, all else as at the start
            x = self.setting.moved_to(x, self.setting.flatten(self.around))
        return x

    @cached_property
    def _settled(self) -> Iterated | None:
        return iterate(self.setting) if self.setting.adaptive else None

    @cached_property
    def _found(self) -> np.ndarray | NoLimit:
        """The fixed point, or why there is none."""
        s = self.setting
        if self._merges is not None:
            return self._merges.state
        if self._settled is not None:
            if self._settled.x is not None:
                return self._settled.x
            return NoLimit("its steps do not shrink towards a limit", self._settled.grows)
        if self.algorithm.coupled and self.optimum is not None:  # where such methods end, unless they are broken
            x = s.at(s.bound.solution)
            if np.abs(s.step(x) - x).max() <= 1e-9 * (1 + np.abs(x).max()):
                return x
        try:
            return fixed_point(s, self.origin)
        except NoLimit as error:
            return error

    @property
    def state(self) -> np.ndarray | None:
        """The state in the limit; None where there is none."""
        return None if self.setting.scheduled or isinstance(self._found, NoLimit) else self._found

    @property
    def fixed_point(self) -> Model | None:
        """Where the expected round settles, without noise; None where it does not."""
        return None if self.state is None else self.setting.model_of(self.setting.read(self.state))

    @property
    def limit(self) -> Model | None:
        """The model at which the mean of runs settles; None where nothing settles."""
        return None if self._end is None else self.setting.model_of(self._end)

    @cached_property
    def _end(self) -> np.ndarray | None:
        """The limit, flattened."""
        if self.state is None:
            return None
        known = isinstance(self.outlook, Outlook) and not (self.noiseless or self.diverges)
        return self.outlook.limit if known else self.setting.read(self.state)  # type: ignore[union-attr]

    @property
    def _gap(self) -> np.ndarray | None:
        return None if self._end is None or self.optimum is None else self._end - self.optimum

    @cached_property
    def _root(self) -> np.ndarray | None:
        """L with |L (w - w*)|^2 what is measured; None is the plain distance, or `_weight` tells it."""
        if self.measure == "error" or self._weight is not None:
            return None
        values, axes = np.linalg.eigh(self.setting.curvature(self._centre))
        return np.sqrt(np.maximum(values, 0) / 2)[:, None] * axes.T

    @cached_property
    def _weight(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Rows times L'L, where L would be too large: half the curvature of the objective."""
        if self.measure == "error" or len(self.setting.flatten(self.setting.start)) <= LARGEST_ROOT:
            return None
        return lambda rows: self.setting.curved(self._centre, rows) / 2

    @property
    def _centre(self) -> np.ndarray:
        """From where it is measured: w*, or the fixed point where that is not known."""
        return self.optimum if self.optimum is not None else self.setting.read(self._settles())

    def _settles(self) -> np.ndarray:
        if self.state is None:
            raise FedpointError("there is no limit to measure from: the expected round does not settle")
        return self.state

    @cached_property
    def gauge(self) -> Gauge:
        """What is measured, from w*, or from the fixed point where that is not known."""
        return Gauge(self._centre, self._root, self.setting.models, self._weight)

    def measured(self, difference: np.ndarray) -> np.ndarray:
        """The part of a difference of models whose square is measured; rows where there are several.

        Args:
            difference: of models, as vectors.
        """
        return Gauge(np.zeros(0), self._root, self.setting.models)(numbers("difference", difference))

    @cached_property
    def reading(self) -> np.ndarray:
        """R with |R x|^2 what is measured of a deviation x of the state."""
        at = self.origin if self.state is None else self.state
        return Gauge(np.zeros(0), self._root, self.setting.models).of_state(self.setting.reading_at(at))

    @property
    def bias(self) -> float | None:
        """|limit - w*|; None where w* is not known."""
        return None if self._gap is None else self._distance(self._gap)

    @property
    def drift(self) -> float | None:
        """|fixed_point - w*|: what different agents and local steps do without noise; None where w* is not known."""
        if self.state is None or self.optimum is None:
            return None
        return self._distance(self.setting.read(self.state) - self.optimum)

    @property
    def noise_bias(self) -> float | None:
        """|limit - fixed_point|: how far noise moves the mean of runs, as fields or the hub's merge are curved."""
        if self.state is None or self._end is None:
            return None
        return self._distance(self._end - self.setting.read(self.state))

    def _distance(self, difference: np.ndarray) -> float:
        """The root of the mean square over nodes, 0 where it is rounding."""
        nodes = math.sqrt(self.setting.models)
        at = self.optimum if self.optimum is not None else self.setting.read(self._settles())
        size, scale = float(np.linalg.norm(difference)) / nodes, float(np.linalg.norm(at)) / nodes
        model = jax.tree.leaves(self.problem.start())  # in single precision w* is known to its rounding
        rounding = max(1e-10, *(8 * float(np.finfo(np.result_type(a, np.float32)).eps) for a in model))
        return size if size > rounding * (1 + scale) else 0.0

    @cached_property
    def limit_error(self) -> float:
        """The standard error of the limit, where the lineups behind it were drawn (the hub does not merge linearly, and
        they are too many to be listed), or how far noise moves it is known from drawn rounds. 0 otherwise."""
        lineups = self.setting.lineups
        if self.state is None:
            return 0.0
        known = isinstance(self.outlook, Outlook) and not (self.noiseless or self.diverges)
        moved = self.outlook.limit_error if known else 0.0  # type: ignore[union-attr]
        if lineups is None or not lineups.drawn:
            return moved
        return math.hypot(moved, limit_error(self.setting, self.state, self.reading))

    @property
    def bias2(self) -> float:
        """What the bias contributes to what is measured."""
        if not self.bias or self._gap is None:
            return 0.0
        return float(self.gauge.squares(self._gap[None])[0])

    @property
    def drift2(self) -> float:
        """What the drift alone would contribute."""
        if not self.drift or self.state is None:
            return 0.0
        return float((self.measured(self.setting.read(self.state) - self.optimum) ** 2).sum())
