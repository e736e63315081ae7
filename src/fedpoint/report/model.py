"""A model on its own: exported as npz with a manifest, read by `fedpoint predict` and other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpoint.errors import FedpointError
from fedpoint.report.folder import export_model
from fedpoint.report.statement import versions
from fedpoint.runtimes.session import flatten
from fedpoint.verbs.run import Run, take_repeat


def layout_of(model: Any) -> list[dict[str, Any]]:
    """Names and paths of a model's arrays, for a reader who does not have the problem."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(model)
    return [{"name": "model" + jax.tree_util.keystr(path), "path": [_step(key) for key in path]} for path, _ in leaves]


def _step(key: Any) -> str | int:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return value if isinstance(value, int) else str(value)
    return str(key)


def export(run: Run, path: str | Path, repeat: int = 0) -> None:
    """Write one repeat's model as npz with a manifest, for `fedpoint predict` and other programs."""
    model = run.model
    if not 0 <= repeat < len(jax.tree.leaves(model)[0]):
        raise FedpointError(f"there is no repeat {repeat}: the run has {len(jax.tree.leaves(model)[0])}, from 0 on")
    export_model(path, flatten(take_repeat(model, repeat)), {**model_manifest(run), "repeat": repeat})


def model_manifest(run: Run) -> dict[str, Any]:
    """What a program must know to use the model."""
    algorithm, use = run.description()
    return {
        "algorithm": algorithm,
        **use,
        "rounds": int(run.rounds[-1]),
        "seed": int(run.seed),
        "versions": versions(),
    }


def use_of(problem: Any, model: Any) -> dict[str, Any]:
    """How rows of data become predictions."""
    classes, intercept = getattr(problem, "classes", None), bool(getattr(problem, "intercept", False))
    recipe = getattr(problem, "recipe", None)  # how a table's columns became features
    width = np.shape(model)[-1] if hasattr(model, "shape") and np.ndim(model) else None
    return {
        "problem": type(problem).__name__,
        "classes": None if classes is None else np.asarray(classes).tolist(),
        "intercept": intercept,
        "features": None if width is None else int(width) - intercept,
        **({} if recipe is None else {"columns": [feature.plain() for feature in recipe]}),
    }
