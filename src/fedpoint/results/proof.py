"""How bad can it get, among all agents of a class? What `fp.prove` found, and the agents of each worst case."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedpoint.core.arguments import checked_methods
from fedpoint.core.lectures import by_authors
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.experiment.experiment import Experiment


class Promise(NamedTuple):
    """A lecture's bound on the worst agents, beside what they do: both as distances, or as factors of them.

    strict: False where it leaves out terms of higher order, so that it may promise too much.
    """

    lecture: str
    name: str
    promised: float
    worst: float
    strict: bool

    @property
    def looseness(self) -> float:
        """How many times as large as the worst case it is; below one it is no bound here."""
        return self.promised / self.worst if self.worst else math.inf if self.promised else 1.0


@checked_methods
@dataclass(frozen=True, eq=False)
class Claim:
    """One worst case.

    Attributes:
        name: of the worst case.
        words: what it is.
        value: over all agents of the class; inf: there is none; None where it is not known.
        why: why it is not known.
        experiments: the worst agents, as experiments to be run for `rounds` rounds: one; two that start at different
            models for a contraction between runs; none where no agents are known that attain it.
        rounds: of these experiments.
        attained: what runs of them came to, where they were run.
        promises: the lectures' bounds on these agents.
    """

    name: str
    words: str
    value: float | None
    why: str = ""
    experiments: tuple[Experiment, ...] = ()
    rounds: int = 0
    attained: float | None = None
    promises: tuple[Promise, ...] = ()

    def said(self) -> str:
        if self.value is None:
            return "-"
        return "unbounded" if math.isinf(self.value) else f"{self.value:.4g}"

    def to_dict(self) -> dict[str, Plain]:
        finite = self.value is not None and math.isfinite(self.value)
        return {
            "value": self.value if finite else None,
            "bounded": finite if self.value is not None else None,
            "words": self.words,
            "why": self.why,
            "attained": self.attained,
            "dimension": None if not self.experiments else int(self.experiments[0].problem.start().size),
            "bounds": [{**p._asdict(), "looseness": _finite(p.looseness)} for p in self.promises],
        }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


@checked_methods
@dataclass(frozen=True, eq=False)
class Proof:
    """What `fp.prove` found: claims by name, `proof["bias"].value`.

    Attributes:
        method: who is meant, in words.
        agents: which agents are meant, in words.
        claims: the worst cases by name.
    """

    method: str
    agents: str
    claims: Mapping[str, Claim]

    def __getitem__(self, name: str) -> Claim:
        return self.claims[name]

    def text(self) -> str:
        shown = list(self.claims.values())
        rows = [["worst case", "value", ""], *([c.name, c.said(), c.why or c.words] for c in shown)]
        lines = [self.method, self.agents, "", *_columns(rows)]
        attained = [c for c in shown if c.attained is not None]
        if attained:
            lines += ["", *aligned([["run of the worst agents", "attains", "of"], *map(_attained, attained)])]
        promises = [(c, p) for c in shown for p in c.promises]
        if promises:
            heading = ["lectures' bounds on the worst agents", "of", "bound", "worst", "times"]
            lines += ["", *aligned([heading, *(_promise(c, p) for c, p in promises)], left=2)]
            if any(not p.strict for _, p in promises):
                lines.append("* leaves out terms of higher order in the step: below 1 it promises too much")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, Plain]:
        claims = {name: claim.to_dict() for name, claim in self.claims.items()}
        return {"method": self.method, "agents": self.agents, "claims": claims}


def _columns(rows: list[list[str]]) -> list[str]:
    wide = [max(len(row[i]) for row in rows) for i in range(2)]
    body = [f"{a.ljust(wide[0])}  {b.rjust(wide[1])}  {c}".rstrip() for a, b, c in rows]
    return [body[0], f"{'-' * wide[0]}  {'-' * wide[1]}", *body[1:]]


def _attained(claim: Claim) -> list[str]:
    assert claim.attained is not None and claim.value is not None
    return [claim.name, f"{claim.attained:.7g}", f"{claim.value:.7g}"]


def _promise(claim: Claim, promise: Promise) -> list[str]:
    name = f"{by_authors(promise.lecture)}, {promise.name}{'' if promise.strict else ' *'}"
    ratio = f"{promise.looseness:.3g}" if math.isfinite(promise.looseness) else "-"
    return [name, claim.name, f"{promise.promised:.4g}", f"{promise.worst:.4g}", ratio]
