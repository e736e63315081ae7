"""Does a mechanism hide what it claims to hide? The certificate that `fp.privacy.certify` writes."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, TypeAlias

from fedpoint.core.arguments import checked_methods
from fedpoint.core.types import Plain

Law: TypeAlias = Literal["normal", "laplace", "bounded", "other", "none"]
MARKS = {True: "ok", False: "NO", None: "--"}


class Probed(NamedTuple):
    """One question that was put to the mechanism, and what it answered. ok is None where nothing decides it."""

    test: str
    ok: bool | None
    reason: str


@checked_methods
@dataclass(frozen=True)
class PrivacyCertificate:
    """What `fp.privacy.certify` found.

    Attributes:
        subject: the name of what was examined.
        claim: (epsilon, delta) that it claims.
        rounds: for which the claim stands together.
        passed: nothing was found that contradicts the claim, which is not a proof.
        mistake: what is wrong, by name; None when it passed.
        reason: the same with numbers.
        epsilon: the mechanism spends at least so much at the claimed delta; infinite where what one agent sends can be
            told for sure.
        confidence: with which that bound holds.
        law: that of the noise: "normal", "laplace", "bounded", "other" or "none".
        noise: its standard deviation.
        radius: how far one agent can move what is released, as measured; infinite where nothing limits it.
        findings: the questions that were put to the mechanism, with its answers.
        calls: how often the mechanism was called.
    """

    subject: str
    claim: tuple[float, float]  # epsilon, delta
    rounds: int
    passed: bool
    mistake: str | None
    reason: str
    epsilon: float
    confidence: float
    law: Law
    noise: float
    radius: float
    findings: tuple[Probed, ...]
    calls: int

    @property
    def verdict(self) -> str:
        return "passed" if self.passed else "convicted"

    def __bool__(self) -> bool:
        return self.passed

    @property
    def headline(self) -> str:
        """In one line."""
        claim = f"epsilon {self.claim[0]:g} at delta {self.claim[1]:g}"
        if self.passed:
            return f"{self.subject}: nothing contradicts its claim of {claim}."
        return f"{self.subject} claims {claim} and does not give it: {self.mistake}."

    def text(self) -> str:
        """The certificate in plain words."""
        spends = "without bound" if math.isinf(self.epsilon) else f"{self.epsilon:.3g}"
        lines = [self.headline, *([f"  {self.reason}"] if self.reason else [])]
        over = "" if self.rounds == 1 else f" over {self.rounds} rounds"
        lines.append(f"  epsilon is at least {spends}{over} (confidence {self.confidence:g}, {self.calls} calls)")
        lines += [f"  [{MARKS[f.ok]}] {f.test}: {f.reason}" for f in self.findings]
        return "\n".join(textwrap.fill(line, 110, subsequent_indent="    ", break_on_hyphens=False) for line in lines)

    __str__ = text

    def to_dict(self) -> dict[str, Plain]:
        """Plain types, for JSON; None stands for infinity."""
        plain = asdict(self) | {"verdict": self.verdict, "findings": [f._asdict() for f in self.findings]}
        plain["claim"] = list(self.claim)
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value for name, value in plain.items()
        }
