"""`fp.load`: a run from a TOML file is built again from the table of that file, which its folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from fedpoint.config.experiment import experiment_of
from fedpoint.experiment.experiment import Others
from fedpoint.problems.base import Problem
from fedpoint.verbs import load as stored
from fedpoint.verbs.load import LoadedRun


def load(
    folder: str | Path, problem: Problem | None = None, *, allow: Sequence[str] = (), **given: Unpack[Others]
) -> LoadedRun:
    return stored.load(folder, problem, allow=allow, reader=experiment_of, **given)


load.__doc__ = stored.load.__doc__
