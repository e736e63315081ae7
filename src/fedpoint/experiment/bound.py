"""An experiment with everything known that it leaves open: per-agent numbers, local work, the oracle, the timetable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.algorithms.personal import sharing
from fedpoint.attack import Attack
from fedpoint.channel import Channel
from fedpoint.channel.base import ChannelContext
from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.own_code import calling, whole
from fedpoint.core.types import Model
from fedpoint.core.vector import wrap
from fedpoint.gather import Gather
from fedpoint.graphs.regions import HubOfHubs
from fedpoint.graphs.topology import NO_BRANCHES, Branches, Graph, Star, Topology
from fedpoint.graphs.wiring import NOT_WIRED, Wires, wire
from fedpoint.problems.base import Problem
from fedpoint.problems.oracle import Oracle
from fedpoint.timing.base import Context, Timing
from fedpoint.timing.mail import power_of_two

if TYPE_CHECKING:
    from fedpoint.experiment.experiment import Experiment
    from fedpoint.graphs.network import Network


def method_of(experiment: Experiment) -> Algorithm:
    """The method with what is shared of a model, and with what the channel keeps."""
    start = experiment.start_model
    one = start if experiment.network is None else jax.tree.map(lambda a: a[0], start)
    method = sharing(experiment.algorithm, experiment.share, wrap(one), experiment.problem.carried)
    return bind_algorithm(experiment.channel.around(method), experiment.problem)


@dataclass(frozen=True, eq=False)
class Bound:
    """What engine, theory, planner, certificate and sites take. `for_rounds` makes timetables longer."""

    experiment: Experiment
    algorithm: Algorithm  # numbers per agent are `PerAgent`
    timing: Timing  # with what it needs of the experiment, good for `rounds` rounds
    topology: Topology
    wires: Wires  # of a network: traced
    start: Model  # checked; on a network it leads with the nodes
    branches: Branches = NO_BRANCHES  # of regions: traced
    rounds: int = 1

    @classmethod
    def of(cls, experiment: Experiment) -> Bound:
        start, algorithm = experiment.start_model, method_of(experiment)
        bound = cls(experiment, algorithm, experiment.timing, Star(personal=algorithm.personal), NOT_WIRED, start)
        return bound.for_rounds(1)

    def for_rounds(self, rounds: int) -> Bound:
        """Good for so many rounds."""
        e = self.experiment
        exchanges = 1 if e.regions is None else e.regions.rounds
        context = Context(e.problem, self.algorithm, e.network, self.exact, e.seed, e.repeats, rounds * exchanges)
        with calling(f"{type(e.timing).__name__}.bind"):
            timing = e.timing.bind(context)
        depth = whole(f"{type(timing).__name__}.depth", "how many messages of a sender are kept", timing.depth, rounds)
        if e.regions is not None:
            branches = e.regions.branches(e.problem.weights)
            nested = HubOfHubs(regions=len(branches.share), exchanges=exchanges)
            return replace(self, timing=timing, topology=nested, branches=branches, rounds=rounds)
        if e.network is None:
            topology: Topology = Star(depth if timing.late else 0, timing.rebase, self.algorithm.personal)
            return replace(self, timing=timing, topology=topology, rounds=rounds)
        if self.topology.by_node:  # wired already: only the room for messages may have to grow
            return replace(self, timing=timing, topology=self.topology.deepened(power_of_two(depth)), rounds=rounds)
        wiring, wires = wire(e.network, power_of_two(depth), timing.links_fail)
        return replace(self, timing=timing, topology=Graph(wiring), wires=wires, rounds=rounds)

    def in_step(self) -> Bound:
        """With nothing that is late: on a network all nodes work in every round, and hear what is fresh; with a fusion
        center everyone answers in every round."""
        late = (self.topology.by_node and not self.timing.in_step) or self.timing.on_clock
        return self.experiment.replace(schedule=None).bind() if late else self

    @property
    def problem(self) -> Problem:
        return self.experiment.problem

    @property
    def network(self) -> Network | None:
        return self.experiment.network

    @cached_property
    def channel(self) -> Channel:
        """With what it needs to know of weights and of who is heard."""
        p, timing = self.problem.weights, self.timing
        scale, least = timing.weight_scale(p), timing.least_heard(len(p))
        return self.experiment.channel.bind(ChannelContext(p, scale, least, self.topology.by_node))

    @property
    def gather(self) -> Gather:
        return self.experiment.gather

    @property
    def attack(self) -> Attack | None:
        return self.experiment.attack

    @property
    def merged_by(self) -> str:
        """The gather or the attack by which a hub hears something else than weighted sums; empty: it hears them."""
        if self.attack is not None:
            return type(self.attack).__name__
        return "" if self.gather.conserves else type(self.gather).__name__

    @property
    def loses_a_sum(self) -> str:
        """Why a method that conserves a sum over all agents does not here; empty: nothing is lost."""
        if self.gather.conserves or not self.algorithm.conserves_a_sum():
            return ""
        return (
            f"{self.algorithm.card.title} conserves a sum over all agents, which {type(self.gather).__name__} does "
            "not: it is biased even if nobody lies, and with noise the model drifts away"
        )

    @cached_property
    def data(self) -> Problem:
        """The problem as the agents' data are, some of which may be false."""
        return self.problem if self.attack is None else self.attack.data(self.problem)

    @property
    def claimed_weights(self) -> np.ndarray:
        """The agents' weights p as the hub is told them."""
        return self.problem.weights if self.attack is None else self.attack.claimed(self.problem.weights)

    @property
    def exact(self) -> bool:
        return self.experiment.exact or self.algorithm.full

    @cached_property
    def oracle(self) -> Oracle:
        return self.problem.prepare(self.algorithm)

    @cached_property
    def solution(self) -> Model | None:
        """What the models of a run are compared with, or None. This may read all data."""
        aim = self.algorithm.aim(self.problem, self.network)
        return self.topology.aim(self.algorithm, aim, self.problem.agents)
