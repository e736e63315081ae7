"""The methods of the lectures, one file each."""

from fedpoint.algorithms.apfl import APFL
from fedpoint.algorithms.averaged import Averaged
from fedpoint.algorithms.diffusion import Diffusion
from fedpoint.algorithms.ditto import Ditto
from fedpoint.algorithms.exact_diffusion import ExactDiffusion
from fedpoint.algorithms.extra import Extra
from fedpoint.algorithms.extrapolated import Extrapolated
from fedpoint.algorithms.fedavg import FedAvg
from fedpoint.algorithms.feddyn import FedDyn
from fedpoint.algorithms.fedexp import FedExP
from fedpoint.algorithms.fedgd import FedGD, FedSGD
from fedpoint.algorithms.fedlin import FedLin
from fedpoint.algorithms.fednewton import FedNewton
from fedpoint.algorithms.fednova import FedNova
from fedpoint.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi
from fedpoint.algorithms.fedprox import FedProx
from fedpoint.algorithms.fedrelax import FedRelax
from fedpoint.algorithms.fine_tuned import FineTuned
from fedpoint.algorithms.general_rule import GeneralRule
from fedpoint.algorithms.gradient_exchange import GradientExchange
from fedpoint.algorithms.gradient_tracking import GradientTracking
from fedpoint.algorithms.mime import Mime
from fedpoint.algorithms.parameter_exchange import ParameterExchange
from fedpoint.algorithms.pfedme import PFedMe
from fedpoint.algorithms.push_sum import PushSum
from fedpoint.algorithms.qfedavg import QFedAvg
from fedpoint.algorithms.scaffnew import Scaffnew
from fedpoint.algorithms.scaffold import Scaffold
from fedpoint.algorithms.stochastic_approximation import FedLSA, ScaffLSA
from fedpoint.core.algorithm import CATALOGUE, find

__all__ = [
    "APFL",
    "CATALOGUE",
    "Averaged",
    "Diffusion",
    "Ditto",
    "ExactDiffusion",
    "Extra",
    "Extrapolated",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedExP",
    "FedGD",
    "FedLSA",
    "FedLin",
    "FedNewton",
    "FedNova",
    "FedOpt",
    "FedProx",
    "FedRelax",
    "FedSGD",
    "FedYogi",
    "FineTuned",
    "GeneralRule",
    "GradientExchange",
    "GradientTracking",
    "Mime",
    "PFedMe",
    "ParameterExchange",
    "PushSum",
    "QFedAvg",
    "ScaffLSA",
    "Scaffnew",
    "Scaffold",
    "find",
]
