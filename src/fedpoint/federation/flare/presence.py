"""Which sites are there now? Each is asked through the server whether it is, and on which jobs it works.

A process that was killed is known at once: its connection is gone. A machine that hangs, or a network that swallows
everything, is known after the seconds that an answer may take. How long ago a site was heard of is what its heartbeats
say, by the server's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

REPLY = 2.0  # seconds for a site to answer
BEAT = 2.0  # seconds between heartbeats; the engine sleeps in steps of two
SLACK = 5.0  # seconds that the last heartbeat of a site that answers may be old
UNHEARD = "no_reply"

Ask = Callable[..., Any]  # of the engine's session, by name; None where it could not


class Presence(NamedTuple):
    """A site that the server knows."""

    answers: bool
    jobs: frozenset[str]  # that it works on
    unheard: float  # seconds since its last heartbeat


def look(ask: Ask) -> dict[str, Presence]:
    """The sites that the server knows. It forgets one that was silent for half a minute."""
    ask("set_timeout", REPLY)
    said = ask("get_client_job_status") or []
    ask("unset_timeout")
    answering = {one["client_name"] for one in said if one.get("status") != UNHEARD}
    jobs: dict[str, set[str]] = {}
    for one in said:
        jobs.setdefault(one["client_name"], set()).update([one["job_id"]] if "job_id" in one else [])
    beats = {one.name: one.last_connect_time for one in ask("get_connected_client_list") or []}
    since = ages({site: when for site, when in beats.items() if when is not None}, answering, time.time())
    return {site: Presence(site in answering, frozenset(jobs[site]), since.get(site, 0.0)) for site in jobs}


def ages(beats: Mapping[str, float], answering: set[str], clock: float) -> dict[str, float]:
    """Seconds since each site's last heartbeat. Our clock may be wrong: it is no earlier than any heartbeat, and a
    site that answers had one lately.

    >>> ages({"a": 100.0, "b": 93.0}, {"a"}, clock=101.0)
    {'a': 1.0, 'b': 8.0}
    >>> ages({"a": 100.0, "b": 93.0}, {"a"}, clock=4000.0)  # an hour ahead of the server's
    {'a': 5.0, 'b': 12.0}
    """
    newest = max(beats.values(), default=clock)
    alive = [when for site, when in beats.items() if site in answering]
    clock = max(clock, newest)
    if alive:
        clock = min(clock, max(alive) + SLACK)
    return {site: clock - when for site, when in beats.items()}
