"""What does a site remember between orders? What the hub is known to have merged, and what goes with its last answer.

Every order names the last round that was merged from this site: the pending memory is then taken over, or dropped.
"""

from __future__ import annotations

from pathlib import Path

from fedpoint.federation.holding import Holding, Kept
from fedpoint.federation.site.refusal import Refused
from fedpoint.store.disk import read_npz, write_npz

RUNS = 4  # of which memories are kept


class Memories:
    """On disk before an answer leaves: a site that is killed takes part again as if nothing had been."""

    def __init__(self, folder: Path, study: str):
        self.folder, self.study = folder, study
        self._known: dict[str, tuple[Kept, Kept | None]] = {}

    def settled(self, held: Holding, run: str, merged: int) -> Kept:
        """The memory that the hub has merged; a pending one is taken over or dropped."""
        if not held.remembers:
            return held.start._replace(round=merged)
        if run not in self._known:
            self._known = {run: self._recalled(held, run)}
        kept, pending = self._known[run]
        if pending is not None and pending.round == merged:
            return pending
        if kept.round != merged:
            raise Refused("memory", f"the hub has merged round {merged}, but round {kept.round} is remembered here")
        return kept

    def _file(self, run: str) -> Path:
        return self.folder / f"memory-{run}.npz"

    def _recalled(self, held: Holding, run: str) -> tuple[Kept, Kept | None]:
        if not self._file(run).exists():
            return held.start, None
        arrays, about = read_npz(self._file(run), "memory")
        kept = held.start.again(about["kept"], arrays, "kept")
        return kept, None if about["pending"] is None else kept.again(about["pending"], arrays, "pending")

    def remember(self, held: Holding, run: str, kept: Kept, pending: Kept | None) -> None:
        """On disk before the answer leaves: a site that is killed takes part again as if nothing had been."""
        if not held.remembers:
            return
        self._known = {run: (kept, pending)}
        both = {"kept": kept} if pending is None else {"kept": kept, "pending": pending}
        arrays = {f"{which}{name}": a for which, one in both.items() for name, a in one.arrays().items()}
        about = {"study": self.study, "pending": None, **{which: one.round for which, one in both.items()}}
        new = not self._file(run).exists()
        write_npz(self._file(run), "memory", arrays, about)
        if new:
            files = sorted(self.folder.glob("memory-*.npz"), key=lambda path: path.stat().st_mtime)
            for old in files[:-RUNS]:
                old.unlink()
