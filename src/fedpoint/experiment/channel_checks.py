"""Which channels do not go together, or not with this experiment? Each is refused with the reason and a way out."""

from __future__ import annotations

import numpy as np

from fedpoint.channel import Channel, Gaussian
from fedpoint.channel.base import Clips
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.gather import Gather
from fedpoint.problems.base import Problem
from fedpoint.timing.base import Timing

EXAMPLE = "channel=[fp.channel.Clip(1.0), fp.channel.Gaussian(multiplier=...)]"


def check_channel(channel: Channel, gather: Gather, algorithm: Algorithm, timing: Timing, problem: Problem) -> None:
    """Refuse an order of channels that does not do what it seems to, and private channels that would not be."""
    stages = channel.stages()
    _check_memories(stages)
    _check_order(stages)
    noises = [stage for stage in stages if isinstance(stage, Gaussian)]
    if channel.gain() >= 2 and algorithm.conserves_a_sum() and not timing.on_network:
        long = ", ".join(type(stage).__name__ for stage in stages if stage.gain() > 1)
        raise FedpointError(
            f"{algorithm.card.title} remembers what arrived, and {long} makes that {channel.gain():.3g} times as long: "
            "with 2 or more its memories grow without bound. Let more than half arrive, or take TopK, which keeps what "
            "it holds back, or FedAvg"
        )
    if algorithm.divides():
        _check_scales(stages, algorithm)
    if noises:
        _check_weights(timing, problem)
    if len(channel.noise_coefficients()) > 1 and timing.rounds_apart(problem.agents) is None:
        raise FedpointError(
            "correlated noise hides agents whose participations are bounded; with "
            f"{', '.join(timing.names())} they may follow each other at any distance: use Everyone, a scheme that "
            "tells rounds_apart, or fp.channel.Gaussian"
        )
    if any(noise.at == "hub" for noise in noises):
        _check_hub_noise(algorithm, timing, gather)


def _check_scales(stages: tuple[Channel, ...], algorithm: Algorithm) -> None:
    for stage in stages:
        if not stage.keeps_scales:
            raise FedpointError(
                f"{algorithm.card.title} sends a scale beside each change, and its hub divides by the sum of scales, "
                f"which {type(stage).__name__} would change: use FedAvg, whose hub only adds"
            )


def _check_memories(stages: tuple[Channel, ...]) -> None:
    """What is held back is counted in numbers of the message, not of what another channel makes of it."""
    other: Channel | None = None
    for stage in stages:
        if other is not None and stage.feeds_back:
            name = type(stage).__name__
            raise FedpointError(
                f"{name} stands after {type(other).__name__} and would hold back parts of its code: put {name} first, "
                f"or use {name}(..., feedback=False)"
            )
        other = other if stage.in_place else stage


def _check_order(stages: tuple[Channel, ...]) -> None:
    """Noise needs a clip before it, and between the two nothing that makes messages longer."""
    clip: Channel | None = None
    noise: Channel | None = None
    between: list[Channel] = []
    for i, stage in enumerate(stages):
        name = type(stage).__name__
        if isinstance(stage, Gaussian):
            if noise is not None:
                raise FedpointError(f"{name} stands twice in the channel: one noise with one multiplier is accounted")
            if clip is None:
                raise FedpointError(f"{name} needs a clip before it, which bounds what one agent can change: {EXAMPLE}")
            _check_between(clip, between, stage, stages[:i])
            noise = stage
        elif isinstance(stage, Clips):
            if noise is not None:
                raise FedpointError(
                    f"{name} stands after {type(noise).__name__}: the noise would be clipped too, and is scaled by no "
                    f"norm; clip first: {EXAMPLE}"
                )
            clip, between = stage, []
        else:
            between.append(stage)


def _check_between(clip: Channel, between: list[Channel], noise: Gaussian, before: tuple[Channel, ...]) -> None:
    for stage in before if noise.at == "agents" else ():
        if stage.reveals or not stage.embeds:
            raise FedpointError(
                f"{type(stage).__name__} stands before {type(noise).__name__} at the agents, which would cover only a "
                f"part of what is sent: put it after {type(noise).__name__}"
            )
    for stage in between:
        if not stage.shortens:
            raise FedpointError(
                f"{type(stage).__name__} stands between {type(clip).__name__} and {type(noise).__name__} and can make "
                f"a message longer than the clip allows: put it before {type(clip).__name__}"
            )
    for stage in before[: before.index(clip)]:
        if not stage.embeds:
            raise FedpointError(
                f"{type(stage).__name__} stands before {type(clip).__name__}, but what arrives is decoded after it and "
                f"may be longer than the clip allows: put it after {type(noise).__name__}"
            )


def _check_hub_noise(algorithm: Algorithm, timing: Timing, gather: Gather) -> None:
    if timing.on_network:
        raise FedpointError('a network has no hub that adds noise: use fp.channel.Gaussian(..., at="agents")')
    if not gather.conserves:
        raise FedpointError(
            f"noise at the hub is scaled by what one agent can change in a weighted sum, which {type(gather).__name__} "
            "is not: leave gather out"
        )
    if algorithm.conserves_a_sum():
        raise FedpointError(
            f"{algorithm.card.title} conserves a sum over all agents, which would walk away with noise at the hub: use "
            'fp.channel.Gaussian(..., at="agents"), whose noise the agents remember, or FedAvg'
        )


def _check_weights(timing: Timing, problem: Problem) -> None:
    """Weights must be the same whatever one agent holds, and whoever answers."""
    rows, p = problem.local_rows(), np.asarray(problem.weights)
    if rows is not None and not np.allclose(p, p[0]) and np.allclose(p, rows / rows.sum()):
        raise FedpointError(
            "agents are weighted by their numbers of rows, which are private, and change with one agent: noise then "
            "hides nobody; make the problem with weights=[1, 1, ...], or other weights that anybody may know"
        )
    if not timing.on_network and timing.weight_scale(p) is None:
        names = ", ".join(timing.names())
        raise FedpointError(
            f"with {names} an agent's weight depends on who else is heard, and noise is scaled by no fixed one: use "
            "Everyone, Uniform(count) or another scheme with weights p_k times a constant"
        )
