"""How does the hub open a sum? It takes off the own masks of those who are left, and the masks in common with the lost.

Of a site whose vector is in the sum it learns the seed of its own mask, of a lost one the mask key; never both. What
comes of shares is held against what the site has promised: a wrong share is known, and whose it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedpoint.federation.secure import primitives, shamir
from fedpoint.federation.secure.roster import Pool, promise

TRIES = 2000  # choices of shares, of which one may be without a lie


class Unopened(ValueError):
    """The masks of these sites cannot be taken off: the shares of their secrets are too few, or wrong."""

    def __init__(self, names: list[str]):
        super().__init__(f"the secrets of {', '.join(names)} cannot be put together")
        self.names = names


class Opened(NamedTuple):
    """The sum of vectors modulo 2^32, and who gave wrong shares."""

    total: np.ndarray
    liars: list[str]


def opened_sum(
    pool: Pool,
    places: Mapping[str, int],
    masked: Mapping[str, np.ndarray],
    revealed: Mapping[str, Mapping[str, bytes]],
    threshold: int,
) -> Opened:
    """The sum of the vectors in `masked`. revealed: by site, its shares of each site's secret."""
    secrets: dict[str, bytes] = {}
    wrong, liars = [], set[str]()
    for name in pool.names:
        shares = {places[by]: given[name] for by, given in revealed.items() if name in given}
        found = _secret(pool, name, name in masked, shares, threshold)
        if found is None:
            wrong.append(name)
        else:
            secrets[name], lies = found
            liars |= {by for by in revealed if places[by] in lies}
    if wrong:
        raise Unopened(wrong)
    count = len(next(iter(masked.values())))
    total = np.zeros(count, primitives.WORD)
    for name in pool.names:
        if name in masked:
            total = total + masked[name] - primitives.words(pool.alone(name, secrets[name]), count)
        else:  # what those who are left have added because of it is minus what it would have added
            total = total + pool.pairwise(name, primitives.Secret(secrets[name]), masked, count)
    return Opened(total, sorted(liars))


def _secret(
    pool: Pool, name: str, left: bool, shares: Mapping[int, bytes], threshold: int
) -> tuple[bytes, set[int]] | None:
    """A site's secret, as it has promised it, and the places of wrong shares; None: not to be had."""
    for some in itertools.islice(itertools.combinations(sorted(shares), threshold), TRIES):
        chosen = {place: shares[place] for place in some}
        try:
            secret = shamir.join(chosen, threshold)
        except ValueError:
            continue
        if _promised(pool, name, secret, left):
            others = shares.keys() - chosen
            return secret, {place for place in others if not shamir.fits(chosen, place, shares[place])}
    return None


def _promised(pool: Pool, name: str, secret: bytes, left: bool) -> bool:
    keys = pool.roster.members[name]
    if left:
        return promise(pool.roster.occasion, name, secret) == keys.promise
    return primitives.Secret(secret).public == keys.mask


__all__ = ["Opened", "Unopened", "opened_sum"]
