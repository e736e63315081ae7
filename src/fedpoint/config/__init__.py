"""Experiments as TOML files: read, checked as a whole, built."""

from fedpoint.config.experiment import Experiment, Member, parse, read
from fedpoint.config.mistakes import Mistake, Mistakes

__all__ = ["Experiment", "Member", "Mistake", "Mistakes", "parse", "read"]
