"""What must happen? Exact predictions, to put beside what was measured."""

from fedpoint.theory.complexity import complexity
from fedpoint.theory.lms import lms_floor, lms_msd

__all__ = ["complexity", "lms_floor", "lms_msd"]
