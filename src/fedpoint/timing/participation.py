"""Who takes part, as users say it: every scheme by its class, or a number of agents."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.timing.answering import Answering, read_trace
from fedpoint.timing.schemes import ByWeight, Everyone, Importance, Participation, Poisson, Uniform

__all__ = ["Answering", "ByWeight", "Everyone", "Importance", "Participation", "Poisson", "Uniform", "read_trace"]

SCHEMES = {c.__name__.lower(): c for c in (Everyone, Uniform, Poisson, ByWeight, Importance, Answering)}


Who: TypeAlias = Participation | int | str | None  # as users say it


def as_participation(value: Who) -> Participation:
    """None is everyone, a number L is Uniform(L), other schemes are objects."""
    if value is None:
        return Everyone()
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return Uniform(int(value))
    if isinstance(value, str):
        if value.lower() not in SCHEMES:
            raise FedpointError(f"unknown participation {value!r}: {nearest(value, SCHEMES)}")
        if value.lower() != "everyone":
            name = SCHEMES[value.lower()].__name__
            raise FedpointError(
                f"participation {value!r} needs its numbers: give an object such as fp.participation.{name}(...)"
            )
        return Everyone()
    if isinstance(value, Participation):
        return value
    raise FedpointError(f"participation must be a number of agents or a scheme such as fp.Uniform(10), got {value!r}")
