"""How does a hub get the sum of a round whose answers it may not see? Keys, shares, masked answers, a list of who is
left that sites have signed, and shares again, by which the masks come off the sum.

A site that is lost before its masked answer came is not in the sum, one that is lost later is; at each stage there must
be as many as the quorum, or the round is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from fedpoint.core.types import Message
from fedpoint.federation import protection
from fedpoint.federation.hub import validate
from fedpoint.federation.secure import letters
from fedpoint.federation.secure.encoding import Encoding
from fedpoint.federation.secure.identity import Impostor, Trust
from fedpoint.federation.secure.opening import Unopened, opened_sum
from fedpoint.federation.secure.roster import Pool, PublicKeys, Roster, occasion_of, terms_of, well_formed
from fedpoint.federation.secure.shamir import SHARE
from fedpoint.federation.shapes import blank, named, tree_of
from fedpoint.federation.wire import Arrays, Packet

if TYPE_CHECKING:
    from fedpoint.federation.hub.hub import StudyHub

Found = TypeVar("Found")


class Sum(NamedTuple):
    """sum p_k m_k over some agents."""

    total: Message
    agents: list[int]


class MaskedRound:
    """One round of a hub. `lost` tells why sites are not in it, by name."""

    def __init__(self, hub: StudyHub, trust: Trust):
        self.hub, self.trust, self.lost = hub, trust, dict[str, str]()
        self.sites, self.least = hub.sites, hub.study.least
        self.places = {site: place for place, site in enumerate(self.sites, 1)}
        channel, shapes, weights = hub.state.inputs.channel, hub.state.shapes, hub.outline.weights
        self.like = named(blank(shapes.code))
        longest = protection.longest(channel, blank(shapes.message))
        self.encoding = Encoding(longest, float(np.max(weights)), len(self.sites))
        self.occasion = occasion_of(hub.study.fingerprint, hub.ledger.run, hub.round)

    def keys(self, k: int, packet: Packet) -> PublicKeys:
        """What a site's answer to "work" is: its own keys, signed for this round."""
        site = self.sites[k]
        keys = _read(lambda: letters.unpacked_keys(packet.arrays, [site])[site])
        if not well_formed(keys):
            raise validate.Invalid("masks")
        self._verify(site, keys.certificate, keys.signed(self.occasion, site), keys.signature)
        return keys

    def _verify(self, site: str, certificate: bytes, text: bytes, signature: bytes) -> None:
        try:
            self.trust.verify(site, certificate, text, signature)
        except Impostor:
            raise validate.Invalid("masks") from None

    def sum(self, members: Mapping[str, PublicKeys], heard: Arrays) -> Sum | None:
        """The sum over those who are left at the end; None: too few were, or it could not be opened."""
        if len(members) < self.least:
            return None
        given = letters.packed_keys(members)
        shares = self._ask("share", dict.fromkeys(members, given), lambda site, a: self._shares(site, members, a))
        if len(shares) < self.least:
            return None
        pool = Pool(Roster(self.occasion, self._terms(heard, members), dict(members)), tuple(sorted(shares)))
        to = {site: {other: shares[other][site] for other in shares if other != site} for site in shares}
        count = self.encoding.count(self.like)
        masked = self._ask("mask", _packed(to), lambda site, a: letters.unpacked_vector(a, count))
        if len(masked) < self.least:
            return None
        left = dict.fromkeys(masked, b"left")
        signed = self._ask(
            "agree", _packed(dict.fromkeys(masked, left)), lambda site, a: self._signed(site, pool, masked, a)
        )
        if len(signed) < self.least:
            return None
        revealed = self._ask("reveal", _packed(dict.fromkeys(signed, signed)), lambda site, a: _revealed(pool, a))
        return self._opened(pool, masked, revealed)

    def _terms(self, heard: Arrays, members: Mapping[str, PublicKeys]) -> bytes:
        """What all of them have been told, by any of them."""
        k, counts = self.sites.index(min(members)), self.hub.setup["rows"]
        rows = counts[k] if counts is not None and self.hub.study.shares_by_rows else 0
        return terms_of(heard, self.hub.own[k], rows)

    def _ask(self, kind: str, arrays: Mapping[str, Arrays], read: Callable[[str, Arrays], Found]) -> dict[str, Found]:
        """What sites send in a stage, by name; whose answer is missing or wrong is lost."""
        found, lost = self.hub.ask(kind, lambda site, packet: _read(lambda: read(site, packet.arrays)), arrays)
        self.lost |= lost
        return found

    def _shares(self, site: str, members: Mapping[str, PublicKeys], arrays: Arrays) -> dict[str, bytes]:
        others = set(members) - {site}
        shares = letters.unpacked(arrays, others)
        if set(shares) != others or any(len(share) != letters.SEALED for share in shares.values()):
            raise letters.Unreadable("not a share for each of the others")
        return shares

    def _signed(self, site: str, pool: Pool, masked: Mapping[str, np.ndarray], arrays: Arrays) -> bytes:
        signature = letters.unpacked(arrays, [letters.SIGNATURE]).get(letters.SIGNATURE, b"")
        self._verify(site, pool.roster.members[site].certificate, pool.signed(masked), signature)
        return signature

    def _opened(
        self, pool: Pool, masked: Mapping[str, np.ndarray], revealed: Mapping[str, Mapping[str, bytes]]
    ) -> Sum | None:
        try:
            opened = opened_sum(pool, self.places, masked, revealed, self.least)
        except Unopened as error:
            self._blame(error.names)
            return None
        self._blame(opened.liars)
        agents = sorted(self.sites.index(site) for site in masked)
        mass = float(sum(self.hub.outline.weights[k] for k in agents))
        found = self.encoding.decode(opened.total, mass, self.like)
        if found is None:  # somebody's masks were not those that were agreed on, and nobody can say whose
            self._blame(list(masked))
            return None
        return Sum(tree_of(self.hub.state.shapes.code, found), agents)

    def _blame(self, names: list[str]) -> None:
        for name in names:
            self.hub.note(name, "masks")
            self.lost[name] = "masks"


def _read(read: Callable[[], Found]) -> Found:
    try:
        return read()
    except letters.Unreadable:
        raise validate.Invalid("masks") from None


def _packed(texts: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, np.ndarray]]:
    return {site: letters.packed(given) for site, given in texts.items()}


def _revealed(pool: Pool, arrays: Arrays) -> dict[str, bytes]:
    shares = letters.unpacked(arrays, pool.names)
    if any(len(share) != SHARE for share in shares.values()):
        raise letters.Unreadable("not shares")
    return shares
