"""Is a method around another what it says? Its rounds are made of those of methods that run by themselves.

So two things are examined: the method inside, by the battery; and whether what is read is made of its rounds, with
everyone, with some, and with noise, where all of them meet the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedpoint.channel import Channel
from fedpoint.core.algorithm import Algorithm, Composition
from fedpoint.core.numbers import counted
from fedpoint.core.wrapped import Wrapped
from fedpoint.gather import Gather
from fedpoint.results.certificate import Certificate, Finding
from fedpoint.verbs.certify import battery
from fedpoint.verbs.certify.battery import LONG, SAME, SHORT
from fedpoint.verbs.certify.methods import Settings
from fedpoint.verbs.certify.samples import noise_of
from fedpoint.verbs.certify.subjects import ObjectSubject, prepare_object
from fedpoint.verbs.certify.world import Play, World


def prepare_wrapper(
    algorithm: Algorithm, given: Settings, seed: int, channel: Channel, gather: Gather
) -> tuple[Algorithm, World]:
    """At any depth: the innermost method has the settings."""
    if isinstance(algorithm, Wrapped) and algorithm.composition() is not None:
        inner, world = prepare_wrapper(algorithm.inner, given, seed, channel, gather)
        return algorithm.replace(inner=inner), world
    subject, _, world = prepare_object(algorithm, given, seed, channel, gather)
    return subject.algorithm, world


class Composed:
    """A wrapper beside what is to be read of the methods that it is made of."""

    def __init__(self, algorithm: Algorithm, made_of: Composition, world: World, channel: Channel, gather: Gather):
        self.world, self.made_of = world, made_of
        self.whole = ObjectSubject(algorithm, channel, gather)
        self.parts = [ObjectSubject(method, channel, gather) for method in made_of.methods]
        self.inner = made_of.methods[0].card.title

    def findings(self, seed: int) -> list[Finding]:
        seen, parts = self.whole.everyone(self.world, LONG), [p.everyone(self.world, LONG) for p in self.parts]
        found = [self._rounds("rounds, everyone", seen, parts)]
        few = [subject.some(self.world, SHORT) for subject in (self.whole, *self.parts)]
        plays = [play for play in few if play is not None]
        if len(plays) == len(few):
            found.append(self._rounds("rounds, some", plays[0], plays[1:]))
        noise = noise_of(self.world)
        noisy = [s.noisy_rounds(self.world, noise, SHORT, seed) for s in (self.whole, *self.parts)]
        found.append(self._rounds("samples", noisy[0], noisy[1:], " on the same samples"))
        return [*found, self._limit(seen, parts)]

    def _rounds(self, test: str, seen: Play, parts: Sequence[Play], more: str = "") -> Finding:
        n = min(len(play.models) for play in parts)
        expected = parts[0]._replace(models=self.made_of.read(*(play.models[:n] for play in parts)))
        apart = battery.deviation(seen, expected)
        ok, made = apart <= SAME, f"{self.made_of.words} of {self.inner}{more}"
        if not ok:
            made = f"not {made} from round {battery.first_difference(seen, expected)} on: up to {apart:.2g} apart"
        return Finding(test, ok, apart, f"at most {SAME:g}", made)

    def _limit(self, seen: Play, parts: Sequence[Play]) -> Finding:
        """It settles where all of its parts do, and diverges where one does."""
        w = self.world.optimum()
        if seen.diverged or any(play.diverged for play in parts):
            ok = seen.diverged == any(play.diverged for play in parts)
            words = "diverges, as it does by itself" if ok else "only one of it and what it is made of diverges"
            return Finding("limit", ok, None, "finite where its parts are", words)
        away, inside = (float(np.linalg.norm(play.last - w)) for play in (seen, parts[0]))
        settled = all(play.settled for play in parts)
        words = f"{away:.2g} from w* after {counted(LONG, 'round')}, {self.inner} by itself {inside:.2g}"
        if not settled:
            words += ", which has not settled"
        return Finding("limit", True if settled else None, away, "settles where its parts do", words)


def certify_composed(composed: Composed, claim: str, inner: Certificate, seed: int) -> Certificate:
    """The certificate of a wrapper, given that of the method inside."""
    findings = composed.findings(seed)
    wrong = [f"{f.test}: {f.reason}" for f in findings if f.ok is False]
    reason = "; ".join(wrong)
    if not inner.passed:
        reason = "; ".join([f"inside: {inner.reason}", *wrong])
    title = composed.whole.algorithm.card.title
    return Certificate(
        subject=composed.whole.name,
        claim=None if not wrong and (inner.mistake or inner.verdict == "unknown") else claim,  # it is the inner one's
        behaves_like=claim if not wrong else "unknown",
        title=f"{title} around {inner.title}" if not wrong else f"nothing known, around {inner.title}",
        verdict="convicted" if wrong else inner.verdict,
        mistake=inner.mistake,
        reason=reason,
        findings=[*findings, *(replace(f, test=f"inside, {f.test}") for f in inner.findings)],
        seed=seed,
        settings=inner.settings,
        unexercised=composed.whole.unexercised(composed.world, noise_of(composed.world)),
    )
