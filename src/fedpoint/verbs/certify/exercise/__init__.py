"""What was put to use? Lines of a subject's own code that never ran, and decisions in it that always went one way."""

from fedpoint.verbs.certify.exercise.arrays import watch_function
from fedpoint.verbs.certify.exercise.programs import watch_experiments
from fedpoint.verbs.certify.exercise.sites import sourceless

__all__ = ["sourceless", "watch_experiments", "watch_function"]
