"""What does a method see of an agent whose model has parts that it does not know? An agent of the other parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeAlias

from jax import Array

from fedpoint.core.agent import Advance, Agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.selection import Split
from fedpoint.core.types import Model, Number, Tree
from fedpoint.core.vector import wrap, zeros

Advanced: TypeAlias = Callable[[Model, Model, Number], Model]


class Section:
    """An agent as the inner method sees it: its fields are those of the shared parts, where its own are now.

    moved: (own parts, their field, number of the step) -> own parts after it, where they move along; None: they rest.
    They move by the field that is asked for first in a local step; where there are no local steps, first in the round.
    """

    def __init__(self, agent: Agent, split: Split, parts: Model, first: int, moved: Advanced | None) -> None:
        self._agent, self._split, self._parts = agent, split, parts
        self._first, self._advance = first, moved
        self._slope: Model | None = None  # of the own parts
        self._stepped = False
        self.round, self.share = agent.round, agent.share
        self.steps, self.normal, self.uniform, self.key = agent.steps, agent.normal, agent.uniform, agent.key

    @property
    def evaluations(self) -> Number:
        return self._agent.evaluations

    @evaluations.setter
    def evaluations(self, count: Number) -> None:
        self._agent.evaluations = count

    def _whole(self, shared: Model) -> Model:
        return self._split.whole(shared, self._parts)

    def field(self, w: Model, e: Number = 0) -> Model:
        shared, own = self._split.halves(wrap(self._agent.field(self._whole(w), e + self._first)))
        if self._slope is None:
            self._slope = own
        return shared

    def loss(self, w: Model) -> Number:
        return self._agent.loss(self._whole(w))

    def losses_along(self, w: Model, move: Model, fractions: Array) -> Array:
        return self._agent.losses_along(self._whole(w), self._split.whole(move, zeros(self._parts)), fractions)

    def _moved(self, e: Number) -> Model:
        """The own parts after a step."""
        if self._advance is None or self._slope is None:
            return self._parts
        return self._advance(self._parts, self._slope, e)

    def loop(self, start: Tree, steps: Number, advance: Advance) -> Tree:
        """The inner method's local steps; own parts move along."""
        if self._advance is None:
            return self._agent.loop(start, steps, advance)
        before, self._stepped = self._slope, True

        def step(state: tuple[Tree, Model], e: Number) -> tuple[Tree, Model]:
            y, self._parts = state
            self._slope = None
            return advance(y, e), self._moved(e)

        y, self._parts = self._agent.loop((start, self._parts), steps, step)
        self._slope = before
        return y

    def finished(self) -> Model:
        """The own parts at the end of the round."""
        return self._parts if self._stepped else self._moved(0)

    def hessian(self, w: Model) -> NoReturn:
        raise FedpointError("second-order methods cannot treat parts of a model, or its state, separately")

    def hessian_times(self, w: Model, v: Model) -> NoReturn:
        self.hessian(w)

    def prox(self, center: Model, weight: Number) -> NoReturn:
        raise FedpointError(
            "methods that solve a proximal problem cannot treat parts of a model, or its state, separately"
        )
