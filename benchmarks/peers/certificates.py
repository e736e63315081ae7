"""What do the peers' own methods converge to? Each goes through fp.certify, over a line to its own environment."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import bridge
import numpy as np
from lines import Asked, Line

import fedpoint as fp

RUNS = count()
LIMIT = 1200.0  # seconds for one certificate
# Methods that a peer ships, and what the user has to write himself.
SHIPPED = {
    "fedlab": ("scaffold", "fedprox", "fednova", "qfedavg"),
    "pfl": ("scaffold", "fedprox"),
    "flower": ("fedprox", "qfedavg"),
    "fedjax": ("fedprox",),
    "nvflare": ("scaffold", "fedprox"),
    "appfl": ("fedprox",),
    "fluke": ("scaffold", "fedprox", "fednova"),
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

    def __init__(self, line: Line, name: str):
        self.line, self.__name__ = line, name

    def __call__(self, w: Any, agents: Any) -> np.ndarray:
        run = agents.server.setdefault("run", next(RUNS))
        named, by_index = [[a.index, a.weight] for a in agents], {a.index: a for a in agents}
        self.line.say({"run": run, "w": w.tolist(), "agents": named, "population": agents.population})
        while True:
            heard = self.line.hear()
            if "model" in heard:
                return np.array(heard["model"])
            agent = by_index[heard["field" if "field" in heard else "loss"]]
            self.line.say(agent.field(heard["w"]).tolist() if "field" in heard else agent.loss(heard["w"]))


def certify(python: Path, peer: str, method: str, log: Path) -> Verdict:
    def judged(line: Line, verdict: Verdict) -> None:
        examine(Subject(line, f"{peer}'s {method}"), method, verdict)

    asked = Asked(python, f"conform_{peer}.py", method, log, LIMIT)
    return asked.about(Verdict(peer, method), judged)


def examine(subject: Any, method: str, verdict: Verdict) -> None:
    """The settings are those of the bridge, for loops in NumPy as for frameworks."""
    found = fp.certify(subject, method, step=bridge.STEP, local_steps=list(bridge.STEPS), **SETTINGS[method])
    by_test = {f.test: f for f in found.findings}
    verdict.passed, verdict.mistake, verdict.reason = found.passed, found.mistake or "", found.reason
    verdict.ends = by_test["limit"].reason
    verdict.some = by_test["limit, some"].reason if "limit, some" in by_test else ""
