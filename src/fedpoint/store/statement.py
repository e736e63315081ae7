"""What is a run, in plain types? A folder states it, so that a run is never continued with something else.

Data stay out of it: a problem is stated by its shapes and a fingerprint, or, for a run from a TOML file, by that file's
content, from which everything is built again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from fedpoint.core.describe import fingerprint, named
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Plain, Tree
from fedpoint.engine.base import Engine
from fedpoint.experiment.describe import describe_experiment


def statement(session: Engine) -> dict[str, Plain]:
    """What the folder of a run states about it: the experiment, without the data, and how the run was begun."""
    asked = session.experiment
    found = describe_experiment(asked, data=False, facts=session.stated)
    return {
        **found,
        "record_every": session.every,
        "sums": session.sums,
        "start_sha256": fingerprint(named("start", session.start)),
    }


def check_same(stored: Plain, now: Plain, where: Path) -> None:
    """Refuse to continue a run with anything but what it was begun with."""
    differ = list(_differences(stored, now))
    if not differ:
        return
    shown = "; ".join(f"{key} was {_brief(then)} and is now {_brief(given)}" for key, then, given in differ[:4])
    if "problem.sha256" in [key for key, _, _ in differ]:
        shown = f"the problem has other data ({shown})"
    raise FedpointError(f"{where} holds another run: {shown}. Give what it was begun with, or start a new run.")


def _differences(stored: Plain, now: Plain, key: str = "") -> Iterator[tuple[str, Plain, Plain]]:
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*stored, *now]):
            yield from _differences(stored.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif stored != now:
        yield key, stored, now


def _brief(value: Plain) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 32 else text[:12] + "..."


def without_none(tree: Tree) -> Tree:
    """Without None, as the folder's TOML has none."""
    if isinstance(tree, Mapping):
        return {key: without_none(item) for key, item in tree.items() if item is not None}
    return [without_none(item) for item in tree] if isinstance(tree, list | tuple) else tree


def versions() -> dict[str, str]:
    import fedpoint

    return {"fedpoint": fedpoint.__version__, "jax": jax.__version__, "numpy": np.__version__}
