"""Is it what a run writes? What a folder says of itself is checked before anything is made of it.

Hashes find what was damaged; this finds what was written by others: no message of such a folder is a traceback.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from fedpoint.core.errors import FedpointError
from fedpoint.store.disk import Table

Count = Annotated[int, Field(strict=True, ge=1, lt=2**53)]
Natural = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Number = Annotated[float, Field(strict=True)]


class _Stated(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Method(_Stated):
    name: StrictStr


class _Problem(_Stated):
    agents: Count


class _Config(_Stated):
    """config.toml of a run."""

    rounds: Natural
    seed: StrictInt
    repeats: Count
    record_every: Count
    exact: StrictBool
    algorithm: _Method
    problem: _Problem
    participation: Table | None = None
    schedule: Table | None = None
    network: Table | None = None
    metrics: Table | None = None
    experiment: Table | None = None


class _Message(_Stated):
    down: Number
    up: Number
    width: Number
    up_bytes: Number | None = None
    hub: Number | None = None


class _Leaf(_Stated):
    name: StrictStr
    path: list[StrictInt | StrictStr]


class _Measures(_Stated):
    errors: StrictBool
    losses_every: Count | None


class _Meta(_Stated):
    """meta in run.json."""

    engine: StrictStr
    message: _Message
    model: Annotated[list[_Leaf], Field(min_length=1)]
    use: Table
    weights: list[Number] | None = None
    has_loss: StrictBool | None = None
    measures: _Measures | None = None


class _Summary(_Stated):
    """summary.json."""

    rounds: Natural
    rounds_per_second: Number
    privacy: StrictStr = ""
    final: dict[str, list[Number]] = {}
    evaluated_rounds: list[Natural] = []
    evaluation: dict[str, list[list[Number]]] = {}
    best_rounds: list[Natural] = []
    held_out: dict[str, list[list[Number | None]] | list[StrictStr]] = {}


class _Feature(BaseModel):
    model_config = ConfigDict(extra="forbid")

    column: StrictStr
    mean: Number = 0.0
    scale: Number = 1.0
    categories: list[StrictStr] | list[StrictBool] | list[Number] | None = None
    fill: Number | StrictStr | None = None
    dates: Literal["iso", "iso with zone", "day first", "month first"] | None = None
    every: StrictBool = False


class _Use(_Stated):
    """The manifest of a model: how rows become predictions."""

    problem: StrictStr
    predicts: Literal["number", "class"] | None
    classes: list[StrictBool | StrictInt | Number | StrictStr] | None
    intercept: StrictBool
    features: Natural | None
    columns: list[_Feature] = []
    layers: Natural = 0
    link: StrictStr | None = None
    agents: list[StrictStr] = []


class _Hashes(_Stated):
    """Of what a summary is about."""

    checkpoint: StrictStr
    model: StrictStr


class _Ending(_Stated):
    """summary.json, as far as it says what it is about."""

    ends: _Hashes


class _File(_Stated):
    file: Annotated[str, Field(strict=True, pattern=r"^[0-9]{12}-[0-9]{12}\.npz$")]
    sha256: StrictStr
    nbytes: Natural


class _Body(_Stated):
    """The manifest of a checkpoint."""

    round: Natural
    run_sha256: StrictStr
    files: list[_File]
    spec: dict[str, list[StrictStr | Natural]]


def check_run(path: Path, config: Table, meta: Table, summary: Table | None) -> None:
    """Refuse what is not the statement of a run."""
    parts: list[tuple[str, type[BaseModel], Table]] = [("config.toml", _Config, config), ("run.json", _Meta, meta)]
    if summary is not None:
        parts.append(("summary.json", _Summary, summary))
    for name, kind, value in parts:
        wrong = _wrong(kind, value)
        if wrong:
            raise FedpointError(f"{path / name} is not what a run writes ({wrong}); restore it")
    paths = [tuple(leaf["path"]) for leaf in meta["model"]]
    if any(a[: len(b)] == b for i, a in enumerate(paths) for j, b in enumerate(paths) if i != j):
        raise FedpointError(f"{path / 'run.json'} is not what a run writes (model: paths repeat); restore it")


def check_model(path: Path, manifest: Table) -> None:
    """Refuse what is not the manifest of an exported model."""
    wrong = _wrong(_Use, manifest)
    if wrong:
        raise FedpointError(f"{path} is not what an export writes ({wrong}); export the model again")


def wrong_body(body: Table) -> str:
    """What is wrong with the manifest of a checkpoint; empty: nothing."""
    return _wrong(_Body, body)


def wrong_ending(content: Table) -> str:
    """What is wrong with what a summary says it is about; empty: nothing."""
    return _wrong(_Ending, content)


def _wrong(kind: type[BaseModel], value: Table) -> str:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
    return ""


def check_records(
    path: Path,
    config: Table,
    names: list[str],
    round: int,
    records: dict[str, np.ndarray],
    state: dict[str, np.ndarray],
) -> None:
    """Refuse arrays that are not the records and the state of this run at this round."""
    at, repeats = records.get("round", np.zeros(())), config["repeats"]
    wrong = []
    if at.ndim != 1 or not len(at) or at.dtype.kind not in "iu" or (np.diff(at) <= 0).any():
        wrong.append("round")
    like: dict[str, tuple[int, ...] | None] = {**dict.fromkeys(names), "used": (3,)}
    like |= {name: () for name in ("error", "loss") if name in records}
    like |= dict.fromkeys(name for name in records if name.startswith(("metric.", "evaluation.")))
    for name, shape in like.items():
        array = records.get(name, np.zeros(0))
        own = array.shape[2:] if shape is None else shape
        if array.shape != (at.size, repeats, *own) or array.dtype.kind not in "biuf":
            wrong.append(name)
        elif round % config["record_every"]:
            last = state.get(f"last.{name}")
            if last is None or last.shape != (repeats, *array.shape[2:]) or last.dtype != array.dtype:
                wrong.append(f"last.{name}")
    if state.get("pace", np.zeros(0)).shape != (4,) or state["pace"].dtype.kind != "f":
        wrong.append("pace")
    if wrong:
        raise FedpointError(f"{path} holds arrays that are not a run's ({', '.join(wrong)}); restore it")
