"""`fp.load`: runs of TOML files are built again from the content that their folders hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedpoint.config import methods, networks, schedules, schemes
from fedpoint.config.experiment import parse
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.describe import Unreadable
from fedpoint.core.errors import FedpointError
from fedpoint.problems.base import Problem
from fedpoint.timing.base import Timing
from fedpoint.timing.schedule import Synchronous
from fedpoint.verbs import load as stored
from fedpoint.verbs.load import Builder, LoadedRun, More

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network


class FromFile(Builder):
    """The parts of a run, from the content of a TOML file."""

    def algorithm(self, content: Mapping[str, Any]) -> Algorithm:
        if content["algorithm"]["name"] not in methods.makers():
            raise Unreadable(f"the algorithm {content['algorithm']['name']} is not in the catalogue")
        return methods.build(content["algorithm"])

    def timing(self, content: Mapping[str, Any]) -> Timing:
        if "schedule" in content:
            return schedules.scheme_of(content["schedule"])
        return Synchronous() if "network" in content else schemes.scheme_of(content.get("participation"))

    def network(self, content: Mapping[str, Any], problem: Problem) -> Network:
        found = networks.network_of(content["network"], None, problem)
        if found is None:
            raise FedpointError("the file of this run names no network")
        return found

    def problem(self, content: Mapping[str, Any], folder: Path) -> Problem:
        return parse(content, folder.name, source=str(folder)).problem


def load(
    folder: str | Path,
    problem: Problem | None = None,
    algorithm: Algorithm | None = None,
    participation: Timing | None = None,
    network: Network | None = None,
    **more: Unpack[More],
) -> LoadedRun:
    more.setdefault("builder", FromFile())
    return stored.load(folder, problem, algorithm, participation, network, **more)


load.__doc__ = stored.load.__doc__
