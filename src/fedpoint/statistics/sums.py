"""What do all sites' rows add up to? One round in which every site sends sums over its rows, and nothing else.

The round is the engine's own: messages go through the same channel and inbox as those of any other method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import jax
import numpy as np

from fedpoint.channel.base import Channel
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.types import Message, Model, State, Tree
from fedpoint.data.floor import Floor
from fedpoint.problems.base import Problem
from fedpoint.problems.oracle import Mine, Numbers, Oracle
from fedpoint.results.run import Run
from fedpoint.statistics.sites import Held, above_floor
from fedpoint.verbs.run import run

Sums = TypeVar("Sums")  # a tree of arrays: what a site sends
At = TypeVar("At")  # the point at which sums are taken


class Answer(NamedTuple):
    """What one site sends: its part of the total, and in a place of its own what may be known as its own."""

    sums: Numbers  # (n,)
    own: Numbers  # (m,)
    place: Numbers  # (K,): 1 at the site's own place, 0 elsewhere; (0,) where nothing is its own


@dataclass(frozen=True)
class SumsOracle(Oracle):
    """A site's field is its answer, wherever it is asked."""

    noisy = False

    def mean_field(self, mine: Mine, w: Model) -> Model:
        answer: Answer = mine.own
        return {"own": answer.place[:, None] * answer.own, "sums": answer.sums}


class SumsProblem(Problem):
    """Sites of equal weight that answer one question about their rows."""

    def __init__(self, names: list[str], sums: np.ndarray, own: np.ndarray | None):
        count = len(names)
        self.names, self.weights, self.common = names, np.full(count, 1.0 / count), ()
        place = np.zeros((count, 0)) if own is None else np.eye(count)
        self.own = Answer(sums, np.zeros((count, 0)) if own is None else own, place)
        self.oracle = SumsOracle()

    def start(self) -> Model:
        return {
            "own": np.zeros((self.own.place.shape[1], self.own.own.shape[1])),
            "sums": np.zeros_like(self.own.sums[0]),
        }

    def solution(self) -> Model:
        """Where it ends: sums may be as large as they like, and are no divergence."""
        return {"own": self.own.place.T @ self.own.own / len(self.names), "sums": self.own.sums.mean(0)}


class Collect(Algorithm):
    """Every agent sends its sums once; the hub keeps what they add up to."""

    full = True

    def init(self, w: Model) -> tuple[State, State]:
        return w, ()

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        return agent.field(heard), memory

    def combine(self, hub: State, inbox: Inbox) -> State:
        return inbox.total / inbox.mass


@dataclass(frozen=True)
class Collected(Generic[Sums]):
    """What came of one round.

    total: the sums over all sites' rows. sites: what each site lets be known as its own; empty where nothing is.
    rows: of the sites that took part. left_out: the rows of those below the floor. run: the round itself.
    """

    total: Sums
    sites: dict[str, Tree]
    rows: dict[str, int]
    left_out: dict[str, int]
    run: Run


def collect(
    statistic: Callable[[Held, At], Sums],
    sites: Mapping[str, Held],
    *,
    at: At = None,  # type: ignore[assignment]
    own: Callable[[Sums], Tree] | None = None,
    floor: Floor | None = None,
    small: str = "refuse",
    channel: Channel | None = None,
    seed: int = 0,
) -> Collected[Sums]:
    """The sums of `statistic(rows, at)` over all sites, in one round.

    Args:
        statistic: a site's sums over its rows, a tree of arrays of the same shapes at every site. It sees one site's
            rows at a time. Sums of whole numbers stay whole.
        sites: what each site holds, by name: for instance what `sites_of` returns.
        at: the point at which the sums are taken, for instance a model.
        own: what a site lets be known as its own, of its sums; by default nothing but the total is known.
        floor: no site with fewer rows answers. None: any number of rows will do.
        small: "refuse" raises an error that names the sites below the floor, "leave out" goes on without them.
        channel: what happens to the messages on their way, for instance `fp.channel.Gaussian`.
        seed: of the channel.

    >>> rows = {"a": np.array([1.0, 2.0]), "b": np.array([6.0])}
    >>> collect(lambda own, at: {"n": len(own), "sum": own.sum()}, rows).total
    {'n': 3, 'sum': 9.0}
    """
    kept, left_out = above_floor(sites, floor, small)
    answers = {name: statistic(held, at) for name, held in kept.items()}
    sums, total_of = _flat(answers)
    released, site_of = _flat({name: own(answer) for name, answer in answers.items()}) if own else (None, total_of)
    problem = SumsProblem(list(kept), sums, released)
    done = run(Collect(), problem, rounds=1, exact=True, channel=channel, seed=seed)
    heard = jax.tree.map(lambda a: np.asarray(a)[0] * len(kept), done.model)
    places = heard["own"] if own else ()
    return Collected(
        total_of(heard["sums"]),
        {name: site_of(place) for name, place in zip(kept, places, strict=False)},
        {name: len(held) for name, held in kept.items()},
        left_out,
        done,
    )


def _flat(answers: Mapping[str, Tree]) -> tuple[np.ndarray, Callable[[np.ndarray], Tree]]:
    """(K, n): all sites' answers as rows of numbers, and the way back."""
    first, layout = jax.tree.flatten(next(iter(answers.values())))
    leaves = [np.asarray(leaf) for leaf in first]
    rows = []
    for name, answer in answers.items():
        found, same = jax.tree.flatten(answer)
        if str(same) != str(layout) or [np.shape(a) for a in found] != [a.shape for a in leaves]:
            raise FedpointError(f"the sums of site {name} have other shapes than those of the first: {same}, {layout}")
        rows.append(np.concatenate([np.ravel(np.asarray(a, float)) for a in found]))

    def back(numbers: np.ndarray) -> Tree:
        parts = np.split(numbers, np.cumsum([a.size for a in leaves])[:-1])
        return jax.tree.unflatten(layout, [_like(p, a) for p, a in zip(parts, leaves, strict=True)])

    return np.stack(rows), back


def _like(part: np.ndarray, leaf: np.ndarray) -> np.ndarray | int | float:
    """A part in the shape of a leaf; whole numbers stay whole, which noise of a channel does not."""
    whole = leaf.dtype.kind in "iub"
    part = np.rint(part).astype(int) if whole else part
    return part.reshape(leaf.shape) if leaf.ndim else part[0].item()
