"""Secure sums: exact whoever is lost; a hub learns nothing else, and sites refuse what would tell it more."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_sums import NotFresh, Sum, ThresholdOffByOne, WithoutOwnMask, parties, vectors

from fedpoint.federation.secure import primitives, shamir
from fedpoint.federation.secure.identity import rehearsed
from fedpoint.federation.secure.opening import Unopened, opened_sum
from fedpoint.federation.secure.party import Misled, Party
from fedpoint.federation.secure.primitives import Secret
from fedpoint.federation.secure.shamir import PRIME, SHARE

STAGES = ("keys", "shares", "mask", "agree", "reveal")


# Shamir's shares.


def test_the_modulus_is_prime():
    """Miller and Rabin, to 40 bases: a composite passes with at most 4^-40."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        powers = [pow(base, odd * 2**k, PRIME) for k in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_threshold_of_the_shares_give_the_secret(data):
    count = data.draw(st.integers(1, 20))
    threshold = data.draw(st.integers(1, count))
    secret = data.draw(st.binary(min_size=32, max_size=32))
    luck = data.draw(st.randoms(use_true_random=False))
    places = data.draw(st.permutations(range(1, count + 1)))
    shares = shamir.split(secret, threshold, places, luck.randbytes)
    some = {x: shares[x] for x in data.draw(st.permutations(places))[: data.draw(st.integers(threshold, count))]}
    assert shamir.join(some, threshold) == secret
    with pytest.raises(ValueError, match="shares of a secret that needs"):
        shamir.join(dict(list(some.items())[: threshold - 1]), threshold)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(2, 6), st.randoms())
def test_fewer_shares_fit_every_secret(secret, other, threshold, luck):
    """With threshold - 1 shares and any other secret at 0 there is a polynomial of the same degree: they say nothing.
    Its coefficients as randomness give those very shares."""
    shares = shamir.split(secret, threshold, range(1, threshold + 1), luck.randbytes)
    few = {x: int.from_bytes(shares[x]) for x in range(1, threshold)}
    points = {0: int.from_bytes(other), **few}
    coefficients = _coefficients(points)
    assert len(coefficients) == threshold
    rest = iter(coefficients[1:])
    again = shamir.split(other, threshold, range(1, threshold + 1), lambda size: next(rest).to_bytes(size))
    assert {x: again[x] for x in few} == {x: shares[x] for x in few}


def _coefficients(points):
    """Lagrange, written out: the polynomial through these points, coefficient by coefficient."""
    total = [0] * len(points)
    for x, y in points.items():
        basis, below = [1], 1
        for other in points:
            if other != x:
                basis = [(a - other * b) % PRIME for a, b in zip([0, *basis], [*basis, 0], strict=True)]
                below = below * (x - other) % PRIME
        factor = y * pow(below, -1, PRIME)
        total = [(t + factor * b) % PRIME for t, b in zip(total, basis, strict=True)]
    return total


@pytest.mark.parametrize(
    ("secret", "threshold", "places"),
    [(b"short", 2, [1, 2]), (bytes(32), 3, [1, 2]), (bytes(32), 0, [1]), (bytes(32), 2, [1, 1]), (bytes(32), 1, [0])],
)
def test_shares_that_cannot_be_are_refused(secret, threshold, places):
    with pytest.raises(ValueError, match=r"a secret has|a threshold between"):
        shamir.split(secret, threshold, places, bytes)


# Sums.


@pytest.mark.parametrize("count", [3, 20])
def test_the_sum_is_exact(count):
    own = vectors(count)
    assert (Sum(parties(count), own).upto("reveal").opened() == own.sum(axis=0, dtype=np.uint32)).all()


@pytest.mark.parametrize("stage", STAGES)
def test_the_sum_is_over_those_whose_vectors_arrived(stage):
    """One site, and then two, are lost before this stage; whoever was heard in "mask" is in the sum."""
    for lost in ({"s00"}, {"s01", "s04"}):
        own = vectors(5)
        made = Sum(parties(5, 3), own, dict.fromkeys(lost, stage)).upto("reveal")
        counted = [k for k in range(5) if f"s{k:02d}" not in lost or STAGES.index(stage) > STAGES.index("mask")]
        assert (made.opened() == own[counted].sum(axis=0, dtype=np.uint32)).all()


def test_sites_are_lost_at_every_stage_at_once():
    own = vectors(20)
    lost = {f"s{k:02d}": stage for k, stage in enumerate(STAGES)}
    made = Sum(parties(20), own, lost).upto("reveal")
    assert len(made.revealed) == 15
    assert (made.opened() == own[3:].sum(axis=0, dtype=np.uint32)).all()


def test_too_few_shares_open_nothing():
    made = Sum(parties(5, 4), vectors(5)).upto("reveal")
    made.revealed = dict(itertools.islice(made.revealed.items(), 3))
    with pytest.raises(Unopened):
        made.opened()


def test_a_site_that_sends_no_shares_to_others_is_named():
    made = Sum(parties(4, 3), vectors(4)).upto("keys")
    made.share()
    made.sent["s02"] = dict.fromkeys(made.sent["s02"], bytes(2 * SHARE + 16))
    made.mask()
    made.agree()
    made.reveal()
    with pytest.raises(Unopened, match="s02") as caught:
        made.opened()
    assert caught.value.names == ["s02"]


# What a hub sees.


def seen_of(kind=Party, rounds=2, length=40_000):
    """What a hub sees of site s00, whose vector is zero, in several rounds: (rounds, length)."""
    some = parties(3, 3, kind)
    zeros = np.zeros((3, length), np.uint32)
    return np.array([Sum(some, zeros, occasion=b"%d" % t).upto("mask").masked["s00"] for t in range(rounds)])


def pairwise_removed(kind=Party, length=40_000):
    """What a hub sees of a site that was called lost, and whose masked vector came late: its mask key is known."""
    some = parties(4, 3, kind)
    made = Sum(some, np.zeros((4, length), np.uint32)).upto("mask")
    late = made.masked.pop("s00")
    del made.parties["s00"]
    made.there.remove("s00")
    made.agree()
    made.reveal()
    shares = {some[by].places[by]: given["s00"] for by, given in made.revealed.items()}
    secret = shamir.join(shares, 3)
    return late - made.pool.pairwise("s00", Secret(secret), [n for n in made.pool.names if n != "s00"], length)


def deviates(words):
    """How many standard deviations the bytes of words are from uniform: Pearson's statistic has mean 255 and standard
    deviation sqrt(510) over bytes that are."""
    counts = np.bincount(words.view(np.uint8).ravel(), minlength=256)
    expected = counts.sum() / 256
    return abs(((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(510)


def test_what_a_hub_sees_of_a_site_is_uniform():
    first, second = seen_of()
    assert deviates(first) < 4
    assert deviates(second) < 4
    assert deviates(second - first) < 4  # fresh masks in every round


def test_a_late_vector_of_a_lost_site_is_uniform_too():
    assert deviates(pairwise_removed()) < 4


def test_masks_that_are_not_fresh_are_convicted():
    """The round is hashed into every mask, so that even reused secrets give others; with one occasion they do not."""
    first, second = seen_of(NotFresh)
    assert deviates(second - first) < 4
    some, zeros = parties(3, 3, NotFresh), np.zeros((3, 40_000), np.uint32)
    first, second = (Sum(some, zeros).upto("mask").masked["s00"] for _ in range(2))
    assert deviates(second - first) > 100
    honest = parties(3, 3)
    first, second = (Sum(honest, zeros).upto("mask").masked["s00"] for _ in range(2))
    assert deviates(second - first) < 4


def test_a_site_without_a_mask_of_its_own_is_convicted():
    assert deviates(seen_of(WithoutOwnMask)[0]) < 4  # nothing to see so far
    assert deviates(pairwise_removed(WithoutOwnMask)) > 100


def too_few_open(kind):
    """Whether threshold - 1 sites and the hub know a site's own mask."""
    made = Sum(parties(4, 3, kind), vectors(4)).upto("reveal")
    some = made.parties
    shares = {some[by].places[by]: made.revealed[by]["s00"] for by in ("s02", "s03")}
    secret = shamir.join(shares, 2)
    return secret == some["s00"].now.seed


def test_a_threshold_off_by_one_is_convicted(monkeypatch):
    monkeypatch.setattr(shamir, "join", _unchecked(shamir.join))
    assert not too_few_open(Party)
    assert too_few_open(ThresholdOffByOne)


def _unchecked(join):
    """Interpolation says something of any shares; that no secret is so large is no news here."""

    def joined(shares, threshold):
        try:
            return join(shares, threshold)
        except ValueError:
            return b""

    return joined


# What sites refuse.


def test_keys_of_the_hubs_own_are_refused():
    """A hub in the middle: its keys, signed by an authority of its own, or by nobody, or by another site."""
    for forge in (
        lambda keys, other: keys._replace(mask=Secret(b"x" * 32).public),
        lambda keys, other: keys._replace(cipher=Secret(b"x" * 32).public),
        lambda keys, other: keys._replace(signature=b""),
        lambda keys, other: keys._replace(certificate=b"no certificate"),
        lambda keys, other: other,
        lambda keys, other: rehearse_as("s01"),
        lambda keys, other: keys._replace(mask=b""),
    ):
        made = Sum(parties(3), vectors(3)).upto("keys")
        made.members["s01"] = forge(made.members["s01"], made.members["s02"])
        with pytest.raises(Misled, match="s01"):
            made.parties["s00"].share(made.members, b"terms")


def rehearse_as(name):
    return Party(rehearsed([name])[name], [name], 1).advertise(b"round 0")


def test_keys_of_an_earlier_round_are_refused():
    some = parties(3)
    old = Sum(some, vectors(3)).upto("reveal")
    new = Sum(some, vectors(3), occasion=b"round 1").upto("keys")
    new.members["s01"] = old.members["s01"]
    with pytest.raises(Misled, match="s01 are not its own for this round"):
        some["s00"].share(new.members, b"terms")
    with pytest.raises(Misled, match="not those that it gave"):
        some["s00"].share(old.members, b"terms")


def test_strangers_and_too_few_are_refused():
    made = Sum(parties(4), vectors(4)).upto("keys")
    with pytest.raises(Misled, match="at least 3"):
        made.parties["s00"].share(dict(list(made.members.items())[:2]), b"terms")
    with pytest.raises(Misled, match="not a site"):
        made.parties["s00"].share({**made.members, "eve": made.members["s01"]}, b"terms")


def test_every_answer_is_given_once_and_in_turn():
    made = Sum(parties(3), vectors(3))
    one = made.parties["s00"]
    for early in (lambda: one.share({}, b""), lambda: one.mask({}, made.vectors["s00"]), lambda: one.agree([])):
        with pytest.raises(Misled):
            early()
    made.upto("reveal")
    again = [
        lambda: one.share(made.members, b"terms"),
        lambda: one.mask(made.received("s00"), made.vectors["s00"]),
        lambda: one.reveal(made.signed),
    ]
    for late in again:
        with pytest.raises(Misled, match="again"):
            late()


def test_a_site_never_reveals_both_secrets_of_another():
    """Another list of who is left, before and after shares were revealed: s01's own mask, and then its mask key."""
    for stage in ("agree", "reveal"):
        made = Sum(parties(4, 3), vectors(4)).upto(stage)
        rest = ["s00", "s02", "s03"]
        with pytest.raises(Misled, match="another list"):
            made.parties["s00"].agree(rest)
    shown = made.revealed["s00"]
    assert {len(share) for share in shown.values()} == {SHARE}


def test_lists_of_who_is_left_that_cannot_be_are_refused():
    made = Sum(parties(4, 3), vectors(4)).upto("mask")
    for names in (["s01", "s02", "s03"], ["s00", "s01", "s02", "eve"], ["s00", "s01"], ["s00", "s00", "s01"]):
        with pytest.raises(Misled):
            made.parties["s00"].agree(names)


def test_a_hub_that_tells_sites_different_lists_gets_no_shares():
    """Nobody reveals before enough others have signed the very list that it has heard of."""
    made = Sum(parties(5, 3), vectors(5)).upto("mask")
    first, second = ["s00", "s01", "s02", "s03"], ["s01", "s02", "s03", "s04"]
    signed = {n: made.parties[n].agree(first if n in ("s00", "s01") else second) for n in made.parties}
    for name in made.parties:
        with pytest.raises(Misled):
            made.parties[name].reveal(signed)
        same = {n: s for n, s in signed.items() if (n in ("s00", "s01")) == (name in ("s00", "s01"))}
        if len(same) < 3:
            with pytest.raises(Misled, match="3 must have"):
                made.parties[name].reveal(same)


def test_sites_that_were_told_different_terms_have_masks_that_do_not_cancel():
    """Another pool of sites, or other weights, for one of them: the sum is noise."""
    own = np.zeros((4, 40_000), np.uint32)
    made = Sum(parties(4, 3), own).upto("keys")
    sent = {n: made.parties[n].share(made.members, b"other" if n == "s00" else b"terms") for n in made.parties}
    made.sent = sent
    made.mask()
    made.signed = {n: made.parties[n].agree(made.masked) for n in made.parties}
    total = sum(made.masked.values()) - sum(
        primitives.words(made.pool.alone(n, p.now.seed), 40_000) for n, p in made.parties.items()
    )
    assert deviates(total) < 4
    with pytest.raises(Misled, match="s00 has not heard"):
        made.parties["s01"].reveal(made.signed)


def test_a_wrong_mask_key_is_found():
    made = Sum(parties(4, 3), vectors(4), {"s03": "mask"}).upto("reveal")
    revealed = {by: {**given, "s03": given["s02"]} for by, given in made.revealed.items()}
    with pytest.raises(Unopened, match="s03"):
        opened_sum(made.pool, made.parties["s00"].places, made.masked, revealed, 3)
