"""Has a site stopped itself? After three refused orders in a row it answers nothing more, until a person lifts that.

refusals.jsonl   one line {time, text} for each order that the study forbids
stopped.json     {time, text}, while the site is stopped
orders.json      how many were refused in a row, beside what was answered
"""

from __future__ import annotations

import contextlib
import datetime
import json
from pathlib import Path

from fedpoint.store.disk import append_line, canonical, read_object, take_lock, write_bytes

STRIKES = 3  # refusals in a row
ORDERS = "orders.json"
LIFT = "--lift-stop"
REFUSALS, STOPPED = "refusals.jsonl", "stopped.json"


def _line(text: str) -> bytes:
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return canonical({"time": when, "text": text})


def note_refusal(folder: Path, text: str) -> None:
    """For the terminal of the site, which follows the file."""
    path = folder / REFUSALS
    path.touch()
    append_line(path, _line(text))


def note_stop(folder: Path, text: str) -> None:
    write_bytes(folder / STOPPED, _line(text))


def why_stopped(folder: Path) -> str | None:
    """What the site says of its stop; None where it takes part."""
    try:
        return str(read_object((folder / STOPPED).read_bytes()).get("text", ""))
    except FileNotFoundError:
        return None
    except ValueError:  # somebody wrote into it: the stop stands
        return "stopped.json is damaged"


def lift_stop(folder: Path) -> bool:
    """The person at the site has looked at the refusals: orders are answered again. False where none was stopped."""
    if why_stopped(folder) is None:
        return False
    with contextlib.closing(take_lock(folder)):
        path = folder / ORDERS
        if path.exists():  # first the count: a stop without one is still a stop
            write_bytes(path, json.dumps({**read_object(path.read_bytes()), "refused": 0}).encode())
        (folder / STOPPED).unlink()
    return True
