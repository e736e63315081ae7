"""fedpoint: federated optimisation that knows where it will end.

Names are loaded when they are first used, so that `fedpoint --help` does not wait for JAX.
"""

import importlib
import time
from typing import TYPE_CHECKING, Any

from fedpoint.uncollected import uncollected

IMPORTED = time.time()  # source that is newer is not what runs here

if TYPE_CHECKING:  # what tools read; kept equal to the table below by a test
    from fedpoint import data as data
    from fedpoint import estimators as estimators
    from fedpoint import gtv as gtv
    from fedpoint import metrics as metrics
    from fedpoint import problems as problems
    from fedpoint import theory as theory
    from fedpoint import trackers as trackers
    from fedpoint.algorithms import (
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedGD,
        FedLSA,
        FedNova,
        FedOpt,
        FedProx,
        FedRelax,
        FedSGD,
        FedYogi,
        GeneralRule,
        GradientExchange,
        ParameterExchange,
        QFedAvg,
        ScaffLSA,
        Scaffnew,
        Scaffold,
    )
    from fedpoint.core.agent import Agent, descend
    from fedpoint.core.algorithm import CATALOGUE, Card, Reference, algorithm
    from fedpoint.core.clock import Clock
    from fedpoint.core.inbox import Inbox
    from fedpoint.core.network import Network
    from fedpoint.core.participation import (
        Answering,
        ByWeight,
        Everyone,
        Importance,
        Participation,
        Uniform,
        read_trace,
    )
    from fedpoint.core.random import Key
    from fedpoint.core.schedule import (
        PartiallyAsynchronous,
        RandomActivation,
        Schedule,
        Synchronous,
        TotallyAsynchronous,
        WorstCase,
    )
    from fedpoint.core.staleness import Constant, Hinge, Polynomial
    from fedpoint.core.steps import Epochs, Exponential, InverseTime, Scheduled, Stragglers
    from fedpoint.core.timed import Arrivals, Waiting
    from fedpoint.core.trace import Recorded
    from fedpoint.core.turns import InStep, OwnPace, Replay
    from fedpoint.errors import Diverged, FedpointError
    from fedpoint.problems.estimate import Estimates, estimate_constants
    from fedpoint.report.load import load
    from fedpoint.report.model import export
    from fedpoint.runtimes.supervisor import Processes
    from fedpoint.verbs.baselines import Baselines, baselines
    from fedpoint.verbs.certify import Certificate, Finding, certify
    from fedpoint.verbs.check import Verdict, check
    from fedpoint.verbs.compare import Comparison, compare
    from fedpoint.verbs.federate import federate
    from fedpoint.verbs.forecast import Forecast, forecast
    from fedpoint.verbs.plan import Choice, Plan, Prices, plan
    from fedpoint.verbs.run import Run, run
    from fedpoint.verbs.sweep import Sweep, sweep

__version__ = "0.1.0"

_NAMES = {
    "fedpoint.algorithms": "FedAdagrad FedAdam FedAvg FedAvgM FedGD FedLSA FedNova FedOpt FedProx FedRelax FedSGD "
    "FedYogi GeneralRule GradientExchange ParameterExchange QFedAvg ScaffLSA Scaffnew Scaffold",
    "fedpoint.core.agent": "Agent descend",
    "fedpoint.core.algorithm": "CATALOGUE Card Reference algorithm",
    "fedpoint.core.clock": "Clock",
    "fedpoint.core.staleness": "Constant Hinge Polynomial",
    "fedpoint.core.timed": "Arrivals Waiting",
    "fedpoint.core.turns": "InStep OwnPace Replay",
    "fedpoint.core.inbox": "Inbox",
    "fedpoint.core.network": "Network",
    "fedpoint.core.participation": "Answering ByWeight Everyone Importance Participation Uniform read_trace",
    "fedpoint.core.random": "Key",
    "fedpoint.core.schedule": "PartiallyAsynchronous RandomActivation Schedule Synchronous TotallyAsynchronous "
    "WorstCase",
    "fedpoint.core.steps": "Epochs Exponential InverseTime Scheduled Stragglers",
    "fedpoint.core.trace": "Recorded",
    "fedpoint.errors": "Diverged FedpointError",
    "fedpoint.problems.estimate": "Estimates estimate_constants",
    "fedpoint.report.load": "load",
    "fedpoint.report.model": "export",
    "fedpoint.runtimes.supervisor": "Processes",
    "fedpoint.verbs.baselines": "Baselines baselines",
    "fedpoint.verbs.certify": "Certificate Finding certify",
    "fedpoint.verbs.check": "Verdict check",
    "fedpoint.verbs.compare": "Comparison compare",
    "fedpoint.verbs.federate": "federate",
    "fedpoint.verbs.forecast": "Forecast forecast",
    "fedpoint.verbs.plan": "Choice Plan Prices plan",
    "fedpoint.verbs.run": "Run run",
    "fedpoint.verbs.sweep": "Sweep sweep",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = ("data", "estimators", "gtv", "metrics", "problems", "theory", "trackers")

__all__ = ["__version__", *_SUBMODULES, *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _SUBMODULES:
        raise AttributeError(f"module 'fedpoint' has no attribute {name!r}")
    with uncollected():
        if name in _SUBMODULES:
            return importlib.import_module(f"fedpoint.{name}")
        value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
