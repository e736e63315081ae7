"""May the state that a round makes stand? Looked at before it is saved, so that no single answer ruins a study.

The state must be finite. No answer that is over ten thousand times as long as usual (and longer than the model, and
than 1) may have moved it farther than ten thousand usual answers would: a mean lets it, a median does not. And the
model may not move ten thousand times as far as it ever did. Usual is the median norm of a round's answers, of this
round or of any before that was merged, whichever is largest: it grows with a study that diverges, in which all answers
do, and one site alone does not move it. An answer with which there is nothing to compare may be as long as squares can
be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import jax
import numpy as np

from fedpoint.core.errors import Diverged
from fedpoint.core.types import Message, Tree
from fedpoint.federation.hub.center import Center
from fedpoint.federation.hub.norms import NOTHING, norm, usual
from fedpoint.federation.transport import Event
from fedpoint.federation.wire import Arrays

Answers: TypeAlias = Mapping[int, Message]  # by agent
Merge: TypeAlias = Callable[[Answers], None]

BOUND = 1e4
ALONE = 1e150  # of an answer with which there is nothing to compare
LEAST = 1.0  # of which nothing is said: sites may begin at their solution, and an optimiser steps as far as it likes


def norms_in_words(norms: Mapping[str, float]) -> str:
    return "norms: " + ", ".join(f"{site} {length:.2g}" for site, length in norms.items())


class Examiner:
    """What the rounds before suggest, from the events that tell of them."""

    def __init__(self, events: Iterable[Event] = ()):
        self.usual = self.move = 0.0  # the largest of the rounds that were merged
        self.first = self.last = 0.0  # usual norms
        for event in events:
            self.note(event)

    def note(self, event: Event) -> None:
        if event["merged"]:
            self.last = usual(event["norms"].values())
            self.first = self.first or self.last
            self.usual, self.move = max(self.usual, self.last), max(self.move, event["move"])

    @property
    def diverging(self) -> bool:
        """Whether all answers have become longer and longer."""
        return self.last > BOUND * self.first

    def typical(self, norms: Mapping[str, float]) -> float:
        """The length of a usual answer, as this round and those before suggest."""
        some = [length for length in norms.values() if length >= NOTHING]
        among = usual(some) if len(some) > 1 else 0.0  # an answer alone says nothing about itself
        return max(self.usual, among) or ALONE / BOUND

    def merge(self, center: Center, round: int, norms: Mapping[str, float], answers: Answers, how: Merge) -> Event:
        """Merge, if what comes of it may stand; otherwise the center is as it was, and the event says why.

        norms: of the answers, in their order.
        """
        event, before, model = Event(merged=False, norms=dict(norms)), center.snapshot(), center.model()
        typical = self.typical(norms)
        limit = max(BOUND * typical, LEAST, norm(model))
        long = [site for site, length in norms.items() if length > limit]
        tame = self._with_usual_length(center, norms, answers, how, typical) if long else {}
        how(answers)
        made, said = center.arrays(), ""
        finite = all(np.isfinite(array).all() for array in made.values())
        move = norm(_difference(model, center.model()))
        if long and not (finite and norm(_difference(tame, made)) <= BOUND * typical):
            said = f"the answer of {' and that of '.join(long)} is over ten thousand times as long as usual"
        elif finite and move > BOUND * max(LEAST, self.move, typical):
            said = f"it would have moved the model by {move:.2g}, and no answer stands out"
        if finite and not said:
            return event | Event(merged=True, move=move)
        center.put_back(before)
        if not said:
            raise Diverged(
                f"the model became infinite or NaN in round {round}, and no answer stands out "
                f"({norms_in_words(norms)}): take a smaller step",
                round,
            )
        return event | Event(abandoned=f"{said} ({norms_in_words(norms)})")

    def _with_usual_length(
        self, center: Center, norms: Mapping[str, float], answers: Answers, how: Merge, typical: float
    ) -> Arrays:
        """The state that answers would make, were none longer than usual: a robust mean makes much the same anyway."""
        before = center.snapshot()
        factors = [min(1.0, typical / max(length, NOTHING)) for length in norms.values()]
        how({k: _scaled(message, by) for (k, message), by in zip(answers.items(), factors, strict=True)})
        made = center.arrays()
        center.put_back(before)
        return made


def _scaled(message: Message, by: float) -> Message:
    return jax.tree.map(lambda leaf: (np.asarray(leaf) * by).astype(np.asarray(leaf).dtype), message)


def _difference(old: Tree, new: Tree) -> Tree:
    with np.errstate(over="ignore", invalid="ignore"):
        return jax.tree.map(lambda a, b: np.asarray(b, float) - np.asarray(a, float), old, new)
