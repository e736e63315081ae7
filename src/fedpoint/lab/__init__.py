"""The lectures' experiments: each a TOML file beside this one, run and put beside what must happen."""

from fedpoint.lab.runner import Lab, Outcome, Panel, Setting, find, names, perform
from fedpoint.lab.study import Findings, Study, studies

__all__ = ["Findings", "Lab", "Outcome", "Panel", "Setting", "Study", "find", "names", "perform", "studies"]
