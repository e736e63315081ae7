"""What travels between hub and sites? A small header and named arrays, as bytes: no pickle, nothing that runs.

    "FEDP" | length of the header (4 bytes) | header (JSON) | the arrays' bytes, one behind the other

The header lists names, types and shapes of the arrays. Whatever is not exactly that is refused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

import jax.numpy as jnp
import numpy as np

MAGIC = b"FEDP"
HEADER = 1 << 24  # bytes of a header, at most
ARRAYS = 10_000  # of a message, at most
NEVER = -1  # the round that was merged last, before any was
TYPES = {name: np.dtype(name) for name in ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1")}
TYPES["bf2"] = np.dtype(jnp.bfloat16)  # which NumPy has no code for
NAMES = {kind: name for name, kind in TYPES.items()}

Arrays = Mapping[str, np.ndarray]
Classes = Sequence[int | str] | None


class Written(TypedDict):
    """How a column is written: the fields of a `Feature`."""

    column: str
    mean: float
    scale: float
    categories: list[str] | None
    fill: float | str | None
    dates: str | None


class Recipe(TypedDict):
    """How columns are written, and the classes of the target."""

    recipe: list[Written]
    classes: Classes


class OwnSetup(Recipe):
    """What a site needs to know besides the study."""

    index: int
    share: float
    heaviest: float  # the largest share of a site


class ColumnSaid(TypedDict):
    """What a site says of one of its columns."""

    kind: str
    count: NotRequired[int]
    words: NotRequired[list[str]]
    forms: NotRequired[list[str]]  # how its dates may be written


class Header(TypedDict, total=False):
    """What orders and answers say. Of what arrived, nothing is believed before it was looked at."""

    protocol: int  # decides whether two parties understand each other
    fedpoint: str  # what to install, where they do not
    study: str
    run: str
    order: str  # a word of this order's own, which its answer repeats: nobody can foresee the next one's
    kind: str
    round: int
    merged: int
    setup: OwnSetup
    recipe: list[Written]
    site: str
    failure: str
    why: str  # a site cannot take part
    rows: int
    columns: dict[str, ColumnSaid]
    classes: Classes
    count: int
    weight: float
    seconds: float
    measures: dict[str, float]
    tables: dict[str, list[list[float]]]  # calibration, confusion
    chain: str  # the seal of all that the site has noted so far


class Garbage(ValueError):
    """Bytes that are no message."""


class Packet(NamedTuple):
    """A header in plain types, and arrays by name."""

    header: Header
    arrays: dict[str, np.ndarray]


def encode(header: Header, arrays: Arrays | None = None) -> bytes:
    named = {name: np.asarray(value) for name, value in (arrays or {}).items()}
    for name, array in named.items():
        if array.dtype not in NAMES:
            raise TypeError(f"{name} has type {array.dtype}, which does not travel")
    about = [[name, NAMES[array.dtype], list(array.shape)] for name, array in named.items()]
    head = json.dumps({**header, "arrays": about}, separators=(",", ":"), allow_nan=False).encode()
    return b"".join([MAGIC, struct.pack("<I", len(head)), head, *(array.tobytes() for array in named.values())])


def decode(data: bytes | bytearray | memoryview) -> Packet:
    """The message again. Arrays are views of the bytes, read-only."""
    if not isinstance(data, bytes | bytearray | memoryview) or len(data) < 8 or bytes(data[:4]) != MAGIC:
        raise Garbage("not a message")
    (length,) = struct.unpack("<I", data[4:8])
    if length > min(HEADER, len(data) - 8):
        raise Garbage("cut short")
    try:
        header = json.loads(bytes(data[8 : 8 + length]), parse_constant=_no_constant)
        about = header.pop("arrays")
        return Packet(header, _arrays(memoryview(data)[8 + length :], about))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Garbage(f"not a message: {error}") from None


def _no_constant(name: str) -> None:
    raise Garbage(f"{name} in a header")


def _arrays(body: memoryview, about: Any) -> dict[str, np.ndarray]:
    if not isinstance(about, list) or len(about) > ARRAYS:
        raise Garbage("no list of arrays")
    found: dict[str, np.ndarray] = {}
    at = 0
    for name, kind, shape in about:
        if not isinstance(name, str) or name in found or kind not in TYPES:
            raise Garbage("an array of no known name or type")
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**40 for n in shape) or len(shape) > 32:
            raise Garbage(f"{name} has no shape")
        size = math.prod(shape) * TYPES[kind].itemsize
        if size > len(body) - at:
            raise Garbage(f"{name} is cut short")
        array = np.frombuffer(body[at : at + size], dtype=TYPES[kind]).reshape(shape)
        array.flags.writeable = False
        found[name], at = array, at + size
    if at != len(body):
        raise Garbage("more bytes than arrays")
    return found
