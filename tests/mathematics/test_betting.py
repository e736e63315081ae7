"""A bet against chance is fair: its mean is at most 1 for every law of ranks that chance can have. Whoever accuses at
K / alpha is then wrong in at most alpha of all studies. Bets that are not fair are convicted by the same tests."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from fedpoint.theory import betting

COUNTS = (1, 2, 5, 19, 199)
STUDIES, SITES, ROUNDS, ALPHA = 4000, 10, 60, 0.01


@pytest.mark.parametrize("simulated", COUNTS)
def test_a_wager_is_fair_and_decreases(simulated):
    """Its mean over ranks is 1; it decreases, so that ranks which are larger than uniform pay less."""
    pays = betting.payoffs(simulated + 1)
    assert pays.shape == (simulated + 1,) and pays.mean() == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(pays) < 0).all() and (pays > 0).all()


def test_a_wager_is_the_mixture_of_calibrators():
    """Each cell's mean of int_0^1 k p^(k-1) dk; over all of (0, 1) that is 1: each calibrator integrates to 1."""

    def mixture(p):
        return (1 - p + p * math.log(p)) / (p * math.log(p) ** 2)

    for p in (0.01, 0.3, 0.9):
        assert mixture(p) == pytest.approx(integrate.quad(lambda k, p=p: k * p ** (k - 1), 0, 1)[0])
    cells = [integrate.quad(mixture, r / 10, (r + 1) / 10)[0] * 10 for r in range(1, 9)]
    np.testing.assert_allclose(betting.payoffs(10)[1:9], cells, rtol=1e-8)


@pytest.mark.parametrize(
    "values", [[0.0, 0.0, 0.0], [1.0, 1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 5.0, 5.0]]
)
def test_exchangeable_values_with_ties_pay_at_most_one(values):
    """All that chance can do: what is seen is any one of the values, each as likely. Exact, by enumeration."""
    pool = np.array(values)
    ranks = [betting.rank(pool[i], np.delete(pool, i)) for i in range(len(pool))]
    for r in range(1, len(pool) + 1):
        assert np.mean([rank <= r for rank in ranks]) <= r / len(pool)
    assert np.mean(betting.payoffs(len(pool))[np.array(ranks) - 1]) <= 1 + 1e-12


def test_ties_count_for_chance():
    assert betting.rank(2.0, np.array([1.0, 3.0, 0.0])) == 2
    assert betting.rank(1.0, np.array([1.0, 1.0, 0.0])) == 3  # the two that are equal are not beaten
    assert betting.rank(1.0 + 1e-9, np.array([1.0])) == 2  # nor what differs by rounding
    assert betting.rank(math.nan, np.array([1.0, 2.0])) == 3  # and what cannot be compared beats nobody
    assert betting.rank(math.inf, np.array([1.0, 2.0])) == 1


def test_stakes_multiply_by_statistic_and_their_mean_is_a_stake():
    simulated = {"one": np.array([1.0, 2.0, 3.0]), "two": np.array([1.0, 2.0, 3.0])}
    stakes = betting.wagered({}, {"one": 9.0, "two": 0.0}, simulated)
    stakes = betting.wagered(stakes, {"one": 9.0, "two": 9.0}, simulated)
    pays = betting.payoffs(4)
    assert stakes == pytest.approx({"one": 2 * math.log(pays[0]), "two": math.log(pays[3] * pays[0])})
    assert math.exp(betting.combined(stakes.values())) == pytest.approx((pays[0] ** 2 + pays[3] * pays[0]) / 2)
    assert betting.combined([]) == 0.0  # before the first bet


def accused(pays, limit, seed=0, simulated=199):
    """The part of studies in which an honest party's stake ever reaches a limit: ranks are uniform."""
    ranks = np.random.default_rng(seed).integers(0, simulated + 1, (STUDIES, SITES, ROUNDS))
    stakes = np.cumsum(np.log(pays(simulated + 1))[ranks], axis=-1)
    return float((stakes.max(-1) >= math.log(limit)).any(-1).mean())


def most(alpha):
    """More than this is seen once in a thousand times if the chance is alpha."""
    return stats.binom.ppf(0.999, STUDIES, alpha) / STUDIES


def test_at_most_one_in_a_hundred_studies_accuses_anybody():
    """Looked at after each of 60 rounds, 10 sites together, 4,000 studies: standard error 0.16 % at 1 %."""
    assert accused(betting.payoffs, betting.limit(SITES, ALPHA)) <= most(ALPHA)


def without_the_one(ranks):
    """The rank among the simulated values alone: what is seen does not count itself, and the best rank is 0."""
    p = np.maximum(np.arange(ranks) / (ranks - 1), 1e-12)
    p[-1] = 1 - 1e-12
    return (1 - p + p * np.log(p)) / (p * np.log(p) ** 2)


def test_a_rank_without_its_one_is_convicted():
    assert accused(without_the_one, betting.limit(SITES, ALPHA)) > 10 * ALPHA


def test_a_limit_for_one_party_is_convicted_with_ten():
    assert accused(betting.payoffs, 1 / ALPHA) > most(ALPHA)


def test_a_test_for_a_fixed_number_of_rounds_is_convicted_when_it_is_looked_at_every_round():
    """Fisher's combination of p-values, at level alpha / K after every round."""
    ranks = np.random.default_rng(1).integers(1, 201, (STUDIES, SITES, ROUNDS))
    chi = np.cumsum(-2 * np.log(ranks / 200), axis=-1)
    p = stats.chi2.sf(chi, 2 * np.arange(1, ROUNDS + 1))
    assert (p[..., -1] <= ALPHA / SITES).any(-1).mean() <= most(ALPHA)  # once, at the end, it is right
    assert (p.min(-1) <= ALPHA / SITES).any(-1).mean() > most(ALPHA)
