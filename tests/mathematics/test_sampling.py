"""Which rows does an agent see? Rows are unit vectors and the loss is linear, so the model itself counts the visits.

f(w; row j) = w_j has the gradient e_j whatever w: after local steps of lengths s_e the model is minus the sum of s_e
e_j over the rows used. Lengths 1, 1/2, 1/4, ... write the order of the visits into the binary digits, without rounding.
"""

import numpy as np
import pytest
from plain import z_scores

import fedpoint as fp

COUNTS = np.array([1, 3, 7, 12, 40])


def mean_coordinate(w, rows):
    return (rows @ w).mean()


def visits(counts, batch, sampling):
    """A problem whose model counts visits, row by row, agent after agent."""
    n = int(np.sum(counts))
    groups = np.repeat(np.arange(len(counts)), counts)
    return fp.problems.Loss(mean_coordinate, np.zeros(n), np.eye(n), groups=groups, batch=batch, sampling=sampling)


def seen(moved, counts):
    """Per agent (repeats, rows): what was subtracted from the model, without the agent's weight p_k = n_k/n."""
    weight = np.repeat(np.asarray(counts) / np.sum(counts), counts)
    return np.split(moved / weight, np.cumsum(counts)[:-1], axis=1)


# Shuffling.


@pytest.mark.parametrize("epochs", [1, 3])
def test_an_epoch_uses_every_row_once(epochs):
    """Agents of very different sizes, three rounds: every row is visited epochs times a round."""
    problem = visits(COUNTS, 1, "shuffle")
    run = fp.run(fp.FedAvg(1.0, fp.steps.Epochs(epochs), normalise=False), problem, rounds=3, repeats=3, seed=1)
    for rows in seen(-run.model, COUNTS):
        np.testing.assert_allclose(rows, 3 * epochs, rtol=1e-12)
    assert run.cost.evaluations == 3 * epochs * COUNTS.sum()


def test_the_last_batch_is_smaller_and_still_a_mean():
    """Batches of 3 in 1, 3, 7, 12 and 40 rows: 40 = 13 * 3 + 1 leaves one row, with weight 1 instead of 1/3."""
    problem = visits(COUNTS, 3, "shuffle")
    run = fp.run(fp.FedAvg(1.0, fp.steps.Epochs(1), normalise=False), problem, rounds=1, repeats=200, seed=2)
    left = {1: [1.0], 3: [], 7: [1.0], 12: [], 40: [1.0]}
    for m, rows in zip(COUNTS, seen(-run.model, COUNTS), strict=True):
        expected = np.sort([1 / 3] * (m - len(left[m])) + left[m])
        np.testing.assert_allclose(np.sort(rows, axis=1), np.broadcast_to(expected, rows.shape), rtol=1e-12)
    last = seen(-run.model, COUNTS)[2] > 0.9  # which of the seven rows is left over: each as often
    assert np.abs(z_scores(last, 1 / 7)).max() < 4.5


def orders(moved, counts):
    """Per agent (repeats, steps): the row of each step, from the binary digits."""
    found = []
    for rows in seen(moved, counts):
        digits = np.round(rows * 2.0**40).astype(np.int64)
        np.testing.assert_allclose(rows * 2.0**40, digits, rtol=1e-12)
        bits = (digits[:, :, None] >> (40 - np.arange(24))) & 1
        used = bits.any(1)
        assert (bits.sum(1) <= 1).all()  # one row a step
        found.append([row_bits[:, u].argmax(0) for row_bits, u in zip(bits, used, strict=True)])
    return [np.array(f) for f in found]


HALVES = fp.steps.Exponential(1.0, 0.5)


def test_steps_beyond_an_epoch_begin_another_one():
    """Four steps of batches of 3 in 7 rows: 3 + 3 + 1 rows of one epoch, then 3 of the next; each batch is unbiased.

    With lengths 1, 1/2, 1/4, 1/8 a row has 8, 4 or 6 (the batch of one row) 24ths, and 1 more in the fourth batch.
    """
    run = fp.run(fp.FedAvg(HALVES, 4, normalise=False), visits([7, 7], 3, "shuffle"), rounds=1, repeats=2000, seed=3)
    for rows in seen(-run.model, [7, 7]):
        value = np.round(24 * rows).astype(int)
        np.testing.assert_allclose(24 * rows, value, atol=1e-12)
        again, value = value % 2 == 1, value // 2 * 2
        batches = value == 8, value == 4, value == 6, again
        for batch, size in zip(batches, (3, 3, 1, 3), strict=True):
            assert (batch.sum(1) == size).all()
            assert np.abs(z_scores(batch, size / 7)).max() < 4.5
        # The next epoch does not know the last one: its first rows are those of its first batch by chance.
        assert np.abs(z_scores(batches[0] & again, 9 / 49)).max() < 4.5


def test_orders_are_uniform_and_always_new():
    """6 rows, two epochs a round, two agents with 2000 repeats: z-scores below 4.5 for every cell.

    Steps go on as t = round E + e: the second round is 2^-12 times the first.
    """
    run = fp.run(fp.FedAvg(HALVES, 12, normalise=False), visits([6, 6], 1, "shuffle"), rounds=2, repeats=2000, seed=4)
    a, b = orders(-np.diff(run.history[:, :2], axis=1)[:, 0], [6, 6])
    c, d = orders(-np.diff(run.history[:, 1:], axis=1)[:, 0] * 2.0**12, [6, 6])
    epochs = [one[:, half] for one in (a, b, c, d) for half in (slice(6), slice(6, None))]
    for order in epochs:
        np.testing.assert_array_equal(np.sort(order, axis=1), np.broadcast_to(np.arange(6), order.shape))
        cells = order[:, :, None] == np.arange(6)
        assert np.abs(z_scores(cells, 1 / 6)).max() < 4.5
        pairs = 6 * order[:, 0] + order[:, 1]
        expected = np.where(np.arange(36) % 7 == 0, 0.0, 1 / 30)
        assert np.abs(z_scores(pairs[:, None] == np.arange(36), expected)).max() < 4.5
    # Another epoch, agent or round has another order: the same row at the same place with chance 1/6.
    for other in epochs[1:]:
        assert np.abs(z_scores(epochs[0] == other, 1 / 6)).max() < 4.5


@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
def test_a_batch_of_all_rows_is_the_full_field(mean, rng):
    """Shuffled batches at least as large as an agent: no sampling noise is left."""
    A = [rng.standard_normal((m, 2)) for m in (3, 5, 8)]
    b = [rng.standard_normal(len(a)) for a in A]
    make = lambda **options: fp.problems.LeastSquares(A, b, mean=mean, **options)  # noqa: E731
    algorithm = fp.FedAvg(0.02, 3, normalise=False)
    full = fp.run(algorithm, make(), rounds=10).history
    batched = fp.run(algorithm, make(batch=8, sampling="shuffle"), rounds=10).history
    np.testing.assert_allclose(batched, full, rtol=0, atol=1e-12)


# Independent draws.


def test_iid_rows_are_uniform_and_independent():
    """Two steps of one row each: all pairs (also the same row twice) with 1/m^2, for every agent."""
    counts = [3, 6]
    run = fp.run(fp.FedAvg(HALVES, 2, normalise=False), visits(counts, 1, "iid"), rounds=1, repeats=4000, seed=6)
    for m, rows in zip(counts, seen(-run.model, counts), strict=True):
        values = np.round(2 * rows).astype(int)  # 2 for the first step, 1 for the second, 3 for both
        np.testing.assert_allclose(2 * rows, values, atol=1e-12)
        assert (values.sum(1) == 3).all()
        first = (values >= 2).argmax(1)
        second = (values % 2 == 1).argmax(1)
        cells = (first * m + second)[:, None] == np.arange(m * m)
        assert np.abs(z_scores(cells, 1 / m**2)).max() < 4.5


def test_iid_batches_draw_with_replacement():
    """Two rows in one batch: weight 1/2 each, the same row twice with 1/m."""
    run = fp.run(fp.FedAvg(1.0, 1), visits([6, 6], 2, "iid"), rounds=1, repeats=4000, seed=7)
    for rows in seen(-run.model, [6, 6]):
        np.testing.assert_allclose(2 * rows, np.round(2 * rows), atol=1e-12)
        np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-12)
        assert abs(z_scores(rows.max(1) > 0.9, 1 / 6)) < 4.5
        assert np.abs(z_scores(rows, 1 / 6)).max() < 4.5


class OneSample(fp.FedAvg):
    """FedAvg with one sample for all local steps of a round, as lecture 000 prints it in (85)."""

    def local(self, w, memory, agent):
        rate = self.step / self.local_steps
        return fp.descend(agent, w, self.local_steps, lambda y, e: y - rate * agent.field(y, 0)) - w, memory


def averaged_variance(algorithm, E, batch=2):
    """z-scores of the variance of an agent's averaged field against (1/m)(1 - 1/m)/(batch E) for each row's chance."""
    run = fp.run(algorithm(1.0, E, normalise=True), visits([6, 6], batch, "iid"), rounds=1, repeats=4000, seed=8)
    return max(
        np.abs(z_scores((rows - 1 / 6) ** 2, (1 / 6) * (5 / 6) / (batch * E))).max()
        for rows in seen(-run.model, [6, 6])
    )


@pytest.mark.parametrize("E", [1, 8])
def test_the_mean_of_fresh_samples_has_one_over_e_of_the_variance(E):
    """L0, observation 3: the E steps of a round average E independent samples."""
    assert averaged_variance(fp.FedAvg, E) < 4.5


def test_one_sample_for_all_steps_would_be_seen():
    assert averaged_variance(OneSample, 8) > 20
