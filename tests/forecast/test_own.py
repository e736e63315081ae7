"""Users' own algorithms: sampled floors against runs, against exact ones, and where independence is wrong."""

import math

import numpy as np
import pytest
import worlds

import fedpoint as fp

REPEATS, ROUNDS, TAIL = 300, 120, 60


class Mine(fp.Algorithm):
    """FedAvg as a user may write it."""

    step: float
    local_steps: int = 3

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        y = fp.descend(agent, w, self.local_steps, lambda y, e: y - self.step * agent.field(y, e))
        return y - w, memory

    def combine(self, w, inbox):
        return w + inbox.mean


class Remembers(fp.Algorithm):
    """A memory of the last change, of which a part is repeated."""

    step: float
    part: float = 0.3

    def init(self, w):
        return w, 0.0 * w

    def local(self, w, last, agent):
        change = -self.step * agent.field(w, 0) + self.part * last
        return change, change

    def combine(self, w, inbox):
        return w + inbox.mean


class Reuses(Mine):
    """One sample for all local steps: only drawn rounds can tell."""

    def local(self, w, memory, agent):
        y = fp.descend(agent, w, self.local_steps, lambda y, e: y - self.step * agent.field(y, 0))
        return y - w, memory


class Slows(Mine):
    """Steps that shrink with the rounds, without a schedule to be seen."""

    def local(self, w, memory, agent):
        step = self.step / (1 + agent.round / 20)
        y = fp.descend(agent, w, self.local_steps, lambda y, e: y - step * agent.field(y, e))
        return y - w, memory


def floor_of(algorithm, problem, who=None):
    """Mean error over the tail and its standard error, from independent repeats."""
    run = fp.run(algorithm, problem, ROUNDS, participation=who, seed=9, repeats=REPEATS)
    tail = run.error[:, ROUNDS - TAIL :].mean(1)
    return tail.mean(), tail.std(ddof=1) / math.sqrt(REPEATS)


def test_the_sampled_floor_is_the_exact_one_and_the_runs():
    problem = worlds.stream()
    exact = fp.forecast(fp.FedAvg(0.15, 3, normalise=False), problem, participation=2)
    f = fp.forecast(Mine(0.15), problem, participation=2)
    assert f.closed == {} and f.standard_error > 0 and exact.standard_error is None
    np.testing.assert_allclose(f.limit, exact.limit, rtol=0, atol=1e-12)
    assert f.rate == pytest.approx(exact.rate, rel=1e-12)
    assert abs(f.variance - exact.variance) < 4 * f.standard_error < 0.5 * exact.variance
    assert f.rate_ms == pytest.approx(exact.rate_ms, rel=0.1)
    assert any("standard error" in note for note in f.notes) and "±" in f.text()
    told = fp.forecast(Mine(0.15), problem, participation=2, floor="exact")
    assert told.variance == pytest.approx(exact.variance, rel=1e-9)
    seen, se = floor_of(Mine(0.15), problem, 2)
    assert abs(seen - f.floor) < 4 * math.hypot(se, f.standard_error)
    assert abs(seen - exact.floor) < 4 * se
    # The curve: the mean's path and a variance that grows to the floor.
    curve = f.curve(4000)
    assert curve[0] == pytest.approx(((problem.start() - problem.solution()) ** 2).sum(), rel=1e-12)
    assert curve[-1] == pytest.approx(f.floor, rel=1e-6)


def test_the_standard_error_is_honest():
    """Over 12 seeds the sampled variances spread as they say: their chi-square over 12 lies in [0.2, 2.5]."""
    problem = worlds.stream()
    exact = fp.forecast(fp.FedAvg(0.15, 3, normalise=False), problem, participation=2).variance
    found = [fp.forecast(Mine(0.15), problem, participation=2, seed=seed) for seed in range(12)]
    z = np.array([(f.variance - exact) / f.standard_error for f in found])
    assert 0.2 < (z**2).mean() < 2.5, z


@pytest.mark.slow
def test_memories_of_ones_own():
    problem = worlds.quadratic()
    f = fp.forecast(Remembers(0.2), problem, participation=2)
    told = fp.forecast(Remembers(0.2), problem, participation=2, floor="exact")
    assert abs(f.variance - told.variance) < 4 * f.standard_error
    seen, se = floor_of(Remembers(0.2), problem, 2)
    assert abs(seen - f.floor) < 4 * math.hypot(se, f.standard_error)
    assert abs(seen - told.floor) < 4 * se


def test_reused_samples_need_drawn_rounds():
    """E = 3 steps with one sample have up to three times the noise: exact (independence assumed) must miss it."""
    problem = worlds.quadratic(1.0)
    f, told = (fp.forecast(Reuses(0.15), problem, floor=how) for how in ("auto", "exact"))
    seen, se = floor_of(Reuses(0.15), problem)
    assert abs(seen - f.floor) < 4 * math.hypot(se, f.standard_error)
    assert seen - told.floor > 20 * se and f.variance > 1.5 * told.variance


@pytest.mark.slow
def test_steps_that_shrink_are_found():
    f = fp.forecast(Slows(0.15), worlds.quadratic(), start=worlds.START)
    assert f.limit is None and f.floor is None
    run = fp.run(Slows(0.15), worlds.quadratic(), 60, start=worlds.START, seed=2, repeats=REPEATS)
    at = [1, 5, 20, 60]
    z = (run.error.mean(0) - f.curve(60))[at] / (run.error.std(0, ddof=1) / math.sqrt(REPEATS))[at]
    assert np.abs(z).max() < 5, z


@pytest.mark.slow
def test_shuffled_rows_are_sampled():
    """Rows without replacement within a round depend on each other."""
    problem = worlds.squares("shuffle")
    algorithm = fp.FedAvg(0.1, 2, normalise=False)
    f = fp.forecast(algorithm, problem, participation=2)
    assert f.standard_error is not None
    seen, se = floor_of(algorithm, problem, 2)
    assert abs(seen - f.floor) < 4 * math.hypot(se, f.standard_error)


def test_a_hub_that_draws_must_say_what():
    class Tosses(Mine):
        def say(self, w, row):
            return w + 0.01 * row.normal(w.shape)

    with pytest.raises(fp.FedpointError, match="chances"):
        fp.forecast(Tosses(0.1), worlds.quadratic())
