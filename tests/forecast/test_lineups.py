"""Hubs that multiply what they hear, with few participants: the mean over all lineups, or over a sample of them."""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.numbers import with_error
from fedpoint.core.settings import by_agent
from fedpoint.theory.operator import Setting

STEP = 0.05


def world(agents, noise=0.0, equal=False):
    """One unknown: f_k = h_k |w - e_k|^2 / 2."""
    rng = np.random.default_rng(3)
    h, e = rng.uniform(0.5, 2, agents), rng.normal(size=agents)
    p = np.full(agents, 1 / agents) if equal else rng.uniform(1, 3, agents)
    return fp.problems.Quadratic(h, e[:, None], noise=noise, weights=p / p.sum()), h, e, p / p.sum()


def limit_over_subsets(h, e, p, lengths, count):
    """FedNova by hand: agent k moves w by (1 - (1 - s h_k)^tau_k)(e_k - w), and a lineup's mean length multiplies."""
    K, reach = len(h), (1 - (1 - STEP * h) ** lengths) / lengths
    pull = towards = 0.0
    for who in map(list, itertools.combinations(range(K), count)):
        v = p[who] * K / count
        length = v @ lengths[who] / v.sum()
        pull += length * (v @ reach[who])
        towards += length * (v @ (reach[who] * e[who]))
    return towards / pull


@pytest.mark.parametrize(
    ("agents", "count"), [(5, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((4, 1), (4, 3), (8, 4)))]
)
def test_the_limit_of_fednova_with_few_participants(agents, count):
    problem, h, e, p = world(agents)
    lengths = np.arange(1, agents + 1) ** 2
    f = fp.forecast(fp.FedNova(STEP, lengths), problem, participation=count)
    expected = limit_over_subsets(h, e, p, lengths, count)
    assert f.limit[0] == pytest.approx(expected, abs=1e-12) and f.exact and f.limit_error == 0
    assert any(f"all {math.comb(agents, count)} sets of participants" in note for note in f.notes)
    # With everyone's mean length instead it ends elsewhere, which is what makes this a test.
    fixed = fp.forecast(fp.FedNova(STEP, lengths, effective=float(p @ lengths)), problem, participation=count)
    assert abs(fixed.limit[0] - expected) > 1e-3


def test_drawn_lineups_tell_how_well_they_know_the_limit():
    """15,504 lineups are too many: a sample, whose standard error is honest."""
    problem, h, e, p = world(20)
    lengths = 1 + 3 * np.arange(20)
    f = fp.forecast(fp.FedNova(STEP, lengths), problem, participation=5)
    gap = abs(f.limit[0] - limit_over_subsets(h, e, p, lengths, 5))
    assert 0 < f.limit_error < 0.05 and gap <= 4 * f.limit_error
    assert (
        not f.exact
        and f"{with_error(f.bias, f.limit_error)} from w*" in f.text()
        and "drawn sets of participants" in f.text()
    )


def test_a_run_ends_where_it_was_forecast_and_check_tells_another_length():
    problem, *_ = world(5, noise=0.1)
    lengths = np.array([1, 2, 4, 8, 16])
    run = fp.run(fp.FedNova(STEP, lengths), problem, participation=2, rounds=150, repeats=400, record_every=5)
    f = fp.forecast(run.algorithm, problem, participation=2)
    settled = run.history[:, 15:, 0].mean(1)
    error = settled.std(ddof=1) / 20
    assert abs(settled.mean() - f.limit[0]) <= 4 * error < 0.1 * abs(f.limit[0] - problem.solution()[0])
    assert fp.check(run)
    mean = float(problem.weights @ lengths)
    assert not fp.check(run, claims=fp.FedNova(STEP, lengths, effective=mean))


class Sent(NamedTuple):
    change: object
    size: object


class Scaled(fp.Algorithm):
    """One's own hub that multiplies: changes are merged times the mean of what agents say of themselves."""

    step: float
    sizes: object = by_agent(default=1.0)

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        return Sent(-self.step * agent.field(w, 0), jnp.asarray(self.sizes)), memory

    def combine(self, w, inbox):
        return w + inbox.mean.size * inbox.mean.change


def test_a_hub_of_ones_own_that_multiplies():
    problem, h, e, _ = world(5, equal=True)
    sizes = np.array([0.2, 0.5, 1.0, 2.0, 4.0])
    f = fp.forecast(Scaled(STEP, sizes), problem, participation=2)
    pull = towards = 0.0
    for who in map(list, itertools.combinations(range(5), 2)):
        pull += sizes[who].sum() * h[who].sum()
        towards += sizes[who].sum() * (h[who] * e[who]).sum()
    assert f.limit[0] == pytest.approx(towards / pull, abs=1e-12)
    assert abs(f.limit[0] - problem.solution()[0]) > 0.05


@pytest.mark.parametrize(
    ("method", "who"),
    [(fp.FedNova(STEP, 4), 2), (fp.FedNova(STEP, (1, 2, 3, 4, 5)), None), (fp.FedAvg(STEP, (1, 2, 3, 4, 5)), 2)],
)
def test_lineups_are_looked_at_only_where_they_matter(method, who):
    """Equal lengths cancel, with everyone there is one lineup, and plain means are linear."""
    setting = Setting(fp.Experiment(method, world(5)[0], participation=who).bind())
    assert setting.merges_linearly and setting.affine


def test_products_of_what_stragglers_send_are_not_called_exact():
    """How long agents worked is their own luck, and multiplies: the floor comes from drawn rounds."""
    problem, *_ = world(4, noise=0.1)
    f = fp.forecast(fp.FedNova(STEP, fp.steps.Stragglers(10, 0.5)), problem)
    assert not f.exact and f.standard_error > 0
    run = fp.run(f.algorithm, problem, rounds=120, repeats=400, record_every=5)
    seen = run.error[:, 12:].mean(1)
    assert abs(seen.mean() - f.floor) <= 4 * np.hypot(seen.std(ddof=1) / 20, f.standard_error)


def test_a_round_without_answers_that_is_merged_is_refused():
    class Poisson(fp.Participation):
        def slots(self, agents):
            return agents

        def tick(self, key, p, round):
            heard = key.row().uniform((len(p),)) < 0.3
            return fp.Tick(jnp.arange(len(p)), heard, jnp.where(heard, p / 0.3, 0.0))

    class Divides(fp.FedAvg):
        def combine(self, hub, inbox):
            return super().combine(hub, inbox._replace(mean=jax.tree.map(lambda m: m / inbox.weight, inbox.mean)))

    with pytest.raises(fp.FedpointError, match="rounds in which nobody is heard: the run would end in nan"):
        fp.forecast(Divides(STEP), world(4)[0], participation=Poisson())
    assert math.isfinite(fp.forecast(fp.FedNova(STEP, (1, 2, 3, 4)), world(4)[0], participation=Poisson()).floor)
