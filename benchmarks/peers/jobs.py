"""Which jobs are measured, and who draws what in them? fedpoint's own draws, written down for everybody."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp
from fedpoint.core.algorithm import samples_per_round
from fedpoint.core.participation import as_participation
from fedpoint.core.random import Key, Stream
from fedpoint.problems.base import Mine
from fedpoint.problems.rows import Batch
from fedpoint.runtimes.session import Session

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
        steps: Any = fp.Epochs(self.steps) if self.data in ("digits", "network") else self.steps
        if self.method == "scaffold":
            return fp.Scaffold(step=self.step, local_steps=steps)
        return fp.FedAvg(step=self.step, local_steps=steps, normalise=False)

    def run(self, rounds: int, **options: Any) -> Any:
        return fp.run(self.algorithm, self.problem, rounds=rounds, participation=self.participants, **options)

    def parameters(self, model: Any) -> dict[str, np.ndarray]:
        """By name, as peers hold them: a column for each class."""
        return dict(model) if isinstance(model, dict) else {"w": np.asarray(model).T}


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


# What fedpoint draws in them.


class Draws:
    """Rows, and which of them every participant of every round takes at each of its steps."""

    def __init__(self, job: Job):
        self.session = Session(
            job.algorithm, job.problem, as_participation(job.participants), job.problem.start(), False, 0, 1, 1
        )
        self.who, drawn, counts = self._drawn(job)
        if isinstance(drawn, Batch):
            table = self.session.inputs.common.rows
            self.X, self.y = _columns(job, table)
            inside = np.ones(drawn.at.shape, bool) if isinstance(drawn.weight, tuple) else drawn.weight > 0
            done = np.arange(drawn.at.shape[2]) < counts[..., None]
            batch = np.where(done, inside.sum(-1), 0)  # (rounds, slots, steps): rows of each step
            self.rows = drawn.at[inside & done[..., None]]
        else:  # a stream: every sample is a row of its own
            h, v = drawn
            models = job.problem.own.model[self.who]
            d = h.shape[-1]
            self.X = h.reshape(-1, d)
            self.y = (np.einsum("rled,rld->rle", h, models) + v).reshape(-1)
            self.rows = np.arange(len(self.y), dtype=np.int32)
            batch = np.ones(h.shape[:3], int)
        lengths = batch[np.arange(batch.shape[2]) < counts[..., None]]
        self.batches = np.concatenate([[0], np.cumsum(lengths)])
        self.steps = np.concatenate([[0], np.cumsum(counts.ravel())])

    def _drawn(self, job: Job) -> tuple[np.ndarray, Any, np.ndarray]:
        """Participants (R, L), samples (R, L, E, ...) and numbers of steps (R, L)."""
        session = self.session
        oracle, inputs = session.layout.oracle, session.inputs
        agents_key, schedule, _ = (Key(*(w[0] for w in s)) for s in session.seeds)
        steps = np.broadcast_to(np.asarray(session.algorithm.local_steps), job.agents)
        most = samples_per_round(session.algorithm) or int(steps.max())
        with jax.enable_x64(True):

            def one(round, agent):
                mine = Mine(jax.tree.map(lambda a: a[agent], inputs.own), inputs.common)
                stream = Stream(agents_key, round, agent)
                plan = oracle.plan(mine, stream)
                return jax.vmap(lambda e: oracle.draw(mine, plan, stream.row(e), e))(jnp.arange(most))

            def of_round(round):
                tick = session.participation.tick(schedule.fold(round), inputs.p, round)
                who = jnp.arange(job.agents, dtype=jnp.int32) if tick.agents is None else tick.agents
                return who, jax.lax.map(lambda k: one(round, k), who)

            who, drawn = jax.jit(lambda rs: jax.lax.map(of_round, rs))(jnp.arange(job.rounds, dtype=jnp.int32))
            who, drawn = np.asarray(who), jax.tree.map(np.asarray, drawn)
        return who, drawn, steps[who]


def _columns(job: Job, table: Any) -> tuple[np.ndarray, np.ndarray]:
    if job.data == "network":
        return np.asarray(table[0]), np.asarray(table[1]).astype(np.int64)
    X, y = (np.asarray(a) for a in table)
    return X, y.argmax(1) if job.data == "digits" else y


def write(job: Job, folder: Path) -> None:
    """job.json and job.npz, for peers."""
    folder.mkdir(parents=True, exist_ok=True)
    draws, start = Draws(job), job.parameters(job.problem.start())
    arrays = {name: getattr(draws, name) for name in ("X", "y", "who", "rows", "batches", "steps")}
    if job.data in ("digits", "network"):
        arrays["groups"] = np.repeat(np.arange(job.agents), job.problem.counts)
    np.savez(folder / "job.npz", **arrays, **{f"start.{n}": a for n, a in start.items()})
    facts: dict[str, Any] = {
        n: getattr(job, n) for n in ("name", "kind", "method", "step", "agents", "rounds", "seconds")
    }
    facts |= {"parameters": sorted(start), "classes": 0 if job.kind == "linear" else 10}
    facts["epochs"] = 1 if job.kind == "linear" else job.steps
    (folder / "job.json").write_text(json.dumps(facts))


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
