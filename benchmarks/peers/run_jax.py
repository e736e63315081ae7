"""The jobs as a hand-written JAX loop: one compiled program for all rounds, participants one after the other.

Convolutions are slow inside XLA's loops: of the CNN a step is a program, and the loops are Python's."""

import sys
from functools import partial, reduce

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
            return jax.tree.map(lambda a, b: a - job.step * b, v, g)

        return jax.lax.fori_loop(0, steps, step, w)

    @jax.jit
    def run(w, rounds):
        def one(r, w):
            def add(i, total):
                end = local(w, rows[r, i], weight[r, i], steps[r, i])
                return jax.tree.map(jnp.add, total, end)

            count = rows.shape[1]
            total = jax.lax.fori_loop(0, count, add, jax.tree.map(jnp.zeros_like, w))
            return jax.tree.map(lambda t: t / count, total)

        return jax.lax.fori_loop(0, rounds, one, w)

    @jax.jit
    def one_step(w, rows, weight):
        g = gradient(w, X[rows], y[rows], weight)
        return jax.tree.map(lambda a, b: a - job.step * b, w, g)

    add, mean = jax.jit(partial(jax.tree.map, jnp.add)), jax.jit(partial(jax.tree.map, lambda t: t / rows.shape[1]))

    def step_by_step(w, rounds):
        for r in range(rounds):
            ends = []
            for i in range(rows.shape[1]):
                end = w
                for e in range(int(steps[r, i])):
                    end = one_step(end, rows[r, i, e], weight[r, i, e])
                ends.append(end)
            w = mean(reduce(add, ends))
        return w

    run = step_by_step if job.kind == "cnn" else run
    start = {n: jnp.asarray(v) for n, v in job.parameters.items()}
    clock = Clock()
    jax.block_until_ready(run(start, 1))
    clock.lap()
    end = None
    while end is None or not clock.enough(job):
        end = jax.block_until_ready(run(start, job.rounds))
        clock.lap(job.rounds)
    report(clock, job.rounds, flatten(end), version=jax.__version__)


main(sys.argv[1])
