"""What may an algorithm ask of an agent? Its field, its loss, its prox; the round; nothing else of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedpoint.core.random import Key, Stream
from fedpoint.core.steps import Stragglers
from fedpoint.core.vector import unwrap, wrap

STRAGGLER_ROW = 0xFFFFFFF0


class Agent:
    """One agent in one round, as `local` sees it."""

    def __init__(
        self,
        oracle: Any,
        mine: Any,
        key: Key | Stream,
        plan: Any,
        samples: Any,
        exact: bool,
        round: Any,
        share: Any,
    ):
        self._oracle, self._mine, self._key = oracle, mine, key
        self._plan, self._samples, self._exact = plan, samples, exact
        self.round = round
        self.share = share  # p_k, which the study knows
        self.evaluations: Any = 0  # counted while tracing: what run.cost reports

    def field(self, w: Any, e: Any = 0) -> Any:
        """This agent's field at w: of its e-th sample in this round, or exact when the run says so."""
        self.evaluations = self.evaluations + 1
        model = unwrap(w)
        if self._exact:
            return wrap(self._oracle.mean_field(self._mine, model))
        if self._samples is None:
            z = self._oracle.draw(self._mine, self._plan, self._key.row(e), e)
        else:
            index = lax.index_in_dim if isinstance(e, int) else lax.dynamic_index_in_dim
            z = jax.tree.map(lambda a: index(a, e, keepdims=False), self._samples)
        return wrap(self._oracle.field(self._mine, model, z))

    def loss(self, w: Any) -> Any:
        """This agent's exact loss at w, in the model's precision."""
        model = unwrap(w)
        return self._oracle.loss(self._mine, model).astype(jnp.result_type(*jax.tree.leaves(model)))

    def prox(self, center: Any, weight: Any) -> Any:
        """argmin_v loss(v) + weight |v - center|^2, solved exactly (closed form, or Newton's method to rounding)."""
        return wrap(self._oracle.prox(self._mine, unwrap(center), weight))

    def steps(self, local_steps: Any) -> Any:
        """How many local steps this agent takes in this round."""
        if isinstance(local_steps, Stragglers):
            return local_steps.draw(self._key.row(STRAGGLER_ROW))
        return local_steps

    def loop(self, start: Any, steps: Any, advance: Callable[[Any, Any], Any]) -> Any:
        """How `descend` goes through its steps."""
        if isinstance(steps, int) and steps <= 2:  # no loop to set up: short rounds are dominated by it
            y = start
            for e in range(steps):
                y = advance(y, e)
            return y
        return lax.fori_loop(0, steps, lambda e, y: advance(y, e), start)


def descend(agent: Agent, start: Any, steps: Any, advance: Callable[[Any, Any], Any]) -> Any:
    """The one inner loop: y <- advance(y, e) for e = 0 .. steps-1.

    `steps` may be traced: the loop then costs what this agent takes, or the largest count among agents batched
    together.
    """
    before = agent.evaluations
    y = agent.loop(start, steps, advance)
    agent.evaluations = before + steps
    return y
