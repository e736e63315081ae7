"""The methods of the lectures, one file each."""

from fedpoint.algorithms.averaged import Averaged
from fedpoint.algorithms.extrapolated import Extrapolated
from fedpoint.algorithms.fedavg import FedAvg
from fedpoint.algorithms.fedgd import FedGD, FedSGD
from fedpoint.algorithms.fednova import FedNova
from fedpoint.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi
from fedpoint.algorithms.fedprox import FedProx
from fedpoint.algorithms.fedrelax import FedRelax
from fedpoint.algorithms.general_rule import GeneralRule
from fedpoint.algorithms.gradient_exchange import GradientExchange
from fedpoint.algorithms.parameter_exchange import ParameterExchange
from fedpoint.algorithms.qfedavg import QFedAvg
from fedpoint.algorithms.scaffnew import Scaffnew
from fedpoint.algorithms.scaffold import Scaffold
from fedpoint.algorithms.stochastic_approximation import FedLSA, ScaffLSA
from fedpoint.core.algorithm import CATALOGUE, find

__all__ = [
    "CATALOGUE",
    "Averaged",
    "Extrapolated",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedGD",
    "FedLSA",
    "FedNova",
    "FedOpt",
    "FedProx",
    "FedRelax",
    "FedSGD",
    "FedYogi",
    "GeneralRule",
    "GradientExchange",
    "ParameterExchange",
    "QFedAvg",
    "ScaffLSA",
    "Scaffnew",
    "Scaffold",
    "find",
]
