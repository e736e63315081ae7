"""Forecasts of methods that users write: the closure where drawn rounds bear it out, drawn rounds where they do not."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp

RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 2))
Y = np.where(RNG.random(60) < 1 / (1 + np.exp(-X[:, 0] - 0.5)), 1, -1)
TASK = fp.problems.Logistic(X, Y, np.repeat(range(3), 20), ridge=0.2, batch=1)


class Mine(fp.Algorithm):
    """FedAvg again, as a user writes it."""

    step: float = 0.3
    local_steps: int = 2

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        return fp.descend(agent, w, self.local_steps, lambda y, e: y - self.step * agent.field(y, e)) - w, memory

    def combine(self, w, inbox):
        return w + inbox.mean


@pytest.mark.parametrize(
    "participation", [fp.Uniform(2), pytest.param(None, marks=pytest.mark.slow)], ids=["two", "everyone"]
)
def test_a_method_written_anew_has_the_forecast_of_the_catalogues(participation):
    own, known = (
        fp.forecast(method, TASK, participation=participation)
        for method in (Mine(), fp.FedAvg(step=0.3, local_steps=2))
    )
    assert own.noise_by == known.noise_by == "closure"
    np.testing.assert_allclose(own.limit, known.limit, rtol=1e-9)
    np.testing.assert_allclose(own.curve(40), known.curve(40), rtol=1e-9)
    assert own.quantile(0.9, 20) == pytest.approx(known.quantile(0.9, 20), rel=1e-6)


class Same(Mine):
    """Its steps are all on the first sample of the round, whose noise then adds up."""

    def local(self, w, memory, agent):
        return fp.descend(agent, w, self.local_steps, lambda y, e: y - self.step * agent.field(y, 0)) - w, memory


class Signs(Mine):
    """Nearly the signs of fields: what noise makes of them is far from linear."""

    def local(self, w, memory, agent):
        return -self.step * jnp.tanh(8 * agent.field(w)), memory


class Twice(Mine):
    """Two fields in one local step."""

    def local(self, w, memory, agent):
        def advance(y, e):
            return y - self.step * (agent.field(y, e) + agent.field(0.9 * y, e)) / 2

        return fp.descend(agent, w, 2, advance) - w, memory


@pytest.mark.parametrize(
    "method",
    [Same(), *(pytest.param(method, marks=pytest.mark.slow) for method in (Signs(step=0.05), Twice()))],
    ids=lambda method: type(method).__name__,
)
def test_what_a_closure_does_not_see_is_drawn(method):
    """The floor is that of 400 runs, within four standard errors of both; a closure's would not be."""
    forecast = fp.forecast(method, TASK)
    assert forecast.noise_by == "sampled"
    ends = fp.run(method, TASK, rounds=120, repeats=400, seed=2).error[:, -1]
    error = np.hypot(ends.std(ddof=1) / 20, forecast.standard_error)
    assert abs(ends.mean() - forecast.floor) < 4 * error < 0.5 * forecast.floor


class Clipped(Mine):
    """Far from the limit its steps are cut, close to it they are not."""

    most: float = 0.3

    def local(self, w, memory, agent):
        def advance(y, e):
            g = agent.field(y, e)
            return y - self.step * g * jnp.minimum(1.0, self.most / jnp.linalg.norm(g))

        return fp.descend(agent, w, self.local_steps, advance) - w, memory


def test_where_runs_begin_drawn_rounds_are_asked_too():
    task = fp.problems.Quadratic([1.0, 1.0], [[0.0, 0.0], [0.02, 0.0]], noise=0.01)
    near, far = (fp.forecast(Clipped(), task, start=np.full(2, w)) for w in (0.05, 0.2151))
    assert near.noise_by == "closure" and far.noise_by == "sampled"
