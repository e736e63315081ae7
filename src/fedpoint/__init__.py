"""fedpoint: federated optimisation that knows where it will end.

Names are loaded when they are first used, so that `fedpoint --help` does not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedpoint.core.garbage import paused_collection

if TYPE_CHECKING:  # what tools read; kept equal to the table below by a test
    from fedpoint import attack as attack
    from fedpoint import channel as channel
    from fedpoint import data as data
    from fedpoint import estimators as estimators
    from fedpoint import gather as gather
    from fedpoint import metrics as metrics
    from fedpoint import privacy as privacy
    from fedpoint import problems as problems
    from fedpoint import statistics as statistics
    from fedpoint import theory as theory
    from fedpoint import trackers as trackers
    from fedpoint.algorithms import (
        APFL,
        Averaged,
        Diffusion,
        Ditto,
        ExactDiffusion,
        Extra,
        Extrapolated,
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedDyn,
        FedExP,
        FedGD,
        FedLin,
        FedLSA,
        FedNewton,
        FedNova,
        FedOpt,
        FedProx,
        FedRelax,
        FedSGD,
        FedYogi,
        FineTuned,
        GeneralRule,
        GradientExchange,
        GradientTracking,
        Mime,
        ParameterExchange,
        PFedMe,
        PushSum,
        QFedAvg,
        ScaffLSA,
        Scaffnew,
        Scaffold,
    )
    from fedpoint.channel.base import Channel
    from fedpoint.config.experiment import read
    from fedpoint.config.load import load
    from fedpoint.config.writing import schema, write
    from fedpoint.core import steps as steps
    from fedpoint.core.agent import Agent, descend
    from fedpoint.core.algorithm import CATALOGUE, Algorithm, Card
    from fedpoint.core.errors import Diverged, FedpointError
    from fedpoint.core.inbox import Inbox
    from fedpoint.core.random import Key
    from fedpoint.core.reference import Reference
    from fedpoint.core.selection import all_but, only
    from fedpoint.core.wrapped import Wrapped
    from fedpoint.experiment.experiment import Experiment
    from fedpoint.federation.federate import federate
    from fedpoint.gather.base import Gather
    from fedpoint.graphs import gtv as gtv
    from fedpoint.graphs.network import Network
    from fedpoint.graphs.regions import Regions
    from fedpoint.metrics.evaluation import Evaluation
    from fedpoint.privacy.target import Privacy
    from fedpoint.problems.estimate import Estimates, estimate_constants
    from fedpoint.results.baselines import Baselines
    from fedpoint.results.certificate import Certificate, Finding
    from fedpoint.results.comparison import Comparison
    from fedpoint.results.forecast import Forecast
    from fedpoint.results.plan import Choice, Plan
    from fedpoint.results.predictor import export
    from fedpoint.results.price import Offer, Price
    from fedpoint.results.probe import Probe
    from fedpoint.results.proof import Claim, Proof
    from fedpoint.results.run import Run
    from fedpoint.results.sweep import Sweep
    from fedpoint.results.verdict import Verdict
    from fedpoint.statistics.cox import cox
    from fedpoint.statistics.glm import glm
    from fedpoint.theory.planning_cost import Prices
    from fedpoint.timing import participation as participation
    from fedpoint.timing import staleness as staleness
    from fedpoint.timing.answering import Answering, read_trace
    from fedpoint.timing.base import Tick, Timing
    from fedpoint.timing.clock import Clock
    from fedpoint.timing.schedule import (
        PartiallyAsynchronous,
        RandomActivation,
        RandomLinks,
        Schedule,
        Synchronous,
        TotallyAsynchronous,
        WorstCase,
    )
    from fedpoint.timing.schemes import ByWeight, Everyone, Importance, Participation, Uniform
    from fedpoint.timing.timed import Arrivals, Waiting
    from fedpoint.timing.trace import Recorded
    from fedpoint.timing.turns import InStep, OwnPace, Replay
    from fedpoint.verbs.baselines import baselines
    from fedpoint.verbs.certify import certify
    from fedpoint.verbs.check import check
    from fedpoint.verbs.compare import compare
    from fedpoint.verbs.complexity import complexity
    from fedpoint.verbs.correlation import correlated
    from fedpoint.verbs.forecast import forecast
    from fedpoint.verbs.plan import plan
    from fedpoint.verbs.price import price
    from fedpoint.verbs.probe import probe
    from fedpoint.verbs.processes.supervisor import Processes
    from fedpoint.verbs.prove import prove
    from fedpoint.verbs.run import run
    from fedpoint.verbs.sweep import sweep
    from fedpoint.verbs.warm_start import warm_start

__version__ = "0.1.0"

_NAMES = {
    "fedpoint.algorithms": "APFL Averaged Diffusion Ditto ExactDiffusion Extra Extrapolated FedAdagrad FedAdam FedAvg "
    "FedAvgM FedDyn FedExP FedGD FedLSA FedLin FedNewton FedNova FedOpt FedProx FedRelax FedSGD FedYogi FineTuned "
    "GeneralRule GradientExchange GradientTracking Mime PFedMe ParameterExchange PushSum QFedAvg ScaffLSA Scaffnew "
    "Scaffold",
    "fedpoint.channel.base": "Channel",
    "fedpoint.gather.base": "Gather",
    "fedpoint.core.agent": "Agent descend",
    "fedpoint.core.algorithm": "Algorithm CATALOGUE Card",
    "fedpoint.core.reference": "Reference",
    "fedpoint.timing.base": "Tick Timing",
    "fedpoint.timing.clock": "Clock",
    "fedpoint.timing.timed": "Arrivals Waiting",
    "fedpoint.timing.turns": "InStep OwnPace Replay",
    "fedpoint.core.inbox": "Inbox",
    "fedpoint.core.wrapped": "Wrapped",
    "fedpoint.experiment.experiment": "Experiment",
    "fedpoint.graphs.network": "Network",
    "fedpoint.graphs.regions": "Regions",
    "fedpoint.metrics.evaluation": "Evaluation",
    "fedpoint.timing.schemes": "ByWeight Everyone Importance Participation Uniform",
    "fedpoint.timing.answering": "Answering read_trace",
    "fedpoint.core.random": "Key",
    "fedpoint.core.selection": "all_but only",
    "fedpoint.timing.schedule": "PartiallyAsynchronous RandomActivation RandomLinks Schedule Synchronous "
    "TotallyAsynchronous WorstCase",
    "fedpoint.timing.trace": "Recorded",
    "fedpoint.core.errors": "Diverged FedpointError",
    "fedpoint.privacy.target": "Privacy",
    "fedpoint.problems.estimate": "Estimates estimate_constants",
    "fedpoint.config.experiment": "read",
    "fedpoint.config.writing": "schema write",
    "fedpoint.config.load": "load",
    "fedpoint.results.predictor": "export",
    "fedpoint.results.run": "Run",
    "fedpoint.results.sweep": "Sweep",
    "fedpoint.verbs.processes.supervisor": "Processes",
    "fedpoint.results.baselines": "Baselines",
    "fedpoint.verbs.baselines": "baselines",
    "fedpoint.results.certificate": "Certificate Finding",
    "fedpoint.verbs.certify": "certify",
    "fedpoint.results.verdict": "Verdict",
    "fedpoint.verbs.check": "check",
    "fedpoint.results.comparison": "Comparison",
    "fedpoint.verbs.compare": "compare",
    "fedpoint.verbs.complexity": "complexity",
    "fedpoint.federation.federate": "federate",
    "fedpoint.results.forecast": "Forecast",
    "fedpoint.verbs.forecast": "forecast",
    "fedpoint.results.plan": "Choice Plan",
    "fedpoint.results.price": "Offer Price",
    "fedpoint.results.probe": "Probe",
    "fedpoint.results.proof": "Claim Proof",
    "fedpoint.verbs.correlation": "correlated",
    "fedpoint.verbs.price": "price",
    "fedpoint.verbs.probe": "probe",
    "fedpoint.statistics.cox": "cox",
    "fedpoint.statistics.glm": "glm",
    "fedpoint.theory.planning_cost": "Prices",
    "fedpoint.verbs.plan": "plan",
    "fedpoint.verbs.prove": "prove",
    "fedpoint.verbs.run": "run",
    "fedpoint.verbs.sweep": "sweep",
    "fedpoint.verbs.warm_start": "warm_start",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = {
    "attack": "fedpoint.attack",
    "channel": "fedpoint.channel",
    "data": "fedpoint.data",
    "estimators": "fedpoint.estimators",
    "gather": "fedpoint.gather",
    "gtv": "fedpoint.graphs.gtv",
    "metrics": "fedpoint.metrics",
    "participation": "fedpoint.timing.participation",
    "privacy": "fedpoint.privacy",
    "problems": "fedpoint.problems",
    "staleness": "fedpoint.timing.staleness",
    "statistics": "fedpoint.statistics",
    "steps": "fedpoint.core.steps",
    "theory": "fedpoint.theory",
    "trackers": "fedpoint.trackers",
}

__all__ = ["__version__", *_SUBMODULES, *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _SUBMODULES:
        raise AttributeError(f"module 'fedpoint' has no attribute {name!r}")
    with paused_collection():
        if name in _SUBMODULES:
            return importlib.import_module(_SUBMODULES[name])
        value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
