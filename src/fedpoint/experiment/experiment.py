"""What is to be run? One frozen value. Its constructor is the only place that refuses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NotRequired, Self, TypedDict, Unpack

import jax
import numpy as np

from fedpoint.attack import Attack
from fedpoint.channel import Channel
from fedpoint.channel.chain import as_channel
from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.arguments import check_kind, checked_methods, option_kinds
from fedpoint.core.errors import FedpointError, check_count
from fedpoint.core.kinds import Count, Whole, shown
from fedpoint.core.selection import Only
from fedpoint.core.types import Model, Plain, Tree
from fedpoint.experiment.bound import Bound
from fedpoint.experiment.channel_checks import check_channel
from fedpoint.experiment.checks import (
    check_attack,
    check_heard,
    check_links,
    check_memories,
    check_network,
    check_place,
    check_regions,
    check_seed,
    check_start,
    check_survey,
    check_timing,
    check_valid,
)
from fedpoint.experiment.metric import Metric
from fedpoint.experiment.rehearsal import rehearse
from fedpoint.gather import Gather, WeightedSums
from fedpoint.graphs.regions import Regions
from fedpoint.problems.any_model import AnyModel
from fedpoint.problems.base import Problem
from fedpoint.problems.checks import check_problem
from fedpoint.timing.base import Timing
from fedpoint.timing.schedule import Schedule
from fedpoint.timing.schemes import Participation

if TYPE_CHECKING:  # it loads scipy, which runs with a fusion center can do without
    from fedpoint.graphs.network import Network

HISTORY_BYTES = 1 << 28  # recorded models of a whole run, from which records are thinned


class Options(TypedDict):
    """The arguments of an experiment beside method and problem; the verbs take them too."""

    participation: NotRequired[Participation | int | str | None]
    network: NotRequired[Network | None]
    schedule: NotRequired[Schedule | Participation | None]
    regions: NotRequired[Regions | None]
    channel: NotRequired[Channel | Sequence[Channel] | None]
    gather: NotRequired[Gather | None]
    attack: NotRequired[Attack | None]
    share: NotRequired[Only | str | Sequence[str] | None]
    start: NotRequired[Model | None]
    exact: NotRequired[bool]
    seed: NotRequired[int]
    repeats: NotRequired[int]
    record_every: NotRequired[int | None]
    memories: NotRequired[str]
    metrics: NotRequired[Mapping[str, Metric]]


class Others(Options):
    """All arguments of an experiment but the problem."""

    algorithm: NotRequired[Algorithm]


class Parts(Others):
    """All arguments of an experiment."""

    problem: NotRequired[Problem | AnyModel]


@checked_methods
@dataclass(frozen=True, eq=False)
class Experiment:
    """A method on a problem, and all that decides what a run of it does.

    Args:
        algorithm: for instance `fp.FedAvg(step=0.02, local_steps=10)`.
        problem: from `fp.problems`, or your own.
        participation: None for everyone, a number L for `fp.Uniform(L)`, or a scheme.
        network: an `fp.Network`: then every agent is a node with a model of its own, and there is no fusion center.
        schedule: when nodes of a network work and how old is what they hear (`fp.PartiallyAsynchronous`, ...), or, with
            a fusion center, answers on a clock (`fp.Arrivals`, `fp.Waiting`).
        regions: `fp.Regions(3, rounds=4)`: hubs of hubs. Agents answer to the hub of their region, and these hubs are
            averaged after so many regional rounds.
        channel: what happens to a message on its way (`fp.channel`); a list: one behind the other.
        gather: how a hub makes one inbox of many messages (`fp.gather.Median`, ...); default: weighted sums.
        attack: which agents lie, and how (`fp.attack.SignFlip([3, 7])`, ...), for simulation; default: nobody.
        share: which parts of a model are shared, for instance "body" or `fp.only("body.*", own_steps=5)`; the others
            stay at their agent, so that every agent has a model of its own. Default: all.
        start: the model to start from (default: the problem's own start).
        exact: exact fields: no sampling noise. Participation stays random.
        seed, repeats: repeats are independent runs, batched.
        record_every: rounds between records; default 1, or more where all models would not fit into memory.
        memories: "disk" keeps what agents remember (SCAFFOLD's controls, error feedback) in a file, but for those who
            work in the next rounds: for models and numbers of agents whose memories do not fit. The same bits as in
            "memory", the default.
        metrics: functions of the state, by name, recorded beside the model.

    Attributes:
        timing: who works when: `participation` or `schedule`, checked.
        start_model: the model at round 0, checked.

    >>> import fedpoint as fp
    >>> e = fp.Experiment(fp.FedAvg(step=0.1), fp.problems.Quadratic(1.0, [[0.0], [2.0]]), repeats=2)
    >>> fp.run(e.replace(seed=3), rounds=5).error.shape
    (2, 6)
    """

    algorithm: Algorithm
    problem: Problem
    participation: Participation | int | str | None = None
    network: Network | None = None
    schedule: Schedule | Participation | None = None
    regions: Regions | None = None
    channel: Channel = field(default=None)  # type: ignore[assignment]
    gather: Gather = field(default=None)  # type: ignore[assignment]
    attack: Attack | None = None
    share: Only | str | Sequence[str] | None = None
    start: Model | None = None
    exact: bool = False
    seed: int = 0
    repeats: int = 1
    record_every: int | None = None
    memories: str = "memory"
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_kinds()
        if isinstance(self.problem, Problem):
            check_problem(self.problem)
        check_count("repeats", self.repeats, 1)
        if self.record_every is not None:
            check_count("record_every", self.record_every, 1)
        self._set(seed=check_seed(self.seed), network=check_network(self.network, self.problem.names))
        self._set(channel=as_channel(self.channel))
        self._set(gather=WeightedSums() if self.gather is None else self.gather)
        self._set(timing=check_timing(self.participation, self.schedule, self.network is not None))
        check_links(self)
        if isinstance(self.problem, AnyModel):
            self._check_any_model()
            return
        check_place(self.algorithm, self.network)
        check_valid(self.algorithm, self.timing)
        check_survey(bind_algorithm(self.algorithm, self.problem), self.channel, self.timing)
        self._check_gather()
        check_memories(self)
        check_attack(self.attack, self.problem)
        if self.regions is not None:
            check_regions(self.regions, self)
        check_channel(self.channel, self.gather, self.algorithm, self.timing, self.problem)
        nodes = self.problem.agents if self.timing.on_network else None
        self._set(start_model=jax.tree.map(np.asarray, check_start(self.problem, self.start, nodes)))
        rehearse(self.bind())

    timing: Timing = field(init=False, repr=False)
    start_model: Model = field(init=False, repr=False, default=None)

    def _set(self, **values: Tree) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_kinds(self) -> None:
        """Refuse what is not of the kind that it should be."""
        if not isinstance(self.algorithm, Algorithm):
            raise FedpointError(
                f"the algorithm must be an object such as fp.FedAvg(step=0.1); got {shown(self.algorithm)}"
            )
        if not isinstance(self.problem, Problem | AnyModel):
            raise FedpointError(
                f"the problem must be one of fp.problems, or your own fp.problems.Problem; got {shown(self.problem)}"
            )
        for name, kind in option_kinds(Options).items():
            check_kind(type(self).__name__, name, vars(self)[name], kind)

    def _check_gather(self) -> None:
        if self.gather.conserves:
            return
        check_heard(self.gather, self.timing, self.problem.agents, self.network, self.algorithm)

    def _check_any_model(self) -> None:
        if self.algorithm.fits_any_model is False:
            raise FedpointError(
                f"AnyModel has no fields: {self.algorithm.card.title} cannot run with models that only fit and "
                "predict; use fp.FedRelax(coupling=...)"
            )
        others = {
            "participation": self.participation,
            "start": self.start,
            "exact": self.exact or None,
            "attack": self.attack,
            "channel": None if self.channel.is_identity() else self.channel,
            "gather": None if self.gather.conserves else self.gather,
            "regions": self.regions,
        }
        for name, value in others.items():
            if value is not None:
                raise FedpointError(f"{name}= is not for models that only fit and predict: leave it out")
        if not self.timing.on_network:
            raise FedpointError("AnyModel needs a network of neighbours: give network=, such as fp.Network.ring(K)")

    def every(self, rounds: Whole, lanes: Count | None = None) -> int:
        """Rounds between records: as asked for, or so many that all of them fit into memory.

        Args:
            rounds: of the run.
            lanes: runs that are kept at once; default: the repeats.
        """
        if self.record_every is not None:
            return int(self.record_every)
        copies = self.problem.agents if self.bind().topology.personal else 1
        one = sum(a.nbytes for a in jax.tree.leaves(self.start_model)) * copies
        size = one * (lanes or self.repeats) * (rounds + 1)
        return max(1, math.ceil(size / HISTORY_BYTES))

    def bind(self) -> Bound:
        """With everything known that it leaves open."""
        return self._bound

    @cached_property
    def _bound(self) -> Bound:
        if isinstance(self.problem, AnyModel):
            raise FedpointError("models that only fit and predict have no round in arrays: run them, with fp.run")
        return Bound.of(self)

    def arguments(self) -> dict[str, Tree]:
        """As they were given, by name."""
        return {f.name: vars(self)[f.name] for f in dataclasses.fields(self) if f.init}

    def replace(self, **changes: Unpack[Parts]) -> Self:
        """The same experiment but for these arguments.

        Args:
            changes: arguments of `Experiment` that change.
        """
        return type(self)(**{**self.arguments(), **changes})

    def describe(self) -> dict[str, Plain]:
        """The experiment in plain types, for TOML or JSON: `from_dict` builds it again.

        Code is told by module and name, large data by shapes and SHA-256. What cannot be built again is listed under
        `not_rebuildable`, with the reason.
        """
        from fedpoint.experiment.describe import describe_experiment  # knows all timings

        return describe_experiment(self)

    @classmethod
    def from_dict(cls, description: Mapping[str, Plain], allow: Sequence[str] = (), **given: Unpack[Parts]) -> Self:
        """The experiment that was described.

        Args:
            description: what `describe` returned.
            allow: modules of your own whose classes and functions it may name. Importing a module runs its code, so no
                other is imported; classes of modules that are imported already are found without.
            given: parts in place of the described ones, for instance the problem where its data were not written
                down.

        >>> import fedpoint as fp
        >>> e = fp.Experiment(fp.FedAvg(step=0.1), fp.problems.Quadratic(1.0, [[0.0], [2.0]]), participation=1)
        >>> fp.Experiment.from_dict(e.describe()).participation
        Uniform(count=1, plain=False)
        """
        from fedpoint.experiment.describe import rebuild_experiment

        return rebuild_experiment(cls, description, allow, given)
