"""Who takes part in one secure sum, with which keys? What all of them must agree on is hashed into every mask.

A hub that tells two sites different things gets masks that do not cancel, and learns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fedpoint.federation.secure import primitives
from fedpoint.federation.secure.primitives import KEY, Secret, derived, digest
from fedpoint.federation.wire import Arrays, OwnSetup
from fedpoint.store.disk import array_digest

ALIKE: tuple[Literal["heaviest", "recipe", "classes"], ...] = ("heaviest", "recipe", "classes")


class PublicKeys(NamedTuple):
    """What a site says of itself at the beginning of a sum."""

    cipher: bytes  # agrees on keys that encrypt shares
    mask: bytes  # agrees on masks
    promise: bytes  # the hash of the seed of its own mask, by which a wrong one is known
    signature: bytes
    certificate: bytes

    def signed(self, occasion: bytes, name: str) -> bytes:
        """What the signature is of."""
        return digest("keys", occasion, name, self.cipher, self.mask, self.promise)


@dataclass(frozen=True)
class Roster:
    """The sites of a sum. occasion: of study, run and round; terms: of all else that they must agree on."""

    occasion: bytes
    terms: bytes
    members: Mapping[str, PublicKeys]

    @cached_property
    def digest(self) -> bytes:
        keys = [
            [name, keys.cipher.hex(), keys.mask.hex(), keys.promise.hex()]
            for name, keys in sorted(self.members.items())
        ]
        return digest("roster", self.occasion, self.terms, keys)

    def sender(self, one: str, other: str) -> bytes:
        """The purpose of the key that seals what one site sends to another."""
        return digest("shares", self.digest, one, other)


@dataclass(frozen=True)
class Pool:
    """The sites of a roster that shared their secrets: each masks its vector with each of the others."""

    roster: Roster
    names: tuple[str, ...]

    @cached_property
    def digest(self) -> bytes:
        return digest("pool", self.roster.digest, list(self.names))

    def between(self, one: str, secret: Secret, other: str) -> bytes:
        """The key of the mask that two sites have in common: either one's secret and the other's public key."""
        purpose = digest("mask", self.digest, sorted([one, other]))
        return secret.agreed(self.roster.members[other].mask, purpose)

    def alone(self, name: str, seed: bytes) -> bytes:
        """The key of a site's own mask."""
        return derived(seed, digest("self", self.digest, name))

    def pairwise(self, name: str, secret: Secret, others: Iterable[str], count: int) -> np.ndarray:
        """What a site adds because of others: of two sites one adds the common mask and the other subtracts it."""
        total = np.zeros(count, primitives.WORD)
        for other in others:
            mask = primitives.words(self.between(name, secret, other), count)
            total = total + mask if name < other else total - mask
        return total

    def signed(self, survivors: Iterable[str]) -> bytes:
        """What sites sign when they have heard who is left."""
        return digest("survivors", self.digest, sorted(survivors))


ANYBODY = Secret(bytes(KEY))  # for whoever has no keys in a sum


def well_formed(keys: PublicKeys, cipher: Secret = ANYBODY, mask: Secret = ANYBODY) -> bool:
    """Whether these are keys, with which others can agree on something: of some points nothing comes but zero.

    cipher, mask: the secrets of who asks, and will need what they have in common with these keys.
    """
    if not all(len(part) == KEY for part in keys[:3]):
        return False
    try:
        return bool(cipher.common(keys.cipher) and mask.common(keys.mask))
    except ValueError:
        return False


def promise(occasion: bytes, name: str, seed: bytes) -> bytes:
    """What binds a site to the seed of its own mask; of 256 random bits it says nothing."""
    return digest("seed", occasion, name, seed)


def occasion_of(study: str, run: str, round: int) -> bytes:
    """Which sum it is: the study by its fingerprint, the run, the round."""
    return digest("sum", study, run, round)


def terms_of(heard: Arrays, setup: OwnSetup, rows: int) -> bytes:
    """What sites must have been told alike before they work: the model, how columns are written, and how much each
    counts. A hub that tells one site something else could find its part in the sum: if it alone had a share, say.

    rows: the site's own, where shares follow from rows, else 0. Over the share they give the rows of all sites, which
    is one number for everybody only if every share is what it must be.
    """
    alike = {name: setup[name] for name in ALIKE}
    return digest("terms", array_digest(heard, {}), alike, round(rows / setup["share"]))
