"""What do the peers' own methods converge to? Each goes through fp.certify, over a line to its own environment."""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import bridge
from processes import last_words

import fedpoint as fp

HERE = Path(__file__).resolve().parent
RUNS = count()
LIMIT = 300.0  # seconds for one certificate
# Methods that a peer ships, and what the user has to write himself.
SHIPPED = {
    "fedlab": ("scaffold", "fedprox", "fednova", "qfedavg"),
    "pfl": ("scaffold", "fedprox"),
    "flower": ("fedprox", "qfedavg"),
    "fedjax": ("fedprox",),
    "nvflare": ("scaffold", "fedprox"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "scaffold": {},
    "fedprox": {"pull": bridge.PULL},
    "fednova": {},
    "qfedavg": {"q": bridge.Q},
}


@dataclass
class Verdict:
    peer: str
    method: str
    version: str = ""
    passed: bool = False
    ends: str = ""  # in words, with everyone
    some: str = ""  # with two or three of the five
    mistake: str = ""
    reason: str = ""
    error: str = ""


class Subject:
    """A peer's method as round(w, agents)."""

    def __init__(self, python: Path, peer: str, method: str, log: Path):
        self.__name__ = f"{peer}'s {method}"
        self._log = log.open("w")
        command = [str(python), str(HERE / f"conform_{peer}.py"), method]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log, "text": True}
        self._process: Any = subprocess.Popen(command, **pipes)
        self._limit = threading.Timer(LIMIT, self._process.kill)
        self._limit.start()
        self.version = self._hear()["version"]

    def _say(self, message: Any) -> None:
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            late = not self._limit.is_alive()
            self.close()
            error = f"not done after {LIMIT:.0f} s" if late else last_words(Path(self._log.name))
            raise RuntimeError(error or "it ended without a word")
        return json.loads(line)

    def __call__(self, w: Any, agents: Any) -> Any:
        run = agents.server.setdefault("run", next(RUNS))
        named, by_index = [[a.index, a.weight] for a in agents], {a.index: a for a in agents}
        self._say({"run": run, "w": w.tolist(), "agents": named, "population": agents.population})
        while True:
            heard = self._hear()
            if "model" in heard:
                return heard["model"]
            agent = by_index[heard["field" if "field" in heard else "loss"]]
            self._say(agent.field(heard["w"]).tolist() if "field" in heard else agent.loss(heard["w"]))

    def close(self) -> None:
        self._limit.cancel()
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def certify(python: Path, peer: str, method: str, log: Path) -> Verdict:
    verdict = Verdict(peer, method)
    subject = None
    try:
        subject = Subject(python, peer, method, log)
        verdict.version = subject.version
        found = fp.certify(subject, method, step=bridge.STEP, local_steps=list(bridge.STEPS), **SETTINGS[method])
    except (OSError, RuntimeError, fp.FedpointError) as error:
        verdict.error = str(error)
        return verdict
    finally:
        if subject is not None:
            subject.close()
    by_test = {f.test: f for f in found.findings}
    verdict.passed, verdict.mistake, verdict.reason = found.passed, found.mistake or "", found.reason
    verdict.ends = by_test["limit"].reason
    verdict.some = by_test["limit, some"].reason if "limit, some" in by_test else ""
    return verdict
