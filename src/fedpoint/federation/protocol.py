"""Do two parties understand each other? If they speak one protocol, whichever releases of fedpoint they run.

Raise PROTOCOL when a party of before would misunderstand an order, an answer or a kit. What tells the two apart is the
same in every protocol: the frame of a message, and `protocol` and `fedpoint` in headers, kits and jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypedDict

from fedpoint import __version__
from fedpoint.core.errors import FedpointError

PROTOCOL = 5
LONGEST = 40  # characters of a version that somebody else names


class Mismatch(FedpointError):
    """Two parties that speak different protocols; the message says what to install, and `where`."""

    def __init__(self, text: str, where: str):
        super().__init__(text)
        self.where = where


class Named(TypedDict):
    """A release in a header, a kit or a job."""

    protocol: int
    fedpoint: str


class Release(NamedTuple):
    """What a party runs: the protocol decides, the version tells people what to install."""

    protocol: int
    fedpoint: str

    @classmethod
    def named_in(cls, said: Mapping[str, object]) -> Release:
        """What a header, a kit or a job says of whoever made it; protocol 0 where it names none."""
        protocol, version = said.get("protocol"), said.get("fedpoint")
        plain = isinstance(version, str) and version.isascii() and version.isprintable() and 0 < len(version) <= LONGEST
        return cls(protocol if type(protocol) is int else 0, str(version) if plain else "of an unknown version")

    def plain(self) -> Named:
        return Named(protocol=self.protocol, fedpoint=self.fedpoint)


OWN = Release(PROTOCOL, __version__)


def check(here: str, own: Release, there: str, other: Release) -> None:
    """Refuse a party that speaks another protocol: whoever speaks the older one installs what the other has."""
    if own.protocol == other.protocol:
        return
    where, newer = (there, own) if other.protocol < own.protocol else (here, other)
    raise Mismatch(
        f"{there} runs fedpoint {other.fedpoint} (protocol {other.protocol}), "
        f"{here} runs fedpoint {own.fedpoint} (protocol {own.protocol}): "
        f"at {where}, install fedpoint {newer.fedpoint}",
        where,
    )
