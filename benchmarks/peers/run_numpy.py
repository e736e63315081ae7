"""The jobs as a plain NumPy loop over agents."""

import sys

import numpy as np
from common import Job, flatten, gradient, local_steps, measure, sent


def main(folder):
    job = Job(folder)
    w = {n: v.copy() for n, v in job.parameters.items()}
    luck = np.random.default_rng(0)

    def fedavg(r):
        who = job.participants(r)
        changes = [sent(job, w, local_steps(job, w, job.batches(r, k))) for k in who]
        for n in w:
            total = sum(c[n] for c in changes)
            if job.noise:
                total += job.noise * job.clip * luck.standard_normal(total.shape)
            w[n] = w[n] + total / len(who)

    c = {n: np.zeros_like(v) for n, v in w.items()}
    own = {}

    def scaffold(r):
        who = job.participants(r)
        changes, controls = [], []
        for k in who:
            batches, mine = job.batches(r, k), own.get(k) or {n: np.zeros_like(v) for n, v in w.items()}
            y = {n: v.copy() for n, v in w.items()}
            for rows in batches:
                for n, g in gradient(job, y, rows).items():
                    y[n] -= job.step * (g - mine[n] + c[n])
            own[k] = {n: mine[n] - c[n] + (w[n] - y[n]) / (len(batches) * job.step) for n in w}
            changes.append({n: y[n] - w[n] for n in w})
            controls.append({n: own[k][n] - mine[n] for n in w})
        for n in w:
            w[n] = w[n] + sum(d[n] for d in changes) / len(who)
            c[n] = c[n] + sum(d[n] for d in controls) / job.agents

    measure(job, scaffold if job.method == "scaffold" else fedavg, lambda: flatten(w), version=np.__version__)


main(sys.argv[1])
