"""What has a site answered so far? On disk before an answer leaves, so that a kill at any moment changes nothing.

orders.json          by study and run: the orders that were answered, by their hashes; refusals in a row
answers/SHA256       the bytes of the answers that may be asked for again

Only the stages of a secure sum stay in memory, as its secrets do: a site that was started again is lost for that sum,
and refuses what belongs to it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TypedDict, cast

from fedpoint.core.errors import FedpointError
from fedpoint.federation.site.refusal import Refused
from fedpoint.federation.site.stop import ORDERS
from fedpoint.federation.wire import NEVER, Written
from fedpoint.store.disk import read_object, write_bytes, write_new


class Answered(TypedDict):
    """An order that was answered, by its digest; the answer, by its SHA-256; how often it was asked for again."""

    order: str
    answer: str
    again: int


class RunRecord(TypedDict):
    """What was answered in one run."""

    answered: dict[str, Answered]  # columns, moments, work (the last one), "measure N", end
    recipe: list[Written] | None  # of moments, until a setup is made of it
    setup: str  # the hash of the setup of all later orders; "" before the first
    round: int  # the last that was worked on
    mergeable: list[int]  # the rounds that the hub can have merged last: as it said before, or the last answer's
    measured: int  # after how many rounds the last measurement was
    worked: int  # rounds that were answered


class Everything(TypedDict):
    """What orders.json holds."""

    refused: int  # in a row
    studies: dict[str, dict[str, RunRecord]]


def nothing_answered() -> RunRecord:
    return RunRecord(answered={}, recipe=None, setup="", round=NEVER, mergeable=[NEVER], measured=0, worked=0)


class Answers:
    """The answers to one study. `folder` is the site's records."""

    def __init__(self, folder: Path, study: str):
        self.folder, self.study, self.path = folder, study, folder / ORDERS
        (folder / "answers").mkdir(exist_ok=True)
        self.all = self._read()
        self.passing: dict[tuple[str, str], tuple[Answered, bytes]] = {}  # by run and stage, of the round at hand

    def _read(self) -> Everything:
        if not self.path.exists():
            return Everything(refused=0, studies={})
        try:
            return cast(Everything, {"refused": 0, "studies": {}} | read_object(self.path.read_bytes()))
        except ValueError as error:
            raise FedpointError(
                f"{self.path} is damaged ({error}): restore it, or consent again in a new kit"
            ) from None

    def _write(self, everything: Everything) -> None:
        write_bytes(self.path, json.dumps(everything, separators=(",", ":")).encode())
        self.all = everything

    @property
    def runs(self) -> dict[str, RunRecord]:
        known = self.all["studies"].get(self.study, {})
        return {run: cast(RunRecord, {**nothing_answered(), **record}) for run, record in known.items()}

    @property
    def worked(self) -> int:
        """Rounds of this study that were answered, in all runs."""
        return sum(record["worked"] for record in self.runs.values())

    def of(self, run: str) -> RunRecord:
        return self.runs.get(run) or nothing_answered()

    def keep(self, run: str, record: RunRecord, answer: bytes) -> None:
        """A new answer and what follows from it; refusals before it no longer count."""
        write_new(self._file(hashlib.sha256(answer).hexdigest()), answer)
        before = self.of(run)["answered"]
        self._write(Everything(refused=0, studies=self._studies(run, record)))
        for old in {one["answer"] for one in before.values()} - self._kept():
            self._file(old).unlink(missing_ok=True)

    def keep_passing(self, run: str, stage: str, given: Answered, answer: bytes) -> None:
        """A stage was answered: its answer is known as long as the secrets of its sum are."""
        self.passing[run, stage] = given, answer
        if self.all["refused"]:
            self._write({**self.all, "refused": 0})

    def _studies(self, run: str, record: RunRecord) -> dict[str, dict[str, RunRecord]]:
        return {**self.all["studies"], self.study: {**self.runs, run: record}}

    def _kept(self) -> set[str]:
        records = [record for runs in self.all["studies"].values() for record in runs.values()]
        return {one["answer"] for record in records for one in record["answered"].values()}

    def note(self, run: str, record: RunRecord) -> None:
        """What is no new answer: a setup that is fixed now, an answer that is given again."""
        self._write({**self.all, "studies": self._studies(run, record)})

    def bytes_of(self, answered: Answered) -> bytes:
        try:
            data = self._file(answered["answer"]).read_bytes()
        except FileNotFoundError:
            data = b""
        if hashlib.sha256(data).hexdigest() != answered["answer"]:
            raise Refused("memory", f"an answer that was given is lost: {self._file(answered['answer'])}")
        return data

    def _file(self, sha: str) -> Path:
        return self.folder / "answers" / sha

    def refuse(self) -> int:
        """One order more was refused; returns how many in a row."""
        self._write({**self.all, "refused": self.all["refused"] + 1})
        return self.all["refused"]
