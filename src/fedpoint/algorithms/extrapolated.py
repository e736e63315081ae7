"""Extrapolated steps (Richardson and Romberg): a method runs with its step and with half of it, and what is read is the
line through both, at step zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from fedpoint.algorithms.references import DIEULEVEUT
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Averaging, Card, Composition
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.record import untouched, with_leaves
from fedpoint.core.types import Message, Model, State, Tree
from fedpoint.core.wrapped import Wrapped

Answer = TypeVar("Answer")


class Both(NamedTuple):
    """Something of the chain with the whole step, and the same of the chain with half of it."""

    whole: Tree
    half: Tree


class Extrapolated(Wrapped):
    r"""Richardson-Romberg extrapolation: the inner method with its step and with half of it, side by side, on the same
    samples and participants.

    $$\tilde w_t = 2\, w_t^{(s/2)} - w_t^{(s)}$$

    Where the inner method ends $a s + O(s^2)$ from w*, by the drift of local steps, by noise or by who takes part, this
    ends $O(s^2)$ from it. Because both chains see the same, their noises cancel in part: near the limit the variance is
    about a third of the inner method's (three times with samples of their own). A schedule of steps is halved as it is.

    Args:
        inner: a method with a step, for instance `fp.FedAvg(step=0.1, local_steps=5)`. Messages, memories and
            evaluations are those of both chains.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> fedavg = fp.FedAvg(step=0.05, local_steps=3)
    >>> plain, both = (fp.run(m, quad, rounds=400).error[0, -1] for m in (fedavg, fp.Extrapolated(fedavg)))
    >>> bool(both < plain / 1000)
    True

    References: Dieuleveut, Durmus and Bach (2020).
    """

    card = Card(
        name="extrapolated",
        title="Extrapolated",
        summary="wraps another method: runs it with its step and half of it on the same samples, and extrapolates to "
        "step 0",
        lecture="",
        references=(DIEULEVEUT,),
        limit="the inner method's, without the part proportional to the step",
        fails="long steps, where the bias is not proportional to them; twice the messages and evaluations, and as slow "
        "as half the step",
    )

    exact_moments = True

    def check(self) -> None:
        self.check_one_exchange()
        inner = self.inner
        if inner.proximal or inner.longer(0.5) is None:
            raise FedpointError(f"Extrapolated: {inner.card.title} has no step that could be halved")

    @property
    def _halved(self) -> Algorithm:
        half = self.inner.longer(0.5)
        assert half is not None  # checked
        return half

    def _each(self, function: Callable[..., Answer], *parts: Both) -> Both:
        """function(method, its part of each) for both chains."""
        return Both(*map(function, (self.inner, self._halved), *parts))

    # The update.

    def init(self, w: Model) -> tuple[State, State]:
        (hub, memory), (other, another) = self._each(lambda method: method.init(w))
        return Both(hub, other), Both(memory, another)

    def say(self, hub: Both, row: Row) -> Both:
        return self._each(lambda method, hub: method.say(hub, row), hub)

    def local(self, heard: Both, memory: Both, agent: Agent) -> tuple[Message, State]:
        def chain(method: Algorithm, heard: State, memory: State) -> Callable[[Agent], tuple[Message, State]]:
            return lambda fork: method.local(heard, memory, fork)

        whole, half = agent.side_by_side(*self._each(chain, heard, memory))
        return Both(whole[0], half[0]), Both(whole[1], half[1])

    def combine(self, hub: Both, inbox: Inbox) -> Both:
        inboxes = Both(*(inbox._replace(mean=m, total=t) for m, t in zip(inbox.mean, inbox.total, strict=True)))
        return self._each(lambda method, hub, inbox: method.combine(hub, inbox), hub, inboxes)

    def settle(self, hub: Both, memory: Both) -> Both:
        return self._each(lambda method, hub, memory: method.settle(hub, memory), hub, memory)

    def read(self, hub: Both, memory: State) -> Model:
        memory = memory if isinstance(memory, Both) else Both(memory, memory)  # (): a model at the hub needs none
        whole, half = self._each(lambda method, hub, memory: method.read(hub, memory), hub, memory)
        return 2.0 * half - whole

    def hello(self, w: Model) -> Message:
        return self._each(lambda method: method.hello(w))

    def acknowledge(self, memory: Both, sent: Message, credited: Message) -> Both:
        return self._each(lambda method, *of: method.acknowledge(*of), memory, sent, credited)

    def remembered(self, heard: Both, memory: Both, arrived: Message) -> Both | None:
        found = self._each(lambda method, *of: method.remembered(*of), heard, memory, arrived)
        return None if any(one is None for one in found) else found

    def base(self, heard: Both) -> Both:
        return self._each(lambda method, heard: method.base(heard), heard)

    # What it tells.

    @property
    def chains(self) -> int:  # type: ignore[override]
        return 2 * self.inner.chains

    def composition(self) -> Composition:
        words = "twice the models with half the step, minus those with the full step"
        return Composition((self.inner, self._halved), lambda whole, half: 2.0 * half - whole, words)

    def averaging(self) -> Averaging | None:
        inner = self.inner.averaging()
        if inner is None or not untouched(type(self), "averaging", Algorithm):
            return None
        return inner._replace(method=with_leaves(self, {"inner": inner.method}))  # it is linear in models

    def invariants(self, hub: Both, memory: Both, p: np.ndarray) -> dict[str, State]:
        whole, half = self._each(lambda method, hub, memory: method.invariants(hub, memory, p), hub, memory)
        return {**whole, **{f"{name}, half step": value for name, value in half.items()}}


__all__ = ["Extrapolated"]
