"""A model on its own: exported as npz with a manifest, read by `fedpoint predict` and other programs."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import numpy as np

from fedpoint.core.types import Model, Tree
from fedpoint.problems.base import Problem
from fedpoint.store.disk import Table


def layout_of(model: Model) -> list[Table]:
    """Names and paths of a model's arrays, for a reader who does not have the problem."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(model)
    return [{"name": "model" + jax.tree_util.keystr(path), "path": [_step(key) for key in path]} for path, _ in leaves]


def _step(key: Hashable) -> str | int:
    match key:
        case jax.tree_util.DictKey(key=name) | jax.tree_util.FlattenedIndexKey(key=name):
            pass
        case jax.tree_util.SequenceKey(idx=name) | jax.tree_util.GetAttrKey(name=name):
            pass
        case _:
            name = str(key)
    return name if isinstance(name, int) else str(name)


def nested(layout: list[Table], leaves: list[np.ndarray]) -> Tree:
    """The arrays as a tree of dictionaries and lists, as `layout_of` has it."""
    if [entry["path"] for entry in layout] == [[]]:
        return leaves[0]
    inside: dict[str | int, list[tuple[Table, np.ndarray]]] = {}
    for entry, leaf in zip(layout, leaves, strict=True):
        first, *rest = entry["path"]
        inside.setdefault(first, []).append(({**entry, "path": rest}, leaf))
    made = {key: nested([e for e, _ in part], [a for _, a in part]) for key, part in inside.items()}
    return list(made.values()) if list(made) == list(range(len(made))) else made


def use_of(problem: Problem, model: Model) -> Table:
    """How rows of data become predictions."""
    width = np.shape(model)[-1] if isinstance(model, np.ndarray) and np.ndim(model) else None
    return {
        "problem": type(problem).__name__,
        "predicts": problem.predicts,
        "classes": None if problem.classes is None else problem.classes.tolist(),
        "intercept": problem.intercept,
        "features": None if width is None else int(width) - problem.intercept,
        **({} if problem.columns is None else {"columns": problem.columns}),
    }
