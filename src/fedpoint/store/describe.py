"""The parts of a run in plain types, and back: algorithm, who works when, network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import fedpoint.algorithms  # noqa: F401 - completes the catalogue
from fedpoint import channel
from fedpoint.core import describe
from fedpoint.core.algorithm import CATALOGUE, Algorithm
from fedpoint.core.describe import INLINE, Unreadable, fingerprint, plain, value_of
from fedpoint.core.record import values_of
from fedpoint.timing import schedule, staleness, timed, turns
from fedpoint.timing.base import Timing
from fedpoint.timing.clock import Clock
from fedpoint.timing.participation import SCHEMES

if TYPE_CHECKING:  # it loads scipy, which runs with a fusion center can do without
    from fedpoint.graphs.network import Network

TIMING: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *SCHEMES.values(),
        schedule.Synchronous,
        schedule.RandomActivation,
        schedule.PartiallyAsynchronous,
        schedule.TotallyAsynchronous,
        schedule.WorstCase,
        turns.InStep,
        turns.OwnPace,
        turns.Replay,
        timed.Waiting,
        timed.Arrivals,
        Clock,
        staleness.Constant,
        staleness.Hinge,
        staleness.Polynomial,
    )
}


CHANNEL: dict[str, type] = {cls.__name__: cls for cls in (channel.HalfPrecision, channel.Median)}


def describe_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """The table of an algorithm; `rebuild_algorithm` reads it back, unless it holds what is only named."""
    cls = type(algorithm)
    own = CATALOGUE.get(cls.card.name)
    name = cls.card.name if own is not None and own.cls is cls else f"{cls.__module__}.{cls.__qualname__}"
    fields = dataclasses.fields(algorithm)
    values = values_of(algorithm)
    texts = {f.name: _part(values[f.name], f.metadata.get("per_agent", False)) for f in fields}
    return {"name": name, **{key: text for key, text in texts.items() if text is not None}}


def _part(value: Any, per_agent: bool) -> Any:
    """A field of an algorithm; a method within a method is a table of its own."""
    return describe_algorithm(value) if isinstance(value, Algorithm) else plain(value, per_agent)


def rebuild_algorithm(table: Mapping[str, Any]) -> Algorithm:
    """The algorithm that a folder describes; `Unreadable` where it only names it."""
    card = CATALOGUE.get(table["name"])
    if card is None or card.cls is None:
        raise Unreadable(f"the algorithm {table['name']} is not in the catalogue")
    values = {
        key: rebuild_algorithm(text) if isinstance(text, Mapping) and "name" in text else value_of(text)
        for key, text in table.items()
        if key != "name"
    }
    return describe.construct(card.cls, values)


def rebuild_channel(table: Mapping[str, Any] | None) -> Any:
    """The channel or gather that a folder describes, None for none; `Unreadable` where it only names it."""
    return None if table is None else describe.rebuild(table, CHANNEL)


def describe_timing(scheme: Timing) -> dict[str, Any]:
    """What a folder states of who works when: enough to tell it from another, not always to build it."""
    if isinstance(scheme, turns.Replay):
        return {"class": "Replay", "events": [[t, str(n), m or "", a] for t, n, m, a in scheme.events]}
    return describe.describe(scheme)


def rebuild_timing(table: Mapping[str, Any]) -> Timing:
    """The participation or schedule that a folder describes; `Unreadable` where it only names it."""
    if table["class"] not in TIMING:
        raise Unreadable(f"the participation {table['class']} is not one of fedpoint's")
    if table["class"] == "Replay":
        return turns.Replay(tuple((*event[:2], event[2] or None, event[3]) for event in table["events"]))
    return describe.rebuild(table, TIMING)


def describe_network(network: Network) -> dict[str, Any]:
    """What a folder states of a network: all of a small one, of a large one its fingerprint."""
    size = {"class": "Network", "nodes": network.nodes}
    if network.nodes + 3 * len(network.edges) > INLINE:
        arrays = {"edges": network.edges, "weights": network.weights, "names": np.array(network.names, dtype="S")}
        return {**size, "edge_count": len(network.edges), "sha256": fingerprint(arrays)}
    weights = network.weights.tolist()
    return {**size, "names": network.names, "edges": network.edges.tolist(), "weights": weights}


def rebuild_network(table: Mapping[str, Any]) -> Network:
    """The network that a folder describes; `Unreadable` where it is only named."""
    from fedpoint.graphs.network import Network

    if "edges" not in table:
        raise Unreadable(f"a network of {table.get('nodes')} nodes is not stored in the folder")
    return Network(table["edges"], table["weights"], table["names"])
