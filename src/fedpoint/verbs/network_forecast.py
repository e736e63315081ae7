"""What must happen on a network? The forecast that `fp.forecast(..., network=...)` makes."""

from __future__ import annotations

from typing import Any

from fedpoint.core.errors import FedpointError
from fedpoint.results.network_forecast import NetworkForecast
from fedpoint.theory.network_operator import NetworkSetting
from fedpoint.verbs.run import check_inputs, check_network, check_schedule, check_start


def network_forecast(
    algorithm: Any, problem: Any, network: Any, schedule: Any = None, start: Any = None, exact: bool = False
) -> NetworkForecast:
    """What `fp.forecast(..., network=...)` makes."""
    check_inputs(algorithm, problem, 0)
    network = check_network(network, problem)
    schedule = check_schedule(None, schedule, network)
    if problem.convex is None:
        raise FedpointError(
            "this loss may have many minima: a forecast would promise too much. Promise convexity: "
            "Loss(..., convex=True)"
        )
    setting = NetworkSetting(algorithm, problem, network, check_start(problem, start, network))
    return NetworkForecast(setting, schedule, exact)
