"""fp.check on networks: right runs pass, wrong ones do not."""

import numpy as np
import pytest

import fedpoint as fp

NET = fp.Network.ring(5)
QUAD = fp.problems.Quadratic(np.linspace(1.0, 2.0, 5), np.arange(10.0).reshape(5, 2))


class HalfPull(fp.FedGD):
    """FedGD without the factor 2 before the coupling."""

    def local(self, near, w, agent):
        new = w - self.step * (agent.field(w) + self.coupling * (near.mass * w - near.total))
        return new, new


@pytest.mark.parametrize(
    "schedule", [None, pytest.param(fp.PartiallyAsynchronous(3, loss=0.2), marks=pytest.mark.slow), fp.WorstCase(2)]
)
def test_right_runs_pass_and_a_missing_factor_does_not(schedule):
    right = fp.run(fp.FedGD(step=0.1, coupling=0.5), QUAD, network=NET, rounds=200, schedule=schedule)
    verdict = fp.check(right)
    assert verdict and any(c.ok for c in verdict.checks), verdict
    wrong = fp.run(HalfPull(step=0.1, coupling=0.5), QUAD, network=NET, rounds=200, schedule=schedule)
    assert not fp.check(wrong, claims=fp.FedGD(step=0.1, coupling=0.5))


def test_the_floor_of_fedsgd_is_checked_over_repeats():
    noisy = fp.problems.Quadratic(np.linspace(1.0, 2.0, 5), np.arange(10.0).reshape(5, 2), noise=0.2)
    options = {"network": NET, "rounds": 400, "repeats": 16, "seed": 3}
    right = fp.run(fp.FedSGD(step=0.1, coupling=0.5), noisy, **options)
    verdict = fp.check(right)
    assert verdict and verdict.checks[-1].ok and abs(verdict.checks[-1].z) < 5
    longer = fp.run(fp.FedSGD(step=0.13, coupling=0.5), noisy, **options)
    assert not fp.check(longer, claims=fp.FedSGD(step=0.1, coupling=0.5))


def test_times_that_are_not_exponential_leave_nothing_to_check():
    run = fp.run(fp.FedAvg(step=0.1), QUAD, schedule=fp.Arrivals(fp.Clock(law="constant")), rounds=20)
    with pytest.raises(fp.FedpointError, match="is not forecast here"):
        fp.check(run)
