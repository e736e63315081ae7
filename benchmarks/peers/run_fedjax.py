"""The jobs on FedJAX: its federated averaging with its jit backend."""

import sys
from importlib.metadata import version

from common import Job, flatten, measure
from jax_model import jax, jnp, loss, np, setup


class Told:
    """A client's dataset: the job's batches in the job's order. Every client counts as one example: a plain mean."""

    def __init__(self, job, batches):
        self.job, self.batches = job, batches

    def __len__(self):
        return 1

    def shuffle_repeat_batch(self, hparams):
        return [{"x": self.job.X[rows], "y": self.job.y[rows]} for rows in self.batches]


def main(folder):
    job = Job(folder)
    setup(job)
    import fedjax

    names = sorted(job.parameters)

    def gradient(params, batch, rng):
        weight = jnp.full(len(batch["y"]), 1 / len(batch["y"]), params[names[0]].dtype)
        return jax.grad(lambda w: loss(job.kind, w, batch["x"], batch["y"], weight))(params)

    step, server = fedjax.optimizers.sgd(learning_rate=job.step), fedjax.optimizers.sgd(learning_rate=1.0)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(gradient, step, server, None)
    state = algorithm.init({n: jnp.asarray(v) for n, v in job.parameters.items()})
    key = jax.random.PRNGKey(0)

    def one(r):
        nonlocal state
        clients = [(str(k).encode(), Told(job, job.batches(r, k)), key) for k in job.participants(r)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)

    both = f"{version('fedjax')} (jax {version('jax')})"
    measure(job, one, lambda: flatten({n: np.asarray(v) for n, v in state.params.items()}), version=both)


main(sys.argv[1])
