"""Agents that lie, for simulation: what does it do to a model, and which gather bears it?"""

from fedpoint.attack.base import Attack, Heard
from fedpoint.attack.data import FalseRows, LabelFlip
from fedpoint.attack.messages import GarbageControls, Scaling, SignFlip
from fedpoint.attack.together import InnerProduct, LittleIsEnough

__all__ = [
    "Attack",
    "FalseRows",
    "GarbageControls",
    "Heard",
    "InnerProduct",
    "LabelFlip",
    "LittleIsEnough",
    "Scaling",
    "SignFlip",
]
