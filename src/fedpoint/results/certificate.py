"""Which method is it, and which mistake was made in it? The certificate that `fp.certify` writes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

import numpy as np

from fedpoint.core.algorithm import CATALOGUE
from fedpoint.core.types import Plain

Setting: TypeAlias = float | str | Sequence[float] | np.ndarray | None  # a hyper-parameter, as `fp.certify` takes it


@dataclass(frozen=True)
class Finding:
    """One test: what was measured, what was expected, and what that means."""

    test: str
    ok: bool
    measured: float | None
    expected: str
    reason: str


@dataclass(frozen=True)
class Certificate:
    """What `fp.certify` found.

    subject: its name. claim: the method that it claims to be, or None.
    behaves_like: the name in the catalogue of the method whose rounds it makes; else of the point where it ends
        ("optimum", "optimum_of_equal_weights", "fedavg_point", ...), "diverges" or "unknown". title: that in words.
    passed: it is what it claims to be (without a claim: it has no known mistake and does not diverge).
    mistake: the name of a known mistake, or None. reason: why it was convicted of it, with numbers.
    settings: those with which it was compared.
    """

    subject: str
    claim: str | None
    behaves_like: str
    title: str
    passed: bool
    mistake: str | None
    reason: str
    findings: list[Finding]
    seed: int
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def text(self) -> str:
        """The certificate in plain words."""
        lines = [self._headline()]
        if self.reason:
            lines.append(f"  {self.reason}")
        lines.append(f"  behaves like: {self.title}")
        if self.settings:
            lines.append("  settings: " + ", ".join(f"{n} = {_short(v)}" for n, v in self.settings.items()))
        lines += [f"  [{'ok' if f.ok else 'NO'}] {f.test}: {f.reason}" for f in self.findings]
        return "\n".join(textwrap.fill(line, 110, subsequent_indent="  ", break_on_hyphens=False) for line in lines)

    def _headline(self) -> str:
        if self.claim is not None:
            title = CATALOGUE[self.claim].title
            if self.passed:
                return f"{self.subject} is {title}, as it claims."
            known = f": {self.mistake}" if self.mistake else ""
            return f"{self.subject} claims to be {title} and is not{known}."
        if self.mistake:
            return f"{self.subject} has a known mistake: {self.mistake}."
        return f"{self.subject} has no known mistake." if self.passed else f"{self.subject} diverges."

    __str__ = text

    def _repr_html_(self) -> str:
        from fedpoint.show.html import certificate_html

        return certificate_html(self)

    def to_dict(self) -> dict[str, Plain]:
        """Plain types, for JSON."""
        plain = asdict(self)
        plain["settings"] = {n: np.asarray(v).tolist() for n, v in self.settings.items()}
        return plain


def _short(value: Setting) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(np.asarray(value).tolist()) if isinstance(value, np.ndarray) else str(value)
