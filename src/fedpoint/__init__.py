"""fedpoint: federated optimisation that knows where it will end."""

from fedpoint import metrics, problems
from fedpoint.algorithms import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedNova,
    FedOpt,
    FedProx,
    FedYogi,
    GeneralRule,
    GradientExchange,
    ParameterExchange,
    QFedAvg,
    Scaffnew,
    Scaffold,
)
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import CATALOGUE, Card, Reference, algorithm
from fedpoint.core.inbox import Inbox
from fedpoint.core.participation import Answering, ByWeight, Everyone, Importance, Participation, Uniform, read_trace
from fedpoint.core.random import Key
from fedpoint.core.steps import Epochs, Exponential, InverseTime, Scheduled, Stragglers
from fedpoint.errors import Diverged, FedpointError
from fedpoint.verbs.compare import Comparison, compare
from fedpoint.verbs.run import Run, run
from fedpoint.verbs.sweep import Sweep, sweep

__version__ = "0.1.0"
