"""How are several methods told apart in a table or a legend? By what differs between them, and nothing else."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.numbers import counted
from fedpoint.core.record import values_of


def labels_of(algorithms: Sequence[Algorithm], notes: Sequence[str] = ()) -> list[str]:
    """One label each, all different: the title, and the fields in which methods of the same kind differ.

    notes: one for each, such as its participation, added when they are not all the same.

    >>> import fedpoint as fp
    >>> labels_of([fp.FedAvg(step=0.1), fp.FedAvg(step=0.1, local_steps=10), fp.Scaffold(step=0.1)])
    ['FedAvg, local_steps=1', 'FedAvg, local_steps=10', 'SCAFFOLD']
    """
    labels = [_label(a, [b for b in algorithms if type(b) is type(a)]) for a in algorithms]
    if len(set(notes)) > 1:
        labels = [f"{label}, {note}" for label, note in zip(labels, notes, strict=True)]
    # Those that are still equal are numbered.
    often, seen, result = Counter(labels), Counter[str](), []
    for label in labels:
        seen[label] += 1
        result.append(f"{label} ({seen[label]})" if often[label] > 1 else label)
    return result


def slug(label: str) -> str:
    """The label as the name of a folder.

    >>> slug("FedAvg, local_steps=10")
    'fedavg-local-steps-10'
    """
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "run"


def _label(algorithm: Algorithm, same_kind: list[Algorithm]) -> str:
    each = [values_of(a) for a in same_kind]
    own = {name: short(value) for name, value in values_of(algorithm).items()}
    differ = [name for name in own if len({short(values[name]) for values in each}) > 1]
    return ", ".join([algorithm.card.title, *(f"{name}={own[name]}" for name in differ)])


def short(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, bool | str) or value is None:
        return str(value)
    if np.ndim(value) == 0 and isinstance(value, int | float | np.number):
        return f"{value:g}"
    if isinstance(value, np.ndarray | list | tuple) and np.size(value):
        array = np.asarray(value)
        ends = (array.min(), array.max()) if array.dtype.kind in "iuf" else ()
        return f"{ends[0]:g}..{ends[1]:g}" if ends else counted(array.size, "value")
    if dataclasses.is_dataclass(value):
        given = [(short(vars(value)[f.name]), short(f.default)) for f in dataclasses.fields(value)]
        inside = [text for text, default in given if text != default]
        return f"{type(value).__name__}({', '.join(inside)})"
    return type(value).__name__
