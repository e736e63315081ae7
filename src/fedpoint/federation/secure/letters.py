"""How do keys, shares and signatures travel? As arrays of bytes, named by the site and what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from fedpoint.federation.secure.roster import PublicKeys
from fedpoint.federation.secure.shamir import SHARE
from fedpoint.federation.wire import Arrays

STAGES = ("share", "mask", "agree", "reveal")  # of a round, after work; each is one order
LONGEST = 4096  # bytes of any of these
SEALED = 2 * SHARE + 16  # bytes of two shares, encrypted
MASKED = "masked"
SIGNATURE = "signature"


class Unreadable(ValueError):
    """Arrays that are not what a stage sends."""


def packed(texts: Mapping[str, bytes]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}


def unpacked(arrays: Arrays, names: Iterable[str]) -> dict[str, bytes]:
    """Bytes by name; all names are among these."""
    allowed = set(names)
    for name, array in arrays.items():
        if name not in allowed or array.dtype != np.uint8 or array.ndim != 1 or array.size > LONGEST:
            raise Unreadable(f"{name!r} is not what this stage sends")
    return {name: array.tobytes() for name, array in arrays.items()}


def packed_keys(members: Mapping[str, PublicKeys]) -> dict[str, np.ndarray]:
    named = ((site, keys._asdict()) for site, keys in members.items())
    return packed({f"{site} {part}": text for site, keys in named for part, text in keys.items()})


def unpacked_keys(arrays: Arrays, sites: Iterable[str]) -> dict[str, PublicKeys]:
    """The keys of some of these sites; each with all its parts."""
    parts = PublicKeys._fields
    texts = unpacked(arrays, (f"{site} {part}" for site in sites for part in parts))
    names = dict.fromkeys(name.rpartition(" ")[0] for name in texts)
    if len(texts) != len(names) * len(parts):
        raise Unreadable("keys without all their parts")
    return {site: PublicKeys(*(texts[f"{site} {part}"] for part in parts)) for site in names}


def packed_vector(vector: np.ndarray) -> dict[str, np.ndarray]:
    return {MASKED: vector.view("<i4")}


def unpacked_vector(arrays: Arrays, count: int) -> np.ndarray:
    array = arrays.get(MASKED)
    if array is None or len(arrays) > 1 or array.dtype != np.dtype("<i4") or array.shape != (count,):
        raise Unreadable("not a masked vector")
    return array.view("<u4")
