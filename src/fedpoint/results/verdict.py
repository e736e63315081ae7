"""Did it happen? A verdict: the comparisons of a run with its forecast, and what they say together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fedpoint.core.numbers import finite
from fedpoint.core.types import Plain
from fedpoint.results.forecast import Forecast

THRESHOLD = 5.0  # standard errors: a right run fails one of ten such tests once in 100,000
EXACT = 1e-6  # a run without noise follows its path to this, relative


@dataclass(frozen=True)
class Check:
    """One comparison. ok is None where it could not be made; z is in standard errors."""

    name: str
    ok: bool | None
    measured: float | None
    expected: float | None
    z: float | None
    words: str

    def __post_init__(self) -> None:  # NumPy's numbers as Python's
        numbers = {"measured": self.measured, "expected": self.expected, "z": self.z}
        plain = {name: None if value is None else float(value) for name, value in numbers.items()}
        vars(self).update(plain, ok=None if self.ok is None else bool(self.ok))

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "-"}[self.ok]
        score = "" if self.z is None else f" (z = {self.z:+.1f})"
        return f"  {mark:<7} {self.name}: {self.words}{score}"


@dataclass(frozen=True)
class Verdict:
    """What became of a run. passed: nothing contradicts the forecast."""

    passed: bool
    words: str
    checks: list[Check]
    forecast: Forecast

    def text(self) -> str:
        return "\n".join([f"{'passed' if self.passed else 'FAILED'}: {self.words}", *map(str, self.checks)])

    def to_dict(self) -> dict[str, Plain]:
        checks: list[Plain] = [
            {k: finite(v) if isinstance(v, float) else v for k, v in dataclasses.asdict(c).items()} for c in self.checks
        ]
        return {"passed": self.passed, "words": self.words, "checks": checks}

    def _repr_html_(self) -> str:
        from fedpoint.show.html import verdict_html

        return verdict_html(self)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text()
