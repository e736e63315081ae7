"""A regression as a file: which table, whose rows, which model. Read strictly, all mistakes at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pandas as pd

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.types import Tree
from fedpoint.data.columns import header_of, read_columns
from fedpoint.data.floor import Floor
from fedpoint.statistics.cox import CoxFit, cox
from fedpoint.statistics.expressions import parsed
from fedpoint.statistics.glm import glm
from fedpoint.statistics.glm_fit import GLMFit
from fedpoint.statistics.sites import frame_of
from fedpoint.store import disk

COMMON = {"formula": True, "data": True, "groups": True, "floor": False, "small": False}  # which must be there
GLM = COMMON | dict.fromkeys(("family", "link", "offset", "weights", "ridge", "dispersion"), False)
COLUMNS = ("groups", "offset", "weights", "time", "event")  # keys that name one
COX = COMMON | {"time": True, "event": True, "ties": False}

Fit = TypeVar("Fit", GLMFit, CoxFit)


def glm_of(path: Path) -> GLMFit:
    """The generalised linear model that a TOML file describes."""
    return _made(path, GLM, glm)


def cox_of(path: Path) -> CoxFit:
    """The Cox model that a TOML file describes."""
    return _made(path, COX, cox)


def _made(path: Path, keys: dict[str, bool], make: Callable[..., Fit]) -> Fit:
    try:
        content = disk.read_toml(path.read_text("utf-8"))
    except OSError as error:
        raise FedpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FedpointError(f"{path}: not TOML: {error}") from None
    wrong = [f"unknown key {key!r}: {nearest(key, keys)}" for key in content if key not in keys]
    wrong += [f"missing {key!r}" for key, needed in keys.items() if needed and key not in content]
    if wrong:
        raise FedpointError("\n".join(f"{path}: {one}" for one in wrong))
    given = {key: value for key, value in content.items() if key != "data"}
    if "floor" in given:
        given["floor"] = _floor(path, given["floor"])
    return make(data=_table(path, content), **given)


def _floor(path: Path, value: Tree) -> Floor:
    if not isinstance(value, dict):
        raise FedpointError(f"{path}: floor must be a table, for instance floor = {{ rows = 20, per_category = 5 }}")
    return Floor(**value)


def _table(path: Path, content: Tree) -> pd.DataFrame:
    """The columns that the model uses of the CSV or Parquet file that is named, from the TOML file's folder on."""
    name = content["data"]
    if not isinstance(name, str):
        raise FedpointError(f'{path}: data must name a CSV file or a Parquet one, for instance data = "patients.csv"')
    model = parsed(content["formula"]) if isinstance(content["formula"], str) else None
    place = path.parent / name
    if not place.is_file():
        raise FedpointError(f"{path}: data: {place} cannot be read: there is no such file")
    header = header_of(place)
    named = [*(model.columns if model else ()), *(content[key] for key in COLUMNS if isinstance(content.get(key), str))]
    wanted = [column for column in dict.fromkeys(named) if column in header]  # of others the model says that they lack
    groups = content["groups"]
    columns, wrong = read_columns(place, wanted, model.factors if model else (), [groups] if groups in header else ())
    if wrong:
        raise FedpointError("\n".join(f"{path}: data: {one}" for one in wrong))
    return frame_of(columns)
