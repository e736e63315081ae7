"""What must happen? Exact predictions, to put beside what was measured."""

from fedpoint.theory.complexity import complexity
from fedpoint.theory.lms import lms_floor, lms_msd
from fedpoint.theory.lsa import lsa_bias, lsa_bias_small_step, lsa_path

__all__ = ["complexity", "lms_floor", "lms_msd", "lsa_bias", "lsa_bias_small_step", "lsa_path"]
