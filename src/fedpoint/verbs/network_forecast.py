"""What must happen on a network? The forecast that `fp.forecast(..., network=...)` makes."""

from __future__ import annotations

from fedpoint.core.errors import FedpointError
from fedpoint.experiment.experiment import Experiment
from fedpoint.results.network_forecast import NetworkForecast
from fedpoint.theory.network_operator import NetworkSetting


def network_forecast(experiment: Experiment) -> NetworkForecast:
    """What `fp.forecast(..., network=...)` makes."""
    if experiment.problem.convex is None:
        raise FedpointError(
            "this loss may have many minima: a forecast would promise too much. Promise convexity: "
            "Loss(..., convex=True)"
        )
    return NetworkForecast(NetworkSetting(experiment), experiment.timing, experiment.exact)
