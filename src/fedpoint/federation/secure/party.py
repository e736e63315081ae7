"""What does a site do so that nobody sees its vector, and the sum comes about? Five answers, each given once.

    advertise   two fresh public keys, signed
    share       its mask key and the seed of its own mask, in shares, each encrypted to one of the others
    mask        the vector, plus its own mask, plus or minus a mask in common with each of the others
    agree       a signature: it has heard that these are left, and no others
    reveal      a share of the own mask's seed of each who is left, or of the mask key of each who is not; never both

All secrets are in memory only: a site that restarts is lost for this sum, and for nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedpoint.federation.secure import primitives, shamir
from fedpoint.federation.secure.identity import Identity, Impostor
from fedpoint.federation.secure.primitives import Secret
from fedpoint.federation.secure.roster import Pool, PublicKeys, Roster, promise, well_formed
from fedpoint.federation.secure.shamir import SECRET, SHARE, Randomness


class Misled(ValueError):
    """What the protocol forbids: no honest hub asks for it."""


@dataclass
class Attempt:
    """What a site knows of one sum: filled in from top to bottom."""

    occasion: bytes
    cipher: Secret
    mask: Secret
    seed: bytes  # of its own mask
    keys: PublicKeys
    roster: Roster | None = None
    shares: dict[str, bytes] = field(default_factory=dict)  # its own: of both secrets, one behind the other
    pool: Pool | None = None
    received: dict[str, bytes] = field(default_factory=dict)
    masked: bool = False
    survivors: tuple[str, ...] = ()
    revealed: bool = False


class Party:
    """A site's side of secure sums, one at a time. `sites` are all of the study; any `threshold` of them open a sum."""

    def __init__(self, identity: Identity, sites: Sequence[str], threshold: int, randomness: Randomness = os.urandom):
        self.identity, self.name, self.threshold, self.randomness = identity, identity.name, threshold, randomness
        self.places = {name: place for place, name in enumerate(sites, 1)}
        self.now: Attempt | None = None

    def advertise(self, occasion: bytes) -> PublicKeys:
        """Fresh keys; whatever was begun before is forgotten."""
        one, other, seed = (self.randomness(SECRET) for _ in range(3))
        cipher, mask = Secret(one), Secret(other)
        bound, certificate = promise(occasion, self.name, seed), self.identity.certificate
        keys = PublicKeys(cipher.public, mask.public, bound, b"", certificate)
        keys = keys._replace(signature=self.identity.sign(keys.signed(occasion, self.name)))
        self.now = Attempt(occasion, cipher, mask, seed, keys)
        return keys

    def share(self, members: Mapping[str, PublicKeys], terms: bytes) -> dict[str, bytes]:
        """Its secrets' shares for each of the others, encrypted."""
        now = self._attempt("shares")
        if now.roster is not None:
            raise Misled("shares were asked for again")
        self._check_members(now, members)
        roster = Roster(now.occasion, terms, dict(members))
        places = [self.places[name] for name in members]
        both = [shamir.split(secret, self.threshold, places, self.randomness) for secret in (now.seed, now.mask.secret)]
        shares = {name: b"".join(one[self.places[name]] for one in both) for name in members}
        now.roster, now.shares = roster, shares
        return {name: self._sealed(now, roster, name) for name in members if name != self.name}

    def _check_members(self, now: Attempt, members: Mapping[str, PublicKeys]) -> None:
        if members.get(self.name) != now.keys:
            raise Misled("the keys that are said to be of this site are not those that it gave")
        if len(members) < self.threshold:
            raise Misled(f"a sum over {len(members)} sites: at least {self.threshold} are needed to open one")
        for name, keys in members.items():
            if name not in self.places:
                raise Misled(f"{name!r} is not a site of this study")
            if name != self.name and not well_formed(keys, now.cipher, now.mask):
                raise Misled(f"the keys of {name} are not keys")
            try:
                self.identity.trust.verify(name, keys.certificate, keys.signed(now.occasion, name), keys.signature)
            except Impostor as error:
                raise Misled(f"the keys of {name} are not its own for this round: {error}") from None
        if len({key for keys in members.values() for key in keys[:2]}) < 2 * len(members):
            raise Misled("two sites have the same key")

    def _sealed(self, now: Attempt, roster: Roster, name: str) -> bytes:
        key = now.cipher.agreed(roster.members[name].cipher, roster.sender(self.name, name))
        return primitives.sealed(key, now.shares[name], roster.digest)

    def mask(self, received: Mapping[str, bytes], vector: np.ndarray) -> np.ndarray:
        """The vector, masked. received: the encrypted shares of each of the others that shared its secrets."""
        now = self._attempt("a masked vector")
        if now.roster is None or now.masked:
            raise Misled("a masked vector was asked for out of turn, or again")
        pool = self._pool(now.roster, received)
        now.pool, now.received, now.masked = pool, dict(received), True
        count = len(vector)
        own = primitives.words(pool.alone(self.name, now.seed), count)
        return vector.astype(primitives.WORD) + own + pool.pairwise(self.name, now.mask, received, count)

    def _pool(self, roster: Roster, received: Mapping[str, bytes]) -> Pool:
        names = tuple(sorted({*received, self.name}))
        if self.name in received or not set(names) <= set(roster.members):
            raise Misled("shares came of sites that did not give their keys")
        if len(names) < self.threshold:
            raise Misled(f"a sum over {len(names)} sites: at least {self.threshold} are needed to open one")
        return Pool(roster, names)

    def agree(self, survivors: Iterable[str]) -> bytes:
        """Signs the list of those whose masked vectors have arrived, if it may be; one list only."""
        now, names = self._attempt("a signature"), tuple(sorted(survivors))
        if now.pool is None or (now.survivors and now.survivors != names):
            raise Misled("another list of those who are left, or one out of turn")
        if self.name not in names or len(set(names)) < len(names) or not set(names) <= set(now.pool.names):
            raise Misled("a list of those who are left without this site, or with strangers")
        if len(names) < self.threshold:
            raise Misled(f"a sum over {len(names)} sites: at least {self.threshold} are needed to open one")
        now.survivors = names
        return self.identity.sign(now.pool.signed(names))

    def reveal(self, signatures: Mapping[str, bytes]) -> dict[str, bytes]:
        """One share of each site: what opens the sum over those who are left, as enough of them have signed."""
        now = self._attempt("shares of secrets")
        if now.pool is None or not now.survivors or now.revealed:
            raise Misled("shares of secrets were asked for out of turn, or again")
        for name, signature in signatures.items():
            if name not in now.survivors:
                raise Misled(f"{name!r} is not among those who are left")
            certificate = now.pool.roster.members[name].certificate
            try:
                self.identity.trust.verify(name, certificate, now.pool.signed(now.survivors), signature)
            except Impostor as error:
                raise Misled(f"{name} has not heard that these are left: {error}") from None
        if len(signatures) < self.threshold:
            raise Misled(f"{len(signatures)} sites have heard that these are left, and {self.threshold} must have")
        now.revealed = True
        known = {name: self._received(now, now.pool.roster, name) for name in now.pool.names}
        return {
            name: both[:SHARE] if name in now.survivors else both[SHARE:]
            for name, both in known.items()
            if len(both) == 2 * SHARE
        }

    def _received(self, now: Attempt, roster: Roster, name: str) -> bytes:
        """Another site's shares; nothing where they cannot be read: the hub then sees whose are missing."""
        if name == self.name:
            return now.shares[name]
        key = now.cipher.agreed(roster.members[name].cipher, roster.sender(name, self.name))
        try:
            return primitives.opened(key, now.received[name], roster.digest)
        except primitives.Unreadable:
            return b""

    def _attempt(self, what: str) -> Attempt:
        if self.now is None:
            raise Misled(f"{what} of a sum that was not begun here, or before this site was started again")
        return self.now


__all__ = ["Misled", "Party"]
