"""Are the coefficients of correlated noise the best ones for a problem's spectrum? Against dense matrices."""

import itertools

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.verbs.correlation import GRID

PRIVACY, ROUNDS, STEP, AGENTS = fp.Privacy(4.0, 1e-5), 24, 0.2, 12


class Turns(fp.Participation):
    """Agents in turn, one at a time: each of 12 takes part every twelfth round."""

    def slots(self, agents):
        return 1

    def tick(self, key, p, round):
        agents = (np.arange(1) + round) % len(p)
        return fp.Tick.of(agents, weight=p[agents] * len(p))

    def weight_scale(self, p):
        return float(len(p))

    def rounds_apart(self, agents):
        return agents


def problem(curvatures):
    return fp.problems.Quadratic(np.array([np.diag(curvatures)] * AGENTS), np.zeros((AGENTS, len(curvatures))))


def error_of(c, curvatures):
    """|what noise leaves in the model|^2 times the squared sensitivity, both from T x T matrices."""
    noise = sum(x * np.eye(ROUNDS, k=-i) for i, x in enumerate(c))
    hidden = np.linalg.inv(noise)
    worst = np.linalg.norm(hidden[:, ::AGENTS].sum(1))  # who takes part as early and as often as may be
    left = [(1 - STEP * h) ** np.arange(ROUNDS)[::-1] for h in curvatures]
    return worst**2 * sum(float(((row @ noise) ** 2).sum()) for row in left)


@pytest.mark.parametrize("curvatures", [(0.05, 0.5), (3.0, 3.0)])
def test_one_coefficient_is_the_best_of_the_grid(curvatures):
    channel = fp.correlated(
        fp.FedAvg(STEP), problem(curvatures), privacy=PRIVACY, rounds=ROUNDS, terms=1, participation=Turns()
    )
    best = min(GRID[1:], key=lambda a: error_of([1.0, -a], curvatures))
    assert channel.links[1].series == pytest.approx((1.0, -best))
    e = fp.Experiment(fp.FedAvg(STEP), problem(curvatures), participation=Turns(), channel=channel)
    assert 0.995 * PRIVACY.epsilon < fp.privacy.spent(e, ROUNDS, PRIVACY.delta).epsilon <= PRIVACY.epsilon


def test_two_coefficients_are_the_best_of_the_grid():
    curvatures = (0.05, 2.0)
    channel = fp.correlated(fp.FedAvg(STEP), problem(curvatures), privacy=PRIVACY, rounds=ROUNDS, participation=Turns())
    pairs = [(a, b) for a, b in itertools.product(GRID, GRID) if b <= a and a > 0 and a + b <= 1]
    least = min(error_of([1.0, -a - b, a * b], curvatures) for a, b in pairs)
    assert error_of(channel.links[1].series, curvatures) == pytest.approx(least, rel=1e-6)
    other = error_of([1.0, -0.2], curvatures)
    assert least < 0.8 * other  # coefficients that are not chosen for the problem are seen


def test_everyone_in_every_round_takes_fresh_noise():
    """There sensitivity grows as fast as what is taken back."""
    channel = fp.correlated(fp.FedAvg(STEP), problem((1.0, 1.0)), privacy=PRIVACY, rounds=ROUNDS, terms=1)
    assert isinstance(channel.links[1], fp.channel.Gaussian)
    assert not isinstance(channel.links[1], fp.channel.Correlated)


def test_mistakes_are_told():
    quad = problem((1.0, 1.0))
    with pytest.raises(fp.FedpointError, match="terms must be 1 or 2"):
        fp.correlated(fp.FedAvg(STEP), quad, privacy=PRIVACY, rounds=ROUNDS, terms=3)
    with pytest.raises(fp.FedpointError, match="participations are bounded"):
        fp.correlated(
            fp.FedAvg(STEP), quad, privacy=PRIVACY, rounds=ROUNDS, participation=fp.participation.Poisson(0.5)
        )
