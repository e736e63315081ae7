"""Forecasts of what channels do: against closed forms, enumerations of all masks, and simulations.

Curves are compared with means over repeats at a few rounds, to 4 standard errors, over fixed seeds.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.messages import least_spread

C, P = fp.channel, fp.participation
RNG = np.random.default_rng(0)
QUAD = fp.problems.Quadratic(
    np.array([np.diag(RNG.uniform(0.5, 2, 3)) for _ in range(4)]), RNG.normal(size=(4, 3)), noise=0.3
)
FEDAVG, SCAFFOLD = fp.FedAvg(0.1, 3), fp.Scaffold(0.1, 3)
ROUNDS, AT = 30, [1, 2, 5, 30]


class HubNoise(fp.Channel):
    """Noise of standard deviation sigma times the largest weight on what was gathered, and nothing else."""

    sigma: float

    def release(self, inbox, hub):
        noise = self.sigma * hub.largest * hub.luck.normal(inbox.mean.shape)
        return inbox._replace(mean=inbox.mean + noise)

    def scatter_hub(self, like, largest):
        both = jnp.array([[1.0, 0.0], [0.0, 0.0]])
        return (self.sigma * largest) ** 2 * jnp.kron(both, jnp.eye(like.size))


class Unweighted(HubNoise):
    """A wrong one: the noise is told as if the largest weight were 1."""

    def scatter_hub(self, like, largest):
        return super().scatter_hub(like, 1.0)


def distances(f, method, problem=QUAD, repeats=2000, **options):
    """From the curve to the mean of a run, in standard errors."""
    run = fp.run(method, problem, rounds=ROUNDS, repeats=repeats, seed=5, **options)
    error = run.error.std(0, ddof=1) / math.sqrt(repeats)
    return ((run.error.mean(0) - f.curve(ROUNDS))[AT] / error[AT]).round(2)


# Closed forms.


def lyapunov(M, Q):
    n = len(M)
    return np.linalg.solve(np.eye(n * n) - np.kron(M, M), Q.ravel()).reshape(n, n)


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.slow), {"participation": 2}])
def test_hub_noise_is_added_to_that_of_a_round(options):
    """Sigma = M Sigma M' + ... + (sigma v_max)^2 I. With exact fields and equal slopes nothing else multiplies it."""
    problem = fp.problems.Quadratic(np.diag([0.5, 1.0, 2.0]), RNG.normal(size=(4, 3)))
    quiet, loud = (fp.forecast(FEDAVG, problem, channel=c, exact=True, **options) for c in (None, HubNoise(0.3)))
    M = loud.setting.matrix(loud.state)
    largest = 0.25 if not options else 0.5
    added = np.trace(lyapunov(M, (0.3 * largest) ** 2 * np.eye(3)))
    assert loud.variance - quiet.variance == pytest.approx(added, rel=1e-9)
    assert loud.exact and loud.noise_by == "exact" and loud.limit == pytest.approx(quiet.limit, abs=1e-12)
    wrong = fp.forecast(FEDAVG, problem, channel=Unweighted(0.3), exact=True, **options)
    assert wrong.variance - quiet.variance > 3 * added


@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_rand_k_is_the_mean_over_all_masks(k):
    """FedAvg with exact fields and everyone: w+ = w + sum_k p_k D_k (A_k w + b_k), all masks of all agents listed."""
    E, s = 2, 0.1
    H = [np.diag([1.0, 0.5, 2.0]), np.array([[1.0, 0.3, 0.0], [0.3, 1.5, 0.2], [0.0, 0.2, 0.8]])]
    c = RNG.normal(size=(2, 3))
    problem = fp.problems.Quadratic(np.array(H), c)
    f = fp.forecast(fp.FedAvg(s, E), problem, channel=C.RandK(k / 3), exact=True)
    slopes = [np.linalg.matrix_power(np.eye(3) - s * h, E) - np.eye(3) for h in H]
    p, masks = problem.weights, [np.diag(np.isin(range(3), m) * 3.0 / k) for m in itertools.combinations(range(3), k)]
    pairs = list(itertools.product(masks, repeat=2))
    second, source, w = np.zeros((9, 9)), np.zeros((3, 3)), np.asarray(f.state)
    for pair in pairs:
        J = np.eye(3) + sum(q * D @ A for q, D, A in zip(p, pair, slopes, strict=True))
        step = sum(q * D @ A @ (w - b) for q, D, A, b in zip(p, pair, slopes, c, strict=True))
        second += np.kron(J, J) / len(pairs)
        source += np.outer(step, step) / len(pairs)
    sigma = np.linalg.solve(np.eye(9) - second, source.ravel()).reshape(3, 3)
    assert f.variance == pytest.approx(np.trace(sigma), rel=1e-9)
    M = f.setting.matrix(f.state)
    assert np.trace(lyapunov(M, source)) < 0.99 * f.variance  # what masks multiply counts


def test_lost_messages_of_everyone_are_poisson_participation():
    """Erase(1 - q) for everyone is each agent by itself with probability q and weight p_k / q."""
    lost = fp.forecast(FEDAVG, QUAD, channel=C.Erase(0.4))
    few = fp.forecast(FEDAVG, QUAD, participation=P.Poisson(0.6))
    assert lost.variance == pytest.approx(few.variance, rel=1e-9)
    assert lost.curve(9) == pytest.approx(few.curve(9), rel=1e-9)


# Simulations.

EXACT = {
    "hub noise": (FEDAVG, HubNoise(0.3), {"participation": 2}),
    "rand-1": (FEDAVG, C.RandK(0.34), {"participation": 2}),
    "memories that hear of masks": (SCAFFOLD, C.RandK(0.67), {"participation": 2}),
}
MORE = {
    "hub noise, everyone": (FEDAVG, HubNoise(0.3), {}),
    "hub noise, by weight": (FEDAVG, HubNoise(0.3), {"participation": P.ByWeight(2)}),
    "hub noise, Poisson": (FEDAVG, HubNoise(0.3), {"participation": P.Poisson(0.5)}),
    "scaffnew": (fp.Scaffnew(0.1, probability=0.4), C.RandK(0.67), {}),
    "erase": (SCAFFOLD, C.Erase(0.3), {"participation": P.Poisson(0.5)}),
    "erase, rand-2": (FEDAVG, [C.Erase(0.3), C.RandK(0.67)], {"participation": 2}),
    "fedprox": (fp.FedProx(0.1, 3, pull=0.5), C.RandK(0.67), {"participation": 2}),
    "gradients": (fp.GradientExchange(0.1), C.RandK(0.34), {"participation": 2}),
    "momentum": (fp.FedAvgM(0.1, 2, momentum=0.5), C.RandK(0.67), {"participation": 2}),
    "exact fields": (SCAFFOLD, C.RandK(0.67), {"exact": True}),
}
GRID = [pytest.param(*case, id=name) for name, case in EXACT.items()]
GRID += [pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in MORE.items()]


@pytest.mark.parametrize(("method", "channel", "options"), GRID)
def test_curves_over_channels_that_tell_their_moments(method, channel, options):
    f = fp.forecast(method, QUAD, channel=channel, **options)
    assert f.noise_by == "exact" and f.standard_error is None
    z = distances(f, method, channel=channel, **options)
    assert np.abs(z).max() < 4, z


def test_a_forecast_without_the_diagonal_is_convicted():
    class Wrong(C.RandK):
        def _scattered(self, second):
            d, k = len(second), max(1, round(self.fraction * len(second)))
            return (d / k) * ((k - 1) / (d - 1)) * second - second

    method, _, options = EXACT["memories that hear of masks"]
    f = fp.forecast(method, QUAD, channel=Wrong(0.67), **options)
    assert np.abs(distances(f, method, channel=C.RandK(0.67), **options)).max() > 10


# Channels that are not linear.


def test_a_clip_that_is_never_reached_changes_nothing():
    f, plain = (fp.forecast(FEDAVG, QUAD, participation=2, channel=c) for c in (C.Clip(1e3), None))
    assert f.noise_by == "messages" and not f.exact
    assert f.variance == pytest.approx(plain.variance, rel=1e-4)
    assert f.limit == pytest.approx(plain.limit, abs=1e-6)
    assert f.curve(5) == pytest.approx(plain.curve(5), rel=1e-4)


WIDE, PRIVATE = C.Clip(50.0), C.Gaussian(0.01)  # a clip that is never reached: what follows it is linear
LINEAR = {
    "gaussian, Poisson": (FEDAVG, [WIDE, PRIVATE], {"participation": P.Poisson(0.5)}),
    "gaussian, fedprox": (fp.FedProx(0.1, 3, pull=0.5), [WIDE, PRIVATE], {"participation": 2}),
    "gaussian, momentum": (fp.FedAvgM(0.1, 2, momentum=0.5), [WIDE, PRIVATE], {"participation": 2}),
    "gaussian at agents": (SCAFFOLD, [WIDE, C.Gaussian(0.01, at="agents")], {"participation": 2}),
    "correlated": (FEDAVG, [WIDE, C.Correlated(0.02, coefficients=0.6)], {}),
    "banded, gradients": (fp.GradientExchange(0.1), [WIDE, C.Correlated(0.02, coefficients=(1.0, -0.5, -0.2))], {}),
    "whole numbers": (FEDAVG, [C.Clip(4.0), C.FixedPoint(8, range=4.0)], {"participation": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LINEAR)
def test_curves_over_noise_behind_a_clip_that_is_not_reached(name):
    """As exact as those of channels that tell their moments: 4 standard errors, and nothing beside them."""
    method, channel, options = LINEAR[name]
    f = fp.forecast(method, QUAD, channel=channel, **options)
    assert np.abs(distances(f, method, channel=channel, **options)).max() < 4
    plain = fp.forecast(method, QUAD, **options)
    assert np.abs(distances(plain, method, channel=channel, **options)).max() > 4  # without the noise it fails


CLOSED = {"clip": (FEDAVG, C.Clip(0.2), {"participation": 2})}
MORE_CLOSED = {
    "clip and noise, Poisson": (FEDAVG, [C.Clip(0.3), C.Gaussian(0.5)], {"participation": P.Poisson(0.5)}),
    "noise of agents": (SCAFFOLD, [C.Clip(1.0), C.Gaussian(0.1, at="agents")], {"participation": 2}),
    "signs": (FEDAVG, C.Sign(feedback=False), {}),
    "few bits": (FEDAVG, C.Quantise(3), {}),
}
CURVED = [pytest.param(*case, id=name) for name, case in CLOSED.items()]
CURVED += [pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in MORE_CLOSED.items()]


@pytest.mark.parametrize(("method", "channel", "options"), CURVED)
def test_curves_over_channels_that_are_not_linear(method, channel, options):
    """Messages are nearly normal here: the curve holds to 4 standard errors, and 2 % beside them."""
    f = fp.forecast(method, QUAD, channel=channel, **options)
    assert f.noise_by == "messages"
    run = fp.run(method, QUAD, rounds=ROUNDS, repeats=2000, seed=5, channel=channel, **options)
    error, curve = run.error.std(0, ddof=1) / math.sqrt(2000), f.curve(ROUNDS)
    assert (np.abs(run.error.mean(0) - curve) < 4 * error + 0.02 * curve)[AT].all()
    plain = fp.forecast(method, QUAD, **options).curve(ROUNDS)
    assert (np.abs(run.error.mean(0) - plain) > 4 * error + 0.02 * plain)[AT].any()  # without the channel it fails


def test_how_good_it_is_is_measured_by_drawn_rounds():
    f = fp.forecast(FEDAVG, QUAD, participation=2, channel=C.Clip(0.2))
    assert f.accuracy.good and "drawn rounds put the floor" in str(f.accuracy)
    assert abs(f.accuracy.floor) < 4 * f.accuracy.error + 0.03


@pytest.mark.slow
def test_what_is_kept_for_later_is_drawn():
    f = fp.forecast(FEDAVG, QUAD, channel=C.TopK(0.34))
    assert f.noise_by == "sampled" and f.standard_error > 0


def test_the_text_says_what_the_channel_costs():
    f = fp.forecast(FEDAVG, QUAD, participation=2, channel=C.Clip(0.2))
    plain = fp.forecast(FEDAVG, QUAD, participation=2)
    said = f.text()
    assert f"  without     Clip: {plain.bias:.4g} from w*, floor {plain.floor:.4g}" in said
    assert "messages are taken as normal: what Clip makes of their mean" in said
    assert plain.without_channel is None and "without " not in plain.text()


# Noise that a hub takes back later.


class Taken(HubNoise):
    """n_t = x_t + c_1 x_{t-1} + c_2 x_{t-2}, as a forecast knows it."""

    later: tuple[float, ...] = (-0.6, -0.2)

    def noise_coefficients(self):
        return np.array([1.0, *self.later])


class Bounded(P.Uniform):
    """Two of four, for which correlated noise is not refused: it tells that agents may come back at once."""

    def rounds_apart(self, agents):
        return 1

    def knows_moments(self):
        return True


def by_lineups(problem, step, steps, c, sigma, rounds):
    """tr Cov w after each round of FedAvg with exact fields and two of four agents: all lineups listed, the last noises
    part of the state."""
    K, d, B = 4, 3, len(c) - 1
    H, b = (np.asarray(a) for a in problem.own)
    slopes = [np.linalg.matrix_power(np.eye(d) - step * h, steps) - np.eye(d) for h in H]
    n, variances = 1 + d + B * d, []
    maps = []
    for pair in itertools.combinations(range(K), 2):
        J = np.eye(n)
        J[1 + d :, 1 + d :] = np.eye(B * d, k=-d)
        for k in pair:
            J[1 : 1 + d, 1 : 1 + d] += slopes[k] / 2
            J[1 : 1 + d, 0] -= slopes[k] @ b[k] / 2
        for j in range(B):
            J[1 : 1 + d, 1 + d + j * d : 1 + d + (j + 1) * d] = c[j + 1] * sigma * 0.5 * np.eye(d)
        maps.append(J)
    fresh = np.zeros((n, d))
    fresh[1 : 1 + d], fresh[1 + d : 1 + 2 * d] = c[0] * sigma * 0.5 * np.eye(d), np.eye(d)
    S = np.zeros((n, n))
    S[0, 0] = 1.0
    for _ in range(rounds):
        S = sum(J @ S @ J.T for J in maps) / len(maps) + fresh @ fresh.T
        variances.append(np.trace(S[1 : 1 + d, 1 : 1 + d]) - S[0, 1 : 1 + d] @ S[0, 1 : 1 + d])
    return np.array(variances)


@pytest.mark.parametrize("later", [(-0.7,), pytest.param((-0.6, -0.2), marks=pytest.mark.slow)])
def test_noise_that_is_taken_back_is_followed(later):
    problem = fp.problems.Quadratic(
        np.array([np.diag(RNG.uniform(0.5, 2, 3)) for _ in range(4)]), RNG.normal(size=(4, 3))
    )
    f = fp.forecast(fp.FedAvg(0.1, 1), problem, participation=Bounded(2), exact=True, channel=Taken(0.8, later))
    variances = by_lineups(problem, 0.1, 1, [1.0, *later], 0.8, 300)
    assert f.outlook.path(20).variance[1:] == pytest.approx(variances[:20], rel=1e-6)
    assert f.variance == pytest.approx(variances[-1], rel=1e-4)
    fresh = fp.forecast(fp.FedAvg(0.1, 1), problem, participation=Bounded(2), exact=True, channel=HubNoise(0.8))
    assert f.variance < 0.8 * fresh.variance  # as if nothing were taken back: convicted
    assert any("noise that the hub added before is part of the state" in note for note in f.notes)


@pytest.mark.slow
def test_correlated_noise_behind_a_clip():
    channel = [C.Clip(0.3), C.Correlated(0.5, coefficients=0.7)]
    f = fp.forecast(FEDAVG, QUAD, channel=channel)
    z = distances(f, FEDAVG, channel=channel)
    assert f.noise_by == "messages" and np.abs(z).max() < 4, z
    fresh = fp.forecast(FEDAVG, QUAD, channel=[C.Clip(0.3), C.Gaussian(0.5)])
    assert np.abs(distances(fresh, FEDAVG, channel=channel)).max() > 10


def test_messages_that_do_not_spread_are_drawn_apart():
    """A constant beside the change, without noise: E mm' - mean mean' is rounding, and was once negative on the whole,
    which made a curve of NaN. It depends on how programs are compiled, so that a covariance stands here."""
    mean, C = jnp.array([0.7, 6.5]), -1e-15 * jnp.array([[0.1, 0.2], [0.2, 1.5]])
    with jax.enable_x64(True):
        least = least_spread(mean, C)
        assert least > 1e-6 * jnp.linalg.norm(mean)
        assert jnp.isfinite(jnp.linalg.cholesky(C + least**2 * jnp.eye(2))).all()
    assert least_spread(mean, jnp.eye(2)) > 1e-4  # with what spreads
