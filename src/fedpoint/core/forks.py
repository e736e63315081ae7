"""Can this process compute? Not as a fork of one in which JAX runs: it would wait for threads that it does not have."""

from __future__ import annotations

import os

from jax._src import xla_bridge  # whether JAX has started has no public name

from fedpoint.core.errors import FedpointError

_started = False  # whether JAX ran in this process when it was last forked
_lost = False  # whether this process is a fork without its threads


def check_fork() -> None:
    """Refuse to compute in a fork of a process that has computed."""
    if _lost:
        raise FedpointError(
            "this process was forked from one in which JAX had started its threads, and a fork has none of them: "
            'nothing can be computed here. Start processes with multiprocessing.get_context("spawn"), or fork before '
            "the first run"
        )


def _before() -> None:
    global _started
    _started = xla_bridge.backends_are_initialized()


def _in_child() -> None:
    global _lost
    _lost = _lost or _started


os.register_at_fork(before=_before, after_in_child=_in_child)
