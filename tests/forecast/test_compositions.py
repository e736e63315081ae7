"""Forecasts of what users put together: own randomness, subclasses, wrappers, channels, gathers, shared parts.

Floors are compared with the mean over repeats of the second half of a run: 4 standard errors, those of a sampled
forecast included.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp

QUAD = fp.problems.Quadratic([1.0, 2.0, 0.5], [[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]], noise=0.3)
REPEATS, ROUNDS = 400, 120
FEDAVG = fp.FedAvg(0.1, 3)


class Dithered(fp.FedAvg):
    """Agents add noise of their own, with variance 1/12 + 1 in units of sigma^2."""

    sigma: float = 0.1

    def local(self, w, memory, agent):
        change, memory = super().local(w, memory, agent)
        return change + self.sigma * (agent.normal(change) + agent.uniform(change) - 0.5), memory


class InTheLoop(fp.FedAvg):
    def local(self, w, memory, agent):
        return fp.descend(agent, w, 3, lambda y, e: y - 0.1 * (agent.field(y, e) + agent.normal(y))) - w, memory


class Keyed(fp.FedAvg):
    def local(self, w, memory, agent):
        change, memory = super().local(w, memory, agent)
        return change + 0.1 * jax.random.normal(agent.key(), change.shape), memory


class Same(fp.FedAvg):
    """Changes nothing."""

    label: str = "ours"


class Halved(fp.Wrapped):
    def combine(self, hub, inbox):
        return self.inner.combine(hub, inbox._replace(mean=0.5 * inbox.mean))


class Dropped(fp.Channel):
    """Each number arrives with probability one half, and then doubled: unbiased."""

    lossless = False

    def encode(self, message, memory, agent):
        return jax.tree.map(lambda a: jnp.where(agent.uniform(a) < 0.5, 2 * a, 0.0), message), memory

    def omega(self, message):
        return 1.0


class Rounded(fp.Channel):
    """Rounded up or down to a grid, unbiased: a step function, whose own derivative is zero."""

    lossless = False
    unit: float = 0.2

    def encode(self, message, memory, agent):
        return jax.tree.map(lambda a: self.unit * jnp.floor(a / self.unit + agent.uniform(a)), message), memory


class Shrunk(fp.Channel):
    """A tenth gets lost on the way."""

    lossless = False

    def encode(self, message, memory, agent):
        return self.expected(message), memory

    def expected(self, message):
        return jax.tree.map(lambda a: 0.9 * a, message)


class Remembering(Dropped):
    def init(self, message):
        return jax.tree.map(jnp.zeros_like, message)


class Kept(fp.Channel):
    """Error feedback: the larger half of what is owed is sent, the rest is kept for the next rounds."""

    lossless = False

    def init(self, message):
        return jax.tree.map(jnp.zeros_like, message)

    def encode(self, message, memory, agent):
        whole = message + memory
        sent = jnp.where(jnp.abs(whole) >= jnp.abs(whole).max(), whole, 0.0)
        return sent, whole - sent

    def owed(self, memory, like):
        return memory


class Largest(fp.Channel):
    """The larger number alone, and nothing is made up for."""

    lossless = False

    def encode(self, message, memory, agent):
        return jnp.where(jnp.abs(message) >= jnp.abs(message).max(), message, 0.0), memory


class Noisy(fp.Channel):
    """The hub adds noise to what it gathered."""

    def release(self, inbox, hub):
        return inbox._replace(mean=inbox.mean + 0.1 * hub.luck.normal(inbox.mean.shape))


def seen(algorithm, **options):
    """The floor of a run and its standard error."""
    run = fp.run(algorithm, QUAD, rounds=ROUNDS, repeats=REPEATS, seed=3, **options)
    means = run.error[:, ROUNDS // 2 :].mean(1)
    return means.mean(), means.std(ddof=1) / math.sqrt(REPEATS)


def agrees(f, algorithm, **options):
    floor, error = seen(algorithm, **options)
    closure = 0.0 if f.accuracy is None else abs(f.accuracy.floor) + 2 * f.accuracy.error
    return abs(floor - f.floor) < 4 * math.hypot(error, f.standard_error or 0.0) + closure * f.floor


# An agent's own luck.


@pytest.mark.parametrize(
    "options", [{"participation": 2}, *(pytest.param(o, marks=pytest.mark.slow) for o in ({}, {"exact": True}))]
)
def test_an_agents_own_draws_enter_the_floor(options):
    exact = fp.forecast(Dithered(0.1, 3), QUAD, floor="exact", **options)
    drawn = fp.forecast(Dithered(0.1, 3), QUAD, floor="sampled", **options)
    assert exact.standard_error is None and drawn.standard_error is not None
    assert any("sampled rounds" in note for note in drawn.notes)
    assert abs(drawn.floor - exact.floor) < 4 * drawn.standard_error
    assert agrees(exact, Dithered(0.1, 3), **options)
    assert exact.limit == pytest.approx(fp.forecast(FEDAVG, QUAD, **options).limit, abs=1e-12)


def test_the_variance_of_own_draws_is_added_to_that_of_the_samples():
    """With everyone: sigma^2 (1 + 1/12) sum_k p_k^2 in each coordinate, through the same second moments."""
    quiet, loud = (fp.forecast(Dithered(0.1, 3, sigma=s), QUAD, floor="exact") for s in (0.0, 0.1))
    M = loud.setting.matrix(loud.state)
    added = 0.01 * (13 / 12) * (QUAD.weights**2).sum() * np.eye(2)
    sigma = np.linalg.solve(np.eye(4) - np.kron(M, M), added.ravel()).reshape(2, 2)
    assert loud.variance - quiet.variance == pytest.approx(np.trace(sigma), rel=1e-9)
    assert quiet.variance == pytest.approx(fp.forecast(FEDAVG, QUAD).variance, rel=1e-12)


def test_draws_within_local_steps_are_sampled():
    f = fp.forecast(InTheLoop(0.1, 3), QUAD)
    assert f.standard_error is not None and agrees(f, InTheLoop(0.1, 3))
    with pytest.raises(fp.FedpointError, match="no exact noise floor"):
        assert fp.forecast(InTheLoop(0.1, 3), QUAD, floor="exact").floor


def test_a_raw_key_has_no_forecast():
    with pytest.raises(fp.FedpointError, match=r"draw with agent\.normal"):
        assert fp.forecast(Keyed(0.1, 3), QUAD).rate


# Subclasses and wrappers.


def test_a_subclass_that_changes_nothing_keeps_closed_forms_and_the_exact_floor():
    own, plain = (fp.forecast(a, QUAD, participation=2) for a in (Same(0.1, 3), FEDAVG))
    assert own.floor == plain.floor and own.standard_error is None and own.rate == plain.rate
    assert set(own.closed) == set(plain.closed) != set()
    assert {b.lecture: b.value for b in own.bounds} == {b.lecture: b.value for b in plain.bounds}


def test_a_wrapper_is_forecast_by_what_it_does():
    f = fp.forecast(Halved(FEDAVG), QUAD, participation=2)
    plain = fp.forecast(FEDAVG, QUAD, participation=2)
    assert f.rate == pytest.approx((1 + plain.rate) / 2, rel=1e-9)
    assert f.limit == pytest.approx(plain.limit, abs=1e-10)
    assert f.closed == {} and agrees(f, Halved(FEDAVG), participation=2)


def test_averaged_iterates_have_a_curve():
    method = fp.Averaged(fp.Scaffold(0.1, 3), burn_in=5)
    f = fp.forecast(method, QUAD, participation=2)
    assert f.bias == f.floor == 0 and f.rate is None  # in the long run
    run = fp.run(method, QUAD, participation=2, rounds=40, repeats=REPEATS, seed=2)
    at = [1, 5, 10, 40]
    z = (run.error.mean(0) - f.curve(40))[at] / (run.error.std(0, ddof=1) / math.sqrt(REPEATS))[at]
    assert np.abs(z).max() < 5, z


def test_a_wrapped_methods_restriction_reaches_the_forecast():
    with pytest.raises(fp.FedpointError, match="everyone answers"):
        fp.forecast(fp.Averaged(fp.Scaffnew(0.1, probability=0.5)), QUAD, participation=2)


# Channels.


def test_half_precision_is_forecast_as_no_channel():
    f = fp.forecast(FEDAVG, QUAD, participation=2, channel=fp.channel.Cast("float16"))
    assert f.floor == fp.forecast(FEDAVG, QUAD, participation=2).floor and f.standard_error is None
    assert agrees(f, FEDAVG, participation=2, channel=fp.channel.Cast("float16"))


@pytest.mark.parametrize("channel", [Dropped(), Rounded(), Noisy()])
@pytest.mark.parametrize(
    "method",
    [FEDAVG, pytest.param(fp.Scaffold(0.1, 3), marks=pytest.mark.slow)],
    ids=["fedavg", "scaffold"],
)
def test_a_lossy_channel_has_the_limit_of_what_it_expects(method, channel):
    if isinstance(channel, Noisy) and method is not FEDAVG:
        return  # noise at the hub makes a conserved sum walk
    f = fp.forecast(method, QUAD, channel=channel)
    plain = fp.forecast(method, QUAD)
    assert f.limit == pytest.approx(plain.limit, abs=1e-9)
    assert f.noise_by == ("sampled" if isinstance(channel, Noisy) else "messages")
    assert f.variance > 1.05 * plain.variance
    assert agrees(f, method, channel=channel)


def test_what_is_lost_on_average_slows_the_rate():
    f, plain = fp.forecast(FEDAVG, QUAD, channel=Shrunk()), fp.forecast(FEDAVG, QUAD)
    assert f.rate == pytest.approx(0.1 + 0.9 * plain.rate, rel=1e-9)
    assert f.limit == pytest.approx(plain.limit, abs=1e-10)
    assert any("Shrunk" in note for note in f.notes)


@pytest.mark.parametrize("channel", [Remembering(), Kept()])
def test_what_a_channel_keeps_at_the_agents_is_drawn_too(channel):
    f = fp.forecast(FEDAVG, QUAD, channel=channel)
    assert f.standard_error > 0 and agrees(f, FEDAVG, channel=channel)


def test_where_drawn_rounds_settle_elsewhere_the_forecast_says_so():
    """What arrives is not what expected(message) promises: the limit is another one."""
    f = fp.forecast(FEDAVG, QUAD, channel=Largest())
    run = fp.run(FEDAVG, QUAD, rounds=ROUNDS, repeats=REPEATS, seed=3, channel=Largest())
    mean = run.history[:, ROUNDS // 2 :].mean((0, 1))
    assert f.noise_bias == pytest.approx(np.linalg.norm(mean - f.fixed_point), rel=0.1)
    assert np.linalg.norm(mean - f.limit) < 0.1 * f.noise_bias
    assert agrees(f, FEDAVG, channel=Largest()) and f.floor == f.bias2 + f.variance
    assert (
        any("what arrives of spread messages on average" in note for note in f.notes)
        and "of which    drift" in f.text()
    )


def test_what_a_channel_makes_uncertain_is_said():
    told = fp.forecast(FEDAVG, QUAD, channel=Dropped(), floor="exact")
    assert told.floor is None and any("drawn rounds only" in note for note in told.notes)
    net = fp.Network.complete(3).mixing()
    with pytest.raises(fp.FedpointError, match="lossy channel a forecast needs a fusion center"):
        fp.forecast(FEDAVG, QUAD, network=net, channel=Dropped())
    half = fp.forecast(FEDAVG, QUAD, network=net, channel=fp.channel.Cast("float16"))
    assert half.rate == fp.forecast(FEDAVG, QUAD, network=net).rate


# Gathers, shared parts, networks.


def test_a_median_is_forecast_where_nothing_is_random():
    f = fp.forecast(FEDAVG, QUAD, gather=fp.gather.Median(), exact=True)
    run = fp.run(FEDAVG, QUAD, gather=fp.gather.Median(), exact=True, rounds=200)
    assert run.model[0] == pytest.approx(f.limit, abs=1e-8)
    assert f.curve(200) == pytest.approx(run.error[0], abs=1e-12)
    assert f.bias > 0.1 and f.floor == f.bias2


def squares(params, batch):
    x, y = batch
    return jnp.mean((x @ params["body"] + params["head"] - y) ** 2)


def test_shared_parts_end_where_own_ones_are_fitted_too():
    """Least squares with one slope for all and an intercept for each agent."""
    rng = np.random.default_rng(1)
    x, y, groups = rng.normal(size=(30, 2)), rng.normal(size=30), np.arange(30) % 3
    own = np.eye(3)[groups]
    slope = np.linalg.lstsq(np.concatenate([x, own], axis=1), y + own @ [0.0, 2.0, -1.0], rcond=None)[0][:2]
    params = {"body": np.zeros(2), "head": np.zeros(())}
    problem = fp.problems.Loss(squares, params, (x, y + own @ [0.0, 2.0, -1.0]), groups=groups, convex=True)
    f = fp.forecast(fp.FedAvg(0.1), problem, share=["body"])
    assert f.limit["body"][0] == pytest.approx(slope, abs=1e-9) and f.rate < 1
    run = fp.run(fp.FedAvg(0.1), problem, share=["body"], rounds=400)
    assert run.model["body"][0] == pytest.approx(slope, abs=1e-9)


def test_noise_of_own_methods_on_a_network_is_borne_out_by_drawn_rounds():
    class Ours(fp.FedSGD):
        def local(self, near, w, agent):
            new, _ = super().local(near, w, agent)
            return new, new

    net, options = fp.Network.ring(3), {"step": 0.1, "coupling": 0.5}
    exact, own = (fp.forecast(kind(**options), QUAD, network=net) for kind in (fp.FedSGD, Ours))
    drawn = fp.forecast(Ours(**options), QUAD, network=net, floor="sampled")
    assert own.noise_by == "closure" and own.floor == pytest.approx(exact.floor, rel=1e-9)
    assert own.standard_error is None and drawn.standard_error is not None
    assert abs(drawn.floor - exact.floor) < 4 * drawn.standard_error
    assert own.contraction.kappa is None and exact.contraction.kappa < 1
