"""Is there memory for it? Asked before it is taken: a system grants more than it has, and ends whoever uses it."""

from __future__ import annotations

from pathlib import Path

from fedpoint.core.errors import FedpointError
from fedpoint.core.system import physical_memory

COPIES = 3  # of the numbers of a problem, while it is made
LIMIT: int | None = None  # bytes; None: what the machine has


def memory() -> int:
    """Bytes of memory that this process may use: the machine's, or what its container is given."""
    if LIMIT is not None:
        return LIMIT
    total = physical_memory()
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return total


def check_memory(numbers: int, what: str, advice: str) -> None:
    """Refuse what so many numbers in double precision, and their copies, would not fit."""
    check_bytes(8 * COPIES * numbers, what, advice)


def check_bytes(needed: int, what: str, advice: str) -> None:
    """Refuse what needs more bytes than there are."""
    if needed > memory():
        raise FedpointError(
            f"{what} needs about {in_bytes(needed)} of memory, and only {in_bytes(memory())} are available: {advice}"
        )


def in_bytes(count: int) -> str:
    """So many bytes, for people."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if count < 1000:
            return f"{count} {unit}"
        count //= 1000
    return f"{count:.1g} EB" if count < 10**300 else "far more than all"
