"""The lectures' experiments: each a TOML file beside this one, run and put beside what must happen."""

from fedpoint.lab.runner import Lab, Outcome, Panel, Setting, find, names, perform

__all__ = ["Lab", "Outcome", "Panel", "Setting", "find", "names", "perform"]
