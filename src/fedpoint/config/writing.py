"""An experiment as a TOML file, and the schema of such files."""

from __future__ import annotations

from pathlib import Path

from pydantic.json_schema import models_json_schema

from fedpoint.algorithms.catalogue import makers
from fedpoint.config import methods, networks, schedules, schemes
from fedpoint.config.experiment import ATTACKS, CHANNELS, GATHERS, Content, RegionsTable
from fedpoint.config.file import Entry, NotRebuildable
from fedpoint.config.kinds import Table
from fedpoint.config.problems import KINDS
from fedpoint.core.arguments import checked
from fedpoint.core.docstrings import meanings
from fedpoint.core.errors import FedpointError, notify
from fedpoint.core.kinds import Whole
from fedpoint.experiment.experiment import Experiment
from fedpoint.store import disk
from fedpoint.store.disk import Table as Raw


@checked
def write(path: str | Path, *experiments: Experiment | Entry, rounds: Whole = 100) -> None:
    """Write experiments into a TOML file that `read` reads.

    What several have in common is written once. What cannot be written is listed there, and warned of.

    Args:
        path: the TOML file.
        experiments: one or more, or entries of a file that was read.
        rounds: of those that are not entries of a file.
    """
    if not experiments:
        raise FedpointError("give at least one experiment to write")
    tables = [_table(e, rounds) for e in experiments]
    missing = list(dict.fromkeys(why for table in tables for why in table.get("not_rebuildable", ())))
    if missing:
        notify(f"{path} does not hold all of it: {'; '.join(map(str, missing))}", NotRebuildable)
    content: Raw = tables[0]
    if len(tables) > 1:
        content = {key: item for key, item in tables[0].items() if all(t.get(key) == item for t in tables)}
        own = [{key: item for key, item in table.items() if key not in content} for table in tables]
        content = {**content, "experiment": own}
    disk.write_bytes(Path(path), disk.to_toml(content))


def _table(e: Experiment | Entry, rounds: int) -> Raw:
    if isinstance(e, Experiment):
        return {"rounds": rounds, **e.describe()}
    stop: Raw = {} if e.stop is None else {"stop": e.stop}
    watched: Raw = {key: e.content[key] for key in ("evaluation",) if key in e.content}
    return {"name": e.name, "rounds": e.rounds, **stop, **watched, **e.experiment.describe()}


@checked
def schema() -> Raw:
    """Return the JSON schema of the files that `read` takes; editors use it to complete and check them."""
    tables: dict[str, list[type[Table]]] = {
        "problem": list(KINDS.values()),
        "algorithm": [methods.table(make) for make in makers().values()],
        "participation": list(schemes.TABLES.values()),
        "schedule": [schedules.FAMILY.table(cls) for cls in schedules.CLASSES],
        "network": [*dict.fromkeys(networks.KINDS.values()), networks.Edges, networks.NetworkFile],
        "channel": [CHANNELS.table(cls) for cls in CHANNELS.classes.values()],
        "gather": [GATHERS.table(cls) for cls in GATHERS.classes.values()],
        "attack": [ATTACKS.table(cls) for cls in ATTACKS.classes.values()],
        "regions": [RegionsTable],
    }
    every = [(table, "validation") for some in tables.values() for table in some]
    references, definitions = models_json_schema(every, ref_template="#/$defs/{model}")  # type: ignore[arg-type]
    whole, said = {**Content.model_json_schema(), **definitions}, meanings(Content)
    for key, some in tables.items():
        one = [references[table, "validation"] for table in some]
        words = [] if key in ("problem", "algorithm", "regions") else [{"type": "string"}]
        words += [{"type": "integer"}] if key == "participation" else []
        several = [{"type": "array"}] if key in ("algorithm", "participation", "schedule", "channel") else []
        whole["properties"][key] = {"description": said.get(key, ""), "anyOf": [*one, *words, *several]}
    differing = {"type": "array", "items": {"type": "object"}}
    whole["properties"]["experiment"] = {"description": said["experiment"], **differing}
    return whole
