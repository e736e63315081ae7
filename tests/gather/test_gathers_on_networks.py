"""Robust means on networks: a node gathers what it hears of its neighbours, against recursions written out."""

import numpy as np
import pytest

import fedpoint as fp

PLACES = np.array([0.0, 1.0, 2.0, 3.0, 40.0, 5.0])
QUAD = fp.problems.Quadratic(1.0, PLACES[:, None])
RING = fp.Network.ring(6, weight=0.3)
NEAR = np.stack([np.roll(np.arange(6), 1), np.roll(np.arange(6), -1)], axis=1)


def weighted_median(values, weights):
    """The value up to which half of the weight is reached; no ties at one half here."""
    order = np.argsort(values)
    return values[order][np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum())]


def test_fedavg_takes_the_median_of_neighbours_and_itself():
    """y_i = x_i + change; x_i <- median of y over {i, i - 1, i + 1} with weights 0.4, 0.3, 0.3."""
    rounds, step = 12, 0.2
    run = fp.run(fp.FedAvg(step=step), QUAD, rounds, network=RING, gather=fp.gather.Median())
    x = np.zeros(6)
    for _ in range(rounds):
        y = x + step * (PLACES - x)
        x = np.array([weighted_median(y[[i, *NEAR[i]]], np.array([0.4, 0.3, 0.3])) for i in range(6)])
    np.testing.assert_allclose(np.ravel(run.models), x, atol=1e-12)


def test_a_gather_that_is_the_mean_is_weighted_sums():
    """Trimming nobody, and a radius that clips nobody: the run of weighted sums, for both kinds of methods."""
    for method in (fp.FedAvg(step=0.2, local_steps=2), fp.FedGD(step=0.1, coupling=0.5), fp.FedRelax(coupling=0.5)):
        plain = fp.run(method, QUAD, 10, network=RING)
        for gather in (fp.gather.TrimmedMean(0), fp.gather.CentredClipping(1e6)):
            robust = fp.run(method, QUAD, 10, network=RING, gather=gather)
            np.testing.assert_allclose(robust.models, plain.models, atol=1e-12)


def test_fedgd_with_the_median_of_neighbours():
    """w_i <- w_i - mu (g_i(w_i) + 2 alpha A_i (w_i - middle of neighbours)) on a complete graph."""
    net, mu, alpha = fp.Network.complete(6), 0.05, 0.1
    run = fp.run(fp.FedGD(step=mu, coupling=alpha), QUAD, 8, network=net, gather=fp.gather.Median())
    sums = fp.run(fp.FedGD(step=mu, coupling=alpha), QUAD, 8, network=net)
    w, v = np.zeros(6), np.zeros(6)
    for _ in range(8):
        middle = np.array([np.median(np.delete(w, i)) for i in range(6)])
        mean = np.array([np.delete(v, i).mean() for i in range(6)])
        w = w - mu * ((w - PLACES) + 2 * alpha * 5 * (w - middle))
        v = v - mu * ((v - PLACES) + 2 * alpha * 5 * (v - mean))
    np.testing.assert_allclose(np.ravel(sums.models), v, atol=1e-12)  # the recursion is right
    np.testing.assert_allclose(np.ravel(run.models), w, atol=1e-12)


def test_a_liar_among_neighbours_does_not_lead_them_away():
    net = fp.Network.complete(6, weight=0.15)
    options = {"network": net, "attack": fp.attack.Scaling([4], 100.0)}
    with pytest.raises(fp.Diverged):
        fp.run(fp.FedAvg(step=0.2), QUAD, 30, **options)
    robust = fp.run(fp.FedAvg(step=0.2), QUAD, 30, gather=fp.gather.TrimmedMean(1), **options)
    honest = [0, 1, 2, 3, 5]
    assert np.abs(np.asarray(robust.models)[0, honest]).max() <= 5.0


def test_late_neighbours_are_gathered_too():
    run = fp.run(
        fp.FedAvg(step=0.2),
        QUAD,
        40,
        network=fp.Network.complete(6, weight=0.15),
        schedule=fp.PartiallyAsynchronous(3),
        gather=fp.gather.Median(),
    )
    assert np.min(run.models) >= 0.0 and np.max(run.models) <= 40.0


def test_too_few_neighbours_are_refused():
    with pytest.raises(fp.FedpointError, match=r"node 0: TrimmedMean\(2\) trims 4 messages.*hears at most 3"):
        fp.run(fp.FedAvg(step=0.2), QUAD, network=RING, gather=fp.gather.TrimmedMean(2))
    with pytest.raises(fp.FedpointError, match=r"node 0: TrimmedMean\(1\) trims 2 messages.*hears at most 2"):
        fp.run(fp.FedGD(step=0.1, coupling=0.5), QUAD, network=RING, gather=fp.gather.TrimmedMean(1))


def test_forecast_on_a_network():
    """In step and exact: the end of a long run. Late: refused, since neither limit nor rate would be theirs."""
    options = {"network": fp.Network.complete(6, weight=0.15), "gather": fp.gather.TrimmedMean(1), "exact": True}
    f = fp.forecast(fp.FedAvg(step=0.2), QUAD, **options)
    run = fp.run(fp.FedAvg(step=0.2), QUAD, 400, **options)
    np.testing.assert_allclose(np.ravel(f.limit), np.ravel(run.models), atol=1e-7)
    with pytest.raises(fp.FedpointError, match="a forecast needs all nodes to work in every round"):
        fp.forecast(fp.FedAvg(step=0.2), QUAD, schedule=fp.PartiallyAsynchronous(3), **options)
