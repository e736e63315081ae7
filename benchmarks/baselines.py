"""Baselines of the engine benchmark: the loops a careful user would write in NumPy, C and PyTorch.

All start from zero weights (the network: from PyTorch's own initialisation) and return the final weights.
The random streams differ between implementations, so results agree in distribution, not bit by bit.
`python benchmarks/baselines.py` checks them against each other and against theory; `engine.py` times them.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

HERE = Path(__file__).resolve().parent
COMPILE = ["cc", "-O3", "-march=native", "-shared", "-fPIC"]
CHUNK = 1 << 14  # numbers drawn ahead by the batched loops (128 KiB, stays in cache)


@functools.cache
def library() -> ctypes.CDLL:
    """Compile loops.c once (again only when it changes) and load it."""
    source = HERE / "loops.c"
    tag = hashlib.sha256(source.read_bytes() + " ".join(COMPILE).encode()).hexdigest()[:12]
    target = HERE / ".build" / f"loops-{tag}.so"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")  # renamed when whole, so that two runs do not collide
        subprocess.run([*COMPILE, str(source), "-o", str(fresh), "-lm"], check=True)
        fresh.replace(target)
    lib = ctypes.CDLL(str(target))
    real = np.ctypeslib.ndpointer(np.float64, flags="C_CONTIGUOUS")
    whole = np.ctypeslib.ndpointer(np.int64, flags="C_CONTIGUOUS")
    i64, u64, f64 = ctypes.c_int64, ctypes.c_uint64, ctypes.c_double
    lib.lab.argtypes = lib.lab_tuned.argtypes = [real, i64, i64, i64, f64, f64, u64, real]
    lib.lab_stored.argtypes = [real, real, i64, i64, i64, i64, f64, u64, real]
    lib.softmax.argtypes = [real, whole, whole, *[i64] * 7, f64, u64, real]
    return lib


def _done(status: int) -> None:
    if status:
        raise MemoryError("the C loop could not allocate")


# 1. Federated LMS: b = h'w_k + v, gradient h (h'w - b), w -= step * mean over agents.
# `wk` is (agents, d), `noise` the variance of v; stored samples: A is (agents, rows, d), b is (agents, rows).


def lab_numpy_loop(wk: Array, rounds: int, step: float, noise: float, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    agents, d = wk.shape
    deviation = noise**0.5
    w = np.zeros(d)
    for _ in range(rounds):
        total = np.zeros(d)
        for k in range(agents):
            h = rng.standard_normal(d)
            r = h @ (w - wk[k]) - deviation * rng.standard_normal()
            total += r * h
        w -= step / agents * total
    return w


def lab_numpy_batched(wk: Array, rounds: int, step: float, noise: float, seed: int) -> Array:
    """Vectorised over agents."""
    rng = np.random.default_rng(seed)
    agents, d = wk.shape
    deviation = noise**0.5
    w = np.zeros(d)
    for _ in range(rounds):
        h = rng.standard_normal((agents, d))
        r = (h * (w - wk)).sum(axis=1) - deviation * rng.standard_normal(agents)
        w -= step / agents * (r @ h)
    return w


def lab_numpy_ahead(wk: Array, rounds: int, step: float, noise: float, seed: int) -> Array:
    """Vectorised over agents; samples do not depend on w, so they are drawn some rounds ahead."""
    rng = np.random.default_rng(seed)
    agents, d = wk.shape
    deviation = noise**0.5
    ahead = max(1, CHUNK // wk.size)
    w = np.zeros(d)
    for start in range(0, rounds, ahead):
        count = min(ahead, rounds - start)
        H = rng.standard_normal((count, agents, d))
        B = np.einsum("tkd,kd->tk", H, wk) + deviation * rng.standard_normal((count, agents))
        for h, b in zip(H, B, strict=True):
            w -= step / agents * ((h @ w - b) @ h)
    return w


def lab_c(wk: Array, rounds: int, step: float, noise: float, seed: int) -> Array:
    wk = np.ascontiguousarray(wk, np.float64)
    w = np.zeros(wk.shape[1])
    _done(library().lab(wk, *wk.shape, rounds, step, noise, seed, w))
    return w


def lab_c_tuned(wk: Array, rounds: int, step: float, noise: float, seed: int) -> Array:
    wk = np.ascontiguousarray(wk, np.float64)
    w = np.zeros(wk.shape[1])
    _done(library().lab_tuned(wk, *wk.shape, rounds, step, noise, seed, w))
    return w


def lab_stored_numpy_loop(A: Array, b: Array, rounds: int, step: float, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    agents, rows, d = A.shape
    w = np.zeros(d)
    for _ in range(rounds):
        total = np.zeros(d)
        picks = rng.integers(rows, size=(agents,))
        for k, i in enumerate(picks):
            h = A[k, i]
            total += (h @ w - b[k, i]) * h
        w -= step / agents * total
    return w


def lab_stored_numpy_batched(A: Array, b: Array, rounds: int, step: float, seed: int) -> Array:
    """Vectorised over agents."""
    rng = np.random.default_rng(seed)
    agents, rows, d = A.shape
    everyone = np.arange(agents)
    w = np.zeros(d)
    for _ in range(rounds):
        picks = rng.integers(rows, size=agents)
        h = A[everyone, picks]
        w -= step / agents * ((h @ w - b[everyone, picks]) @ h)
    return w


def lab_stored_numpy_ahead(A: Array, b: Array, rounds: int, step: float, seed: int) -> Array:
    """Vectorised over agents; row numbers are drawn and rows gathered some rounds ahead."""
    rng = np.random.default_rng(seed)
    agents, rows, d = A.shape
    A, b = A.reshape(agents * rows, d), b.reshape(agents * rows)
    offsets = rows * np.arange(agents)
    ahead = max(1, CHUNK // (agents * d))
    w = np.zeros(d)
    for start in range(0, rounds, ahead):
        picks = rng.integers(rows, size=(min(ahead, rounds - start), agents)) + offsets
        for h, target in zip(A.take(picks, axis=0), b.take(picks), strict=True):
            w -= step / agents * ((h @ w - target) @ h)
    return w


def lab_stored_c(A: Array, b: Array, rounds: int, step: float, seed: int) -> Array:
    A, b = np.ascontiguousarray(A, np.float64), np.ascontiguousarray(b, np.float64)
    w = np.zeros(A.shape[2])
    _done(library().lab_stored(A, b, *A.shape, rounds, step, seed, w))
    return w


# 2. Softmax regression on the digits with local epochs and partial participation.


def digits_split(agents: int = 100, alpha: float = 0.1, seed: int = 0) -> tuple[Array, Ints, Ints]:
    """Digits (X / 16 and a column of ones), their labels, and the agent of each row (Dirichlet by label)."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = np.hstack([X / 16.0, np.ones((len(X), 1))])
    y = y.astype(np.int64)
    rng = np.random.default_rng(seed)
    groups = np.empty(len(y), np.int64)
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        shares = rng.dirichlet(np.full(agents, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for k, part in enumerate(np.split(rows, cuts)):
            groups[part] = k
    sizes = np.bincount(groups, minlength=agents)
    for empty in np.flatnonzero(sizes == 0):  # an empty agent takes one row of the largest
        giver = int(sizes.argmax())
        groups[rng.choice(np.flatnonzero(groups == giver))] = empty
        sizes[giver] -= 1
        sizes[empty] += 1
    return X, y, groups


def softmax_numpy_loop(
    X: Array,
    y: Ints,
    groups: Ints,
    rounds: int,
    participants: int = 10,
    epochs: int = 5,
    batch: int = 10,
    step: float = 0.1,
    seed: int = 0,
) -> Array:
    rng = np.random.default_rng(seed)
    agents, n = int(groups.max()) + 1, len(y)
    Y = np.eye(int(y.max()) + 1)[y]
    data = [(X[groups == k], Y[groups == k]) for k in range(agents)]
    W = np.zeros((X.shape[1], Y.shape[1]))
    for _ in range(rounds):
        change = np.zeros_like(W)
        for k in rng.choice(agents, participants, replace=False):
            Xk, Yk = data[k]
            local = W.copy()
            for _ in range(epochs):
                order = rng.permutation(len(Yk))
                Xe, Ye = Xk[order], Yk[order]
                for s in range(0, len(Yk), batch):
                    x, target = Xe[s : s + batch], Ye[s : s + batch]
                    p = x @ local
                    p -= p.max(axis=1, keepdims=True)
                    np.exp(p, out=p)
                    p /= p.sum(axis=1, keepdims=True)
                    p -= target
                    local -= step / len(x) * (x.T @ p)
            change += len(Yk) / n * agents / participants * (local - W)
        W += change
    return W


def softmax_numpy_batched(
    X: Array,
    y: Ints,
    groups: Ints,
    rounds: int,
    participants: int = 10,
    epochs: int = 5,
    batch: int = 10,
    step: float = 0.1,
    seed: int = 0,
) -> Array:
    """Participants step together, padded with empty rows; one that has done its steps leaves the batch."""
    rng = np.random.default_rng(seed)
    agents, n, d = int(groups.max()) + 1, len(y), X.shape[1]
    classes = int(y.max()) + 1
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups, minlength=agents)
    first = np.cumsum(sizes) - sizes
    # row n is the padding: no features, so it adds nothing to a gradient
    Xp = np.vstack([X[order], np.zeros((1, d))])
    Yp = np.vstack([np.eye(classes)[y[order]], np.zeros((1, classes))])
    W = np.zeros((d, classes))
    for _ in range(rounds):
        ks = rng.choice(agents, participants, replace=False)
        ks = ks[np.argsort(-sizes[ks])]  # largest first: those still at work are always the first ones
        size, count = sizes[ks], -(-sizes[ks] // batch)
        width = count[0] * batch
        # shuffle all epochs of all participants at once by sorting random keys, the padding last
        keys = rng.random((participants, epochs, width))
        real = np.arange(width) < size[:, None, None]
        keys[np.broadcast_to(~real, keys.shape)] = 2.0
        rows = np.where(real, keys.argsort(axis=2) + first[ks][:, None, None], n)
        # drop the empty batches: participant l has epochs * count[l] steps
        full = np.broadcast_to(np.arange(count[0]) < count[:, None, None], (participants, epochs, count[0]))
        steps = np.full((participants, epochs * count[0], batch), n)
        steps[np.arange(epochs * count[0]) < epochs * count[:, None]] = rows.reshape(*full.shape, batch)[full]
        scale = step / np.maximum((steps < n).sum(axis=2), 1)
        active = (np.arange(epochs * count[0])[:, None] < epochs * count).sum(axis=1)
        local = np.repeat(W[None], participants, axis=0)
        for s, a in enumerate(active):
            now = steps[:a, s]
            x = Xp.take(now, axis=0)
            p = x @ local[:a]
            p -= p.max(axis=2, keepdims=True)
            np.exp(p, out=p)
            p /= p.sum(axis=2, keepdims=True)
            p -= Yp.take(now, axis=0)
            p *= scale[:a, s, None, None]
            local[:a] -= x.transpose(0, 2, 1) @ p
        W += np.tensordot(size / n * agents / participants, local - W, axes=1)
    return W


def softmax_c(
    X: Array,
    y: Ints,
    groups: Ints,
    rounds: int,
    participants: int = 10,
    epochs: int = 5,
    batch: int = 10,
    step: float = 0.1,
    seed: int = 0,
) -> Array:
    agents, classes, d = int(groups.max()) + 1, int(y.max()) + 1, X.shape[1]
    order = np.argsort(groups, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=agents))]).astype(np.int64)
    Xs, ys = np.ascontiguousarray(X[order], np.float64), np.ascontiguousarray(y[order], np.int64)
    W = np.zeros((d, classes))
    call = library().softmax
    _done(call(Xs, ys, first, agents, d, classes, rounds, participants, epochs, batch, step, seed, W))
    return W


def softmax_accuracy(W: Array, X: Array, y: Ints) -> float:
    return float(np.mean((X @ W).argmax(axis=1) == y))


# 3. A small network on generated images.


def network_data(
    seed: int = 0, rows: int = 6000, features: int = 784, classes: int = 10, agents: int = 100
) -> tuple[NDArray[np.float32], Ints, Ints]:
    """Noisy class prototypes in [0, 1]; equal agents, each of two shards of the rows sorted by label."""
    rng = np.random.default_rng(seed)
    prototypes = rng.random((classes, features), dtype=np.float32)
    y = rng.permutation(np.arange(rows) % classes).astype(np.int64)
    X = 0.5 + 0.25 * (prototypes[y] - 0.5) + 0.4 * rng.standard_normal((rows, features), dtype=np.float32)
    shards = np.array_split(np.argsort(y, kind="stable"), 2 * agents)
    groups = np.empty(rows, np.int64)
    for i, shard in enumerate(rng.permutation(2 * agents)):
        groups[shards[shard]] = i // 2
    return np.clip(X, 0.0, 1.0).astype(np.float32), y, groups


def network_torch(
    X: NDArray[np.float32],
    y: Ints,
    groups: Ints,
    rounds: int,
    participants: int = 10,
    epochs: int = 1,
    batch: int = 10,
    step: float = 0.05,
    hidden: int = 64,
    seed: int = 0,
    threads: int = 1,
) -> tuple[float, float]:
    """A plain PyTorch loop over agents; returns accuracy and mean loss over all rows.

    One thread by default: at this size a second one gains nothing, and on a shared machine it costs much.
    """
    import torch
    from torch import nn
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    agents, n = int(groups.max()) + 1, len(y)
    inputs, labels = torch.from_numpy(X), torch.from_numpy(y)
    data = [(inputs[rows], labels[rows]) for rows in (np.flatnonzero(groups == k) for k in range(agents))]
    model = nn.Sequential(nn.Linear(X.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, int(y.max()) + 1))
    loss = nn.CrossEntropyLoss()
    server = parameters_to_vector(model.parameters()).detach().clone()
    for _ in range(rounds):
        change = torch.zeros_like(server)
        for k in rng.choice(agents, participants, replace=False):
            x, target = data[k]
            vector_to_parameters(server.clone(), model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), lr=step)
            for _ in range(epochs):
                for rows in torch.randperm(len(target)).split(batch):
                    optimizer.zero_grad()
                    loss(model(x[rows]), target[rows]).backward()
                    optimizer.step()
            local = parameters_to_vector(model.parameters()).detach()
            change += len(target) / n * agents / participants * (local - server)
        server += change
    vector_to_parameters(server, model.parameters())
    with torch.no_grad():
        out = model(inputs)
        return float((out.argmax(dim=1) == labels).float().mean()), float(loss(out, labels))


def interleaved(functions: dict[str, Callable[[], Any]], repeats: int = 5) -> dict[str, list[float]]:
    """Seconds of each function, run in turn (A B C A B C ...) so that drift of the machine hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return seconds


# Checks (`python benchmarks/baselines.py`): exact where nothing is random, else against theory or each other.

LAB = (lab_numpy_loop, lab_numpy_batched, lab_numpy_ahead, lab_c, lab_c_tuned)
STORED = (lab_stored_numpy_loop, lab_stored_numpy_batched, lab_stored_numpy_ahead, lab_stored_c)
SOFTMAX = (softmax_numpy_loop, softmax_numpy_batched, softmax_c)


def lab_theory(wk: Array, step: float, noise: float) -> float:
    """Steady-state mean-square deviation from the mean of wk, exact for Gaussian samples."""
    agents, d = wk.shape
    spread = np.mean(np.sum((wk - wk.mean(axis=0)) ** 2, axis=1))
    return float(step * ((d + 1) * spread + d * noise) / (agents * (2 - step) - step * (d + 1)))


def lab_stored_theory(A: Array, b: Array, step: float) -> tuple[Array, float]:
    """Least-squares solution and steady-state mean-square deviation from it, exact (moment equations)."""
    agents, rows, d = A.shape
    outer = A[..., :, None] * A[..., None, :]
    H, best = outer.mean(axis=(0, 1)), np.linalg.lstsq(A.reshape(-1, d), b.ravel(), rcond=None)[0]
    eye, mean = np.eye(d), np.eye(d) - step * H
    # deviation: e' = (I - step mean_k G_k) e - step mean_k s_k, with random G_k = h h', s_k = h (h'best - b)
    s = (A @ best - b)[..., None] * A
    G, S = outer - outer.mean(axis=1, keepdims=True), s - s.mean(axis=1, keepdims=True)
    scale = step**2 / agents**2 / rows
    map2 = np.kron(mean, mean) + scale * np.einsum("knac,knbd->abcd", G, G).reshape(d * d, d * d)
    constant = scale * np.einsum("kna,knb->ab", S, S)  # the mean deviation is zero, so no cross term
    P = np.linalg.solve(np.kron(eye, eye) - map2, constant.ravel()).reshape(d, d)
    return best.astype(np.float64), float(np.trace(P))


def _report(name: str, values: Array, theory: float) -> None:
    error = values.std(ddof=1) / len(values) ** 0.5
    z = (values.mean() - theory) / error
    print(f"  {name:25s} {values.mean():.5f} +- {error:.5f}  (expected {theory:.5f}, z = {z:+.1f})")
    assert abs(z) < 4, name


def check(seeds: int = 1000) -> None:
    rng = np.random.default_rng(1)
    wk = rng.standard_normal((10, 5))
    print("lab, steady-state mean-square deviation:")
    for lab in LAB:
        ends = np.array([lab(wk, 120, 0.1, 0.5, seed) for seed in range(seeds)])
        _report(lab.__name__, np.sum((ends - wk.mean(axis=0)) ** 2, axis=1), lab_theory(wk, 0.1, 0.5))
    A, b = rng.standard_normal((10, 7, 5)), rng.standard_normal((10, 7))
    best, theory = lab_stored_theory(A, b, 0.1)
    print("stored lab, the same, around the least-squares solution:")
    for stored in STORED:
        ends = np.array([stored(A, b, 120, 0.1, seed) for seed in range(seeds)])
        _report(stored.__name__, np.sum((ends - best) ** 2, axis=1), theory)
    one = [stored(A[:, :1], b[:, :1], 50, 0.1, 0) for stored in STORED]  # one row: nothing random
    print(f"  one row each: largest difference {max(np.abs(w - one[0]).max() for w in one):.1e}")
    assert all(np.allclose(w, one[0], rtol=0, atol=1e-12) for w in one)

    X, y, groups = digits_split()
    print("softmax, accuracy on all rows after 200 rounds over seeds:")
    full = [f(X, y, groups, 5, participants=100, epochs=3, batch=2000) for f in SOFTMAX]  # nothing random
    final = {f.__name__: np.array([f(X, y, groups, 200, seed=s) for s in range(8)]) for f in SOFTMAX}
    for name, Ws in final.items():
        scores = np.array([softmax_accuracy(W, X, y) for W in Ws])
        print(f"  {name:25s} {scores.mean():.4f} +- {scores.std(ddof=1) / len(scores) ** 0.5:.4f}")
        assert 0.9 < scores.mean() < 0.98, name
    print(f"  whole batches, all agents: largest difference {max(np.abs(W - full[0]).max() for W in full):.1e}")
    assert all(np.allclose(W, full[0], rtol=0, atol=1e-10) for W in full)
    # two rounds, many seeds: mean weights of each pair, in standard errors (root mean square about 1)
    few = [np.array([f(X, y, groups, 2, seed=s) for s in range(seeds)]) for f in SOFTMAX]
    live = few[0].std(axis=0) > 1e-9  # not the pixels that are always blank
    for i, j in ((0, 1), (0, 2), (1, 2)):
        error = np.sqrt((few[i].var(axis=0) + few[j].var(axis=0)) / seeds)
        z = np.sqrt(np.mean((((few[i] - few[j]).mean(axis=0))[live] / error[live]) ** 2))
        ratio = few[i].std(axis=0)[live].mean() / few[j].std(axis=0)[live].mean()
        pair = f"{SOFTMAX[i].__name__[8:]} and {SOFTMAX[j].__name__[8:]}"
        print(f"  two rounds, {pair}: z {z:.2f}, ratio of standard deviations {ratio:.3f}")
        assert z < 2 and 0.9 < ratio < 1.1, pair

    accuracy, loss = network_torch(*network_data(0), 150)
    print(f"network_torch, 150 rounds: accuracy {accuracy:.3f}, loss {loss:.3f}")
    assert accuracy > 0.9


if __name__ == "__main__":
    check()
