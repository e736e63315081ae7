"""What is kept of a run, round by round: models, uses, metrics, and what was evaluated while it ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.describe import named
from fedpoint.core.kinds import WORDS
from fedpoint.core.types import Model, Plain

if TYPE_CHECKING:  # files, which runs without a folder can do without
    from fedpoint.store.disk import Table


@dataclass(frozen=True)
class Place:
    """A folder to be made, with the content of the file that its run comes from."""

    path: Path
    experiment: Mapping[str, Plain] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: str | Path | Place) -> Place:
        return folder if isinstance(folder, Place) else cls(Path(folder))


WORDS[Place] = WORDS[Path]  # in messages


@dataclass(frozen=True)
class Measures:
    """What is evaluated while a run goes on, and so can be read from its folder without its data."""

    errors: bool = False  # of every record: asked for only where the solution is known or costs next to nothing
    losses_every: int | None = None  # rounds between evaluations of the loss, each a pass over all data

    @classmethod
    def of(cls, meta: Table) -> Measures:
        """As a folder has it."""
        told = meta.get("measures", {})
        return cls(bool(told.get("errors")), told.get("losses_every"))


@dataclass(frozen=True)
class RoundRecords:
    """Records of n rounds; everything else leads with the repeats, then the rounds.

    model: the global models. used: models sent, answers and field evaluations so far. metrics: by name. error, loss:
    None where they are not evaluated while the run goes on; a loss that was passed over is nan. evaluation: held-out
    metrics by name, where they are; nan where they were passed over.
    """

    rounds: np.ndarray
    model: Model
    used: np.ndarray
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    error: np.ndarray | None = None
    loss: np.ndarray | None = None
    evaluation: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rounds)

    def _map(self, one: Callable[[np.ndarray], np.ndarray], rounds: np.ndarray) -> RoundRecords:
        return RoundRecords(
            rounds,
            jax.tree.map(one, self.model),
            one(self.used),
            {name: one(values) for name, values in self.metrics.items()},
            None if self.error is None else one(self.error),
            None if self.loss is None else one(self.loss),
            {name: one(values) for name, values in self.evaluation.items()},
        )

    def first(self, count: int) -> RoundRecords:
        """The first so many of them."""
        return self._map(lambda a: a[:, :count], self.rounds[:count])

    def last_only(self) -> RoundRecords:
        return self._map(lambda a: a[:, -1:], self.rounds[-1:])

    @property
    def last(self) -> Model:
        """The models recorded last, (repeats, ...)."""
        return jax.tree.map(lambda a: a[:, -1], self.model)

    def arrays(self) -> dict[str, np.ndarray]:
        """The same as a flat dictionary, as a folder has it."""
        values = {"error": self.error, "loss": self.loss}
        return (
            named("model", self.model)
            | {"used": self.used}
            | {f"metric.{name}": a for name, a in self.metrics.items()}
            | {f"evaluation.{name}": a for name, a in self.evaluation.items()}
            | {name: a for name, a in values.items() if a is not None}
        )


def join(parts: Sequence[RoundRecords]) -> RoundRecords:
    """Records one after the other."""
    if len(parts) == 1:
        return parts[0]

    def put(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays, axis=1)

    def known(values: Sequence[np.ndarray | None]) -> np.ndarray | None:
        given = [a for a in values if a is not None]
        return put(given) if len(given) == len(parts) else None

    return RoundRecords(
        np.concatenate([part.rounds for part in parts]),
        jax.tree.map(lambda *a: put(a), *(part.model for part in parts)),
        put([part.used for part in parts]),
        {name: put([part.metrics[name] for part in parts]) for name in parts[0].metrics},
        known([part.error for part in parts]),
        known([part.loss for part in parts]),
        {name: put([part.evaluation[name] for part in parts]) for name in parts[0].evaluation},
    )
