"""What is public: every name of `fp` and of its modules, and the methods of its classes."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import fedpoint as fp
from fedpoint.core.record import Record

HANDED = "own code is handed it; what that does wrong with it is told where that code is called"
SUBCLASSED = "to be subclassed"
RETURNED = "made by the library, not by its users"
RAISED = "raised"
HOUSE = "for the library's own rooms"
PACKAGE = "needs data or a package that may not be there"

LEFT_OUT: dict[str, tuple[str, ...]] = {
    HANDED: (
        *(
            f"Agent.{name}"
            for name in (
                "field",
                "hessian",
                "hessian_times",
                "key",
                "loop",
                "loss",
                "normal",
                "prox",
                "steps",
                "uniform",
            )
        ),
        "Agent.losses_along",
        "Agent.side_by_side",
        *("Agent", "Inbox", "Key", "Key.of", "Tick", "Tick.of", "Hub", "Mine", "descend", "Heard"),
    ),
    SUBCLASSED: (
        *(
            "Algorithm",
            "Wrapped",
            "Participation",
            "Schedule",
            "Timing",
            "Gather",
            "Staleness",
            "StepSchedule",
            "Attack",
        ),
        *(
            "Oracle",
            "Problem",
            "Tracker",
            "Tracker.start",
            "Tracker.log",
            "Tracker.finish",
            "Problem.row_metrics",
            "Problem.start",
            "Problem.solution",
        ),
        *("LinearFields.objective", "LinearFields.losses"),  # which refuse
        *("StoredRows", "StoredRows.read", "StoredRows.checked", "StoredRows.fingerprint", "StoredRows.in_program"),
    ),
    RETURNED: (
        *(
            "Baselines",
            "Certificate",
            "Choice",
            "Claim",
            "Comparison",
            "Estimates",
            "Finding",
            "Forecast",
            "Offer",
            "Plan",
            "Price",
            "Probe",
            "Proof",
            "Run",
            "PrivacyCertificate",
            "Spent",
            "Sweep",
        ),
        *("Verdict", "Dataset", "Panel", "Table", "History", "Objective", "Path", "Cost", "Cost.of", "Fairness"),
        *("Constants", "Stability", "Bounds", "Contraction", "Distance", "Expansion", "FitForecast", "Verdict.so_far"),
    ),
    RAISED: (
        "FedpointError",
        "FedpointError.add_note",
        "Diverged",
        "MeanModelWarning",
        "OneAgentWarning",
        "PlanNotice",
    ),
    HOUSE: (
        *("Problem.part", "Problem.own_for", "Problem.prepare", "Problem.learnt", "Problem.whole", "Prices.of"),
        *("RowsProblem.part", "RowsProblem.prepare", "RowsProblem.set_rows", "RowsProblem.set_chances"),
        *("RowsProblem.split_rows", "RowsProblem.row_numbers", "RowsProblem.check_chosen", "TD.prepare"),
        *("Problem.flipped", "LeastSquares.flipped", "Logistic.flipped", "RowsProblem.relabelled"),
        *("LeastSquares.own_for", "Loss.learnt", "Loss.whole", "Network.variations", "AnyModel.fit", "AnyModel.say"),
        *("AnyModel.labels", "AnyModel.local_loss", "AnyModel.measure", "PerAgent"),
        *("Evaluation.best", "Evaluation.watched", "Tracker.follower"),
    ),
    PACKAGE: (
        *("colorado", "dialysis", "fashion_mnist", "lending_club", "MLflow.start", "MLflow.log", "MLflow.finish"),
        *("TensorBoard.start", "TensorBoard.log", "TensorBoard.finish", "WandB.start", "WandB.log", "WandB.finish"),
        *("Torch", "Torch.content", "Torch.learnt", "Torch.noise", "Torch.row_metrics", "Torch.start", "Torch.whole"),
    ),
}


def definition(thing: Callable[..., Any]) -> str:
    """By which name it was defined, however it is reached."""
    plain = inspect.unwrap(thing)
    return getattr(plain, "__func__", plain).__qualname__


def named() -> Iterator[tuple[str, Any]]:
    """Everything that has a public name."""
    for name in fp.__all__:
        one = getattr(fp, name)
        if not inspect.ismodule(one):
            yield f"fp.{name}", one
            continue
        for key in _listed(one):
            yield f"fp.{name}.{key}", getattr(one, key)


def _listed(module: types.ModuleType) -> list[str]:
    if "__all__" in vars(module):
        return list(module.__all__)
    own = {key: value for key, value in vars(module).items() if isinstance(value, type | types.FunctionType)}
    return [key for key, value in own.items() if value.__module__ == module.__name__ and not key.startswith("_")]


def methods(cls: type) -> Iterator[str]:
    """The public methods of a class that are the library's. Of records the engine calls them: class methods alone."""
    for name in dir(cls):
        found = inspect.getattr_static(cls, name)
        plain = found.__func__ if isinstance(found, classmethod) else found
        if name.startswith("_") or not isinstance(plain, types.FunctionType):
            continue
        if issubclass(cls, Record | tuple | fp.problems.Oracle) and not isinstance(found, classmethod):
            continue
        if inspect.unwrap(plain).__module__.startswith("fedpoint"):
            yield name


def interface() -> dict[str, str]:
    """Names of definitions, and by which public name each is reached."""
    found: dict[str, str] = {}
    for name, one in named():
        if not callable(one):
            continue
        found.setdefault(definition(one), name)
        if isinstance(one, type):
            for method in methods(one):
                found.setdefault(definition(getattr(one, method)), f"{name}.{method}")
    return found
