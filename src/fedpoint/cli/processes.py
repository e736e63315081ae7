"""The options of commands that can share a run out between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fedpoint.core.errors import FedpointError

if TYPE_CHECKING:
    from fedpoint.verbs.processes.supervisor import Processes

OPTIONS = (
    click.option("--processes", type=click.IntRange(min=1), metavar="N", help="Split the agents over N processes."),
    click.option(
        "--fast-reduce", is_flag=True, help="Sum by all-reduce; the last bits then depend on the number of processes."
    ),
    click.option("--coordinator", metavar="HOST:PORT", help="On several hosts: address of process 0."),
    click.option("--process", type=click.IntRange(min=0), metavar="I", help="On several hosts: this process's index."),
    click.option("--of", type=click.IntRange(min=1), metavar="N", help="On several hosts: number of processes."),
    click.option(
        "--bind",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS",
        help="Address to bind the coordinator to. It has no authentication: use trusted networks only.",
    ),
    click.option(
        "--watchdog", type=click.FloatRange(min=1), default=600, show_default=True, metavar="SECONDS",
        help="Time without progress after which the processes are ended.",
    ),
    click.option(
        "--patience", type=click.FloatRange(min=1), default=120, show_default=True, metavar="SECONDS",
        help="Time to wait for the processes of other hosts.",
    ),
)  # fmt: skip


def process_options(command: Callable) -> Callable:
    """A command with these options, gathered into its argument `processes` (None: this process alone)."""

    def with_processes(**given: Any) -> Any:
        names = ("processes", "fast_reduce", "coordinator", "process", "of", "bind", "watchdog", "patience")
        return command(processes=_processes(**{name: given.pop(name) for name in names}), **given)

    with_processes.__name__, with_processes.__doc__ = command.__name__, command.__doc__
    for option in reversed(OPTIONS):
        with_processes = option(with_processes)
    with_processes.__click_params__ += getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return with_processes


def _processes(
    processes: int | None,
    fast_reduce: bool,
    coordinator: str | None,
    process: int | None,
    of: int | None,
    bind: str,
    watchdog: float,
    patience: float,
) -> Processes | None:
    hosts = {"--coordinator": coordinator, "--process": process, "--of": of}
    missing = [name for name, value in hosts.items() if value is None]
    if 0 < len(missing) < 3:
        raise FedpointError(f"on several hosts give --coordinator, --process and --of: {', '.join(missing)} is missing")
    if processes is not None and not missing:
        raise FedpointError("give --processes on one machine, or --coordinator, --process and --of on several hosts")
    if processes is None and missing:
        if fast_reduce:
            raise FedpointError("--fast-reduce changes sums over processes: give --processes too")
        return None
    from fedpoint.verbs.processes.supervisor import Processes

    return Processes(processes or of or 1, fast_reduce, coordinator, process, bind, float(watchdog), float(patience))
