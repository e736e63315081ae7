"""Does a mechanism give the privacy that it claims? It is put chosen updates, and its releases are measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpoint.channel.base import Channel
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, check_number
from fedpoint.core.kinds import Whole
from fedpoint.core.types import Tree
from fedpoint.privacy.certificate import Law, PrivacyCertificate, Probed
from fedpoint.privacy.probing import (
    FAR,
    FURTHER,
    Mechanism,
    Probe,
    Shift,
    epsilon_at_least,
    is_constant,
    law_of,
    of_channel,
    residuals,
    told_apart,
)
from fedpoint.privacy.target import Privacy

CONFIDENCE = 0.999
BARE = 1e-6  # of the largest deviation, or of the whole shift: nothing but rounding
MORE_NOISE = 1.5  # times the deviation: what a random choice of numbers to send does not explain


@checked
def certify(
    mechanism: Mechanism | Channel,
    privacy: Privacy,
    clip: float = 1.0,
    agents: Whole | None = None,
    rounds: Whole = 1,
    like: Tree = None,
    calls: Whole = 600,
    seed: int = 0,
    name: str | None = None,
) -> PrivacyCertificate:
    """Probe a mechanism by chosen updates: what does it give at least, and which mistake was made?

    A mechanism that passes is not proved private: nothing was found that contradicts its claim. Mistakes in its code
    that only some inputs bring to light are not seen.

    Args:
        mechanism: a function update -> released update; with `agents`, of a list of so many updates; or a channel, of
            which a whole round is examined. It draws its own noise.
        privacy: what it claims for `rounds` rounds together, without amplification by sampling.
        clip: the norm to which it claims to clip an update.
        agents: how many updates the mechanism takes; None: one.
        rounds: for which the claim stands.
        like: an update of the shapes that the mechanism takes; default: a vector of 24 numbers.
        calls: for every question; more calls see finer mistakes.
        seed: of the updates that are chosen.
        name: what to call the mechanism; default: its own name.

    >>> import fedpoint as fp
    >>> import numpy as np
    >>> luck = np.random.default_rng(0)
    >>> def clipped(u):
    ...     return u / max(1.0, np.linalg.norm(u))
    >>> claim = fp.Privacy(epsilon=2.0, delta=1e-5)
    >>> bool(fp.privacy.certify(lambda u: clipped(u) + 2.0 * luck.normal(size=u.shape), claim))
    True
    >>> found = fp.privacy.certify(lambda u: clipped(u) + 4.8e-5 * luck.normal(size=u.shape), claim, name="a filter")
    >>> found.mistake, found.epsilon > 1e8
    ('too little noise', True)
    """
    check_number("clip", clip, strict=True)
    for word, value, least in (("agents", agents, 2), ("rounds", rounds, 1), ("calls", calls, 100)):
        if value is not None and value < least:
            raise FedpointError(f"{word} must be at least {least}, got {value}")
    if isinstance(mechanism, Channel):
        if any(stage.adapts for stage in mechanism.stages()):
            raise FedpointError(
                "certify examines one round of a channel by itself; a clip that adapts is a part of the method: "
                "examine fp.channel.Clip with the same noise"
            )
        subject, agents = name or type(mechanism).__name__, 4 if agents is None else agents
        mechanism = of_channel(mechanism, seed)
    elif callable(mechanism):
        subject = name or (mechanism.__name__ if isinstance(mechanism, type(certify)) else type(mechanism).__name__)
    else:
        raise FedpointError(f"mechanism must be a function of updates, or a channel; got {mechanism!r}")
    probe = Probe(mechanism, np.zeros(24) if like is None else like, agents, float(clip), int(calls), seed)
    return Examination(probe, privacy, int(rounds)).certificate(subject.replace("<lambda>", "the mechanism"))


@dataclass(frozen=True, eq=False)
class Examination:
    """What was measured of a mechanism."""

    probe: Probe
    privacy: Privacy
    rounds: int

    # Releases.

    @cached_property
    def zero(self) -> np.ndarray:
        return self.probe.sample(0 * self.probe.dense)

    @cached_property
    def far(self) -> np.ndarray:
        return self.probe.sample(FAR * self.probe.clip * self.probe.dense)

    @cached_property
    def further(self) -> np.ndarray:
        return self.probe.sample(FURTHER * self.probe.clip * self.probe.dense)

    @cached_property
    def further_sparse(self) -> np.ndarray:
        return self.probe.sample(FURTHER * self.probe.clip * self.probe.sparse)

    # What they say.

    @cached_property
    def moved(self) -> Shift:
        """How far one agent moves a release, at the most that was seen."""
        shifts = [self._shift(self.further, self.probe.dense), self._shift(self.further_sparse, self.probe.sparse)]
        return max(shifts, key=lambda s: s.value)

    def _shift(self, sample: np.ndarray, direction: np.ndarray) -> Shift:
        return self.probe.shift(direction, self.zero, sample)

    @cached_property
    def fixed(self) -> bool:
        return is_constant(self.zero)

    @cached_property
    def deviations(self) -> np.ndarray:
        """(D,): of each number of a release."""
        return residuals(self.zero).std(0)

    @cached_property
    def noisy(self) -> np.ndarray:
        return self.deviations > 1e-9 * max(self.deviations.max(), 1e-300)

    @cached_property
    def deviation(self) -> float:
        return 0.0 if self.fixed else float(np.sqrt((self.deviations[self.noisy] ** 2).mean()))

    @cached_property
    def law(self) -> Law:
        return "none" if self.fixed else law_of(residuals(self.zero)[:, self.noisy])

    @cached_property
    def unclipped(self) -> bool:
        near, distant = self._shift(self.far, self.probe.dense), self._shift(self.further, self.probe.dense)
        return distant.least() > 5 * near.most() and distant.value > 0

    @cached_property
    def gain(self) -> Shift:
        """What is released of a short update, over its length."""
        length = 0.5 * self.probe.clip
        # A clip of another norm shortens some short updates too, never all.
        directions = (self.probe.dense, self.probe.sparse)
        found = max((self._shift(self.probe.sample(length * u), u) for u in directions), key=lambda s: s.value)
        return Shift(found.value / length, found.error / length)

    @cached_property
    def radius(self) -> float | None:
        """To which norm an update is clipped; None where that drowns in the noise."""
        return self.moved.value / self.gain.value if self.gain.error < 0.05 * self.gain.value else None

    @cached_property
    def wider(self) -> bool:
        """Whether an update is clipped to more than is claimed, for sure."""
        return self.moved.least() > 1.02 * self.probe.clip * self.gain.most()

    @cached_property
    def ratio(self) -> float:
        """The deviation with a very long update, over that with none."""
        if self.fixed:
            return 1.0
        there = residuals(self.further)[:, self.noisy].std(0)
        return float(np.sqrt((there**2).mean())) / self.deviation

    @cached_property
    def varies(self) -> bool:
        """Whether the amount of noise depends on the update."""
        return (self.fixed and not is_constant(self.further)) or not 1 / MORE_NOISE <= self.ratio <= MORE_NOISE

    @cached_property
    def correlation(self) -> float:
        """Between the noise of a call and of the next, in standard errors."""
        if self.fixed:
            return 0.0
        x = residuals(self.zero)[:, self.noisy] / self.deviations[self.noisy]
        return float((x[1:] * x[:-1]).mean() * math.sqrt(x[1:].size))

    @cached_property
    def repeated(self) -> int:
        """How many releases of the same input were seen before, to the last bit."""
        return 0 if self.fixed else len(self.zero) - len(np.unique(self.zero[:, self.noisy], axis=0))

    @cached_property
    def quiet(self) -> np.ndarray:
        """(D,): which numbers tell of an update without any noise."""
        away = np.abs(self.further.mean(0) - self.zero.mean(0))
        return ~self.noisy & (away > 1e-6 * max(1e-300, float(away.max())))

    @cached_property
    def bare(self) -> bool:
        """Whether an update is seen in some direction that carries no noise, although every number does."""
        x = residuals(self.zero)[:, self.noisy]
        if x.shape[1] < 2 or x.shape[1] > len(x) // 4:
            return False
        _, spread, directions = np.linalg.svd(x, full_matrices=False)
        away = (self.further.mean(0) - self.zero.mean(0))[self.noisy]
        quiet = directions[spread < BARE * spread[0]] @ away
        return bool(np.linalg.norm(quiet) > BARE * np.linalg.norm(away))

    @cached_property
    def moved_by_others(self) -> Shift | None:
        """How far one agent moves a release where the others' updates are long."""
        if self.probe.agents is None:
            return None
        luck = np.random.default_rng(self.probe.seed + 1).normal(size=(self.probe.agents - 1, self.probe.size))
        others = FAR * self.probe.clip * luck
        base = self.probe.sample(0 * self.probe.dense, others)
        there = self.probe.sample(FURTHER * self.probe.clip * self.probe.dense, others)
        return self.probe.shift(self.probe.dense, base, there)

    @cached_property
    def by_agents(self) -> tuple[float, float] | None:
        """With four times the agents: the deviation and the shift, over what they were; None where that fails."""
        n = self.probe.agents
        if n is None or self.fixed or self.moved.value <= 0:
            return None
        try:
            zero = self.probe.sample(0 * self.probe.dense, agents=4 * n)
            moved = self.probe.sample(FURTHER * self.probe.clip * self.probe.dense, agents=4 * n)
        except Exception:  # a user's code may take one number of agents only
            return None
        if zero.shape != self.zero.shape:
            return None
        shift = self.probe.shift(self.probe.dense, zero, moved)
        return float(residuals(zero)[:, self.noisy].std() / self.deviation), shift.value / self.moved.value

    @cached_property
    def noise_of_each(self) -> bool | None:
        """Whether every agent's update gets noise of its own, and hides less the more agents there are."""
        if self.by_agents is None:
            return None
        noise, shift = self.by_agents
        return noise / shift < 0.7 if shift > 0 else None

    def spends(self, rounds: int) -> float:
        """Epsilon at the claimed delta, at least."""
        shift = (
            self.moved
            if self.moved_by_others is None
            else max((self.moved, self.moved_by_others), key=lambda s: s.value)
        )
        exposed = self.fixed or self.unclipped or self.quiet.any() or self.repeated or self.bare
        if exposed and shift.least() > 0:
            return math.inf
        numbers = len(self.zero) * int(self.noisy.sum())
        known = epsilon_at_least(shift, self.deviation, numbers, self.law, self.privacy.delta, rounds)
        return max(known, told_apart(self.zero, self.further, self.privacy.delta))

    # The verdict.

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """Names of what is wrong, with the reason, the plainest first."""
        silent = self.moved.least() <= 0 and (self.moved_by_others is None or self.moved_by_others.least() <= 0)
        if silent and not self.unclipped and not self.varies:
            return  # nothing is told of an update, as far as can be seen
        yield from self._noise_mistakes()
        yield from self._clip_mistakes()
        yield from self._amounts()

    def _noise_mistakes(self) -> Iterator[tuple[str, str]]:
        if self.fixed and not is_constant(self.further):
            yield "noise depends on the data", "an update of zeros is released without noise, a long one with"
        elif self.fixed and np.ptp(self.zero[0]) > 0:
            yield "noise is reused", "every call adds the same numbers: two releases differ by the updates alone"
        elif self.fixed:
            yield "no noise", "the same update is released the same every time: clipping alone hides nobody"
        if self.repeated:
            yield "noise is reused", f"{self.repeated} of {len(self.zero)} releases of one update had been seen before"
        if self.quiet.any():
            yield (
                "a part carries no noise",
                f"{int(self.quiet.sum())} of {self.quiet.size} released numbers tell of the update without any noise",
            )
        if not self.fixed and self.bare:
            yield "one noise for several numbers", "there are directions without any noise: numbers share their draws"
        if abs(self.correlation) > 6:
            yield (
                "noise is not fresh",
                f"the noise of a call is correlated with that of the next, by {self.correlation:.1f} standard errors",
            )
        if self.law == "bounded":
            yield "noise has an end", "the noise never passes a bound, beyond which an update is seen for sure"

    def _clip_mistakes(self) -> Iterator[tuple[str, str]]:
        clip = self.probe.clip
        if self.unclipped:
            long, short = FURTHER * clip, FAR * clip
            yield (
                "no clip",
                f"an update of norm {long:g} moves the release more than five times as far as one of {short:g}",
            )
        elif self.ratio < 1 / MORE_NOISE:
            yield (
                "noise before the clip",
                f"a long update has {self.ratio:.2g} times the noise of a short one: it is clipped with the update",
            )
        if self.ratio > MORE_NOISE:
            yield "noise depends on the data", f"a long update has {self.ratio:.3g} times the noise of a short one"
        other = self.moved_by_others
        if not self.unclipped and other is not None and other.least() > 1.2 * self.moved.most():
            yield (
                "the clip depends on the others' data",
                f"an agent moves the release by {other.value:.3g} where others send long updates, else by "
                f"{self.moved.value:.3g}",
            )
        elif not self.unclipped and self.wider:
            norm = self.moved.value / self.gain.value
            yield "the clip is wider than claimed", f"updates are clipped to about {norm:.3g}, not to {clip:g}"

    def _amounts(self) -> Iterator[tuple[str, str]]:
        one, all_of_them, claim = self.spends(1), self.spends(self.rounds), self.privacy.epsilon
        if all_of_them <= claim:
            return
        said = f"noise of deviation {self.deviation:.3g} hides a change of {self.moved.value:.3g} with"
        if one <= claim:
            yield (
                "one round of many is accounted",
                f"{said} epsilon {one:.3g} or more in one round, and {all_of_them:.3g} or more in {self.rounds}",
            )
        elif self.noise_of_each:
            yield (
                "noise before the mean, and not after it",
                f"{said} epsilon {all_of_them:.3g} or more: every update has its own noise, and the mean takes it away",
            )
        else:
            yield "too little noise", f"{said} epsilon {all_of_them:.3g} or more"

    def findings(self) -> Iterator[Probed]:
        clip = self.probe.clip
        if self.unclipped:
            yield Probed("clipped", False, "the longer an update, the further it moves the release")
        elif self.radius is None:
            yield Probed(
                "clipped",
                False if self.wider else None,
                f"long updates are shortened; whether to {clip:g} drowns in the noise",
            )
        else:
            yield Probed("clipped", not self.wider, f"to {self.radius:.3g}, claimed {clip:g}")
        yield Probed("noise", self.law in ("normal", "laplace"), f"law: {self.law}, deviation {self.deviation:.4g}")
        fresh = not self.fixed and not self.repeated and abs(self.correlation) <= 6
        yield Probed(
            "fresh", fresh, "a new draw with every call" if fresh else "draws are repeated, or follow from others"
        )
        yield Probed(
            "apart from the data", not self.varies, f"a long update has {self.ratio:.3g} times the noise of none"
        )
        if self.probe.agents is not None:
            yield Probed("once or by agent", None, self._place())

    def _place(self) -> str:
        if self.by_agents is None:
            return "not known: it takes this number of agents only, or has no noise"
        noise, shift = self.by_agents
        kind = "once, after the mean or sum" if 0.7 <= noise / max(shift, 1e-300) <= 1.4 else "by agent"
        return f"{kind}: with 4 times the agents {noise:.2g} times the noise, and {shift:.2g} times one agent's shift"

    def certificate(self, subject: str) -> PrivacyCertificate:
        found = next(self.mistakes(), None)
        return PrivacyCertificate(
            subject=subject,
            claim=(float(self.privacy.epsilon), float(self.privacy.delta)),
            rounds=self.rounds,
            passed=found is None,
            mistake=None if found is None else found[0],
            reason="" if found is None else found[1],
            epsilon=self.spends(self.rounds),
            confidence=CONFIDENCE,
            law=self.law,
            noise=self.deviation,
            radius=math.inf if self.unclipped else self.moved.value,
            findings=tuple(self.findings()),
            calls=self.probe.calls,
        )
