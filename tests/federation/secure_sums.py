"""A secure sum without wires: parties, what a hub holds at each stage, and parties that break the protocol's laws."""

from random import Random

import numpy as np

from fedpoint.federation.secure import primitives, shamir
from fedpoint.federation.secure.identity import rehearsed
from fedpoint.federation.secure.opening import opened_sum
from fedpoint.federation.secure.party import Party
from fedpoint.federation.secure.roster import Pool, Roster

TERMS = b"terms"


def parties(count=3, threshold=None, kind=Party, seed=0):
    names = [f"s{k:02d}" for k in range(count)]
    luck = Random(seed)
    threshold = count * 2 // 3 + 1 if threshold is None else threshold
    return {n: kind(one, names, threshold, luck.randbytes) for n, one in rehearsed(names).items()}


def vectors(count, length=5, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (count, length), dtype=np.uint32)


class Sum:
    """A hub that follows the protocol. `lost` says after which stage a site is not heard any more."""

    def __init__(self, parties, vectors, lost=None, occasion=b"round 0"):
        self.parties, self.vectors, self.occasion = parties, dict(zip(parties, vectors, strict=True)), occasion
        self.lost = lost or {}
        self.there = list(parties)
        self.threshold = next(iter(parties.values())).threshold

    def left(self, stage):
        self.there = [name for name in self.there if self.lost.get(name) != stage]
        return self.there

    def keys(self):
        self.members = {n: self.parties[n].advertise(self.occasion) for n in self.left("keys")}

    def share(self):
        self.sent = {n: self.parties[n].share(self.members, TERMS) for n in self.left("shares")}

    def received(self, name):
        return {other: given[name] for other, given in self.sent.items() if other != name}

    def mask(self):
        self.masked = {n: self.parties[n].mask(self.received(n), self.vectors[n]) for n in self.left("mask")}
        self.pool = Pool(Roster(self.occasion, TERMS, self.members), tuple(sorted(self.sent)))

    def agree(self):
        self.signed = {n: self.parties[n].agree(self.masked) for n in self.left("agree")}

    def reveal(self):
        self.revealed = {n: self.parties[n].reveal(self.signed) for n in self.left("reveal")}

    def opened(self):
        places = self.parties[self.there[0]].places
        made = opened_sum(self.pool, places, self.masked, self.revealed, self.threshold)
        self.liars = made.liars
        return made.total

    def upto(self, stage):
        for step in ("keys", "share", "mask", "agree", "reveal"):
            getattr(self, step)()
            if step == stage:
                return self
        return self


class NotFresh(Party):
    """Takes the same secrets in every round."""

    def advertise(self, occasion):
        self.randomness = Random(self.name).randbytes
        return super().advertise(occasion)


class WithoutOwnMask(Party):
    """Masks in common with others only."""

    def mask(self, received, vector):
        own = super().mask(received, vector)
        return own - primitives.words(self.now.pool.alone(self.name, self.now.seed), len(vector))


class ThresholdOffByOne(Party):
    """Shares of which one fewer than agreed give the secret."""

    def share(self, members, terms):
        before, split = self.threshold, shamir.split
        shamir.split = lambda secret, threshold, places, luck: split(secret, threshold - 1, places, luck)
        try:
            return super().share(members, terms)
        finally:
            shamir.split, self.threshold = split, before
