"""What agents hold: quadratics, regressions, classifications, any loss; stored or streamed."""

from fedpoint.problems.base import Constants, Mine, Oracle, Problem
from fedpoint.problems.least_squares import LeastSquares
from fedpoint.problems.linear_stream import LinearStream
from fedpoint.problems.linear_system import LinearSystem, Noise, Stability
from fedpoint.problems.logistic import Logistic
from fedpoint.problems.loss import Loss
from fedpoint.problems.quadratic import Quadratic

__all__ = [
    "Constants",
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
]
