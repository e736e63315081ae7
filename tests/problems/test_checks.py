"""What a run will ask of a problem is asked once before, on shapes; docs/own_problem.md has the mistakes."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
import zoo

import fedpoint as fp
from fedpoint.problems.checks import check_problem


@pytest.mark.parametrize(("name", "sampled"), [(n, False) for n in zoo.PROBLEMS] + [(n, True) for n in zoo.SAMPLED])
def test_the_librarys_problems_pass(name, sampled):
    problem = zoo.build(name, sampled)
    problem.fits = False
    check_problem(problem)
    assert problem.fits


class Counted(fp.problems.Oracle):
    """Counts how often it is traced; its model is a tree."""

    traced = 0

    def draw(self, mine, plan, row, e):
        return row.normal()

    def field(self, mine, w, z):
        type(self).traced += 1
        return {"a": w["a"] - mine.own, "b": w["b"] + mine.common * z}

    def mean_field(self, mine, w):
        return {"a": w["a"] - mine.own, "b": w["b"]}


class Trees(fp.problems.Problem):
    def __init__(self):
        self.oracle, self.own, self.common = Counted(), np.arange(3.0), np.float64(0.1)
        self.weights, self.names = np.full(3, 1 / 3), ["x", "y", "z"]

    def start(self):
        return {"a": np.zeros(()), "b": np.ones(2)}


def test_a_problem_is_traced_once_however_many_experiments_there_are():
    problem = Trees()
    first = fp.Experiment(fp.FedAvg(step=0.1, local_steps=2), problem)
    traced = Counted.traced
    assert traced > 0
    first.replace(seed=3)
    first.replace(repeats=2)
    assert Counted.traced == traced
    run = fp.run(first, rounds=400, exact=True)
    assert run.model["a"] == pytest.approx([1.0]) and np.abs(run.model["b"]).max() < 1e-12


@dataclass(frozen=True)
class Drift(fp.problems.Oracle):
    """A field that is no gradient, and draws nothing: neither draw nor loss."""

    def field(self, mine, w, z):
        return self.mean_field(mine, w)

    def mean_field(self, mine, w):
        return jnp.stack([w[0] + w[1], w[1] - w[0]]) - mine.own


def test_a_field_without_draws_and_losses_is_a_problem_too():
    problem = Trees()
    problem.oracle, problem.own, problem.start = Drift(), np.ones((3, 2)), lambda: np.zeros(2)
    run = fp.run(fp.FedAvg(step=0.3), problem, rounds=200)
    assert run.model == pytest.approx(np.array([[0.0, 1.0]]))
    with pytest.raises(fp.FedpointError, match="Drift has no loss"):
        run.loss  # noqa: B018
