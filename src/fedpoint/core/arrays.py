"""Are these numbers, and as many as there must be? As arrays, with one message where they are not."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import shown
from fedpoint.core.numbers import counted


def array_of(name: str, values: ArrayLike, what: str = "an array") -> np.ndarray:
    """An array of anything; rows of different lengths are none."""
    try:
        return np.asarray(values)
    except ValueError:
        raise FedpointError(f"{name} must be {what}, but its rows have different lengths") from None


def numbers(name: str, values: ArrayLike) -> np.ndarray:
    """An array of real numbers, as floats.

    >>> numbers("weights", [1, 2])
    array([1., 2.])
    """
    found = array_of(name, values, "an array of numbers")
    try:
        if found.dtype.kind in "biuf" or (found.dtype.kind == "O" and not any(one is None for one in found.flat)):
            return found.astype(float)
    except (TypeError, ValueError):
        pass  # objects that are no numbers
    raise FedpointError(f"{name} must be an array of numbers; got {shown(values)}")


def floats(values: ArrayLike) -> np.ndarray:
    """The same, but NaN, which every check refuses, where these are no real numbers.

    >>> floats([1, 2]), floats(["x"])
    (array([1., 2.]), array(nan))
    """
    try:
        return numbers("", values)
    except FedpointError:
        return np.asarray(np.nan)


def one_per_agent(name: str, values: ArrayLike, agents: int) -> np.ndarray:
    """(K,): one number for all agents, or one for each.

    >>> one_per_agent("noise", 0.5, 2)
    array([0.5, 0.5])
    """
    found = numbers(name, values)
    if found.shape not in ((), (agents,)):
        raise FedpointError(
            f"{name} has shape {found.shape}: give one number, or one for each of the {counted(agents, 'agent')}"
        )
    return np.broadcast_to(found, (agents,))


def told_apart(name: str, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different labels, sorted; which of them each one is; and how often each occurs."""
    try:
        found, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    except TypeError:
        raise FedpointError(f"{name} holds labels of different kinds: use numbers or words, not both") from None
    return found, which.ravel(), counts
