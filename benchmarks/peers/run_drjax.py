"""The jobs on DrJAX: its broadcast, map and mean over a round's participants, one compiled program for all rounds."""

import sys
from importlib.metadata import version

import drjax
from common import Clock, Job, flatten, report
from jax_model import jax, jnp, loss, padded, setup


def main(folder):
    job = Job(folder)
    setup(job)
    X, y = jnp.asarray(job.X), jnp.asarray(job.y)
    rows, weight, steps = (jnp.asarray(a) for a in padded(job))
    gradient = jax.grad(lambda w, x, t, v: loss(job.kind, w, x, t, v))

    def local(w, rows, weight, steps):
        def step(e, v):
            g = gradient(v, X[rows[e]], y[rows[e]], weight[e])
            return jax.tree.map(lambda a, b: jnp.where(e < steps, a - job.step * b, a), v, g)

        return jax.lax.fori_loop(0, jnp.max(steps), step, w)

    @drjax.program(placements={"clients": rows.shape[1]})
    def one(w, rows, weight, steps):
        ends = drjax.map_fn(local, (drjax.broadcast(w), rows, weight, steps))
        return drjax.reduce_mean(ends)

    @jax.jit
    def run(w, rounds):
        return jax.lax.fori_loop(0, rounds, lambda r, w: one(w, rows[r], weight[r], steps[r]), w)

    start = {n: jnp.asarray(v) for n, v in job.parameters.items()}
    clock = Clock()
    jax.block_until_ready(run(start, 1))
    clock.lap()
    end = None
    while end is None or not clock.enough(job):
        end = jax.block_until_ready(run(start, job.rounds))
        clock.lap(job.rounds)
    report(clock, job.rounds, flatten(end), version=version("drjax"))


main(sys.argv[1])
