"""Experiments as TOML files: read, checked as a whole, built, written."""

from fedpoint.config.experiment import FileOrigin, experiment_of, parse, read
from fedpoint.config.file import Entry, File
from fedpoint.config.mistakes import FileMistake, Mistakes
from fedpoint.config.writing import schema, write

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
