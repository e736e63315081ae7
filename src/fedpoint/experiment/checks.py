"""What is refused before a run begins, each with one clear message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.attack import Attack
from fedpoint.channel import Channel
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model
from fedpoint.gather import Gather
from fedpoint.problems.base import Problem
from fedpoint.problems.models import arrays_of, check_one, shapes_of
from fedpoint.timing.base import Timing
from fedpoint.timing.participation import as_participation
from fedpoint.timing.schedule import Schedule, Synchronous
from fedpoint.timing.schemes import Participation

if TYPE_CHECKING:  # it loads scipy, which runs with a fusion center can do without
    from fedpoint.experiment.experiment import Experiment
    from fedpoint.graphs.network import Network
    from fedpoint.graphs.regions import Regions


ALL_IN_RECORDS = (
    "every record holds all of them: leave out memories=, and if they do not fit, give fewer agents or a larger "
    "record_every="
)


def check_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise FedpointError(f"seed must be a whole number, got {seed!r}")
    return int(seed)


def check_memories(e: Experiment) -> None:
    """Refuse memories on disk where everybody's are needed in a round, or in a record."""
    if e.memories not in ("memory", "disk"):
        raise FedpointError(f'memories must be "memory" or "disk", got {e.memories!r}')
    if e.memories == "memory":
        return
    why = ""
    if e.timing.on_network:
        why = f"on a network a model is what its node remembers, and {ALL_IN_RECORDS}"
    elif not e.timing.drawn or e.timing.everyone:
        why = "everyone works in every round: give participation=, such as 10"
    elif e.share is not None or e.algorithm.personal:
        why = f"agents have models of their own, and {ALL_IN_RECORDS}, or share the whole model"
    elif e.metrics:
        why = "metrics= read what all agents remember: leave them out"
    elif e.repeats > 1:
        why = "every repeat has participants of its own: run them one after the other, with other seeds"
    if why:
        raise FedpointError(f'memories="disk" does not fit this experiment: {why}')


def check_network(network: Network | None, names: list[str]) -> Network | None:
    """The network with its nodes in the agents' order, or None."""
    if network is None:
        return None
    from fedpoint.graphs.network import as_network  # with scipy: only where there is one

    return as_network(network).aligned(names)


def check_timing(
    participation: Participation | int | str | None, schedule: Schedule | Participation | None, on_network: bool
) -> Timing:
    """Who takes part, and when: a schedule for networks, a participation or a timed schedule with a fusion center."""
    if on_network:
        if participation is not None:
            raise FedpointError("on a network nodes take turns by schedule=, not by participation=")
        schedule = Synchronous() if schedule is None else schedule
        if not isinstance(schedule, Schedule):
            raise FedpointError(f"schedule must be one for networks, such as fp.Synchronous(); got {schedule!r}")
        return schedule
    if schedule is None or isinstance(schedule, Synchronous):
        return as_participation(participation)
    if participation is not None:
        raise FedpointError("give participation= or schedule=: a schedule says who takes part")
    if isinstance(schedule, Schedule):
        raise FedpointError(f"{type(schedule).__name__} is a schedule for networks: give network= too")
    return as_participation(schedule)


def check_place(algorithm: Algorithm, network: Network | None) -> None:
    """Refuse a method for networks without one, and a method that needs a fusion center on a network."""
    title = algorithm.card.title
    if network is None:
        if algorithm.at_agents:
            raise FedpointError(f"{title} runs on a network: give network=, for instance fp.Network.ring(10)")
        return
    if network.one_way and not algorithm.directed:
        raise FedpointError(
            f"{title} needs a network whose edges go both ways, and this one is directed: use PushSum, or "
            "fp.Network(edges) if neighbours hear each other"
        )
    if algorithm.at_agents and not algorithm.mixes:
        return
    if not (algorithm.mixes or algorithm.sends_changes()):
        raise FedpointError(
            f"{title} needs a fusion center: on a network run Diffusion, ExactDiffusion, GradientTracking, FedGD, "
            "FedSGD, FedRelax, FedAvg or FedProx"
        )
    if algorithm.mixes and not network.connected:
        raise FedpointError(
            f"{title} looks for one model over the whole network, and {network.caution()}. Join them by an edge, or "
            "run each by itself"
        )
    if network.degrees.max(initial=0.0) > 1 + 1e-12:
        node = network.names[int(network.degrees.argmax())]
        raise FedpointError(
            f"{title} on a network averages with the weights of the edges, which must sum to at most 1 at every "
            f"node; at {node} they sum to {network.degrees.max():.3g}: use network.mixing()"
        )


def check_valid(algorithm: Algorithm, timing: Timing) -> None:
    """Refuse a participation under which the method is not valid, with the reason."""
    reason = algorithm.invalid_under(timing)
    if reason:
        raise FedpointError(reason)


def check_links(e: Experiment) -> None:
    """Refuse what does not go together with links that fail."""
    if not e.timing.links_fail:
        return
    said, title = type(e.timing).__name__, e.algorithm.card.title
    if e.algorithm.coupled:
        raise FedpointError(
            f"{title} cannot run with {said}: a link that fails takes its pull with it, so that the models would "
            "settle at GTVMin's solution for (1 - loss) times the coupling. Take that coupling, and no schedule="
        )
    if not e.channel.lossless:
        raise FedpointError(
            f"{said}: on a network {type(e.channel).__name__} sends differences to what neighbours know, and each of "
            "them would know something else. Leave out channel= or schedule="
        )
    if not e.gather.conserves:
        raise FedpointError(
            f"{said}: a node takes its own message for one that did not come, which {type(e.gather).__name__} would "
            "count like a neighbour's. Leave out gather= or schedule="
        )


def check_survey(algorithm: Algorithm, channel: Channel, timing: Timing) -> None:
    """Refuse what knows of one exchange a round only, around a method that has more."""
    if algorithm.survey() is None:
        return
    said = f"{algorithm.innermost().card.title} asks agents {times_asked(algorithm)} in a round"
    if timing.late:
        raise FedpointError(f"{said}, and with {', '.join(timing.names())} answers come later: use Scaffold")
    if not channel.lossless or channel.noises():
        raise FedpointError(f"{said}, and a lossy channel is for one message of each: use Scaffold")


def times_asked(algorithm: Algorithm) -> str:
    """How often agents are asked in a round, in words."""
    count = sum(times for _, times in algorithm.exchanges())
    return "twice" if count == 2 else f"{count} times"


def check_regions(regions: Regions, e: Experiment) -> None:
    """Refuse regions that do not fit the agents, and what knows of one hub only."""
    if e.network is not None:
        raise FedpointError("regions= are hubs below a fusion center, and a network has none: give one of the two")
    if e.share is not None or e.algorithm.personal:
        raise FedpointError("regions=: agents with models of their own have one hub: leave out regions= or share=")
    regions.labels(e.problem.agents)
    if not e.algorithm.merges:
        raise FedpointError(
            f"{e.algorithm.card.title} cannot run with regions=: the hubs of regions are averaged, which fits methods "
            "whose hub only adds what it hears. Use FedAvg, FedProx, GradientExchange, Scaffold or FedDyn"
        )
    if e.timing.on_clock or e.timing.late:
        raise FedpointError(f"regions= go by rounds, and {e.timing.names()[0]} by a clock: use participation=")
    if not e.gather.conserves or e.attack is not None:
        named = type(e.attack or e.gather).__name__
        raise FedpointError(f"regions=: {named} knows of one hub, and regions have one each: leave one of the two out")
    adapting = [type(stage).__name__ for stage in e.channel.stages() if stage.adapts]
    if e.channel.noises() or adapting:
        raise FedpointError(
            "regions=: how well noise hides an agent is known for one hub, and regions have one each: leave out "
            "regions= or the channel"
        )


def check_attack(attack: Attack | None, problem: Problem) -> None:
    """Refuse liars that do not exist, and more of them than honest agents can be told from."""
    if attack is None:
        return
    missing = [agent for agent in attack.agents if agent >= problem.agents]
    if missing:
        raise FedpointError(
            f"{type(attack).__name__}: there is no agent {missing[0]}; the {problem.agents} agents are numbered from 0 "
            f"to {problem.agents - 1}"
        )
    if len(attack.agents) == problem.agents:
        raise FedpointError(f"{type(attack).__name__}: all {problem.agents} agents lie: leave one honest")
    attack.data(problem)  # refuses a problem without labels


def check_heard(gather: Gather, timing: Timing, agents: int, network: Network | None, algorithm: Algorithm) -> None:
    """Refuse a robust mean of more messages than a round can bring, or than a node of a network hears."""
    if network is None:
        reason, where = gather.too_few(min(timing.slots(agents), agents)), ""
    else:  # of changes a node's own is one more
        count = np.diff(network.arcs.first)
        least = int(count.argmin())
        reason, where = gather.too_few(int(count[least]) + (not algorithm.at_agents)), f"node {network.names[least]}: "
    if reason:
        raise FedpointError(where + reason)


def check_start(problem: Problem, start: Model | None, nodes: int | None = None) -> Model:
    """The start, checked against the problem's own. With `nodes` it leads with them; one for all is copied."""
    own = problem.start()
    if nodes is None:
        return own if start is None else fitting("start", own, problem.learnt(start))

    def spread(model: Model) -> Model:
        return jax.tree.map(lambda a: np.broadcast_to(a, (nodes, *np.shape(a))).copy(), model)

    if start is None:
        return spread(own)
    start = arrays_of("start", own, problem.learnt(start))
    if shapes_of(start) == shapes_of(own):
        return spread(fitting("start", own, start))
    return fitting("start", spread(own), start)


def fitting(name: str, own: Model, model: Model) -> Model:
    """A model that fits the problem's own, in its precision."""
    given, like = jax.tree.leaves(check_one(name, own, model)), jax.tree.leaves(own)
    if not all(np.isfinite(a).all() for a in given):
        raise FedpointError(f"{name} holds NaN or inf")
    dtypes = [np.asarray(b).dtype for b in like]
    leaves = [np.asarray(a, d) for a, d in zip(given, dtypes, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(own), leaves)
