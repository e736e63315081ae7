"""Experiments as TOML files: read, checked as a whole, built, written."""

from fedpoint.config.experiment import Entry, File, Origin, experiment_of, parse, read, schema, write
from fedpoint.config.mistakes import Mistake, Mistakes

__all__ = ["Entry", "File", "Mistake", "Mistakes", "Origin", "experiment_of", "parse", "read", "schema", "write"]
