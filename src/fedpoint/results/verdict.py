"""Did it happen? A verdict: the comparisons of a run with its forecast, and what they say together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from fedpoint.core.arguments import checked_methods
from fedpoint.core.numbers import counted, finite
from fedpoint.core.types import Plain
from fedpoint.results.forecast import Forecast

THRESHOLD = 5.0  # standard errors: a right run fails one of ten such tests once in 100,000
POWER = THRESHOLD + 0.84  # standard errors of what is found four times of five
EXACT = 1e-6  # a run without noise follows its path to this, relative

Outcome = Literal["as forecast", "contradicted", "undecided"]


@dataclass(frozen=True)
class Check:
    """One comparison. ok is None where it could not be made.

    z: how far off, in standard errors of a normal deviation that is as unlikely; beyond THRESHOLD it fails.
    resolution: the smallest deviation of `measured` from `expected` that would have been found four times of five.
    """

    name: str
    ok: bool | None
    measured: float | None
    expected: float | None
    z: float | None
    words: str
    resolution: float | None = None

    def __post_init__(self) -> None:  # NumPy's numbers as Python's
        numbers = {name: vars(self)[name] for name in ("measured", "expected", "z", "resolution")}
        plain = {name: None if value is None else float(value) for name, value in numbers.items()}
        vars(self).update(plain, ok=None if self.ok is None else bool(self.ok))

    @classmethod
    def by_score(
        cls, name: str, measured: float, expected: float, z: float, words: str, resolution: float | None = None
    ) -> Check:
        """A comparison that is decided by standard errors alone."""
        return cls(name, abs(z) <= THRESHOLD, measured, expected, z, words, resolution)

    @classmethod
    def void(cls, name: str, reason: str) -> Check:
        """A comparison that could not be made."""
        return cls(name, None, None, None, None, reason)

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "-"}[self.ok]
        score = "" if self.z is None else f" (z = {self.z:+.1f})"
        return f"  {mark:<7} {self.name}: {self.words}{score}"


@checked_methods
@dataclass(frozen=True)
class Verdict:
    """Whether a run did what was forecast: as forecast, contradicted, or undecided, because nothing could be
    compared or the run is not finished.

    Attributes:
        outcome: "as forecast", "contradicted" or "undecided".
        words: the same in a sentence.
        checks: the single comparisons, with measured and expected numbers.
        forecast: what the run was compared with.
    """

    outcome: Outcome
    words: str
    checks: list[Check]
    forecast: Forecast

    @property
    def passed(self) -> bool:
        """The run was compared with its forecast, and nothing contradicts it."""
        return self.outcome == "as forecast"

    @property
    def good(self) -> bool | None:
        """As the mark of a check: None where it is undecided."""
        return None if self.outcome == "undecided" else self.passed

    def so_far(self, unfinished: str) -> Verdict:
        """The same of a run that is not finished, as these words say: contradicted perhaps, but not yet as forecast.

        Args:
            unfinished: how far the run is, in words.
        """
        if not unfinished or self.outcome != "as forecast":
            return self
        return dataclasses.replace(self, outcome="undecided", words=f"{self.words}, but {unfinished}")

    @property
    def compared(self) -> list[Check]:
        """The comparisons that were made."""
        return [c for c in self.checks if c.ok is not None]

    @property
    def headline(self) -> str:
        """The verdict, how much was compared, and what it means."""
        made, asked = len(self.compared), counted(len(self.checks), "comparison")
        if self.outcome == "contradicted":
            return f"Contradicted by {sum(c.ok is False for c in self.checks)} of {made} comparisons: {self.words}"
        return f"{self.outcome.capitalize()}, {made} of {asked} made: {self.words}"

    def text(self) -> str:
        return "\n".join([self.headline, *map(str, self.checks)])

    def to_dict(self) -> dict[str, Plain]:
        checks: list[Plain] = [
            {k: finite(v) if isinstance(v, float) else v for k, v in dataclasses.asdict(c).items()} for c in self.checks
        ]
        return {
            "verdict": self.outcome,
            "passed": self.passed,
            "compared": len(self.compared),
            "words": self.words,
            "checks": checks,
        }

    def _repr_html_(self) -> str:
        from fedpoint.show.html import verdict_html

        return verdict_html(self)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text()
