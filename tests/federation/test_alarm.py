"""A hub that knows which rows to expect accuses a site that answers otherwise, says why, and accuses no other."""

import numpy as np
import pytest
from scipy import stats
from studies import AVERAGE, BOWLS, CONTROL, FULL, ROWS, content
from watched import Forgetful, Holding, drawing, rehearsed, scaled, with_rows_of

from fedpoint.federation.hub import expectation, reasons
from fedpoint.federation.hub.expectation import Expectation
from fedpoint.federation.study import parse
from fedpoint.theory import betting

SOON = 6  # answers of a site, from its first odd one to the alarm, at most
LOGISTIC = {"kind": "logistic", "agents": 3, "rows": [40, 60], "dim": 4, "batch": 8}
CLASSES = {"name": "scaffold", "step": 0.1, "local_steps": 5}
ODD = {  # what a site may do, and the reason that must be named; b has the weight of its rows, a the fewest
    "half": (scaled(0.5), "scaled", 0.5),
    "twice": (scaled(2.0), "scaled", 2.0),
    "tenfold": (scaled(10.0), "scaled", 10.0),
    "flipped": (scaled(-1.0), "sign flipped", -1.0),
    "foreign": (with_rows_of(0), "foreign rows", None),
    "forgetful": (Forgetful, "lost control", None),
}
NOISY = content(CLASSES, LOGISTIC, rounds=8)
STEADY = content(CONTROL, FULL, rounds=8)  # full fields: no noise at all


def honest(seed):
    return {k: drawing(1000 + seed) for k in range(3)}


# What is found, and how it is called.


@pytest.mark.parametrize(
    ("odd", "study"),
    [
        *(pytest.param(odd, NOISY, id=f"{odd}-noisy") for odd in ODD),
        pytest.param("half", STEADY, id="half-no noise"),
        *(pytest.param(odd, STEADY, id=f"{odd}-no noise", marks=pytest.mark.slow) for odd in ODD if odd != "half"),
    ],
)
def test_an_odd_site_is_found_and_named(study, odd):
    kind, reason, factor = ODD[odd]
    _, alarms = rehearsed(study, {1: kind})
    assert list(alarms) == ["b"]  # and nobody else
    found = alarms["b"]
    first = 1 if kind is Forgetful else 0  # there is nothing to forget before
    assert found["reason"] == reason and found["since"] == first and found["round"] - first < SOON
    assert found["factor"] == (None if factor is None else pytest.approx(factor, rel=1e-6))
    assert found["e_value"] >= 3 / 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "study", [NOISY, STEADY, content(AVERAGE, ROWS, rounds=8)], ids=["noisy", "no noise", "few rows"]
)
@pytest.mark.parametrize("odd", ODD)
def test_nine_in_ten_odd_sites_are_found_and_named(study, odd):
    kind, reason, _ = ODD[odd]
    if kind is Forgetful and study["algorithm"] is AVERAGE:
        pytest.skip("there is nothing to forget")
    found = [rehearsed({**study, "seed": seed}, {1: kind})[1] for seed in range(20)]
    named = [alarms.get("b", {}).get("reason") == reason for alarms in found]
    assert sum(named) >= 18 and not any({*alarms} - {"b"} for alarms in found)


def test_a_site_that_draws_for_itself_is_found_too():
    """There is then only the distribution of its answers to go by."""
    _, alarms = rehearsed(content(AVERAGE, BOWLS, rounds=10), {1: drawing(5, scaled(-1.0))})
    assert list(alarms) == ["b"] and alarms["b"]["reason"] == "sign flipped"


def test_whose_rows_they_are_is_said():
    _, alarms = rehearsed(NOISY, {1: with_rows_of(2)})
    assert "look like those of the rows of site c;" in alarms["b"]["text"]


def test_rows_that_no_site_has_are_foreign():
    """No answer of a known site fits; neither do multiples of its own."""
    other = parse({**NOISY, "problem": {**LOGISTIC, "seed": 7}})

    class Elsewhere(Holding):
        def __init__(self, study, setup, columns):
            super().__init__(study, setup, columns)
            self.own = self.own._replace(mine=Holding(other, setup, columns).own.mine)

    _, alarms = rehearsed(NOISY, {1: Elsewhere})
    assert list(alarms) == ["b"] and alarms["b"]["reason"] == "foreign rows"
    assert "other rows than its own" in alarms["b"]["text"]


@pytest.mark.parametrize(
    "more",
    [
        {"participation": 2},
        {"channel": {"kind": "cast", "dtype": "float16"}},
        {"norm_cap": 50.0},
        {"algorithm": {"name": "scaffnew", "step": 0.05, "probability": 0.4}},
        {"algorithm": {"name": "fedsgd", "step": 0.05, "coupling": 0.5}, "network": "complete"},
    ],
    ids=["participation", "channel", "norm cap", "scaffnew", "network"],
)
def test_an_odd_site_is_found_in_any_study(more):
    study = {**content(CONTROL, LOGISTIC, rounds=14), **more}
    _, alarms = rehearsed(study, {1: Forgetful})
    assert [(site, found["reason"]) for site, found in alarms.items()] == [("b", "lost control")]


def test_large_models_are_simulated_one_after_the_other(monkeypatch):
    """Memory is bounded; what comes of it is the same."""
    study = content(AVERAGE, BOWLS, rounds=5)
    together = rehearsed(study, {1: drawing(2)})[0].seen["b"]
    monkeypatch.setattr(expectation, "AT_ONCE", 1)
    apart = rehearsed(study, {1: drawing(2)})[0].seen["b"]
    assert apart["stakes"] == pytest.approx(together["stakes"]) and len(apart["stakes"]) == 7
    assert apart["tally"]["distance"] == pytest.approx(together["tally"]["distance"])


# What is not.


@pytest.mark.parametrize(
    "study", [NOISY, STEADY, content(AVERAGE, ROWS, rounds=8, channel={"kind": "cast", "dtype": "float16"})]
)
def test_a_site_that_does_as_the_study_says_is_reproduced(study):
    """There is not even a bet."""
    watch, alarms = rehearsed(study, {})
    assert not alarms
    assert all(seen["since"] is None and not seen["stakes"] for seen in watch.seen.values())


def collected(monkeypatch):
    """Every rank that a bet was made on, as a part of all ranks, by statistic."""
    found: dict[str, list[float]] = {}
    original = betting.wagered

    def wagered(stakes, seen, simulated):
        for name, value in seen.items():
            found.setdefault(name, []).append(betting.rank(value, simulated[name]) / (len(simulated[name]) + 1))
        return original(stakes, seen, simulated)

    monkeypatch.setattr(betting, "wagered", wagered)
    return found


def too_small(ranks):
    """By how much ranks are smaller than uniform ones may be: the largest gap, in units of what is seen once in a
    thousand times (Dvoretzky, Kiefer and Wolfowitz)."""
    gap = (np.arange(1, len(ranks) + 1) / len(ranks) - np.sort(ranks)).max()
    return gap / np.sqrt(np.log(1000) / 2 / len(ranks))


STUDIES = {
    "fedavg": (AVERAGE, ROWS, {}),
    "scaffold": (CONTROL, LOGISTIC, {"participation": 2}),
    "scaffnew": ({"name": "scaffnew", "step": 0.05, "probability": 0.4}, BOWLS, {}),
    "network": ({"name": "fedsgd", "step": 0.05, "coupling": 0.5}, ROWS, {"network": "complete"}),
    "channel": (CONTROL, ROWS, {"channel": {"kind": "cast", "dtype": "float16"}}),
    "cap": (AVERAGE, BOWLS, {"norm_cap": 0.3}),  # which refuses two answers of five
}


def false_alarms(monkeypatch, name, studies, rounds):
    """Of honest sites that draw for themselves: how many studies had an alarm, and all ranks."""
    algorithm, problem, more = STUDIES[name]
    ranks = collected(monkeypatch)
    made = [content(algorithm, problem, rounds=rounds, seed=seed, **more) for seed in range(studies)]
    return sum(bool(rehearsed(one, honest(seed))[1]) for seed, one in enumerate(made)), ranks


@pytest.mark.parametrize("name", ["fedavg", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_honest_sites_that_draw_for_themselves(monkeypatch, name):
    alarms, ranks = false_alarms(monkeypatch, name, studies=10, rounds=8)
    assert alarms == 0  # of 10: the chance of one is below 0.1
    for found in ranks.values():
        assert len(found) >= 100 and too_small(found) <= 1


def test_a_memory_with_the_study_s_draws_is_convicted(monkeypatch):
    """Of a site that draws for itself it is not the memory: honest answers would then be odd."""
    original = Expectation.replayed

    def replayed(self, order, message):
        code = original(self, order, message)
        self.chains["shown"].pending = self.chains["drawn"].pending
        return code

    monkeypatch.setattr(Expectation, "replayed", replayed)
    _, ranks = false_alarms(monkeypatch, "scaffold", studies=4, rounds=8)
    assert max(map(too_small, ranks.values())) > 1


class OnceOdd(Holding):
    """Wrong in its first round, and never again."""

    def work(self, heard, kept, round):
        arrays, pending = super().work(heard, kept, round)
        return {name: array + (round == 0) for name, array in arrays.items()}, pending


def test_a_site_that_was_odd_once_is_bet_against_and_not_accused(monkeypatch):
    """An answer that is reproduced is never near another reason; where that is forgotten, it is accused."""
    study = content(AVERAGE, ROWS, rounds=12)
    watch, alarms = rehearsed(study, {1: OnceOdd})
    assert watch.seen["b"]["since"] == 0 and watch.seen["b"]["stakes"] and not alarms
    original = reasons.statistics
    monkeypatch.setattr(
        reasons, "statistics", lambda seen, *rest: original(seen._replace(same=np.zeros_like(seen.same)), *rest)
    )
    assert list(rehearsed(study, {1: OnceOdd})[1]) == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_honest_sites_in_many_studies(monkeypatch, name):
    """300 studies of 12 rounds: a chance of 1 % gives more than 9 alarms once in a thousand times (standard error of
    the fraction: 0.6 %)."""
    alarms, ranks = false_alarms(monkeypatch, name, studies=300, rounds=12)
    assert alarms <= stats.binom.ppf(0.999, 300, 0.01)
    assert all(too_small(found) <= 1 for found in ranks.values())
