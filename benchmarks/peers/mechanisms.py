"""Which privacy do the peers' own mechanisms give? Each goes through fp.privacy.certify, over a line to its own
environment, with what it claims."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from claims import CLIP, DELTA, EPSILON, NUMBERS
from lines import Asked, Line

import fedpoint as fp

LIMIT = 600.0  # seconds for one certificate


@dataclass(frozen=True)
class Claim:
    """What a mechanism says that it gives, and for what it is called.

    agents: it takes the updates of so many at once. rounds: the claim is for so many calls. setting: in words.
    """

    peer: str
    mechanism: str
    setting: str
    epsilon: float = EPSILON
    delta: float = DELTA
    agents: int | None = None
    rounds: int = 1


@dataclass
class Verdict:
    peer: str
    mechanism: str
    setting: str
    epsilon: float
    delta: float
    version: str = ""
    passed: bool = False
    least: float = 0.0  # epsilon that is spent at least
    mistake: str = ""
    reason: str = ""
    error: str = ""


class Released:
    """A peer's mechanism as a function of updates."""

    def __init__(self, line: Line, name: str):
        self.line, self.__name__ = line, name

    def __call__(self, update: object) -> np.ndarray:
        self.line.say({"update": np.asarray(update).tolist()})
        return np.array(self.line.hear()["released"])


def certify(python: Path, claim: Claim, log: Path) -> Verdict:
    verdict = Verdict(claim.peer, claim.mechanism, claim.setting, claim.epsilon, claim.delta)

    def judged(line: Line, verdict: Verdict) -> None:
        examine(Released(line, f"{claim.peer}'s {claim.mechanism}"), claim, verdict)

    asked = Asked(python, f"mechanisms_{claim.peer}.py", claim.mechanism, log, LIMIT)
    return asked.about(verdict, judged)


def examine(mechanism: Released, claim: Claim, verdict: Verdict) -> None:
    found = fp.privacy.certify(
        mechanism,
        fp.Privacy(epsilon=claim.epsilon, delta=claim.delta),
        clip=CLIP,
        agents=claim.agents,
        rounds=claim.rounds,
        like=np.zeros(NUMBERS),
        name=mechanism.__name__,
    )
    verdict.passed, verdict.mistake, verdict.reason = found.passed, found.mistake or "", found.reason
    verdict.least = found.epsilon
