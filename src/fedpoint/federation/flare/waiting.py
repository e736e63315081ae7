"""What does a party's command do while the engine's processes work? It waits, in a process that holds no JAX.

The command becomes that process (`hand_over`) once it has said and asked what it had to. It starts the engine's process
again when that ends, tells of orders that the site has refused, and ends when the site has stopped itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import open_file
from fedpoint.federation.flare.processes import Party, environment, needs_flare, running
from fedpoint.federation.site import stop
from fedpoint.federation.site.engagement import Engagement, at_work, engagements
from fedpoint.store.disk import read_object

FRIENDLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a SIGTERM or a closed terminal is a Ctrl-C
LOOK = 0.2  # seconds between two looks at what happens
AGAIN = 2.0  # seconds before a process that ended is started again
TRIES = 20  # times that it may end within a minute
PIECE = 1 << 20  # bytes of refusals that are read at once
NOTES, POLICY = "notes.jsonl", "policy.toml"  # in a site's kit: what has come, and what may be approved unasked


class Own(NamedTuple):
    """As much of a kit as its processes need."""

    folder: Path
    party: str


class SiteStopped(Exception):
    """A site has refused too much, and answers nothing more; the message is for the person there."""


def hand_over(kit: Party) -> NoReturn:
    """Become the process that waits. Until it heeds them, friendly kills are held back, not lost."""
    needs_flare()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, FRIENDLY)
    command = [sys.executable, "-m", "fedpoint.federation.flare.waiting", str(kit.folder), kit.party]
    os.execve(sys.executable, command, environment(kit))


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed, and what was started must end all the same
        print(text, file=sys.stderr, flush=True)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _printable(value: object) -> str:
    """Text that may quote a server, on one line of a terminal."""
    return "".join(one if one.isprintable() else "?" for one in str(value)[:1000])


class Refusals:
    """The orders that a site refuses from now on; its worker writes them down, one a line."""

    def __init__(self, path: Path, new: bool = False):
        self.path, self.rest = path, b""
        self.at = path.stat().st_size if path.exists() and not new else 0

    def fresh(self) -> list[str]:
        """What each says, once its line is complete."""
        with contextlib.suppress(FileNotFoundError), open_file(self.path, links=False) as file:
            if os.fstat(file.fileno()).st_size < self.at:  # another file has taken its name
                self.at, self.rest = 0, b""
            file.seek(self.at)
            piece = file.read(PIECE)
            self.at += len(piece)
            *lines, self.rest = (self.rest + piece).split(b"\n")
            return [_text(line) for line in lines]
        return []


def _text(line: bytes) -> str:
    """What a {time, text} says; of what is none, that it is there."""
    try:
        return _printable(read_object(line)["text"])
    except (ValueError, KeyError):
        return "the note about it cannot be read"


class Waiting:
    """A party's processes, until a friendly kill (`asked`). A site tells of studies that come, of orders that it has
    refused, and of a study in which it has stopped itself; where it has a policy, that is asked about new studies."""

    def __init__(self, party: Party, asked: threading.Event):
        self.party, self.asked = party, asked
        self.notes = Refusals(party.folder / NOTES)
        self.refusals: dict[str, Refusals] = {}
        self.told: set[str] = set()  # studies that have come or were stopped
        for part in self._parts():
            self.refusals[part.title] = Refusals(part.records / stop.REFUSALS)

    def wait(self) -> None:
        ends: list[float] = []
        while not self.asked.is_set():
            code = self._one_process()
            if code is None:
                return
            ends = [*(t for t in ends if time.monotonic() - t < 60), time.monotonic()]
            log = self.party.folder / "process.log"
            if len(ends) >= TRIES:
                raise FedpointError(f"the engine's process ended {TRIES} times in a minute: see {log}")
            say(
                f"{_clock()} the engine's process {_ended(code)} and is started again; {self.party.party} rejoins, and "
                f"nothing is lost. Its log: {log}"
            )
            self.asked.wait(AGAIN)

    def _one_process(self) -> int | None:
        """The status of the engine's process, once it ends; None where we end it."""
        self._look()
        with running(self.party) as process:
            while not self.asked.wait(LOOK):
                self._look()
                code = process.poll()
                if code is not None:
                    return code
        return None

    def _parts(self) -> list[Engagement]:
        return [] if self.party.party in ("server", "admin") else engagements(self.party.folder)

    def _look(self) -> None:
        for text in self.notes.fresh():
            say(f"{_clock()} {text}")
        parts = self._parts()
        for part in parts:
            if part.title not in self.refusals:
                self.refusals[part.title] = Refusals(part.records / stop.REFUSALS, new=True)
            for text in self.refusals[part.title].fresh():
                say(f"{_clock()} {part.title} refused: {text}")
            why = stop.why_stopped(part.records)
            if why is not None and at_work(self.party.folder, part.title):
                raise SiteStopped(
                    f"{self.party.party} has stopped itself in {part.title}: {_printable(why)}\n"
                    "It is disconnected, and nothing runs here any more. Read what was refused "
                    f"({part.records / stop.REFUSALS}) and talk to whoever leads the study; {stop.LIFT} starts the "
                    "site again."
                )
        self._tell_of_new(parts)

    def _tell_of_new(self, parts: list[Engagement]) -> None:
        for part in {part.name: part for part in parts}.values():
            if part.approved or part.title in self.told:
                continue
            self.told.add(part.title)
            say(
                f"{_clock()} {part.title} has come, signed by the leader. Read and decide: "
                f"fedpoint federate approve {self.party.folder} {part.name}"
            )
            if (self.party.folder / POLICY).exists():
                self._ask_policy(part)

    def _ask_policy(self, part: Engagement) -> None:
        """In a process of its own: it loads JAX."""
        command = [sys.executable, "-m", "fedpoint", "federate", "approve", str(self.party.folder), part.title]
        told = subprocess.run([*command, "--by-policy"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        for line in (told.stdout + told.stderr).splitlines():
            say(f"{_clock()} {_printable(line)}")


def _ended(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended (status {code})"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def main(folder: str, party: str) -> int:
    """The exit status: 130 after a friendly kill, 1 where the site has stopped itself, 2 where nothing can run."""
    asked = threading.Event()
    for number in FRIENDLY:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, lambda *_: asked.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FRIENDLY)
    try:
        Waiting(Own(Path(folder), party), asked).wait()
    except SiteStopped as why:
        say(f"{_clock()} {why}")
        return 1
    except (FedpointError, OSError) as error:
        say(f"Error: {error}")
        return 2
    say("\ninterrupted")
    return 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
