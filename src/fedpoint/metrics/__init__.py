"""Numbers about a model or a run: fairness over agents, cost in messages and bytes."""

from fedpoint.metrics.cost import Cost
from fedpoint.metrics.fairness import Fairness, fairness

__all__ = ["Cost", "Fairness", "fairness"]
