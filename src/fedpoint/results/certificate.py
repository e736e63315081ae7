"""Which method is it, and which mistake was made in it? The certificate that `fp.certify` writes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from fedpoint.core.algorithm import CATALOGUE
from fedpoint.core.arguments import checked_methods
from fedpoint.core.types import Plain

Setting: TypeAlias = float | str | Sequence[float] | np.ndarray | None  # a hyper-parameter, as `fp.certify` takes it
Ruling: TypeAlias = Literal["passed", "convicted", "unknown"]
MARKS = {True: "ok", False: "NO", None: "--"}


@dataclass(frozen=True)
class Finding:
    """One test: what was measured, what was expected, and what that means.

    Attributes:
        test: the name of the test.
        ok: whether it passed; None where nothing decides it.
        measured: the number that was measured; None where there is none.
        expected: what was expected, in words.
        reason: what follows from it, in words.
    """

    test: str
    ok: bool | None
    measured: float | None
    expected: str
    reason: str


@dataclass(frozen=True)
class Unexercised:
    """A part of the subject's code that the examination never put to use: the passed tests say nothing of it."""

    file: str
    line: int
    code: str
    reason: str

    def __str__(self) -> str:
        where = f"{Path(self.file).name}, line {self.line}: " if self.file else ""
        return f"{where}{self.code}: {self.reason}"


@checked_methods
@dataclass(frozen=True)
class Certificate:
    """What `fp.certify` found.

    Attributes:
        subject: the name of what was examined.
        claim: the method that it claims to be, or None; of one around another, its title.
        behaves_like: the name in the catalogue of the method whose rounds it makes; else of the point where it ends
            ("optimum", "optimum_of_equal_weights", "fedavg_point", "start", ...), "diverges" or "unknown".
        title: the same in words.
        verdict: "passed": it is what it claims to be; without a claim, it makes the rounds of a known method, or ends
            where one does. "convicted": it is not what it claims to be, or has a known mistake. "unknown": neither.
        mistake: the name of a known mistake, or None.
        reason: why it did not pass, with numbers; empty when it did.
        findings: the single tests.
        seed: of the problems on which it was examined.
        settings: those with which it was compared.
        unexercised: parts of its code that the tests never put to use.
    """

    subject: str
    claim: str | None
    behaves_like: str
    title: str
    verdict: Ruling
    mistake: str | None
    reason: str
    findings: list[Finding]
    seed: int
    settings: Mapping[str, Setting] = field(default_factory=dict)
    unexercised: list[Unexercised] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    @property
    def good(self) -> bool | None:
        """As the mark of a finding: None where it is unknown."""
        return None if self.verdict == "unknown" else self.passed

    def __bool__(self) -> bool:
        return self.passed

    def text(self) -> str:
        """The certificate in plain words."""
        lines = [self.headline]
        if self.reason:
            lines.append(f"  {self.reason}")
        if self.title not in self.reason:
            lines.append(f"  behaves like: {self.title}")
        if self.settings:
            lines.append("  settings: " + ", ".join(f"{n} = {_short(v)}" for n, v in self.settings.items()))
        lines += [f"  [{MARKS[f.ok]}] {f.test}: {f.reason}" for f in self.findings]
        lines += [f"  {'never exercised' if part.file else 'not watched'}: {part}" for part in self.unexercised]
        return "\n".join(textwrap.fill(line, 110, subsequent_indent="  ", break_on_hyphens=False) for line in lines)

    @property
    def headline(self) -> str:
        if self.claim is not None:
            title = CATALOGUE[self.claim].title if self.claim in CATALOGUE else self.claim
            if self.passed:
                return f"{self.subject} is {title}, as it claims."
            known = f": {self.mistake}" if self.mistake else ""
            return f"{self.subject} claims to be {title} and is not{known}."
        if self.verdict == "unknown":
            return f"{self.subject} is neither a known method nor a known mistake: verdict unknown."
        return f"{self.subject} has " + (f"a known mistake: {self.mistake}." if self.mistake else "no known mistake.")

    __str__ = text

    def _repr_html_(self) -> str:
        from fedpoint.show.html import certificate_html

        return certificate_html(self)

    def to_dict(self) -> dict[str, Plain]:
        """Plain types, for JSON."""
        plain = asdict(self) | {"passed": self.passed}
        plain["settings"] = {n: np.asarray(v).tolist() for n, v in self.settings.items()}
        return plain


def _short(value: Setting) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(np.asarray(value).tolist()) if isinstance(value, np.ndarray) else str(value)
