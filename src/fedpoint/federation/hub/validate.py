"""May an answer be merged? Looked at before anything is done with it; a refusal has a reason for machines.

| reason | what was wrong |
|---|---|
| `garbage` | bytes that are no message |
| `version`, `study`, `run` | another protocol, another study, another run of it |
| `site` | it says it is from another site than the engine knows |
| `late` | an answer to another order than the last, whatever it is labelled |
| `kind`, `round` | labelled as another kind or round than the one asked |
| `twice` | this site has answered this order already |
| `unasked` | this site was not asked |
| `keys`, `shape`, `dtype` | other arrays than the algorithm's message has |
| `finite` | NaN or infinity |
| `norm` | longer than the study's `norm_cap` |
| `weight` | another weight than the one agreed upon |
| `chain` | no seal of the site's own record |
| `statement` | counts, columns, moments or measures that cannot be |
| `rows` | more or fewer rows than the study allows the site |
| `deadline`, `lost` | no answer in time, or the engine lost the site |
| `absent` | not asked: the site has not come yet, or cannot take part |
| `order`, `data`, `memory`, `error` | the site itself could not: its own log says why |
| `terms`, `stopped` | the study does not allow what was asked; after three of these a site stops itself |
| `range`, `privacy` | a number that secure sums have no room for; the agreed epsilon of the site is used up |
| `masks` | keys, shares, a masked vector or a signature of a secure sum that cannot be, or do not fit together |
| `floor` | the site has too few rows, of a category or class say, to speak of them |
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from fedpoint.core.types import Message
from fedpoint.federation import protocol, wire
from fedpoint.federation.hub import norms
from fedpoint.federation.shapes import misfit

OWN = (  # reasons that a site may give itself
    "order", "data", "memory", "error", "version", "study", "terms", "stopped", "floor", "rows",
    "range", "privacy",
)  # fmt: skip
SEAL = re.compile("[0-9a-f]{64}")
STALE = ("late", "twice", "unasked", "run")  # not the answer that is waited for: it may still come


class Invalid(Exception):
    """An answer that is not merged; `advice` where there is something to do about it."""

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(reason)
        self.reason, self.advice = reason, advice


def opened(data: bytes, site: str, expected: wire.Header) -> wire.Packet:
    """The answer of a site to an order with this header, or why not."""
    try:
        packet = wire.decode(data)
    except wire.Garbage:
        raise Invalid("garbage") from None
    header = packet.header
    try:
        protocol.check("the hub", protocol.OWN, site, protocol.Release.named_in(header))
    except protocol.Mismatch as error:
        raise Invalid("version", str(error)) from None
    for key in ("study", "run"):
        if header.get(key) != expected[key] and not (key == "study" and header.get("failure") == "study"):
            raise Invalid(key)
    if header.get("site") != site:
        raise Invalid("site")
    if header.get("order") != expected["order"]:
        raise Invalid("late")
    if type(header.get("round")) is not int or header["round"] != expected["round"]:
        raise Invalid("round")
    if header.get("kind") != expected["kind"]:
        raise Invalid("kind")
    chain = header.get("chain")
    if not isinstance(chain, str) or not SEAL.fullmatch(chain):
        raise Invalid("chain")
    return packet


def willing(packet: wire.Packet) -> None:
    """Refuse the answer of a site that could not, or would not."""
    if "failure" in packet.header:
        failure = packet.header["failure"]
        raise Invalid(failure if failure in OWN else "error")


def message(packet: wire.Packet, like: Message, share: float, norm_cap: float | None) -> dict[str, np.ndarray]:
    """The arrays of an answer to "work", fit to be merged."""
    wrong = misfit(like, packet.arrays)
    if wrong:
        raise Invalid(wrong)
    weight = packet.header.get("weight")
    if type(weight) is not float or weight != share:
        raise Invalid("weight")
    finite(packet.arrays.values())
    norm(packet.arrays, norm_cap)
    return packet.arrays


def finite(arrays: Iterable[np.ndarray]) -> None:
    """Refuse what is not a number, or not a finite one."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise Invalid("finite")


def norm(message: Message, cap: float | None) -> None:
    """Refuse what is longer than the study allows."""
    if cap is not None and not norms.norm(message) <= cap:
        raise Invalid("norm")
