"""What hides one site from the hub? Sums with masks (`secure`), and noise that sites add (`[privacy]`).

    secure = true              # the hub sees sums of at least `quorum` answers, and no answer by itself
    channel = {kind = "clip", norm = 2.0}   # sites shorten their answers to it; not with [privacy]

    [privacy]
    epsilon = 3.0              # over all rounds of all runs of this study; a site then stops by itself
    delta = 1e-5
    clip = 1.0                 # the longest message
    noise = "full"             # of each site; or "shared": all together, which needs secure = true

Nothing is gained here by asking only some sites in a round: the hub sees whom it asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from fedpoint.channel import Channel, Clip, Gaussian
from fedpoint.channel.base import ChannelContext, Clips, Noise
from fedpoint.channel.gaussian import ScaledGaussian
from fedpoint.config.kinds import Positive, Table
from fedpoint.config.mistakes import FileMistake
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.types import Message, Plain
from fedpoint.experiment import Experiment
from fedpoint.privacy import Privacy, multiplier
from fedpoint.privacy.accounting import Account
from fedpoint.timing.schemes import Everyone

if TYPE_CHECKING:  # which reads this
    from fedpoint.federation.study import Terms

DEVIATIONS = 10.0  # of the noise, for which whole numbers have room: none is beyond in 1e22 numbers
SLACK = 1e-9  # relative: an epsilon worked out twice


class PrivacyTerms(Table):
    """What a study may tell of one site, and by which means."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    clip: Positive
    noise: Literal["full", "shared"] = "full"

    def multiplier(self, rounds: int) -> float:
        """The noise of a round over the clip, with which so many rounds stay within epsilon."""
        return _multiplier(self.epsilon, self.delta, rounds)

    def spent(self, rounds: int, answers: int) -> float:
        """The epsilon of so many answers of one site, in a study of so many rounds."""
        return Account(self.multiplier(rounds), Everyone(), 2).seen(answers, self.delta) if answers else 0.0

    def allows(self, rounds: int, answers: int) -> bool:
        return self.spent(rounds, answers) <= self.epsilon * (1 + SLACK)

    def channel(self, rounds: int, heaviest: float, least: int) -> list[Channel]:
        """heaviest: the largest share of a site. least: so many answers are in a sum, or more."""
        shared = self.noise == "shared"
        noise = SiteNoise(self.multiplier(rounds), "agents", heaviest=heaviest if shared else 0.0, least=float(least))
        return [Clip(self.clip), noise]


@cache
def _multiplier(epsilon: float, delta: float, rounds: int) -> float:
    return multiplier(Privacy(epsilon=epsilon, delta=delta), None, rounds)


class SiteNoise(Gaussian):
    """Noise that each site adds: full (heaviest = 0), or so that `least` sites together add enough."""

    heaviest: float = field(kw_only=True)
    least: float = field(kw_only=True)

    def noises(self) -> tuple[Noise, ...]:
        return (Noise(self.multiplier, "agents"),)

    def bind(self, context: ChannelContext) -> Channel:
        if context.clip is None:
            raise FedpointError("SiteNoise needs a clip before it")
        scale = 1.0 if context.scale is None else float(context.scale)
        return ScaledGaussian(
            self.multiplier,
            "agents",
            clip=context.clip,
            behind=context.between,
            heaviest=self.heaviest,
            scale=scale,
            least=self.least,
        )


def longest(channel: Channel, like: Message) -> float:
    """What any number of a message is at most, over its site's share and times the largest: clipped, with noise."""
    found = 0.0
    for stage in channel.stages():
        if isinstance(stage, Clips):
            found = float(stage.longest(like))
        elif isinstance(stage, Gaussian):
            found *= 1.0 + DEVIATIONS * float(stage.multiplier)
    return found


def misfits(terms: Terms, e: Experiment, own: Mapping[str, Plain]) -> Iterator[FileMistake]:
    """What cannot be protected as a study says."""
    if terms.secure:
        yield from _insecure(terms, e, own)
    if terms.privacy is not None:
        yield from _not_private(terms, terms.privacy, e, own)


def _insecure(terms: Terms, e: Experiment, own: Mapping[str, Plain]) -> Iterator[FileMistake]:
    count, slots = len(terms.sites), e.timing.slots(len(terms.sites))
    if not e.gather.conserves:
        said = "looks at single answers, of which the hub sees none with secure = true: leave out one of them"
        yield FileMistake(("gather",), said, own["gather"])
    if terms.norm_cap is not None:
        said = 'the hub sees no single answer with secure = true: channel = {kind = "clip", norm = ...} at the sites'
        yield FileMistake(("norm_cap",), said, terms.norm_cap)
    if terms.asynchronous is not None:
        yield FileMistake(("asynchronous",), "answers are masked together with secure = true: leave out one of them")
    if e.network is not None:
        yield FileMistake(("network",), "secure sums are made at one hub: leave out network or secure")
    elif e.timing.weight_scale(np.full(count, 1 / count)) is None:
        said = "secure sums need weights that do not depend on the draw: ask everyone, or a number of sites"
        yield FileMistake(("participation",), said, own.get("participation"))
    if slots < 3:
        yield FileMistake(("secure",), f"a sum over {counted(slots, 'site')} hides nobody: ask 3 or more")
    elif 2 * (terms.quorum or slots) <= slots:
        said = f"with secure = true more than half of the {slots} sites must answer, so that no two sums are opened"
        yield FileMistake(("quorum",), said, terms.quorum)
    stages = e.channel.stages()
    if terms.privacy is None and not (len(stages) == 1 and isinstance(stages[0], Clip)):
        said = 'whole numbers need a bound, and no other channel: channel = {kind = "clip", norm = ...}, or [privacy]'
        yield FileMistake(("secure",), said)


def _not_private(terms: Terms, privacy: PrivacyTerms, e: Experiment, own: Mapping[str, Plain]) -> Iterator[FileMistake]:
    if own.get("channel") is not None:
        yield FileMistake(("channel",), "clip and noise follow from [privacy]: leave it out", own["channel"])
    if privacy.noise == "shared" and not terms.secure:
        said = "the hub would see single answers with a share of the noise: shared noise needs secure = true"
        yield FileMistake(("privacy", "noise"), said, privacy.noise)
    if e.network is not None:
        yield FileMistake(("privacy",), "on a network neighbours see single nodes: leave out one of them")
        return
    try:
        e.replace(channel=privacy.channel(terms.rounds, 1.0, len(terms.sites)))
    except FedpointError as error:
        yield FileMistake(("privacy",), str(error))


def in_words(terms: Terms, least: int) -> list[str]:
    """What protects a site, for whoever is asked to take part."""
    said, privacy = [], terms.privacy
    if terms.secure:
        said.append(
            f"the server sees sums of {least} or more sites' answers, and none by itself, unless {least} sites help it"
        )
    if privacy is not None:
        whose = "noise" if privacy.noise == "full" else f"its share of the noise that {least} sites add together"
        said.append(
            f"answers are clipped to {privacy.clip:g}, and {whose} is added: epsilon {privacy.epsilon:g} at delta "
            f"{privacy.delta:g} over all rounds and runs, of this site as a whole; then this site answers no more"
        )
    return said
