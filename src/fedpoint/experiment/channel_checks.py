"""Which channels do not go together, or not with this experiment? Each is refused with the reason and a way out."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from fedpoint.channel import Channel
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
    _check_adaptive(stages, timing)
    _check_memories(stages)
    _check_order(stages)
    noises = channel.noises()
    if channel.gain() >= 2 and algorithm.conserves_a_sum() and not timing.on_network:
        long = ", ".join(type(stage).__name__ for stage in stages if stage.gain() > 1)
        raise FedpointError(
            f"{algorithm.card.title} remembers what arrived, and {long} makes that {channel.gain():.3g} times as long: "
            "with 2 or more its memories grow without bound. Let more than half arrive, or take TopK, which keeps what "
            "it holds back, or FedAvg"
        )
    if not channel.lossless and timing.on_network and algorithm.conserves_a_sum():
        lossy = next(type(stage).__name__ for stage in stages if not stage.lossless)
        raise FedpointError(
            f"{algorithm.card.title} corrects its models by sums over all nodes, which no longer cancel where {lossy} "
            "changes what neighbours hear: the models would drift away. Leave the channel out, or use Diffusion"
        )
    if algorithm.divides():
        _check_scales(stages, algorithm)
    if noises:
        _check_weights(timing, problem)
    if len(channel.noise_coefficients()) > 1 and timing.rounds_apart(problem.agents) is None:
        raise FedpointError(
            "correlated noise hides an agent only if its participations are bounded; with "
            f"{', '.join(timing.names())} it may be drawn again after any number of rounds: use Everyone, a scheme "
            "that defines rounds_apart, or fp.channel.Gaussian"
        )
    if any(noise.at == "hub" for noise in noises):
        _check_hub_noise(algorithm, timing, gather)


def _check_adaptive(stages: tuple[Channel, ...], timing: Timing) -> None:
    """A norm that is kept at the hub belongs to whole messages, and to the round in which they were sent."""
    for i, stage in enumerate(stages):
        name = type(stage).__name__
        if not stage.adapts:
            continue
        if i > 0:
            raise FedpointError(f"{name} measures messages as they are: put it first in the channel")
        if timing.on_network:
            raise FedpointError(f"{name} needs a hub that keeps the norm, which a network lacks: use fp.channel.Clip")
        if timing.late:
            raise FedpointError(
                f"{name} needs answers in the round in which the norm was told; with {', '.join(timing.names())} they "
                "come later: use fp.channel.Clip"
            )


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
    """One noise, with a clip before it: what stands around them may neither undo the clip nor bypass the noise."""
    noisy = [i for i, stage in enumerate(stages) if _adds_noise(stage)]
    clips = [i for i, stage in enumerate(stages) if isinstance(stage, Clips)]
    if not noisy:
        return
    noise = noisy[0]
    name = type(stages[noise]).__name__
    if len(noisy) > 1:
        raise FedpointError(
            f"{name} appears twice in the channel: privacy is accounted for one noise with one multiplier"
        )
    if not clips or clips[0] > noise:
        behind = " Now it stands behind the noise, which would be clipped too." if clips else ""
        raise FedpointError(
            f"{name} needs a clip before it, which bounds what one agent can change: {EXAMPLE}.{behind}"
        )
    if clips[-1] > noise:
        raise FedpointError(
            f"{type(stages[clips[-1]]).__name__} stands after {name}: the noise would be clipped too, and is scaled by "
            f"no norm; clip first: {EXAMPLE}"
        )
    at_agents = stages[noise].noises()[0].at == "agents"
    if at_agents:
        _check_covered(stages[:noise], name)
    _check_decoded(stages[: clips[-1]], stages[clips[-1]])
    met = stages[clips[-1] + 1 : noise] if at_agents else stages[clips[-1] + 1 :]
    _check_bounded(stages[: clips[-1]], stages[clips[-1]], [stage for stage in met if not _adds_noise(stage)])


def _adds_noise(stage: Channel) -> bool:
    return bool(stage.noises()) and not isinstance(stage, Clips)


def _check_covered(before: tuple[Channel, ...], noise: str) -> None:
    """Agents add noise to what they send, and not to which numbers they send."""
    for stage in before:
        if stage.reveals or not stage.embeds:
            raise FedpointError(
                f"{type(stage).__name__} stands before {noise} at the agents, which would cover only a part of what is "
                f"sent: put it after {noise}"
            )


def _check_decoded(before: tuple[Channel, ...], clip: Channel) -> None:
    """What arrives is decoded from what was clipped: that may not make it longer."""
    for stage in before:
        if not stage.embeds:
            name = type(clip).__name__
            raise FedpointError(
                f"{type(stage).__name__} stands before {name}, but what arrives is decoded after it and may be longer "
                f"than the clip allows: put it after {name}"
            )


def _check_bounded(before: tuple[Channel, ...], clip: Channel, behind: list[Channel]) -> None:
    """Noise is scaled by how long a message may become behind the clip: that needs a bound."""
    packed = not all(stage.in_place or stage.lossless for stage in before)
    one, first = jnp.zeros(1), type(clip).__name__
    assert isinstance(clip, Clips)
    number = float(clip.longest(one))  # the largest that there may be in a message
    for stage in behind:
        name = type(stage).__name__
        if number > stage.largest_number() * (1 + 1e-6):
            raise FedpointError(
                f"{name} carries numbers up to {stage.largest_number():g}, and one behind {first} may be as large as "
                f"{number:.4g}: an overflow would reveal something about its agent through any noise; widen its range"
            )
        after = stage.longest_after(number, one)
        long = after is None
        number = max(number if after is None else float(after), number * stage.gain())
        if long or (packed and stage.gain() > 1 and not stage.in_place):
            way = f"put it before {first}" if stage.embeds else "leave it out"
            other = f", or use {name}(..., feedback=False)" if stage.feeds_back else ""
            raise FedpointError(
                f"{name} stands behind {first}, and nothing bounds the norm of the message that it returns: noise "
                f"hides nobody; {way}{other}"
            )
        packed = packed or not (stage.in_place or stage.lossless)


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
            f"{algorithm.card.title} conserves a sum over all agents, which would drift away with noise at the hub: "
            "use "
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
            f"with {names} an agent's weight depends on who else is heard, so no fixed weight sets the scale "
            "of the noise: use Everyone, Uniform(count) or another scheme with weights p_k times a constant"
        )
