"""Second moments of one round, against the enumeration of all its outcomes: no standard errors.

Tolerance: fewer than 1e5 terms of order 1 are added, whose roundings of 1e-16 do not all point one way: 1e-12 of the
largest entry. What a mistake changes is of order 1e-2.
"""

import enumerate_rounds as every
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.moments import Second
from fedpoint.theory.operator import Setting
from fedpoint.theory.steady import fixed_point
from fedpoint.timing.schemes import Moments

STEP = 0.3
RELATIVE = 1e-12


def even(steps):
    return [[(1.0, steps)]] * every.K


def setting_of(algorithm, scheme, problem=None):
    """Moments of all schemes get as many factors, those that are not there with scale 0: one program serves all."""
    problem = every.problem() if problem is None else problem
    setting = Setting(fp.Experiment(algorithm, problem, participation=scheme).bind())
    m = setting.moments
    more = 6 - len(m.scale)
    assert more >= 0
    factor = np.concatenate([m.factor, np.ones((more, 2, every.K))])
    setting.__dict__["moments"] = m._replace(scale=np.concatenate([m.scale, np.zeros(more)]), factor=factor)
    return setting


def symmetric(size, seed=1):
    S = np.random.default_rng(seed).normal(size=(size, size))
    return S + S.T


def off(setting, method, who, counts, draws=every.one_row, x=None):
    """The largest disagreement, relative to the largest entry. Around any state: the round is affine everywhere."""
    x = np.random.default_rng(2).normal(size=setting.size) if x is None else x
    assert len(x) == method.hub + every.K * method.memory
    S = symmetric(len(x) + 1)
    expected = every.moved(method, who, counts, S, x, draws)
    return np.abs(Second(setting, x)(S) - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("who", every.WHO)
def test_fedavg(who, steps):
    scheme, outcomes = every.WHO[who]
    setting = setting_of(fp.FedAvg(STEP, steps, normalise=False), scheme)
    assert off(setting, every.fedavg(STEP), outcomes, even(steps)) <= RELATIVE


@pytest.mark.parametrize(
    ("who", "steps", "option"),
    [
        *((who, 2, 2) for who in every.WHO if who != "plain"),
        *(pytest.param(who, 1, 2, marks=pytest.mark.slow) for who in every.WHO if who != "plain"),
        *((who, 1, 1) for who in ("everyone", "uniform", "importance", "answering")),
        pytest.param("uniform", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_scaffold(who, steps, option):
    scheme, outcomes = every.WHO[who]
    setting = setting_of(fp.Scaffold(STEP, steps, server_step=0.8, option=option), scheme)
    assert off(setting, every.scaffold(STEP, 0.8, option), outcomes, even(steps)) <= RELATIVE


@pytest.mark.slow
@pytest.mark.parametrize("who", ["everyone", "uniform", "by weight"])
def test_fedprox(who):
    scheme, outcomes = every.WHO[who]
    setting = setting_of(fp.FedProx(STEP, 2, pull=0.7), scheme)
    assert off(setting, every.fedavg(STEP, pull=0.7), outcomes, even(2)) <= RELATIVE


@pytest.mark.slow
def test_unequal_local_steps_and_own_steps():
    scheme, outcomes = every.WHO["uniform"]
    counts = [[(1.0, 1)], [(1.0, 2)], [(1.0, 3)]]
    setting = setting_of(fp.FedAvg(STEP, (1, 2, 3), normalise=False), scheme)
    assert off(setting, every.fedavg(STEP), outcomes, counts) <= RELATIVE
    scheme, outcomes = every.WHO["by weight"]
    own = np.array([0.3, 0.1, 0.2])
    setting = setting_of(fp.FedAvg(own, 2, normalise=False), scheme)
    method = every.fedavg(0.0)._replace(
        local=lambda k, steps, batches, w, m: every.fedavg(own[k]).local(k, steps, batches, w, m)
    )
    assert off(setting, method, outcomes, even(2)) <= RELATIVE


@pytest.mark.slow
@pytest.mark.parametrize("who", ["everyone", "uniform"])
def test_fednova_with_momentum(who):
    """Equal lengths: tau_eff is then the same whoever is heard, and the merge is affine."""
    scheme, outcomes = every.WHO[who]
    setting = setting_of(fp.FedNova(STEP, 2, momentum=0.6), scheme)
    assert off(setting, every.fednova(STEP, 0.6, (2, 2, 2)), outcomes, even(2)) <= RELATIVE


@pytest.mark.slow
def test_fednova_of_unequal_lengths():
    setting = setting_of(fp.FedNova(STEP, (1, 2, 3), momentum=0.6), fp.Everyone())
    counts = [[(1.0, 1)], [(1.0, 2)], [(1.0, 3)]]
    assert off(setting, every.fednova(STEP, 0.6, (1, 2, 3)), every.everyone(), counts) <= RELATIVE


@pytest.mark.parametrize("who", every.WHO)
def test_fednova_of_unequal_lengths_multiplies_what_it_hears(who):
    """tau_eff depends on who is heard: mean and second moments over every lineup."""
    scheme, outcomes = every.WHO[who]
    setting = setting_of(fp.FedNova(STEP, (1, 3, 2)), scheme)
    counts, method = [[(1.0, 1)], [(1.0, 3)], [(1.0, 2)]], every.heard_fednova(STEP)
    assert setting.affine and off(setting, method, outcomes, counts) <= RELATIVE
    # The limit: where the mean over all outcomes stays.
    x, S = fixed_point(setting, setting.origin), np.zeros((3, 3))
    S[0, 0] = 1.0
    assert np.abs(every.moved(method, outcomes, counts, S, x)[0, 1:]).max() <= RELATIVE


@pytest.mark.slow
@pytest.mark.parametrize("who", ["everyone", "uniform", "answering"])
def test_fedavgm(who):
    scheme, outcomes = every.WHO[who]
    setting = setting_of(fp.FedAvgM(STEP, 2, server_step=0.5, momentum=0.6), scheme)
    assert off(setting, every.fedavgm(STEP, 0.5, 0.6), outcomes, even(2)) <= RELATIVE


@pytest.mark.parametrize("who", ["everyone", "uniform"])
@pytest.mark.parametrize("method", ["fedavg", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_stragglers(method, who):
    """With chance 0.6 an agent stops after 1 or 2 steps, each as likely: 1 step with chance 0.3."""
    scheme, outcomes = every.WHO[who]
    late = fp.steps.Stragglers(2, 0.6)
    if method == "fedavg":
        setting, plain = setting_of(fp.FedAvg(STEP, late, normalise=False), scheme), every.fedavg(STEP)
    else:
        setting, plain = setting_of(fp.Scaffold(STEP, late), scheme), every.scaffold(STEP, 1.0, 2)
    assert off(setting, plain, outcomes, [[(0.3, 1), (0.7, 2)]] * every.K) <= RELATIVE


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_scaffnew(steps):
    setting = setting_of(fp.Scaffnew(STEP, local_steps=steps), fp.Everyone())
    assert off(setting, every.scaffnew(STEP, 1 / steps), every.everyone(), even(steps)) <= RELATIVE


@pytest.mark.slow
def test_scaffnew_with_a_random_number_of_steps():
    """Full gradients (one outcome a step): the sum over H ~ Geometric(0.4), up to 80 steps (0.6^80 = 2e-18).

    The library sums over fewer values of H, a quadrature that is right to 1e-8 for powers.
    """
    problem = every.problem(batch=None)
    setting = setting_of(fp.Scaffnew(STEP, probability=0.4), fp.Everyone(), problem)
    plain, x = every.scaffnew(STEP, 0.4), np.random.default_rng(2).normal(size=setting.size)
    S = symmetric(len(x) + 1)

    def full(k):
        return [(1.0, [(0.5, 0), (0.5, 1)])]

    expected = sum(
        0.4 * 0.6 ** (H - 1) * every.moved(plain, every.everyone(), even(H), S, x, full) for H in range(1, 81)
    )
    assert np.abs(Second(setting, x)(S) - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("sampling", [pytest.param("iid", marks=pytest.mark.slow), "importance"])
def test_batches_of_two_rows(sampling):
    problem = every.problem(batch=2, sampling=sampling)
    draws = every.two_rows if sampling == "iid" else every.by_norm(problem.solution())
    scheme, outcomes = every.WHO["uniform"]
    setting = setting_of(fp.FedAvg(STEP, 2, normalise=False), scheme, problem)
    assert off(setting, every.fedavg(STEP), outcomes, even(2), draws) <= RELATIVE


def test_around_the_fixed_point():
    scheme, outcomes = every.WHO["importance"]
    setting = setting_of(fp.Scaffold(STEP, 2, server_step=0.8), scheme)
    x = fixed_point(setting, setting.origin)
    assert off(setting, every.scaffold(STEP, 0.8, 2), outcomes, even(2), x=x) <= RELATIVE


# The test must see mistakes: each of these differs from the truth in one place of the schedule's moments.

BROKEN = {
    "sign of the low-rank term": lambda m: m._replace(scale=-m.scale),
    "no correlation of agents": lambda m: m._replace(scale=0 * m.scale),
    "no variance of its own": lambda m: m._replace(own=0 * m.own),
    "v and s uncorrelated": lambda m: m._replace(own=m.own * np.array([1.0, 0.0, 1.0])[:, None]),
    "everyone is heard": lambda m: m._replace(heard=np.ones_like(m.heard)),
}


@pytest.mark.parametrize("mistake", BROKEN)
@pytest.mark.parametrize("who", ["uniform", "by weight"])
def test_broken_moments_are_seen(who, mistake, monkeypatch):
    scheme, outcomes = every.WHO[who]
    right = type(scheme).moments
    monkeypatch.setattr(type(scheme), "moments", lambda self, p: BROKEN[mistake](right(self, p)))
    setting = setting_of(fp.Scaffold(STEP, 2, server_step=0.8), scheme)
    assert isinstance(setting.moments, Moments)
    assert off(setting, every.scaffold(STEP, 0.8, 2), outcomes, even(2)) > 1e-3


def test_dropped_noise_is_seen():
    """With exact fields the rows' noise is missing."""
    scheme, outcomes = every.WHO["uniform"]
    problem = every.problem()
    setting = Setting(
        fp.Experiment(fp.FedAvg(STEP, 2, normalise=False), problem, participation=scheme, exact=True).bind()
    )
    assert off(setting, every.fedavg(STEP), outcomes, even(2)) > 1e-2


def test_the_floor_is_the_fixed_point_of_the_enumerated_operator():
    """vec(S) = M vec(S): the stationary moments from the enumerated operator's matrix, against `forecast`."""
    scheme, outcomes = every.WHO["importance"]
    algorithm = fp.FedAvg(STEP, 2, normalise=False)
    f = fp.forecast(algorithm, every.problem(), participation=scheme)
    x, n = f.limit, every.D + 1
    M = np.stack(
        [
            every.moved(every.fedavg(STEP), outcomes, even(2), np.outer(a, b), x).ravel()
            for a in np.eye(n)
            for b in np.eye(n)
        ],
        axis=1,
    )
    values, vectors = np.linalg.eig(M)
    order = np.argsort(-np.abs(values))
    assert abs(values[order[0]] - 1) < 1e-10
    S = (vectors[:, order[0]] / vectors[0, order[0]]).real.reshape(n, n)
    assert f.variance == pytest.approx(np.trace(S[1:, 1:]), rel=1e-8)
    # The mean's deviations are eigenvectors of M too, of modulus `rate`; those of the covariance decide rate_ms.
    inner = np.stack(
        [
            every.moved(every.fedavg(STEP), outcomes, even(2), np.outer(a, b), x)[1:, 1:].ravel()
            for a in np.eye(n)[1:]
            for b in np.eye(n)[1:]
        ],
        axis=1,
    )
    assert f.rate_ms == pytest.approx(np.abs(np.linalg.eigvals(inner)).max(), rel=1e-6)
    start = np.concatenate([[1.0], np.zeros(2) - x])
    S, gap, expected = np.outer(start, start), x - every.problem().solution(), []
    for _ in range(30):
        expected.append(gap @ gap + 2 * gap @ S[0, 1:] + np.trace(S[1:, 1:]))
        S = (M @ S.ravel()).reshape(n, n)
    np.testing.assert_allclose(f.curve(29), expected, rtol=1e-8)
