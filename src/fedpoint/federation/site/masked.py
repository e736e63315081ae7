"""How does a site take part in a secure sum? Its answer stays here, and leaves with masks on, stage by stage.

Each stage is an order; `secure/party.py` says what it may be. All secrets are in memory: a site that was started again
in mid-round is lost for this round, and for nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.federation.secure import letters
from fedpoint.federation.secure.encoding import Encoding, OutOfRange
from fedpoint.federation.secure.identity import Identity
from fedpoint.federation.secure.party import Misled, Party
from fedpoint.federation.secure.roster import occasion_of, terms_of
from fedpoint.federation.site.order import Order
from fedpoint.federation.site.refusal import Refused, forbidden
from fedpoint.federation.study import Study
from fedpoint.federation.wire import Arrays, OwnSetup


class Pending(NamedTuple):
    """The answer to a round, which waits for its masks."""

    run: str
    round: int
    terms: bytes  # what all sites must have been told alike
    vector: np.ndarray


class MaskedSums:
    """A site's side of the secure sums of a study."""

    def __init__(self, study: Study, identity: Identity | None):
        if identity is None:
            raise FedpointError(f"{study.name} has secure sums, which need the certificates of a kit")
        self.study, self.name, self.party = study, identity.name, Party(identity, study.sites, study.least)
        self.pending: Pending | None = None

    def begin(
        self,
        order: Order,
        heard: Arrays,
        message: dict[str, np.ndarray],
        setup: OwnSetup,
        encoding: Encoding,
        rows: int,
    ) -> dict[str, np.ndarray]:
        """The round was worked on: keys for its sum are all that leaves. rows: of this site."""
        try:
            vector = encoding.encode(message, setup["share"])
        except OutOfRange as error:
            raise Refused("range", str(error)) from None
        terms = terms_of(heard, setup, rows if self.study.shares_by_rows else 0)
        self.pending = Pending(order.run, order.round, terms, vector)
        keys = self.party.advertise(occasion_of(self.study.fingerprint, order.run, order.round))
        return letters.packed_keys({self.name: keys})

    def answer(self, order: Order, arrays: Arrays) -> dict[str, np.ndarray]:
        """What a stage sends."""
        pending = self.pending
        if pending is None or (pending.run, pending.round) != (order.run, order.round):
            raise Refused("memory", f"the secrets of round {order.round} are not here: this site was started again")
        try:
            return self._stage(order.kind, pending, arrays)
        except (Misled, letters.Unreadable) as error:
            raise forbidden(f"{order.kind} of round {order.round}: {error}") from None

    def _stage(self, kind: str, pending: Pending, arrays: Arrays) -> dict[str, np.ndarray]:
        sites, party = self.study.sites, self.party
        if kind == "share":
            return letters.packed(party.share(letters.unpacked_keys(arrays, sites), pending.terms))
        texts = letters.unpacked(arrays, sites)
        if kind == "mask":
            return letters.packed_vector(party.mask(texts, pending.vector))
        if kind == "agree":
            return letters.packed({letters.SIGNATURE: party.agree(texts)})
        return letters.packed(party.reveal(texts))
