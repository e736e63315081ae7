"""Where does a run start that goes on from the model of another one?"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model
from fedpoint.engine.session import flatten
from fedpoint.problems.base import Problem
from fedpoint.store.folder import load_model


@checked
def warm_start(path: str | Path, problem: Problem) -> Model:
    """Read the model of a file as `start=` takes it for a problem. To continue a run as if it had never stopped,
    resume it instead (`fp.load(folder).extend`).

    Args:
        path: what `run.export` wrote, or the folder of a finished run.
        problem: for which it is to be the start: its models must have the same arrays.

    >>> import tempfile, fedpoint as fp
    >>> quad, path = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]]), f"{tempfile.mkdtemp()}/model.npz"
    >>> fp.run("fedavg", quad, step=0.5, rounds=20).export(path)
    >>> fp.run("fedavg", quad, step=0.5, rounds=0, start=fp.warm_start(path, quad)).model.round(3)
    array([[0.667]])
    """
    arrays, _ = load_model(path)
    own = problem.start()
    names = flatten(own)
    wrong = [
        f"{name} of shape {np.shape(leaf)}, where {path} has "
        + (f"shape {np.shape(arrays[name])}" if name in arrays else "none")
        for name, leaf in names.items()
        if name not in arrays or np.shape(arrays[name]) != np.shape(leaf)
    ]
    if wrong:
        raise FedpointError(f"the model does not fit the problem, which needs {wrong[0]}")
    leaves = [np.asarray(arrays[name]) for name in names]
    return jax.tree.unflatten(jax.tree.structure(own), leaves)
