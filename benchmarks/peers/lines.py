"""A process of a framework's own environment: questions to its standard input, answers from its standard output."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from processes import last_words

import fedpoint as fp

HERE = Path(__file__).resolve().parent


class Line:
    """It begins by saying its version; it is killed when `limit` seconds are over."""

    def __init__(self, python: Path, script: str, name: str, log: Path, limit: float):
        self._log, self._seconds = log.open("w"), limit
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log, "text": True}
        self._process: Any = subprocess.Popen([str(python), str(HERE / script), name], **pipes)
        self._limit = threading.Timer(limit, self._process.kill)
        self._limit.start()
        self.version = self.hear()["version"]

    def say(self, message: Any) -> None:
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            late = not self._limit.is_alive()
            self.close()
            error = f"not done after {self._seconds:.0f} s" if late else last_words(Path(self._log.name))
            raise RuntimeError(error or "it ended without a message")
        return json.loads(line)

    def close(self) -> None:
        self._limit.cancel()
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Judged(Protocol):
    version: str
    error: str


Verdict = TypeVar("Verdict", bound=Judged)


class Asked(NamedTuple):
    """A script of a framework's environment, which answers by its name what is asked."""

    python: Path
    script: str
    name: str
    log: Path
    limit: float

    def about(self, verdict: Verdict, judged: Callable[[Line, Verdict], None]) -> Verdict:
        """The verdict, with the version that was judged, or with what went wrong."""
        line = None
        try:
            line = Line(*self)
            verdict.version = line.version
            judged(line, verdict)
        except (OSError, RuntimeError, fp.FedpointError) as error:
            verdict.error = str(error)
        finally:
            if line is not None:
                line.close()
        return verdict
