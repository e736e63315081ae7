"""Experiments as TOML files: read, checked as a whole, built, written."""

from fedpoint.config.experiment import Entry, File, FileOrigin, experiment_of, parse, read, schema, write
from fedpoint.config.mistakes import FileMistake, Mistakes

__all__ = [
    "Entry",
    "File",
    "FileMistake",
    "FileOrigin",
    "Mistakes",
    "experiment_of",
    "parse",
    "read",
    "schema",
    "write",
]
