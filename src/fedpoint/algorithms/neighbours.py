"""What does a node of a network hear? The weighted sum of what its neighbours said."""

from __future__ import annotations

from typing import NamedTuple

from fedpoint.core.types import Model, Number


class Near(NamedTuple):
    """What a node's hub holds: sum_j A_ij w_j over its neighbours, and sum_j A_ij."""

    total: Model
    mass: Number
