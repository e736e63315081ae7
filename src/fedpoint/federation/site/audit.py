"""What was asked of a site, and what left it? One line for every order, written before its answer leaves."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path

import numpy as np

from fedpoint.federation.wire import Arrays, Header, Packet
from fedpoint.store.disk import append_line, canonical


class Audit:
    """Names, shapes and a hash, not the numbers."""

    def __init__(self, folder: Path):
        self.path = folder / "audit.jsonl"
        self.path.touch()

    def note(self, order: Packet | None, said: Header, arrays: Arrays, size: int) -> None:
        """An order (None: bytes that were none) and what was answered."""
        asked = Header() if order is None else order.header
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        sha = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())).hexdigest()
        about = {"run": asked.get("run"), "kind": asked.get("kind"), "round": asked.get("round")}
        append_line(
            self.path, canonical({"time": when, **about, "bytes": size, **said, "arrays": shapes, "sha256": sha})
        )
