"""Noise that sites add: as much as epsilon needs, never twice the same, never the same answer with other noise, and a
site that has used up its epsilon answers no more."""

from random import Random

import numpy as np
import pytest
from studies import AVERAGE, CONTROL, content, invariant

import fedpoint as fp
from fedpoint.core.errors import FedpointError
from fedpoint.federation import holding, wire
from fedpoint.federation.secure.encoding import Encoding
from fedpoint.federation.secure.identity import rehearsed
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import parse

SITES = 4
NUMBERS = 1000
FLAT = {"kind": "quadratic", "H": [1e-9] * SITES, "centers": [[0.0] * NUMBERS] * SITES}  # nothing to send but noise
PRIVACY = {"epsilon": 3.0, "delta": 1e-5, "clip": 1.0}
ROUNDS = 8


@pytest.fixture(autouse=True)
def same_luck(monkeypatch):
    """What sites take of the operating system's randomness, fixed here: the same numbers in every run of the tests."""
    monkeypatch.setattr(holding.os, "urandom", Random(0).randbytes)


def private(privacy=PRIVACY, **more):
    names = [f"s{k}" for k in range(SITES)]
    base = {"sites": names, "problem": FLAT, "rounds": ROUNDS, "measurements": 0}
    return content(AVERAGE, **{**base, "privacy": privacy, **more})


def multiplier(epsilon=3.0, delta=1e-5, rounds=ROUNDS):
    """dp-accounting's own word: the Gaussian noise with which so many rounds spend epsilon."""
    import dp_accounting as dp
    from dp_accounting import pld

    def event(z):
        return dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), rounds)

    return dp.calibrate_dp_mechanism(pld.PLDAccountant, event, epsilon, delta, dp.LowerEndpointAndGuess(0.0, 10.0))


def test_the_noise_is_what_epsilon_needs():
    """Within a thousandth, above: that is how finely the least noise is looked for."""
    needed = multiplier()
    chosen = parse(private()).terms.privacy.multiplier(ROUNDS)
    assert needed * (1 - 1e-4) <= chosen <= needed * 1.0021
    assert parse(private()).terms.privacy.spent(ROUNDS, ROUNDS) == pytest.approx(3.0, rel=2e-3)


def test_nothing_is_claimed_for_asking_few():
    everyone, some = (parse(private(participation=n)).terms.privacy.multiplier(ROUNDS) for n in (SITES, 2))
    assert everyone == some


class Orders:
    """A site and a hub's orders to it, one after the other."""

    def __init__(self, folder, study, name="s0", share=1 / SITES):
        self.study, self.folder, self.name = study, folder, name
        self.setup = {"index": study.sites.index(name), "share": share, "heaviest": 0.5, "recipe": [], "classes": None}
        self.identity = rehearsed(study.sites)[name] if study.terms.secure else None
        self.start()

    def start(self):
        self.site = Site(self.study, self.name, self.folder, identity=self.identity)

    def order(self, round, run="r1", kind="work"):
        header = {**self.site.release.plain(), "study": self.study.fingerprint, "run": run, "kind": kind}
        header |= {"round": round, "merged": -1, "order": "x", "setup": self.setup}
        return wire.encode(header, {"model": np.zeros(NUMBERS)})

    def answer(self, round, run="r1"):
        return wire.decode(self.site.answer(self.order(round, run)))


def deviations(answers):
    """The standard deviation of all numbers; that of so many normal ones has a relative standard error 1/sqrt(2 n)."""
    numbers = np.concatenate([np.ravel(a) for a in answers])
    return numbers.std(), 1 / np.sqrt(2 * numbers.size)


def full_noise(folder):
    orders = Orders(folder, parse(private()))
    return [orders.answer(t).arrays["model"] for t in range(ROUNDS)]


def test_each_site_adds_full_noise(tmp_path):
    """z times the clip, on every number of every round: 4 standard errors of 8,000 numbers are 3.2 percent."""
    z = parse(private()).terms.privacy.multiplier(ROUNDS)
    deviation, error = deviations(full_noise(tmp_path))
    assert abs(deviation / z - 1) < 4 * error


@pytest.mark.parametrize("factor", [0.0, 0.5], ids=["none", "half"])
def test_less_noise_is_convicted(factor, tmp_path, monkeypatch):
    draw = holding.secret_normals
    monkeypatch.setattr(holding, "secret_normals", lambda like: factor * np.asarray(draw(like)))
    z = parse(private()).terms.privacy.multiplier(ROUNDS)
    deviation, error = deviations(full_noise(tmp_path))
    assert not abs(deviation / z - 1) < 4 * error


def correlation(answers):
    """Of the noises of two rounds: 0 within 1/sqrt(n) if they are fresh."""
    return abs(np.corrcoef(answers[0], answers[1])[0, 1]) * np.sqrt(NUMBERS)


def test_noise_is_fresh_in_every_round_and_run(tmp_path, monkeypatch):
    answers = full_noise(tmp_path / "a")
    assert correlation(answers) < 4
    again = Orders(tmp_path / "b", parse(private())).answer(0, run="r2").arrays["model"]  # same seed, same round
    assert correlation([answers[0], again]) < 4
    monkeypatch.setattr(holding, "secret_normals", lambda like: np.random.default_rng(0).normal(size=like.shape))
    assert correlation(full_noise(tmp_path / "c")) > 20  # and it shows where noise is reused


def test_an_order_that_comes_again_gets_the_same_answer(tmp_path):
    """Also after the site was killed: other noise on the same answer would let a hub average it away."""
    orders = Orders(tmp_path, parse(private()))
    first = orders.answer(0).arrays["model"]
    again = [orders.answer(0).arrays["model"]]
    orders.start()
    again.append(orders.answer(0).arrays["model"])
    assert all((one == first).all() for one in again)
    assert orders.site.answers.worked == 1


def test_a_site_that_forgets_its_answers_is_convicted(tmp_path, monkeypatch):
    """The mutant: every order is carried out anew."""
    orders = Orders(tmp_path, parse(private()))
    first = orders.answer(0).arrays["model"]
    monkeypatch.setattr(orders.site.consent, "permit", lambda order: None)
    assert not (orders.answer(0).arrays["model"] == first).all()


def test_a_site_stops_by_itself(tmp_path):
    """All runs count, and a kill forgets none: what is left of the first run's rounds is all that a second one gets."""
    orders = Orders(tmp_path, parse(private(runs=5)))
    for t in range(5):
        assert "failure" not in orders.answer(t).header
    orders.start()
    for t in range(3):
        assert "failure" not in orders.answer(t, "r2").header
    orders.start()
    for round, run in ((3, "r2"), (5, "r1"), (0, "r3")):
        answer = orders.answer(round, run)
        assert answer.header["failure"] == "privacy" and not answer.arrays
    assert orders.site.answers.worked == ROUNDS
    assert not (tmp_path / "refusals.jsonl").exists()  # an honest hub may ask


def test_the_hub_ends_when_sites_stop(tmp_path):
    study = private(runs=2, patience=2)
    made = fp.federate(study, folder=tmp_path)
    assert made.round == ROUNDS and not made.refused
    (tmp_path / "hub").rename(tmp_path / "first")
    with pytest.raises(FedpointError, match="s0: privacy"):
        fp.federate(study, folder=tmp_path)


# Shared noise.


def shared(**more):
    return private({**PRIVACY, "noise": "shared"}, secure=True, **more)


def summed_noise(survivors, quorum=3):
    """The noise of a sum over some sites, in a study whose least number of survivors is the quorum."""
    study = parse(shared(quorum=quorum))
    shares = np.array([0.1, 0.2, 0.2, 0.5])
    setup = {"heaviest": 0.5, "recipe": [], "classes": None}
    total = 0.0
    for k in survivors:
        held = holding.Holding(study, {**setup, "index": k, "share": float(shares[k])}, None)
        message, _ = held.work({"model": np.zeros(NUMBERS)}, held.start, 0)
        total = total + shares[k] * message["model"]
    return total, study


def test_shares_of_noise_add_up_to_enough():
    """The least number of survivors has exactly z C p_max, whoever they are; more have more."""
    for survivors in ([0, 1, 2], [1, 2, 3], [0, 1, 2, 3]):
        total, study = summed_noise(survivors)
        whole = study.terms.privacy.multiplier(ROUNDS) * 0.5
        deviation, error = deviations([total])
        assert abs(deviation / (whole * np.sqrt(len(survivors) / 3)) - 1) < 4 * error


def test_shares_scaled_for_all_sites_are_convicted():
    """The mutant divides by the number of sites, some of which are lost."""
    total, study = summed_noise([0, 1, 2], quorum=4)
    deviation, error = deviations([total])
    assert not deviation / (study.terms.privacy.multiplier(ROUNDS) * 0.5) - 1 > -2 * error


def test_noise_fits_into_whole_numbers():
    total, study = summed_noise([3])
    held = holding.Holding(study, {"index": 3, "share": 0.5, "heaviest": 0.5, "recipe": [], "classes": None}, None)
    assert isinstance(held.encoding, Encoding)
    z = study.terms.privacy.multiplier(ROUNDS)
    assert held.encoding.longest == pytest.approx(1 + 10 * z)
    held.encoding.encode({"model": total / 0.5}, 0.5)  # is not refused


def test_scaffold_conserves_its_sum_under_noise(tmp_path):
    """Sites remember what they sent with its noise: controls go on summing to the hub's."""
    privacy = {**PRIVACY, "epsilon": 50.0}
    made = fp.federate(content(CONTROL, rounds=6, privacy=privacy), folder=tmp_path)
    assert all(event["merged"] for event in made.events)
    assert invariant(made, tmp_path) < 1e-12


# What a study may say.


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"privacy": {**PRIVACY, "noise": "shared"}}, "shared noise needs secure = true"),
        ({"channel": {"kind": "clip", "norm": 1.0}}, r"follow from \[privacy\]"),
        ({"privacy": {**PRIVACY, "delta": 0.0}}, "delta"),
        ({"privacy": {**PRIVACY, "epsilon": 1e-6}}, "is not reached in 8 rounds"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-5}}, "clip"),
    ],
)
def test_what_cannot_be_private_is_refused(more, said):
    with pytest.raises(FedpointError, match=said):
        parse(private(**more))
