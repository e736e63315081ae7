"""What must happen? Exact predictions, to put beside what was measured."""

from fedpoint.theory.asynchronous import Bounds, asynchronous
from fedpoint.theory.complexity import complexity
from fedpoint.theory.lms import lms_floor, lms_msd
from fedpoint.theory.lsa import lsa_bias, lsa_bias_small_step, lsa_path
from fedpoint.theory.networks import (
    Contraction,
    block_norm,
    contraction,
    iteration_matrix,
    spectral_rate,
    step_limit,
)

__all__ = [
    "Bounds",
    "Contraction",
    "asynchronous",
    "block_norm",
    "complexity",
    "contraction",
    "iteration_matrix",
    "lms_floor",
    "lms_msd",
    "lsa_bias",
    "lsa_bias_small_step",
    "lsa_path",
    "spectral_rate",
    "step_limit",
]
