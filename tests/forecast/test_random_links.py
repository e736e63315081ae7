"""Links that fail at random: runs and forecasts against all patterns of links, in dense matrices.

On four nodes a tick has 2^5 patterns. For each the textbook's recursion is one matrix J; mean and second moments of any
number of ticks follow from sum p J and sum p J (x) J, whatever the library does. Tolerances are rounding, of
sums of up to 4,096 ticks.
"""

from itertools import product

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.precision import double
from fedpoint.engine.state import SCHEDULE

STEP, LOSS, NOISE = 0.2, 0.3, 0.2
H = np.array([1.0, 1.7, 0.6, 1.3])
C = np.array([1.0, -2.0, 0.5, 3.0])
B, K = H * C, 4
EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
NET = fp.Network.from_edges(EDGES).mixing()
START = 2.0
I, ZERO = np.eye(K), np.zeros((K, K))
G = np.diag(H)
BEST = B.sum() / H.sum()


def mixing(up):
    """W where these links are there: what is left of a row is the node's own."""
    W = I.copy()
    for (i, j), weight, there in zip(NET.edges, NET.weights, up, strict=True):
        for a, b in ((i, j), (j, i)):
            W[a, b] += weight * there
            W[a, a] -= weight * there
    return W


# Of each method: W -> (J, what J adds, how noise enters), the state before the first tick, and which part is read.


def adapt_then_combine(W):
    return W @ (I - STEP * G), W @ (STEP * B), STEP * W


def combine_then_adapt(W):
    return (I - STEP * G) @ W, STEP * B, STEP * I


def exact_diffusion(W):
    half, A = (I + W) / 2, I - STEP * G
    J = np.block([[half @ (A + I), -half], [A, ZERO]])
    return J, np.concatenate([half @ (STEP * B), STEP * B]), STEP * np.vstack([half, I])


def extra(W):
    """(w, half of (I + W) w, the step) of the last tick."""
    J = np.block([[I + W - STEP * G, -I, I], [(I + W) / 2, ZERO, ZERO], [STEP * G, ZERO, ZERO]])
    return J, np.concatenate([STEP * B, 0 * B, -STEP * B]), STEP * np.vstack([I, ZERO, -I])


def gradient_tracking(W):
    w = np.hstack([W, -STEP * W, ZERO])
    J = np.vstack([w, np.hstack([ZERO, W, -I]) + G @ w, G @ w])
    return J, np.concatenate([0 * B, -B, -B]), np.vstack([ZERO, I, I])


ONE = np.full(K, START)
METHODS = {
    "adapt, combine": (fp.Diffusion(STEP), adapt_then_combine, [ONE]),
    "combine, adapt": (fp.Diffusion(STEP, order="combine_then_adapt"), combine_then_adapt, [ONE]),
    "FedAvg": (fp.FedAvg(STEP), adapt_then_combine, [ONE]),
    "exact diffusion": (fp.ExactDiffusion(STEP), exact_diffusion, [ONE, ONE]),
    "EXTRA": (fp.Extra(STEP), extra, [ONE, ONE, 0 * ONE]),
    "gradient tracking": (fp.GradientTracking(STEP), gradient_tracking, [ONE, H * START - B, H * START - B]),
}


FIRST = {"gradient tracking": np.vstack([ZERO, I, I])}  # how the noise of the gradient at the start is in the state


class Patterns:
    """All that a tick may do to (1, state - where its mean ends), and to second moments of it."""

    def __init__(self, recursion, start, noise=0.0, first=None):
        patterns = [np.array(up) for up in product([0, 1], repeat=len(EDGES))]
        chance = [np.prod(np.where(up, 1 - LOSS, LOSS)) for up in patterns]
        each = [recursion(mixing(up)) for up in patterns]
        J, c = (sum(p * one[i] for p, one in zip(chance, each, strict=True)) for i in (0, 1))
        x, self.J, self.each, self.chance = np.concatenate(start), J, [one[0] for one in each], chance
        for _ in range(4096):
            x = J @ x + c
        self.limit, n = x, len(x)
        begun = np.concatenate([[1.0], np.concatenate(start) - x])
        self.start = np.outer(begun, begun)
        if first is not None:
            self.start[1:, 1:] += noise * first @ first.T
        self.second = np.zeros(((1 + n) ** 2,) * 2)
        for p, (J, c, N) in zip(chance, each, strict=True):
            whole = np.block([[np.ones((1, 1)), np.zeros((1, n))], [(c + J @ x - x)[:, None], J]])
            self.second += p * np.kron(whole, whole)
            spread = np.zeros((1 + n, 1 + n))
            spread[1:, 1:] = noise * N @ N.T
            self.second[:, 0] += p * spread.ravel()

    def after(self, ticks, start=None):
        """E[x x'] less the limit, and the mean over nodes of E|w - w*|^2."""
        S = self.start if start is None else start
        S = (np.linalg.matrix_power(self.second, ticks) @ S.ravel()).reshape(S.shape)
        gap = self.limit[:K] - BEST
        return S, float(np.trace(S[1 : 1 + K, 1 : 1 + K]) + 2 * gap @ S[0, 1 : 1 + K] + gap @ gap) / K

    def variance(self):
        """Once settled."""
        S, _ = self.after(4096, np.diag(np.eye(len(self.start))[0]))
        mean = S[0, 1 : 1 + K]
        return float(np.trace(S[1 : 1 + K, 1 : 1 + K]) - mean @ mean) / K

    def rate(self):
        """Of second moments of deviations that have no conserved part."""
        U, values, _ = np.linalg.svd(self.J - np.eye(len(self.J)))
        Q = U[:, values > 1e-9]
        inside = [Q.T @ one @ Q for one in self.each]
        return abs(np.linalg.eigvals(sum(p * np.kron(a, a) for p, a in zip(self.chance, inside, strict=True)))).max()


def forecast(method, **options):
    quad = fp.problems.Quadratic(H, C[:, None], noise=NOISE)
    return fp.forecast(method, quad, network=NET, schedule=fp.RandomLinks(LOSS), start=[START], **options)


SAME = ("combine, adapt", "FedAvg", "EXTRA")  # to the theory these are diffusion and exact diffusion again


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SAME else n for n in METHODS])
def test_forecasts_are_those_of_all_patterns(name):
    method, recursion, start = METHODS[name]
    for exact in (True, False):
        f, every = forecast(method, exact=exact), Patterns(recursion, start, 0.0 if exact else NOISE, FIRST.get(name))
        np.testing.assert_allclose(f.limit.ravel(), every.limit[:K], rtol=0, atol=1e-9)
        found, expected = f.curve(6), [every.after(t)[1] for t in range(7)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert f.variance == pytest.approx(every.variance(), rel=1e-7, abs=1e-12) and f.noise_by == "exact"
        values = abs(np.linalg.eigvals(every.J))
        assert f.rate == pytest.approx(values[values < 1 - 1e-6].max(), rel=1e-9)
        assert f.rate_ms == pytest.approx(every.rate(), rel=1e-5)


QUAD = fp.problems.Quadratic(H, C[:, None], noise=NOISE)
DRAWN = fp.RandomLinks(LOSS)


@double
def drawn_mixing(net, loss, seed, tick, make=mixing):
    """W of a tick, from the run's own luck."""
    key = fp.Key.of(seed, 0, SCHEDULE)
    up = np.asarray(fp.RandomLinks(loss).up(key, np.int32(tick), np.arange(len(net.edges))))
    return make(up)


def test_a_run_mixes_by_the_links_of_its_ticks():
    """Links are there with their probability, differ from tick to tick, and both ends see the same ones."""
    run = fp.run(fp.Diffusion(STEP), QUAD, network=NET, schedule=DRAWN, rounds=20, exact=True, seed=5, start=[START])
    w, seen = np.full(K, START), []
    for t in range(20):
        W = drawn_mixing(NET, LOSS, 5, t + 1)
        seen.append(W)
        w = W @ (w - STEP * (H * w - B))
        np.testing.assert_allclose(run.history[0, t + 1, :, 0], w, rtol=0, atol=1e-12)
    assert len({W.tobytes() for W in seen}) > 10
    many = fp.Network.random(400, 6, seed=1).mixing()
    up = drawn_mixing(many, LOSS, 1, 3, lambda up: up)
    assert abs(float(up.mean()) - 0.7) < 4 * np.sqrt(0.21 / len(many.edges))


def test_push_sum_keeps_what_could_not_be_handed_on():
    """Columns of W sum to one in every tick, so nothing is lost: the run is that of dense matrices."""
    net = fp.Network.directed([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]).mixing()

    def columns(up):
        W = np.zeros((K, K))
        W[net.edges[:, 1], net.edges[:, 0]] = net.weights * up
        return W + np.diag(1 - W.sum(0))

    run = fp.run(fp.PushSum(0.05), QUAD, network=net, schedule=DRAWN, rounds=15, exact=True, seed=2, start=[START])
    x, ones = np.full(K, START), np.ones(K)  # before the first tick all that is said has been heard
    full = columns(np.ones(len(net.edges)))
    v, ones = full @ x, full @ ones
    for t in range(15):
        assert abs(ones.sum() - K) < 1e-12
        x = v - 0.05 * (H * (v / ones) - B)
        W = columns(np.asarray(drawn_mixing(net, LOSS, 2, t + 1, lambda up: up)))
        v, ones = W @ x, W @ ones
        np.testing.assert_allclose(run.history[0, t + 1, :, 0], v / ones, rtol=0, atol=1e-12)
    with pytest.raises(fp.FedpointError, match=r"Push-sum divides one sum by another.*not affine"):
        fp.forecast(fp.PushSum(0.05), QUAD, network=net, schedule=DRAWN)


def test_corrections_hold_where_links_fail_and_diffusion_pays():
    """Noiseless, corrected methods still end at w* itself; diffusion keeps a floor, as its bias is mixed anew."""
    f = forecast(fp.ExactDiffusion(0.1), exact=True)
    assert f.bias == 0.0 and f.variance < 1e-12 and f.rate_ms < 1
    assert forecast(fp.Diffusion(0.1), exact=True).variance > 1e-3


@pytest.mark.slow
def test_runs_settle_where_the_forecast_says():
    """Fields whose noise depends on the model, and links."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(K, 12, 2))
    y = X @ [1.0, -1.0] + rng.normal(size=(K, 12)) + np.arange(K)[:, None]
    task = fp.problems.LeastSquares(list(X), list(y), mean=True, batch=2)
    run = fp.run(fp.ExactDiffusion(0.05), task, network=NET, schedule=DRAWN, rounds=60, repeats=300)
    verdict = fp.check(run)
    assert verdict.passed, verdict


REFUSED = {
    "coupled": (fp.FedGD(0.1, 0.5), {}, "a link that fails takes its pull with it"),
    "lossy": (fp.Diffusion(0.1), {"channel": fp.channel.Sign()}, "Sign sends differences to what neighbours know"),
    "robust": (fp.Diffusion(0.1), {"gather": fp.gather.Median()}, "which Median would count like a neighbour's"),
    "processes": (fp.Diffusion(0.1), {"processes": 2}, "worked out in one place: run it without processes="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_with_failing_links(name):
    method, options, words = REFUSED[name]
    with pytest.raises(fp.FedpointError, match=words):
        fp.run(method, QUAD, network=NET, schedule=DRAWN, rounds=1, **options)


@pytest.mark.parametrize("loss", [1.0, -0.1, 1.5])
def test_chances_of_links(loss):
    with pytest.raises(fp.FedpointError, match="RandomLinks: "):
        fp.RandomLinks(loss)
    with pytest.raises(fp.FedpointError, match="RandomLinks is a schedule for networks"):
        fp.run(fp.FedAvg(0.1), QUAD, schedule=DRAWN, rounds=1)


class Frozen(fp.RandomLinks):
    """Broken: the same links in every tick."""

    def up(self, key, round, link):
        return super().up(key, 0 * round, link)


def test_the_same_links_in_every_tick_are_convicted():
    broken = fp.run(fp.Diffusion(STEP), QUAD, network=NET, schedule=Frozen(LOSS), rounds=60, repeats=200, start=[START])
    right = forecast(fp.Diffusion(STEP)).curve(60)[-1]
    spread = broken.error[:, -1].std(ddof=1) / np.sqrt(200)
    assert abs(broken.error[:, -1].mean() - right) > 6 * spread
