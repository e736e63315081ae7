"""Weights & Biases: a run of a project, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpoint.core.arguments import checked
from fedpoint.trackers.base import FINISHED, Description, Tracker, flat, name_of, package

if TYPE_CHECKING:
    from wandb import Run


@checked
class WandB(Tracker):
    """Metrics over rounds, and what was run as the run's config.

    mode: "online", "offline" (`wandb sync` sends it later) or "disabled"; default: wandb's own, by WANDB_MODE.
    folder: where wandb keeps its files; default: the current one. options: of `wandb.init`, such as group or tags.
    """

    def __init__(
        self,
        project: str = "fedpoint",
        name: str | None = None,
        mode: str | None = None,
        folder: str | Path | None = None,
        **options: Any,
    ):
        self.project, self.name, self.mode, self.folder, self.options = project, name, mode, folder, options
        self._run: Run | None = None

    def start(self, statement: Description) -> None:
        wandb = package("wandb", "wandb", "Weights & Biases")
        self._run = wandb.init(
            project=self.project,
            name=self.name or name_of(statement),
            mode=self.mode,
            dir=None if self.folder is None else str(self.folder),
            config=dict(statement),
            reinit="create_new",  # several runs in one process, as of fp.compare
            **self.options,
        )
        self._run.define_metric("round")
        # Over rounds, and not over calls: held-out metrics of early rounds come last.
        self._run.define_metric("*", step_metric="round")

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        assert self._run is not None  # start comes first
        self._run.log({"round": round, **metrics})

    def finish(self, summary: Description) -> None:
        if self._run is None:
            return
        self._run.summary.update(flat(summary))
        self._run.finish(exit_code=0 if summary["status"] == FINISHED else 1)
        self._run = None
