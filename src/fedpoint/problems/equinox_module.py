"""A module of Equinox: a tree of its own, whose dropout and batch normalisation know an evaluation mode."""

from __future__ import annotations

import equinox
from jax import Array

from fedpoint.core.types import Model, Tree
from fedpoint.problems.forms import Asked, Form, Plain


class EquinoxModule(Plain):
    """Exact losses see the module in inference mode."""

    def _network(self, model: Model, key: Array | None) -> Tree:
        module = super()._network(model, key)
        return equinox.nn.inference_mode(module) if key is None and self.lucky else module


def form(params: Tree, asked: Asked) -> Form | None:
    """The form of a module; None of anything else."""
    return EquinoxModule(params, asked) if isinstance(params, equinox.Module) else None
