"""The lectures' experiments: each a TOML file beside this one, run and put beside what must happen."""

from fedpoint.lab.runner import Lab, LabOutcome, LabSetting, Panel, find, names, perform
from fedpoint.lab.study import Findings, LabStudy, studies

__all__ = ["Findings", "Lab", "LabOutcome", "LabSetting", "LabStudy", "Panel", "find", "names", "perform", "studies"]
