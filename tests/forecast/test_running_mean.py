"""Forecasts of running means: all outcomes of a few rounds, closed forms, runs.

Enumerations are held to 1e-9: the moments of the run behind a mean come from a Krylov space that is grown until what it
says no longer changes by 1e-7 of itself. Runs are held to 4 standard errors over independent repeats.
"""

import math

import enumerate_rounds as every
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.show.expected import expected, settling_rounds
from fedpoint.theory import course
from fedpoint.theory.closure import Closure
from fedpoint.theory.running_mean import RunningMean

STEP = 0.3


def averaged(method, count):
    """The enumerated method with the mean of its models behind its hub: count models with this one, 0 before any."""

    def combine(u, mean, total):
        hub = method.combine(u[: method.hub], mean, total)
        model = hub[: every.D]
        return np.concatenate([hub, u[method.hub :] + (model - u[method.hub :]) / max(count, 1)])

    def local(k, steps, batches, u, m):
        return method.local(k, steps, batches, u[: method.hub], m)

    return method._replace(local=local, combine=combine, hub=method.hub + every.D)


def enumerated(method, who, steps, burn_in, rounds):
    """E|mean - w*|^2 after every round, by all outcomes: second moments of (1, state) around zero, from zero."""
    hub = method.hub + every.D
    n = hub + every.K * method.memory
    S, point = np.zeros((n + 1, n + 1)), np.zeros(n)
    S[0, 0] = 1.0
    star, found = every.problem().solution(), []
    read = np.zeros((every.D, n + 1))
    read[:, 1 + method.hub : 1 + hub], read[:, 0] = np.eye(every.D), -star
    for t in range(rounds + 1):
        found.append(np.trace(read @ S @ read.T))
        one = averaged(method, t + 1 - burn_in)
        S = every.moved(one, who, [[(1.0, steps)]] * every.K, S, point) if t < rounds else S
    return found


@pytest.mark.parametrize("burn_in", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("who", ["uniform", pytest.param("importance", marks=pytest.mark.slow)])
def test_fedavg(who, burn_in):
    scheme, outcomes = every.WHO[who]
    f = fp.forecast(fp.Averaged(fp.FedAvg(STEP, 2), burn_in), every.problem(), participation=scheme)
    expected = enumerated(every.fedavg(STEP), outcomes, 2, burn_in, 6)
    np.testing.assert_allclose(f.curve(6), expected, rtol=1e-9)
    assert f.exact and f.noise_by == "exact"


@pytest.mark.slow
def test_scaffold():
    scheme, outcomes = every.WHO["uniform"]
    f = fp.forecast(fp.Averaged(fp.Scaffold(STEP, 1), 1), every.problem(), participation=scheme)
    np.testing.assert_allclose(f.curve(5), enumerated(every.scaffold(STEP, 1.0, 2), outcomes, 1, 1, 5), rtol=1e-9)


# Closed forms: e_t = a e_{t-1} + s n, so that cov(e_s, e_t) = a^(t-s) var e_s.

BOWL = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.5)  # H = 1.5, noise 0.25 in the mean, w* = 2/3


def by_hand(step, burn_in, rounds, first=1):
    """The error after every round, or from a later one on."""
    a = 1 - 1.5 * step
    t = np.arange(rounds + 1)
    mean, variance = -2 / 3 * a**t, step**2 * 0.25 * (1 - a ** (2 * t)) / (1 - a**2)
    found = list(mean[: burn_in + 1] ** 2 + variance[: burn_in + 1])
    for last in range(max(burn_in + 1, first), rounds + 1):
        s = np.arange(burn_in + 1, last + 1)
        early, apart = np.minimum.outer(s, s), np.abs(np.subtract.outer(s, s))
        found.append(mean[s].mean() ** 2 + (a**apart * variance[early]).mean())
    return np.array(found)


@pytest.mark.parametrize("burn_in", [0, 5])
def test_the_curve_of_a_quadratic(burn_in, monkeypatch):
    f = fp.forecast(fp.Averaged(fp.FedAvg(0.1), burn_in), BOWL)
    expected = by_hand(0.1, burn_in, 120)
    np.testing.assert_allclose(f.curve(120), expected, rtol=1e-9)
    # After many rounds, when what a round adds has settled.
    far = f.curve(3000)
    np.testing.assert_allclose(far[:121], expected, rtol=1e-9)
    assert far[3000] == pytest.approx(by_hand(0.1, burn_in, 3000, first=3000)[-1], rel=1e-9)
    # As if models of different rounds were independent: the mistake must show.
    monkeypatch.setattr(course, "product", lambda setting, x: lambda C: 0 * C)
    wrong = fp.forecast(fp.Averaged(fp.FedAvg(0.1), burn_in), BOWL).curve(120)
    assert wrong[-1] < 0.3 * expected[-1]


# Curved fields: the mean and covariance of the state along the path, and what is left of a deviation.


def curved(step, burn_in=None, method=fp.Scaffold, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = np.where(X @ [1.0, -1.0] + 0.3 * rng.normal(size=40) > 0, 1, -1)
    problem = fp.problems.Logistic(X, y, groups=np.arange(40) % 4, ridge=0.1, batch=1)
    inner = method(step, 4)
    return fp.forecast(inner if burn_in is None else fp.Averaged(inner, burn_in), problem, **options)


def test_a_closure_of_affine_rounds_is_exact():
    """Its legs and its tail, which follow mean and covariance apart, against the second moments of affine rounds. The
    last few percent of the way are gone with the noise of the end: hence 1 %."""
    f = fp.forecast(fp.FedAvg(0.2, 3), BOWL, participation=1)
    same = Closure(f.setting, f.state, f.origin, f.gauge)
    ways = [RunningMean(theory, f.gauge, 3, theory.course()) for theory in (f.outlook, same)]
    exact, closed = (way.path(80).total for way in ways)
    np.testing.assert_allclose(closed, exact, rtol=1e-2)
    assert ways[1].long_run == pytest.approx(ways[0].long_run, rel=1e-6)


@pytest.mark.slow
def test_the_mean_of_one_curved_model_is_that_model_and_noise_moves_the_mean_of_many():
    run = curved(0.3, participation=2)
    path = run.curve(40)
    np.testing.assert_allclose(curved(0.3, 39, participation=2).curve(40), path, rtol=1e-5)
    f = curved(0.3, 40, participation=2)
    assert f.noise_bias > 0 and f.drift == 0
    far = f.curve(200_000)
    assert far[-1] == pytest.approx(f.bias2 + f.long_run / (200_000 - 40), rel=1e-3)
    assert f.bias2 > 0.5 * far[-1]  # so that a curve without the shift would be far too low


@pytest.mark.slow
def test_the_mean_of_curved_models_is_that_of_runs():
    f = curved(0.3, 40, participation=2)
    run = fp.run(f.algorithm, f.problem, 600, participation=2, repeats=1000, seed=5, record_every=20)
    error = run.error[:, 3:]
    z = (error.mean(0) - f.curve(600)[60::20]) / (error.std(0, ddof=1) / math.sqrt(1000))
    off = error.mean(0) / f.curve(600)[60::20] - 1
    assert ((np.abs(z) < 4) | (np.abs(off) < 0.05)).all(), (z, off)
    for share in (0.1, 0.5, 0.9):
        assert (error[:, -1] <= f.quantile(share, 600)).mean() == pytest.approx(share, abs=0.04)


def test_it_is_drawn_beyond_its_burn_in():
    f = fp.forecast(fp.Averaged(fp.FedAvg(0.1), burn_in=300), BOWL)
    assert settling_rounds(f) > 300 + settling_rounds(f.run)
    assert f.curve(0)[0] == pytest.approx(4 / 9) == f.quantile(0.5, 0)
    picture = expected(f, settling_rounds(f), 50)
    assert picture["low"][-1] < picture["curve"][-1] < picture["high"][-1]


def test_in_the_long_run_the_step_does_not_matter():
    """Polyak and Juditsky: rounds x variance -> tr H^-1 C H^-1, for every step; the run's own grows with the step."""
    runs = {step: fp.forecast(fp.Averaged(fp.FedAvg(step), 50), BOWL) for step in (0.05, 0.5)}
    for step, f in runs.items():
        assert f.long_run == pytest.approx(0.25 / 1.5**2, rel=1e-7)
        a = 1 - 1.5 * step
        assert f.run.variance == pytest.approx(step**2 * 0.25 / (1 - a**2), rel=1e-8)
        assert f.curve(20000)[-1] == pytest.approx(f.long_run / 19950, rel=0.01)


def test_what_it_says():
    f = fp.forecast(fp.Averaged(fp.FedAvg(0.1, 3), burn_in=10), BOWL)
    run = fp.forecast(fp.FedAvg(0.1, 3), BOWL)
    assert f.bias == run.bias and np.array_equal(f.limit, run.limit) and f.rate is None and not f.diverges
    assert f.variance == 0 and f.floor == pytest.approx(run.bias**2) and f.exact
    assert set(f.closed) == {"fixed_point", "bias"} and f.bounds == []
    text = f.text()
    assert "the mean of the models after round 10: no rate, its variance falls like one over their number" in text
    assert f"floor       {f.floor:.4g} = bias^2, in the long run" in text
    assert f"variance    {f.long_run:.4g} over that number" in text
    told = f.to_dict()
    assert told["rate"] is None and told["floor"] == f.floor and told["algorithm"] == "averaged"
    target = f.bias2 + 1e-4
    reached = f.rounds_to(target)
    assert f.curve(int(reached))[-1] <= target < f.curve(int(reached) - 1)[-1]
    assert "its bias^2" in f.rounds_to(0.5 * f.bias2).reason
    assert f.quantile(0.5, 200) < f.quantile(0.9, 200)
    assert f.probability(f.quantile(0.9, 200), 200) == pytest.approx(0.9, abs=1e-6)
    assert f.quantile(0.9) == pytest.approx(f.floor, rel=1e-9)


def test_nothing_random_and_what_diverges():
    f = fp.forecast(fp.Averaged(fp.FedAvg(0.1, 3), 2), BOWL, exact=True)
    run = fp.run(fp.Averaged(fp.FedAvg(0.1, 3), 2), BOWL, rounds=40, exact=True)
    np.testing.assert_allclose(f.curve(40), run.error[0], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(f.mean_path(40), run.history[0], rtol=1e-12, atol=1e-13)
    wild = fp.forecast(fp.Averaged(fp.FedAvg(1.9)), BOWL)
    assert wild.diverges and math.isinf(wild.floor) and math.isinf(wild.rounds_to(0.1))


def test_what_a_mean_leaves_out_is_said():
    method = fp.Averaged(fp.FedAvg(0.1))
    some = fp.forecast(method, BOWL, participation=fp.Answering(fp.Everyone(), probability=0.5))
    assert some.proviso == "as if abandoned rounds counted" and not some.exact

    class Dropped(fp.Channel):
        lossless = False

        def init(self, message):  # what is kept at agents makes it known from drawn rounds only
            return jnp.zeros(())

        def encode(self, message, memory, agent):
            return jnp.where(agent.uniform(message) < 0.5, 2 * message, 0.0), memory

    lost = fp.forecast(method, BOWL, channel=Dropped())
    assert lost.floor == 0 and lost.noise_by == "sampled"
    with pytest.raises(fp.FedpointError, match="what the channel does is known from drawn rounds only"):
        lost.curve(5)


def test_what_nodes_count_is_not_forecast():
    """Turns that are drawn, and means of means at the nodes: each node counts for itself."""
    ring = {"network": fp.Network.complete(2)}
    drawn = fp.forecast(fp.Averaged(fp.FedSGD(0.1, 0.5)), BOWL, schedule=fp.RandomActivation(1), **ring)
    twice = fp.forecast(fp.Averaged(fp.Averaged(fp.FedSGD(0.1, 0.5))), BOWL, **ring)
    assert drawn.limit is not None and drawn.rate is None
    for f, why in ((drawn, "running mean on this network"), (twice, "what agents have counted")):
        with pytest.raises(fp.FedpointError, match=why):
            f.curve(10)


def test_both_ways_around_it_is_the_same():
    one, two = fp.Averaged(fp.Extrapolated(fp.FedAvg(0.1, 3)), 4), fp.Extrapolated(fp.Averaged(fp.FedAvg(0.1, 3), 4))
    f, g = (fp.forecast(m, BOWL, participation=1) for m in (one, two))
    assert f.exact and g.exact
    np.testing.assert_allclose(f.curve(50), g.curve(50), rtol=1e-12)
    assert f.floor == g.floor < 0.01 * fp.forecast(fp.FedAvg(0.1, 3), BOWL).bias2


def test_means_of_means_and_of_decaying_steps_are_followed_round_by_round():
    for method in (fp.Averaged(fp.Averaged(fp.FedAvg(0.1))), fp.Averaged(fp.FedAvg(fp.steps.InverseTime(1.0, 8.0)))):
        f = fp.forecast(method, BOWL)
        assert f.limit is None and f.floor is None and "only curve(rounds)" in f.text()
        assert f.curve(20)[-1] < f.curve(20)[0]


def test_checks_of_running_means():
    """Right as it is, and convicted where a run is not the mean that it is said to be."""
    method = fp.Averaged(fp.FedAvg(0.1, 2), burn_in=20)
    run = fp.run(method, BOWL, rounds=100, repeats=100, seed=4)
    assert fp.check(run).passed

    class Last(fp.Averaged):
        """It reads the last model."""

        def read(self, hub, memory):
            return hub.inner

    last = Last(fp.FedAvg(0.1, 2), burn_in=20)
    assert last.averaging() is None
    assert fp.check(fp.run(last, BOWL, rounds=100, repeats=100, seed=4), claims=method).outcome == "contradicted"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (fp.Averaged(fp.Scaffold(0.1, 3), 5), {"participation": 2}),
        (fp.Averaged(fp.Extrapolated(fp.FedAvg(0.1, 3)), 5), {"participation": 2}),
        (fp.Averaged(fp.FedSGD(0.1, 0.5), 5), {"network": fp.Network.ring(4)}),
        (fp.Averaged(fp.Scaffnew(0.1, probability=0.4)), {}),
    ],
    ids=["SCAFFOLD", "Extrapolated", "network", "Scaffnew"],
)
def test_forecasts_are_what_runs_do(method, options):
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 3, 3))
    R = root @ np.swapaxes(root, 1, 2) / 3 + 0.5 * np.eye(3)
    problem = fp.problems.LinearStream(rng.normal(size=(4, 3)), noise=0.3, covariance=R)
    f = fp.forecast(method, problem, **options)
    run = fp.run(method, problem, rounds=120, repeats=1000, seed=2, **options)
    at = [1, 6, 20, 60, 120]
    z = (run.error.mean(0) - f.curve(120))[at] / (run.error.std(0, ddof=1) / math.sqrt(1000))[at]
    assert f.exact and np.abs(z).max() < 4, z
