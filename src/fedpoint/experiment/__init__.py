"""The one description of a run, and the one place that refuses."""

from fedpoint.experiment.bound import Bound
from fedpoint.experiment.experiment import Experiment

__all__ = ["Bound", "Experiment"]
