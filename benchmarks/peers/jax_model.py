"""The jobs' models in JAX, and their batches as arrays of equal shape, for the peers that use it (and fedpoint)."""

import jax
import jax.numpy as jnp
import numpy as np

HEADS = 4


def setup(job):
    """Double precision where the job has it. Before anything else of JAX."""
    if job.X.dtype == np.float64:
        jax.config.update("jax_enable_x64", True)


def _network(w, x):
    return jax.nn.relu(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


def _cnn(w, x):
    """McMahan's, 1.66 million parameters."""
    for name in ("c1", "c2"):
        x = jax.lax.conv_general_dilated(x, w[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + w["b" + name])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.relu(x.reshape(len(x), -1) @ w["d1"] + w["bd1"]) @ w["d2"] + w["bd2"]


def _normal(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _transformer(w, x):
    """Letters look at those before them, then each is worked on by itself; twice."""
    z = w["letters"][x] + w["places"]
    rows, length, width = z.shape
    later = jnp.triu(jnp.full((length, length), -1e9, z.dtype), 1)
    for n in range(sum(name.startswith("look") for name in w)):
        q, k, v = jnp.split((_normal(z) @ w[f"look{n}"]).reshape(rows, length, HEADS, -1), 3, axis=-1)
        near = jnp.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5 + later
        seen = jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(near, axis=-1), v)
        z = z + seen.reshape(rows, length, width) @ w[f"join{n}"]
        z = z + jax.nn.relu(_normal(z) @ w[f"up{n}"]) @ w[f"down{n}"]
    return _normal(z) @ w["out"]


def _linear(w, x):
    return x @ w["w"]


OUTPUTS = {
    "linear": _linear,
    "logistic": _linear,
    "softmax": _linear,
    "network": _network,
    "cnn": _cnn,
    "transformer": _transformer,
}


def losses(kind, w, x, y):
    """Of every row."""
    z = OUTPUTS[kind](w, x)
    if kind == "linear":
        return 0.5 * (z - y) ** 2
    if kind == "logistic":
        return jax.nn.softplus(z) - y * z
    picked = jnp.take_along_axis(z, y[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(z, axis=-1) - picked).reshape(len(x), -1).mean(1)


def loss(kind, w, x, y, weight):
    """The mean over a batch whose rows have these weights (zero: padding)."""
    return jnp.sum(weight * losses(kind, w, x, y))


def padded(job):
    """Rows (rounds, participants, steps, batch), their weights in a batch's mean, and the number of steps."""
    all_ = [[job.batches(r, k) for k in job.participants(r)] for r in range(job.rounds)]
    steps = np.array([[len(b) for b in of_round] for of_round in all_])
    size = max(len(rows) for of_round in all_ for batches in of_round for rows in batches)
    shape = (*steps.shape, int(steps.max()), size)
    rows, weight = np.zeros(shape, np.int32), np.zeros(shape, np.float64 if job.X.dtype == np.float64 else np.float32)
    for r, of_round in enumerate(all_):
        for i, batches in enumerate(of_round):
            for e, batch in enumerate(batches):
                rows[r, i, e, : len(batch)] = batch
                weight[r, i, e, : len(batch)] = 1 / len(batch)
    return rows, weight, steps
