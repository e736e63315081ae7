"""Which jobs are measured? Imported by what is measured: it loads what a user of fedpoint loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import fedpoint as fp

SPREAD, NOISE = 0.1, 0.01
DIGITS = "softmax"


@dataclass(frozen=True)
class Job:
    """One job: agents, participants (None: everyone), what they learn and how.

    data: "streamed" or "stored" (linear regression in `size` dimensions), "digits" (softmax regression), or "network"
    (one hidden layer of `size`). steps: local steps of batch 1, or epochs of batch 10 of the digits.
    rounds: as many are drawn; seconds: for so long a peer is measured.
    """

    name: str
    title: str
    data: str
    agents: int = 100
    participants: int | None = None
    size: int = 10
    steps: int = 1
    method: str = "fedavg"
    step: float = 0.02
    rounds: int = 200
    seconds: float = 2.5
    rows: Any = None  # X, y, groups of the digits, where they were read already

    @property
    def kind(self) -> str:
        return {"digits": "softmax", "network": "network"}.get(self.data, "linear")

    @cached_property
    def problem(self) -> Any:
        if self.data == "streamed":
            return fp.problems.LinearStream.sample(
                agents=self.agents, dim=self.size, spread=SPREAD, noise=NOISE, seed=0
            )
        if self.data == "stored":
            return _stored(self.agents, self.size)
        X, y, groups = self.rows or digits(self.agents, even=self.data == "network")
        options: dict[str, Any] = {
            "groups": groups,
            "weights": np.ones(self.agents),
            "batch": 10,
            "sampling": "shuffle",
        }
        if self.data == "digits":
            return fp.problems.Logistic(X, y, ridge=0.0, **options)
        X, start = X.astype(np.float32), network_start(X.shape[1], self.size, 10)
        return fp.problems.Loss(_network_loss, start, (X, y.astype(np.int32)), **options)

    @property
    def algorithm(self) -> Any:
        steps: Any = fp.steps.Epochs(self.steps) if self.data in ("digits", "network") else self.steps
        if self.method == "scaffold":
            return fp.Scaffold(step=self.step, local_steps=steps)
        return fp.FedAvg(step=self.step, local_steps=steps, normalise=False)

    def run(self, rounds: int, **options: Any) -> Any:
        return fp.run(self.algorithm, self.problem, rounds=rounds, participation=self.participants, **options)

    def parameters(self, model: Any) -> dict[str, np.ndarray]:
        """By name, as peers hold them: a column for each class."""
        return dict(model) if isinstance(model, dict) else {"w": np.ascontiguousarray(np.transpose(model))}


def _stored(agents: int, dimension: int, rows: int = 100) -> Any:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((agents, rows, dimension))
    models = 1 + SPREAD**0.5 * rng.standard_normal((agents, dimension))
    y = np.einsum("knd,kd->kn", A, models) + NOISE**0.5 * rng.standard_normal((agents, rows))
    return fp.problems.LeastSquares(list(A), list(y), mean=True, batch=1)


def digits(agents: int, even: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Digits (X / 16), their labels, and whose row it is: even, or Dirichlet(0.1) by label and a column of ones."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = X / 16.0, y.astype(np.int64)
    rng = np.random.default_rng(0)
    if even:
        each = len(y) // agents
        rows = rng.permutation(len(y))[: each * agents]
        return X[rows], y[rows], np.repeat(np.arange(agents), each)
    X, groups = np.column_stack([X, np.ones(len(X))]), np.empty(len(y), np.int64)
    for c in range(10):
        rows = rng.permutation(np.flatnonzero(y == c))
        cuts = np.round(np.cumsum(rng.dirichlet(np.full(agents, 0.1)))[:-1] * len(rows)).astype(int)
        for k, part in enumerate(np.split(rows, cuts)):
            groups[part] = k
    sizes = np.bincount(groups, minlength=agents)
    for empty in np.flatnonzero(sizes == 0):  # nobody is without rows
        giver = int(sizes.argmax())
        groups[np.flatnonzero(groups == giver)[0]] = empty
        sizes[giver], sizes[empty] = sizes[giver] - 1, 1
    return X, y, groups


def network_start(features: int, hidden: int, classes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"w1": (features, hidden), "b1": (hidden,), "w2": (hidden, classes), "b2": (classes,)}
    return {n: (rng.standard_normal(s) / s[0] ** 0.5 * (len(s) > 1)).astype(np.float32) for n, s in shapes.items()}


def _network_loss(p: Any, batch: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x, label = batch
    z = jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, label[:, None], axis=1)[:, 0]


# The jobs.

MAIN = (
    Job("streamed", "lab, streamed samples", "streamed"),
    Job("stored", "lab, stored samples", "stored"),
    Job("softmax", "softmax on digits", "digits", participants=10, steps=5, step=0.1, rounds=100),
    Job("scaffold", "SCAFFOLD on digits", "digits", participants=10, steps=5, step=0.1, rounds=100, method="scaffold"),
)
FEW = replace(MAIN[0], participants=10, seconds=2.0)
AGENTS = tuple(replace(FEW, name=f"agents-{k}", title=f"K = {k:,}", agents=k) for k in (100, 1_000, 10_000, 100_000))
NET = Job("size", "", "network", participants=10, step=0.05, rounds=40, seconds=2.5)
SIZES = (
    replace(FEW, name="size-10", title="10"),
    *(
        replace(NET, name=f"size-{75 * h + 10}", title=f"{75 * h + 10:,}", size=h, rounds=40 if h < 1000 else 10)
        for h in (13, 133, 1_333, 13_333)
    ),
)
STEPS = tuple(
    replace(FEW, name=f"steps-{e}", title=f"E = {e}", data="stored", steps=e, rounds=60) for e in (1, 10, 100)
)
JOBS = {job.name: job for job in (*MAIN, *AGENTS, *SIZES, *STEPS)}


def read(folder: Path) -> Job:
    """A job whose rows were written: they are read as a peer reads them."""
    job = JOBS[folder.name]
    if job.data not in ("digits", "network"):
        return job
    with np.load(folder / "job.npz") as arrays:
        count = len(arrays["groups"])  # behind the rows there is padding
        return replace(job, rows=(arrays["X"][:count], arrays["y"][:count], arrays["groups"]))


def score(job: Job, model: np.ndarray) -> float:
    """How good a flat model is: accuracy on all digits, or the squared distance to w*."""
    if job.kind == "linear":
        return float(((model - job.problem.solution()) ** 2).sum())
    X, y, _ = digits(job.agents, even=job.data == "network")
    if job.kind == "softmax":
        return float(((X @ model.reshape(X.shape[1], 10)).argmax(1) == y).mean())
    h, d = job.size, X.shape[1]
    b1, b2, w1, w2 = np.split(model, np.cumsum([h, 10, d * h]))  # in the order of their names
    hidden = np.maximum(X @ w1.reshape(d, h) + b1, 0)
    return float(((hidden @ w2.reshape(h, 10) + b2).argmax(1) == y).mean())
