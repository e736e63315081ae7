"""What was put to use? Lines of a subject's own code that never ran, and decisions in it that always went one way."""

from fedpoint.verbs.certify.exercise.arrays import watch_function
from fedpoint.verbs.certify.exercise.programs import watch_experiments
from fedpoint.verbs.certify.exercise.source import not_watched

__all__ = ["not_watched", "watch_experiments", "watch_function"]
