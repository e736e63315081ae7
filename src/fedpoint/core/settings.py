"""The settings of a method: which values each field takes, and the message for the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.arrays import floats
from fedpoint.core.errors import FedpointError
from fedpoint.core.record import Record
from fedpoint.core.types import Setting

if TYPE_CHECKING:  # asked, not known: these lie above
    pass


def positive(*, default: Setting = dataclasses.MISSING, per_agent: bool = False, scheduled: bool = False) -> Setting:
    """A hyper-parameter above zero: a number; where allowed a number per agent, or a schedule of steps."""
    rule = {"low": 0.0, "strict": True, "per_agent": per_agent, "scheduled": scheduled}
    return field(default=default, metadata=rule)


def nonnegative(*, default: Setting = dataclasses.MISSING, below: float | None = None) -> Setting:
    return field(default=default, metadata={"low": 0.0, "strict": False, "below": below, "scheduled": False})


def counts(*, default: Setting = 1, per_agent: bool = True, least: int = 1) -> Setting:
    """A whole number, such as that of local steps: an int, or also one per agent, `Epochs` or `Stragglers`."""
    return field(default=default, metadata={"low": least, "strict": False, "per_agent": per_agent, "whole": True})


def by_agent(*, default: Setting = dataclasses.MISSING, axes: int = 1) -> Setting:
    """A hyper-parameter that may be one number per agent; with axes=2 a vector, one for all or one per agent."""
    return field(default=default, metadata={"per_agent": axes == 1, "axes": axes})


def check_value(owner: str, name: str, value: Setting, rule: Mapping[str, Setting]) -> Setting:
    """A hyper-parameter as its field declares it; one clear message where it is out of range."""
    where = f"{owner}: {name}"
    if isinstance(value, Record):
        if not rule.get("scheduled", True):
            raise FedpointError(f"{where} must be a number: this method has no schedule of steps, got {value}")
        return value
    if callable(value) and rule.get("scheduled"):
        raise FedpointError(
            f"{where} is a function: write fp.steps.Scheduled(function) for a schedule of gradient steps, and "
            "fp.steps.ByRound(fp.steps.Scheduled(function), local_steps) for one of rounds"
        )
    array = floats(value)
    if isinstance(value, bool) or np.isnan(array).any() or not array.size:
        raise FedpointError(f"{where} must be a number, got {value!r}")
    if array.ndim and not rule.get("per_agent"):
        raise FedpointError(f"{where} must be one number, got {array.size} (sweep over it with fp.sweep)")
    low = rule["low"]
    bad = ~(array > low) if rule["strict"] else ~(array >= low)
    if bad.any() or not np.isfinite(array).all():
        raise FedpointError(f"{where} must be {'above' if rule['strict'] else 'at least'} {low:g}, got {value}")
    if rule.get("below") is not None and (array >= rule["below"]).any():
        raise FedpointError(f"{where} must be below {rule['below']:g}, got {value}")
    if rule.get("whole") and (array != np.round(array)).any():
        raise FedpointError(f"{where} must be whole numbers, got {value}")
    if array.ndim:
        return value
    return int(value) if rule.get("whole") else float(value)  # a number, also when it was written without a point
