"""What an experiment file holds once it is read: experiments with their names and rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from fedpoint.core.numbers import counted
from fedpoint.core.types import Data
from fedpoint.experiment.experiment import Experiment
from fedpoint.store.disk import Table as Raw


class NotRebuildable(UserWarning):
    """A file that was written does not hold all of its experiment."""


@dataclass(frozen=True)
class Entry:
    """One experiment of a file. `content` is the file that would make this one alone."""

    name: str
    experiment: Experiment
    rounds: int
    stop: float | None = None  # a tolerance at which the run may end
    held_out: Data = None  # what it is evaluated on, in the file's words; an `Evaluation` of it where the file asks
    content: Raw = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class File(Sequence[Entry]):
    """The experiments of a file; `content` makes the same ones again, anywhere."""

    name: str
    content: Raw
    entries: tuple[Entry, ...]

    @overload
    def __getitem__(self, i: int) -> Entry: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Entry]: ...
    def __getitem__(self, i: int | slice) -> Entry | Sequence[Entry]:
        return self.entries[i]

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        said = ", ".join(f"{entry.name} ({counted(entry.rounds, 'round')})" for entry in self)
        return f"<File {self.name}: {said}>"

    @property
    def comparison(self) -> bool:
        return len(self) > 1

    @property
    def notes(self) -> list[str]:
        """What was done to the data that the file names, and what is odd about its network."""
        found = [note for entry in self for note in entry.experiment.problem.notes]
        networks = filter(None, (entry.experiment.network for entry in self))
        return list(dict.fromkeys([*found, *filter(None, (network.caution() for network in networks))]))

    def with_rounds(self, rounds: int) -> File:
        """The same with so many rounds."""
        entries = [replace(e, rounds=rounds, content={**e.content, "rounds": rounds}) for e in self]
        return replace(self, content={**self.content, "rounds": rounds}, entries=tuple(entries))
