"""What agents hold: quadratics, regressions, classifications, any loss; linear systems and worlds to be valued."""

from fedpoint.problems.any_model import AnyModel
from fedpoint.problems.base import Constants, Problem
from fedpoint.problems.cox import Cox
from fedpoint.problems.glm import GLM
from fedpoint.problems.least_squares import LeastSquares
from fedpoint.problems.linear_stream import LinearStream
from fedpoint.problems.linear_system import LinearSystem, Noise, Stability
from fedpoint.problems.logistic import Logistic
from fedpoint.problems.loss import Loss
from fedpoint.problems.mdp import MDP
from fedpoint.problems.oracle import Mine, Oracle
from fedpoint.problems.quadratic import Quadratic
from fedpoint.problems.td import TD, garnet
from fedpoint.problems.torch_module import Torch
from fedpoint.problems.toy_text import cliff_walking, frozen_lake, taxi

__all__ = [
    "GLM",
    "MDP",
    "TD",
    "AnyModel",
    "Constants",
    "Cox",
    "LeastSquares",
    "LinearStream",
    "LinearSystem",
    "Logistic",
    "Loss",
    "Mine",
    "Noise",
    "Oracle",
    "Problem",
    "Quadratic",
    "Stability",
    "Torch",
    "cliff_walking",
    "frozen_lake",
    "garnet",
    "taxi",
]
