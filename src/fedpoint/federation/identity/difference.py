"""What changed between two versions of a study? One line for each value, by where it stands in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it loads JAX
    from fedpoint.core.types import Plain


def differences(before: Mapping[str, Plain], after: Mapping[str, Plain]) -> list[str]:
    """What a person reads before consenting again; empty where nothing changed.

    >>> differences({"rounds": 60, "algorithm": {"step": 0.1}}, {"rounds": 90, "algorithm": {"step": 0.1}, "quorum": 2})
    ['quorum: not said before, now 2', 'rounds: 60 -> 90']
    >>> differences({"sites": ["a", "b"]}, {"sites": ["a", "c"]})
    ['sites: added "c"; removed "b"']
    """
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [_line(where, old, new) for where in sorted(old.keys() | new.keys()) if old.get(where) != new.get(where)]


def _leaves(value: Mapping[str, Plain], path: str = "") -> Iterator[tuple[str, Plain]]:
    for key, one in value.items():
        if isinstance(one, Mapping) and one:
            yield from _leaves(one, f"{path}{key}.")
        else:
            yield f"{path}{key}", one


def _line(where: str, old: Mapping[str, Plain], new: Mapping[str, Plain]) -> str:
    if where not in old:
        return f"{where}: not said before, now {_text(new[where])}"
    if where not in new:
        return f"{where}: was {_text(old[where])}, no longer said"
    a, b = old[where], new[where]
    if isinstance(a, list) and isinstance(b, list):
        added, removed = [one for one in b if one not in a], [one for one in a if one not in b]
        parts = [
            f"{word} {', '.join(map(_text, some))}" for word, some in (("added", added), ("removed", removed)) if some
        ]
        if parts:
            return f"{where}: {'; '.join(parts)}"
    return f"{where}: {_text(a)} -> {_text(b)}"


def _text(value: Plain) -> str:
    return json.dumps(value)
