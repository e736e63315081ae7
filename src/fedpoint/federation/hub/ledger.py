"""Where does a hub write down how far a study is? A folder, from which it goes on after any crash.

study.toml       what is done
run              the name of this run of it, by which sites know its orders
first-answers/   what sites have said before the first round, until hub.npz is there
hub.npz          the hub's state after the last round, and all else that the next one needs
rounds.jsonl     what happened in each round: who answered, how long the answers were and the seals of the sites' own
                 records, who was refused and why
models/N.npz     the recorded models
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TypedDict, cast

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.federation.hub.alarm import Watched
from fedpoint.federation.preparation import Setup
from fedpoint.federation.study import Study
from fedpoint.federation.transport import Event
from fedpoint.federation.wire import Arrays
from fedpoint.store.disk import (
    append_line,
    canonical,
    os_errors,
    read_lines,
    read_npz,
    take_lock,
    to_toml,
    write_bytes,
    write_npz,
)


class StudyProgress(TypedDict):
    """Where a study is, beside its arrays."""

    round: int  # the next
    merged: dict[str, int]  # the last round merged from each site
    refused: dict[str, int]  # "site reason": how often
    setup: Setup
    measured: dict[str, dict[str, dict[str, float]]]  # after so many rounds: what each site said of the model
    tables: dict[str, dict[str, dict[str, list[list[float]]]]]  # the same of calibration and confusion
    ended: list[str]  # sites that have heard of the end
    sent: dict[str, dict[str, list[int]]]  # by site and kind of message: how many came, their bytes, their numbers
    releases: dict[str, str]  # the fedpoint that each site runs
    chains: dict[str, str]  # the last seal of each site's record, which shows later whether that was changed
    watch: dict[str, Watched]  # what was seen of each site's answers, where it is known what to expect


class Ledger:
    """The folder of a study at the hub, locked while it is open."""

    def __init__(self, folder: str | Path, study: Study):
        self.folder, self.study = Path(folder), study
        with os_errors(f"write {self.folder}"):
            (self.folder / "models").mkdir(parents=True, exist_ok=True)
        self.lock = take_lock(self.folder)
        self.run = ""
        self.begun: tuple[Arrays, StudyProgress] | None = None
        self.events: list[Event] = []  # of the rounds so far
        if (self.folder / "hub.npz").exists():
            arrays, about = read_npz(self.folder / "hub.npz", "hub")
            if about["study"] != study.fingerprint:
                self.close()
                raise FedpointError(f"{self.folder} holds another study: choose another folder, or remove this one")
            self.begun, self.run = (arrays, cast(StudyProgress, about)), about["run"]
            self._forget_after(about["round"])
        else:
            write_bytes(self.folder / "study.toml", to_toml(study.content))
            write_bytes(self.folder / "rounds.jsonl", b"")
            self.run = self._named()

    def _named(self) -> str:
        """The same name after a crash in the preparation: sites count the runs that they take part in."""
        path = self.folder / "run"
        if not path.exists():
            write_bytes(path, secrets.token_hex(8).encode())
        return read_file(path).decode()

    def end_run(self) -> None:
        """Whoever begins again begins another run."""
        (self.folder / "run").unlink(missing_ok=True)

    def _forget_after(self, round: int) -> None:
        """What was written of a round that was not finished."""
        lines, _ = read_lines(self.folder / "rounds.jsonl")
        kept = [line for line in lines if line["round"] < round]
        self.events = cast(list[Event], kept)
        write_bytes(self.folder / "rounds.jsonl", b"".join(canonical(line) + b"\n" for line in kept))
        for path in self._files():
            if int(path.stem) > round:
                path.unlink()

    def save(self, arrays: Arrays, progress: StudyProgress) -> None:
        """Where the study is after a round."""
        body = {"study": self.study.fingerprint, "run": self.run, **progress}
        write_npz(self.folder / "hub.npz", "hub", dict(arrays), body)

    def note(self, event: Event) -> None:
        append_line(self.folder / "rounds.jsonl", canonical(event))

    def record(self, round: int, model: Arrays) -> None:
        """The model after so many rounds."""
        write_npz(self.folder / "models" / f"{round}.npz", "model-of-round", dict(model), {"round": round})

    def _files(self) -> list[Path]:
        return sorted((self.folder / "models").glob("[0-9]*.npz"), key=lambda path: int(path.stem))

    def close(self) -> None:
        self.lock.close()
