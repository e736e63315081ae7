"""What is a run, in plain types? A folder states it, so that a run is never continued with something else.

Data stay out of it: a problem is stated by its shapes and a fingerprint, or, for a run from a TOML file, by that file's
content, from which everything is built again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpoint.channel import Channel, WeightedSums
from fedpoint.core.describe import describe, fingerprint, plain
from fedpoint.core.errors import FedpointError
from fedpoint.engine.session import Session
from fedpoint.problems.base import Problem
from fedpoint.store.describe import describe_algorithm, describe_network, describe_timing
from fedpoint.store.records import named


def statement(session: Session) -> dict[str, Any]:
    """What the folder of a run states about it, in plain types; algorithm and participation as they were given."""
    asked = session.bound.experiment
    return {
        "seed": session.seed,
        "repeats": session.repeats,
        "record_every": session.every,
        "exact": session.exact,
        "algorithm": describe_algorithm(asked.algorithm),
        "participation": describe_timing(asked.timing),
        "network": None if session.network is None else describe_network(session.network),
        "sums": session.sums,
        "channel": None if type(asked.channel) is Channel else describe(asked.channel),
        "gather": None if type(asked.gather) is WeightedSums else describe(asked.gather),
        "metrics": {name: plain(function)["python"] for name, function in session.layout.metrics} or None,
        "problem": {
            **(session.stated or state_problem(session.problem)),
            "start_sha256": fingerprint(named("start", session.start)),
        },
    }


def state_problem(problem: Problem) -> dict[str, Any]:
    """What a folder states about a problem. This reads all its data."""
    oracle = problem.oracle
    arrays = {n: a for part in ("own", "common", "weights") for n, a in named(part, getattr(problem, part)).items()}
    return {
        "class": type(problem).__name__,
        "agents": problem.agents,
        "oracle": {f.name: plain(getattr(oracle, f.name)) for f in _fields(oracle)},
        "shapes": {name: list(np.shape(array)) for name, array in arrays.items()},
        "sha256": fingerprint(arrays),
    }


def _fields(oracle: Any) -> tuple:
    return dataclasses.fields(oracle) if dataclasses.is_dataclass(oracle) else ()


def check_same(stored: Mapping[str, Any], now: Mapping[str, Any], where: Path) -> None:
    """Refuse to continue a run with anything but what it was begun with."""
    differ = list(_differences(stored, now))
    if not differ:
        return
    shown = "; ".join(f"{key} was {_brief(then)} and is now {_brief(given)}" for key, then, given in differ[:4])
    if "problem.sha256" in [key for key, _, _ in differ]:
        shown = f"the problem has other data ({shown})"
    raise FedpointError(f"{where} holds another run: {shown}. Give what it was begun with, or start a new run.")


def _differences(stored: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*stored, *now]):
            yield from _differences(stored.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif stored != now:
        yield key, stored, now


def _brief(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 32 else text[:12] + "..."


def without_none(tree: Any) -> Any:
    """Without None, as the folder's TOML has none."""
    if isinstance(tree, Mapping):
        return {key: without_none(item) for key, item in tree.items() if item is not None}
    return [without_none(item) for item in tree] if isinstance(tree, list | tuple) else tree


def versions() -> dict[str, str]:
    import fedpoint

    return {"fedpoint": fedpoint.__version__, "jax": jax.__version__, "numpy": np.__version__}
