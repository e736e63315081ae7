"""What must happen? Exact predictions, to put beside what was measured."""

import importlib
from typing import TYPE_CHECKING, Any

from fedpoint.closed.lms import lms_floor, lms_msd
from fedpoint.closed.lsa import lsa_bias, lsa_bias_small_step, lsa_path
from fedpoint.theory.asynchronous import Bounds, Contraction, asynchronous

if TYPE_CHECKING:
    from fedpoint.theory.bounds.lecture004 import local_sgd_bounds
    from fedpoint.theory.networks import (
        block_norm,
        contraction,
        iteration_matrix,
        spectral_rate,
        step_limit,
    )
    from fedpoint.theory.stochastic_expansion import Expansion, expansion

# Loaded when first used: with a fusion center nobody needs SciPy's solvers, and few the engine from here.
_LATER = {
    **dict.fromkeys(("block_norm", "contraction", "iteration_matrix", "spectral_rate", "step_limit"), "networks"),
    **dict.fromkeys(("Expansion", "expansion"), "stochastic_expansion"),
    "local_sgd_bounds": "bounds.lecture004",
}

__all__ = [
    "Bounds",
    "Contraction",
    "Expansion",
    "asynchronous",
    "block_norm",
    "contraction",
    "expansion",
    "iteration_matrix",
    "lms_floor",
    "lms_msd",
    "local_sgd_bounds",
    "lsa_bias",
    "lsa_bias_small_step",
    "lsa_path",
    "spectral_rate",
    "step_limit",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'fedpoint.theory' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"fedpoint.theory.{_LATER[name]}"), name)
    return value
