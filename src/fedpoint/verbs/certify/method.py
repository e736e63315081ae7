"""What is a method, and what a mistake in it? And the mistakes that any method with local steps and a mean can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Protocol, TypeAlias

import numpy as np

from fedpoint.verbs.certify.methods import Recipe, Round, Setting, Settings
from fedpoint.verbs.certify.world import AGENTS, Normal, Play, Reading, World, everyone, play

Switches: TypeAlias = Settings | Callable[[Recipe], Settings]


@dataclass(frozen=True)
class Mistake:
    """switches: those that make it; none where it is known by what it does, whatever the method.

    claimed: it is one only of a subject that claims the method with these settings.
    """

    name: str
    reason: str
    switches: tuple[Switches, ...] = ()
    claimed: bool = False

    @property
    def name_and_reason(self) -> tuple[str, str]:
        return self.name, self.reason


class Once(Protocol):
    """The first noisy round of somebody: of a seed, or with noise as it is written."""

    def __call__(self, seed: int, rng: Normal | None = None) -> Play: ...


@dataclass(frozen=True)
class Method:
    """A method of the catalogue.

    variants: settings that a subject may choose, unless they are given; all are right. fixed: settings that are part
    of the method. needs: settings without which there is nothing to compare with. steady: the limit stays at w* also
    when only some take part. partial: valid then at all. read: where agents have models of their own, an agent's, of
    the common one and what it keeps. network: for methods of nodes: their edges go "both ways" or "one way".
    """

    name: str
    round: Round
    mistakes: tuple[Mistake, ...] = ()
    fixed: tuple[tuple[str, Setting], ...] = ()
    variants: tuple[Settings, ...] = ({},)
    needs: tuple[str, ...] = ("step",)
    steady: bool = False
    partial: bool = True
    read: Callable[[Recipe, np.ndarray, np.ndarray], np.ndarray] | None = None
    network: str = ""

    @property
    def copies(self) -> int:
        """How many models there are."""
        return 1 if self.read is None else AGENTS

    def play(
        self,
        recipe: Recipe,
        world: World,
        ticks: Sequence[Sequence[int]],
        seed: int = 0,
        noise: float = 0.0,
        rng: Normal | None = None,
    ) -> Play:
        """Rounds with these settings and switches."""
        return play(partial(self.round, recipe), world, ticks, seed, noise, rng=rng, read=self.reading(recipe))

    def reading(self, recipe: Recipe) -> Reading | None:
        """An agent's model, with these settings."""
        return None if self.read is None else partial(self.read, recipe)

    def once(self, recipe: Recipe, world: World, noise: float) -> Once:
        """The first noisy round."""
        return lambda seed, rng=None: self.play(recipe, world, everyone(1), seed, noise, rng)

    def recipes(self, settings: Settings) -> Iterator[Recipe]:
        """The correct variants with these settings."""
        for variant in self.variants:
            if all(settings.get(name, value) == value for name, value in variant.items()):
                yield Recipe.of(settings | variant | dict(self.fixed))

    def wrong(self, settings: Settings, claimed: bool) -> Iterator[tuple[Mistake, Recipe, Recipe]]:
        """The broken variants with these settings, each with the correct one that it comes from."""
        for mistake, recipe in product(self.mistakes, list(self.recipes(settings))):
            if claimed or not mistake.claimed:
                for switches in mistake.switches:
                    yield mistake, recipe.but(switches(recipe) if callable(switches) else switches), recipe


WEIGHTS_DROPPED = "the weights p_k are dropped: all agents count alike although their weights differ"

COMMON = (
    Mistake("weights_dropped", WEIGHTS_DROPPED, ({"merge": "plain"},)),
    Mistake(
        "weights_renormalised",
        "the weights are divided by their sum over the agents selected: then agents with a small weight count for too "
        "much whenever few take part (take p_k K/L, which need not sum to one)",
        ({"merge": "renormalised"},),
    ),
    Mistake(
        "models_weighted",
        "models are summed with the weights p_k K/L, which do not sum to one over a selection, so that the model "
        "shrinks or grows by chance: apply them to the changes y_k - w",
        ({"merge": "models"},),
    ),
    Mistake(
        "not_scaled_up",
        "the changes of those selected are summed with p_k alone: without K/L a round of L agents goes only L/K of "
        "the way",
        ({"merge": "unscaled"},),
        claimed=True,
    ),
    Mistake("ascent", "it goes up the gradient: the sign of the step is flipped", ({"sign": -1.0},)),
    Mistake(
        "gradient_frozen",
        "all local steps use the gradient at the received model: it is not evaluated again at each local model",
        ({"frozen": True},),
        claimed=True,
    ),
    Mistake(
        "step_divided",
        "the local step is smaller than the step that was given, by the number of local steps (divided once too often)",
        ({"divide": 1}, {"divide": 2}),
        claimed=True,
    ),
    Mistake(
        "wrong_number_of_steps",
        "agents take one local step more, or one less, than local_steps says",
        ({"more": 1}, {"more": -1}),
        claimed=True,
    ),
)
