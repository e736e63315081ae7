"""`fp.load`: a run from its folder, or a model from the file that it was exported to.

A run from a TOML file is built again from the table of that file, which its folder holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from fedpoint.config.experiment import experiment_of
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.experiment.experiment import Others
from fedpoint.problems.base import Problem
from fedpoint.results.predictor import Predictor
from fedpoint.verbs import load as stored
from fedpoint.verbs.load import LoadedRun


@checked
def load(
    path: str | Path, problem: Problem | None = None, *, allow: Sequence[str] = (), **given: Unpack[Others]
) -> LoadedRun | Predictor:
    """Read a run back from its folder, or a model from the file that `fp.export` wrote.

    Of a run, rounds, models, metrics, memories, costs and evaluation come from the disk, and errors and losses where
    they were evaluated while it ran; otherwise they are computed when asked for, from the problem. A run from a TOML
    file builds its problem again; otherwise give the problem, which must be the one the run was begun with. The same
    to go on (`extend`). Give algorithm, participation, schedule, network, metrics, channel or gather too where the
    folder can only name them: an optax object, a large graph, your own class or function, unless its module is in
    `allow`.

    Args:
        path: the run folder, or the file of a model.
        problem: the one with which the run was begun; None: built from the folder's file.
        allow: modules of your own whose classes and functions the folder may name; they are imported, which runs their
            code.
        given: arguments of `fp.Experiment` that the folder can only name.
    """
    if Path(path).is_file():
        if problem is not None or allow or given:
            raise FedpointError(
                f"{path} is the file of a model, which needs nothing else: leave out the other arguments"
            )
        return Predictor.read(path)
    return load_run(path, problem, allow=allow, **given)


def load_run(
    folder: str | Path, problem: Problem | None = None, *, allow: Sequence[str] = (), **given: Unpack[Others]
) -> LoadedRun:
    """A run, and nothing else."""
    return stored.load(folder, problem, allow=allow, reader=experiment_of, **given)
