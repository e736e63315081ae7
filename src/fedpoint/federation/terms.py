"""What will run on a site's data, and what leaves it? Said before consent: the arrays, their shapes and bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedpoint.algorithms.catalogue import title_of
from fedpoint.data.tables import Feature, read_own
from fedpoint.federation import preparation, wire
from fedpoint.federation.shapes import named, shapes_of
from fedpoint.federation.study import Study

OFTEN = {"columns": "once", "moments": "once", "ready": "at every start", "measure": "once, at the end"}


def _kind_of_message(kind: str, said: dict[str, Any], arrays: dict[str, Any], often: str) -> dict[str, Any]:
    """One kind of message: its words and its arrays."""
    about = {"fedpoint": "", "study": "0" * 64, "site": "", "run": "0" * 16, "kind": kind, "round": 0}
    filled = {name: np.zeros(a.shape, a.dtype) for name, a in arrays.items()}
    listed = [
        {"name": name, "shape": list(a.shape), "type": str(a.dtype), "bytes": int(a.nbytes)}
        for name, a in filled.items()
    ]
    return {
        "kind": kind,
        "often": often,
        "says": said,
        "arrays": listed,
        "bytes": len(wire.encode({**about, **said}, filled)),
    }


def terms(study: Study, data: str | Path | None = None) -> dict[str, Any]:
    """The study in plain types, and every kind of message that leaves a site. With the site's file, in its own numbers;
    categories that only other sites have may add columns."""
    table, algorithm, leaves = study.table, study.content["algorithm"], []
    rows = None
    if table is None:
        start = study.generated().start()
        leaves.append(_kind_of_message("columns", {"rows": 0}, {}, OFTEN["columns"]))
    else:
        recipe = [Feature(name) for name in table.features]
        classes: Any = None if table.model == "linear" else [0, 1]
        if data is not None:
            columns = read_own(data, table.target, table.features, table.categorical, table.missing, table.separator)
            said, arrays = preparation.columns_of(table, columns)
            rows = said["rows"]
            leaves.append(_kind_of_message("columns", said, arrays, OFTEN["columns"]))
            recipe, classes, _ = _alone(table, said, arrays)
            leaves.append(
                _kind_of_message(
                    "moments", {"count": rows}, preparation.moments_of(columns, recipe)[1], OFTEN["moments"]
                )
            )
        start = preparation.start_of(table, recipe, classes)
    shapes = shapes_of(study.experiment(study.outline(start, rows=rows or 1)).bind())
    leaves.append(_kind_of_message("ready", {}, {}, OFTEN["ready"]))
    often = f"in up to {study.rounds} rounds"
    leaves.append(_kind_of_message("work", {"weight": 0.1, "seconds": 0.1}, _shaped(shapes.code), often))
    leaves.append(_kind_of_message("measure", {"measures": {"loss": 0.1, "accuracy": 0.1}}, {}, OFTEN["measure"]))
    return {
        "study": study.name,
        "fingerprint": study.fingerprint,
        "server": study.terms.server,
        "sites": study.sites,
        "algorithm": {"title": title_of(algorithm["name"]), **algorithm},
        "problem": study.problem,
        "rounds": study.rounds,
        "rows": rows,
        "stays": sorted({"rows": None, **_shaped(shapes.kept)}),
        "leaves": leaves,
    }


def _shaped(tree: Any) -> dict[str, Any]:
    return {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in named(tree).items()}


def _alone(table: Any, said: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """The recipe as if this site were the only one; it may then have one class or category only."""
    if said["classes"] is not None and len(said["classes"]) < 2:
        other: Any = "another" if isinstance(said["classes"][0], str) else said["classes"][0] + 1
        said = {**said, "classes": [*said["classes"], other]}
    return preparation.first_recipe(table, [wire.Packet(said, arrays)])


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    algorithm = found["algorithm"]
    numbers = ", ".join(f"{k} = {v}" for k, v in algorithm.items() if k not in ("title", "name"))
    text = [
        f"Study {found['study']} ({found['fingerprint'][:12]}), {len(found['sites'])} sites, server {found['server']}",
        f"Runs here: {algorithm['title']} ({numbers}), {found['rounds']} rounds",
    ]
    problem = found["problem"]
    if problem["kind"] == "table":
        text.append(f"Reads: {problem['target']} (target), {', '.join(problem['features'])}; model: {problem['model']}")
        if found["rows"] is not None:
            text.append(f"Rows: {found['rows']}; they stay here, and so does what the method remembers")
    else:
        text.append(f"Data: generated ({problem['kind']}), for a trial")
    text.append("Leaves this site:")
    for one in found["leaves"]:
        words = _words(one["says"])
        text.append(f"  {one['kind']} ({one['often']}): {one['bytes']} bytes{words}")
        text += [f"    {a['name']}: {a['type']}{a['shape']}, {a['bytes']} bytes" for a in one["arrays"]]
    return text


def _words(said: dict[str, Any]) -> str:
    parts = [f"{key} = {value}" for key, value in said.items() if key in ("rows", "count") and value]
    for name, column in (said.get("columns") or {}).items():
        parts += [f"categories of {name}: {', '.join(column['words'])}"] if column["kind"] == "words" else []
    parts += [f"classes: {', '.join(map(str, said['classes']))}"] if said.get("classes") else []
    parts += [", ".join(said["measures"])] if "measures" in said else []
    return f"; {'; '.join(parts)}" if parts else ""


__all__ = ["lines", "terms"]
