"""Which rows does a site never train on? A share that its own luck chooses, or those that a column marks with 1.

Held-out rows are in no mean, category, count or message; sites measure models on them. The luck is 32 random bytes in
the site's records: nobody else can tell which rows it chooses, and it chooses the same ones after every restart.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.core.numbers import counted
from fedpoint.data.column import Column
from fedpoint.federation.site_table import SiteTable
from fedpoint.store.disk import write_bytes

LUCK = "luck"  # a file of a site's records
BYTES = 32
Columns = Mapping[str, Column]


class Divided(NamedTuple):
    """The rows to train on, and those that are held out; None where the study holds out none."""

    trained: dict[str, Column]
    held: dict[str, Column] | None


def luck_in(records: Path) -> bytes | None:
    """The luck of a site; None before it was drawn."""
    path = records / LUCK
    if not path.exists():
        return None
    luck = read_file(path, links=False)
    if len(luck) != BYTES:
        raise FedpointError(f"{path} is damaged: it says which rows are held out; restore it from a backup")
    return luck


def draw_luck(records: Path) -> bytes:
    """The luck of a site, drawn the first time."""
    found = luck_in(records)
    if found is None:
        found = secrets.token_bytes(BYTES)
        write_bytes(records / LUCK, found)
        (records / LUCK).chmod(0o600)
    return found


def divide(table: SiteTable, columns: Columns, luck: bytes) -> Divided:
    """The rows of one site's file."""
    if table.held_out is None:
        return Divided(dict(columns), None)
    held = _marked(columns, table.held_out) if isinstance(table.held_out, str) else _chosen(table, columns, luck)
    own = {name: column for name, column in columns.items() if name != table.held_out}
    if held.all() or not held.any():
        what = "no row is" if not held.any() else "every row is"
        raise FedpointError(f"{what} held out (held_out = {table.held_out!r}): some must be, and some must not")
    parts = Divided(_rows(own, ~held), _rows(own, held))
    _check_classes(table, parts)
    return parts


def _rows(columns: Columns, some: np.ndarray) -> dict[str, Column]:
    return {name: column.take(some) for name, column in columns.items()}


def _marked(columns: Columns, name: str) -> np.ndarray:
    column = columns[name]
    odd = np.flatnonzero(~np.isin(column.values, (0, 1))) if column.words is None else np.zeros(1, int)
    if len(odd):
        raise FedpointError(
            f"row {odd[0] + 1}, column {name!r} is neither 0 (a row to train on) nor 1 (held out); "
            f"{counted(len(odd), 'such row')}"
            if column.words is None
            else f"column {name!r} holds words: write 0 for a row to train on and 1 for one that is held out"
        )
    return column.values == 1


def _chosen(table: SiteTable, columns: Columns, luck: bytes) -> np.ndarray:
    """The share of the rows, of each class alike, whose keyed hashes are the smallest."""
    share, rows, classes = float(table.held_out or 0.0), table.rows_of(columns), table.count_of(columns)
    place = np.zeros(rows, int) if classes is None else np.unique(classes, return_inverse=True)[1]
    digests = (hashlib.blake2b(row.to_bytes(8), digest_size=8, key=luck).digest() for row in range(rows))
    lots = np.fromiter((int.from_bytes(digest) for digest in digests), np.uint64, rows)
    held = np.zeros(rows, bool)
    for k in range(place.max(initial=-1) + 1):
        mine = np.flatnonzero(place == k)
        held[mine[np.argsort(lots[mine])[: round(share * len(mine))]]] = True
    return held


def _check_classes(table: SiteTable, parts: Divided) -> None:
    if parts.held is None:
        return
    counted_of = (table.count_of(some) for some in (parts.trained, parts.held))
    trained, held = (set() if some is None else set(some.tolist()) for some in counted_of)
    if held - trained:
        raise FedpointError(
            f"all rows of class {sorted(held - trained)[0]!r} are held out (held_out = {table.held_out!r}): "
            "keep some of each class to train on"
        )
