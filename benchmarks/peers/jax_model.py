"""The jobs' models in JAX, and their batches as arrays of equal shape, for the peers that use it."""

import jax
import jax.numpy as jnp
import numpy as np


def setup(job):
    """Double precision where the job has it. Before anything else of JAX."""
    if job.X.dtype == np.float64:
        jax.config.update("jax_enable_x64", True)


def loss(kind, w, x, y, weight):
    """The mean over a batch whose rows have these weights (zero: padding)."""
    if kind == "linear":
        return 0.5 * jnp.sum(weight * (x @ w["w"] - y) ** 2)
    z = x @ w["w"] if kind == "softmax" else jax.nn.relu(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]
    picked = jnp.take_along_axis(z, y[:, None], axis=1)[:, 0]
    return jnp.sum(weight * (jax.nn.logsumexp(z, axis=1) - picked))


def padded(job):
    """Rows (rounds, participants, steps, batch), their weights in a batch's mean, and the number of steps."""
    all_ = [[job.batches(r, k) for k in job.participants(r)] for r in range(job.rounds)]
    steps = np.array([[len(b) for b in of_round] for of_round in all_])
    size = max(len(rows) for of_round in all_ for batches in of_round for rows in batches)
    shape = (*steps.shape, int(steps.max()), size)
    rows, weight = np.zeros(shape, np.int32), np.zeros(shape, job.X.dtype)
    for r, of_round in enumerate(all_):
        for i, batches in enumerate(of_round):
            for e, batch in enumerate(batches):
                rows[r, i, e, : len(batch)] = batch
                weight[r, i, e, : len(batch)] = 1 / len(batch)
    return rows, weight, steps
