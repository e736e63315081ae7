"""What was asked of a site, and what left it? One line of its record for every order, on disk before the answer leaves.

    {"time": ..., "before": SHA-256 of the line before,
     "asked": {"kind", "run", "round", "merged", "columns", "recipe": SHA-256, "model": SHA-256, "bytes"},
     "left":  {"says": words of the answer, "arrays": {name: shape}, "bytes", "sha256"},
     "detail": why an order was refused; this stays here}

Names, shapes and hashes, never the numbers. `left.sha256` is that of the answer with `chain` all zeros: the line's own
hash then takes their place, so that whoever keeps the answer holds a seal of all lines up to it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import cast

from fedpoint.core.types import Plain
from fedpoint.federation import wire
from fedpoint.federation.site.chain import Chain, Entry, origin
from fedpoint.store.disk import array_digest, canonical

LONGEST = 200  # characters that are noted of a word of the hub's
MOST = 100  # names of columns that are noted
UNSEALED = "0" * 64
UNSAID = "see the site's own log, which may quote its data"
WORDS = ("kind", "run", "round", "merged", "why")


def unread(order: bytes) -> Entry:
    """What is noted of bytes that are no message."""
    return {"bytes": len(order), "sha256": hashlib.sha256(order).hexdigest()}


def read(order: wire.Packet, size: int) -> Entry:
    """What is noted of an order. Its words are the hub's, and may be anything."""
    header = cast(Entry, order.header)
    asked: Entry = {word: _short(header[word]) for word in WORDS if word in header}
    setup = header.get("setup")
    recipe = header.get("recipe", setup.get("recipe") if isinstance(setup, dict) else None)
    if recipe:
        asked["recipe"] = hashlib.sha256(canonical(recipe)).hexdigest()
        rows = recipe[:MOST] if isinstance(recipe, list) else []
        asked["columns"] = [_short(row.get("column")) for row in rows if isinstance(row, dict)]
    if order.arrays:
        asked["model"] = array_digest(order.arrays, {})
    return {**asked, "bytes": size}


def _short(value: Plain) -> Plain:
    """A word of the hub's, no longer than a person would read."""
    if value is None or isinstance(value, bool) or (type(value) is int and abs(value) < 1 << 53):
        return value
    return str(value)[:LONGEST]


class Audit:
    """The record of a site in a study."""

    def __init__(self, folder: Path, study: str, site: str):
        self.chain = Chain(folder, origin(study, site))

    def seal(
        self, asked: Entry, about: wire.Header, said: wire.Header, arrays: wire.Arrays | None = None, detail: str = ""
    ) -> bytes:
        """The answer, noted: `about` is in every one, `said` in this."""
        header, arrays = wire.Header(**{**about, **said}), arrays or {}
        plain = wire.encode({**header, "chain": UNSEALED}, arrays)
        left: Entry = {"says": cast(Entry, said), "arrays": {name: list(array.shape) for name, array in arrays.items()}}
        left |= {"bytes": len(plain), "sha256": hashlib.sha256(plain).hexdigest()}
        entry: Entry = {"asked": asked, "left": left}
        if detail:
            entry["detail"] = detail[:LONGEST]
        return wire.encode({**header, "chain": self.chain.append(entry)}, arrays)
