"""How fast is a large network? Against the loop over nodes that one would write in NumPy, and scipy.sparse for GTVMin.

    python benchmarks/networks.py [--repeats 3] [--write]

10,000 nodes with 10 neighbours each and d = 20, least squares with 5 rows a node. Rounds per second, medians of
interleaved repeats, compilation apart. `--write` puts the figures into benchmarks/NETWORKS.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads do not pay at these sizes, and idle ones spin
os.environ["FEDPOINT_CACHE"] = "off"  # compile times are those of a first start

import argparse
import resource
import statistics
import time
from pathlib import Path

import baselines as b
import jax
import numpy as np
import scipy.sparse as sparse
import scipy.sparse.linalg

import fedpoint as fp

K, D, M, DEGREE, COUPLING, STEP = 10_000, 20, 5, 10, 1.0, 0.01
TARGET = 10.0


def world():
    rng = np.random.default_rng(0)
    X, y = [rng.normal(size=(M, D)) for _ in range(K)], [rng.normal(size=M) for _ in range(K)]
    return X, y, fp.problems.LeastSquares(X, y, mean=True, half=False), fp.Network.random(K, DEGREE, seed=0)


class Loops:
    """Rounds as one writes them: for every node, look at its neighbours."""

    def __init__(self, X, y, net):
        self.X, self.y, arcs = X, y, net.arcs
        ends = arcs.first
        self.near = [arcs.says[ends[i] : ends[i + 1]] for i in range(K)]
        self.weight = [arcs.weight[ends[i] : ends[i + 1]] for i in range(K)]
        self.H, self.g = [x.T @ x / M for x in X], [x.T @ t / M for x, t in zip(X, y, strict=True)]

    def fedgd(self, W):
        new = np.empty_like(W)
        for i in range(K):
            gradient = 2 * self.X[i].T @ (self.X[i] @ W[i] - self.y[i]) / M
            pull = self.weight[i].sum() * W[i] - self.weight[i] @ W[self.near[i]]
            new[i] = W[i] - STEP * (gradient + 2 * COUPLING * pull)
        return new

    def fedrelax(self, W):
        new = np.empty_like(W)
        for i in range(K):
            d = self.weight[i].sum()
            right = self.g[i] + COUPLING * (self.weight[i] @ W[self.near[i]])
            new[i] = np.linalg.solve(self.H[i] + COUPLING * d * np.eye(D), right)
        return new


def assembled(loops: Loops, net):
    """(blkdiag(X'X/m) + alpha Lap (x) I, stack(X'y/m))."""
    Q = sparse.block_diag(loops.H, format="csr") + COUPLING * sparse.kron(net.laplacian, sparse.eye(D), format="csr")
    return Q.tocsr(), np.concatenate(loops.g)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write benchmarks/NETWORKS.md")
    options = parser.parse_args()
    X, y, task, net = world()
    loops, rounds = Loops(X, y, net), {"FedGD": 60, "FedRelax": 12}
    methods = {"FedGD": fp.FedGD(step=STEP, coupling=COUPLING), "FedRelax": fp.FedRelax(coupling=COUPLING)}

    def ours(name, count=None):
        n = rounds[name] if count is None else count
        return fp.run(methods[name], task, network=net, rounds=n, record_every=n)

    cold, rows = {}, []
    for name in methods:
        begun = time.perf_counter()
        ours(name)
        cold[name] = time.perf_counter() - begun
    zero = np.zeros((K, D))
    jobs = {
        "FedGD": lambda: ours("FedGD"),
        "FedGD, NumPy": lambda: loops.fedgd(zero),
        "FedRelax": lambda: ours("FedRelax"),
        "FedRelax, NumPy": lambda: loops.fedrelax(zero),
    }
    times = {name: statistics.median(t) for name, t in b.interleaved(jobs, options.repeats).items()}
    met = []
    for name in methods:
        fast, slow = rounds[name] / times[name], 1 / times[f"{name}, NumPy"]
        met.append(fast / slow)
        rows.append(f"| {name} | {fast:.1f} | {slow:.2f} | {fast / slow:.0f} | {cold[name] - times[name]:.1f} s |")
    W = loops.fedgd(loops.fedgd(zero))
    same = float(np.abs(ours("FedGD", 2).models[0] - W).max())
    Q, right = assembled(loops, net)
    solved = {}

    def by_fedpoint():
        solved["fedpoint"] = fp.gtv.solve(task, net, COUPLING).ravel()

    def by_scipy():
        blocks = np.linalg.inv(
            np.stack([h + COUPLING * d * np.eye(D) for h, d in zip(loops.H, net.degrees, strict=True)])
        )

        def jacobi(v):
            return np.einsum("kij,kj->ki", blocks, v.reshape(K, D)).ravel()

        shape = Q.shape
        precondition = scipy.sparse.linalg.LinearOperator(shape, jacobi)
        solved["scipy"] = scipy.sparse.linalg.cg(Q, right, rtol=1e-13, atol=0.0, M=precondition)[0]

    both = b.interleaved({"fedpoint": by_fedpoint, "scipy": by_scipy}, options.repeats)
    closed = {name: statistics.median(t) for name, t in both.items()}
    apart = float(np.abs(solved["fedpoint"] - solved["scipy"]).max() / np.abs(solved["scipy"]).max())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    verdict = "met" if met[0] >= TARGET else "missed"
    text = "\n".join(
        [
            "| 10,000 nodes, 10 neighbours, d = 20 | rounds/s | NumPy loop | times | compiled in |",
            "|---|---:|---:|---:|---:|",
            *rows,
            "",
            f"Target: {TARGET:g} times the loop over nodes (FedGD: {verdict}). Two rounds of both agree to {same:.0e}.",
            "",
            f"GTVMin's closed form: `fp.gtv.solve` {closed['fedpoint']:.2f} s; `scipy.sparse.linalg.cg` on the "
            f"assembled system with a block-Jacobi preconditioner {closed['scipy']:.2f} s, "
            f"{closed['scipy'] / closed['fedpoint']:.1f} times as long; solutions agree to {apart:.0e}. "
            f"Peak memory of all this {peak:.1f} GB.",
        ]
    )
    print(text)
    if options.write:
        head = f"# Large networks\n\nWritten by `python benchmarks/networks.py --write` (jax {jax.__version__}, "
        (Path(__file__).parent / "NETWORKS.md").write_text(f"{head}2 cores, shared).\n\n{text}\n")


if __name__ == "__main__":
    main()
