"""TensorBoard: a folder of event files, one folder in it per run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedpoint.core.arguments import checked
from fedpoint.trackers.base import Description, Tracker, name_of, package

if TYPE_CHECKING:
    from tensorboard.summary import Writer


@checked
class TensorBoard(Tracker):
    """Scalars over rounds, in `folder/NAME`; look at them with `tensorboard --logdir FOLDER`.

    name: of the run; default: its algorithm. A name that is taken gets a number. What was run is beside the events, in
    statement.json.
    """

    def __init__(self, folder: str | Path, name: str | None = None):
        self.folder, self.name = Path(folder), name
        self._writer: Writer | None = None

    def start(self, statement: Description) -> None:
        summary = package("tensorboard.summary", "tensorboard", "TensorBoard")
        name = self.name or name_of(statement)
        path, number = self.folder / name, 1
        while path.exists():
            number += 1
            path = self.folder / f"{name}-{number}"
        path.mkdir(parents=True)
        (path / "statement.json").write_text(json.dumps(statement, indent=2))
        self._writer = summary.Writer(str(path))

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        assert self._writer is not None  # start comes first
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step=round)

    def finish(self, summary: Description) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
