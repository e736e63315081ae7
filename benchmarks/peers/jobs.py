"""Which jobs are measured? Imported by what is measured: it loads what a user of fedpoint loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import job_tables
import numpy as np

import fedpoint as fp
from fedpoint.config.problems import build

SPREAD, NOISE = 0.1, 0.01
KINDS = {
    "digits": "softmax",
    "noisy digits": "softmax",
    "network": "network",
    "images": "cnn",
    "text": "transformer",
    "loans": "logistic",
}  # of models, by table


@dataclass(frozen=True)
class Job:
    """One job: agents, participants (None: everyone), what they learn and how.

    data: "streamed" or "stored" (linear regression in `size` dimensions), or a table: "digits" (softmax regression),
    "network" (one hidden layer of `size`), "images" (McMahan's CNN), "text" (a transformer), "loans" (logistic
    regression); or "sites" (as "stored", and every agent is a site with processes of its own).
    steps: local steps of batch 1, or epochs of `batch` of a table.
    clip, noise: of an agent's change its greatest length, and the noise's deviation in the sum of those heard, over
    that length. top: the part of a change's numbers that is sent.
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
    batch: int = 10
    clip: float | None = None
    noise: float = 0.0
    top: float | None = None
    rounds: int = 200
    seconds: float = 2.5
    rows: Any = None  # X, y, groups of a table, where they were read already

    @property
    def kind(self) -> str:
        return KINDS.get(self.data, "linear")

    @property
    def live(self) -> bool:
        """Everybody is a site of a real federation, on loopback."""
        return self.data == "sites"

    @property
    def study_problem(self) -> dict[str, Any]:
        """The rows of a live job, as a study asks for them: each site makes its own."""
        return {"kind": "least_squares", "agents": self.agents, "rows": 20, "dim": self.size, "mean": True, "batch": 1}

    @cached_property
    def table(self) -> job_tables.Table:
        return self.rows or job_tables.table(self.data, self.agents)

    @cached_property
    def problem(self) -> Any:
        if self.data == "streamed":
            return fp.problems.LinearStream.sample(
                agents=self.agents, dim=self.size, spread=SPREAD, noise=NOISE, seed=0
            )
        if self.live:
            return build(self.study_problem)
        if self.data == "stored":
            return _stored(self.agents, self.size)
        X, y, groups = self.table
        weights = np.ones(self.agents)
        options: dict[str, Any] = {"groups": groups, "weights": weights, "batch": self.batch, "sampling": "shuffle"}
        if self.kind in ("softmax", "logistic"):
            return fp.problems.Logistic(X, y, ridge=0.0, **options)
        start, X = job_tables.start(self.data, self.size), X.astype(np.int32) if X.dtype == np.int64 else X

        def loss(w: Any, batch: Any) -> Any:
            from jax_model import losses

            return losses(self.kind, w, *batch)

        return fp.problems.Loss(loss, start, (X, y.astype(np.int32)), **options)

    @property
    def algorithm(self) -> Any:
        steps: Any = fp.steps.Epochs(self.steps) if self.data in KINDS else self.steps
        if self.method == "scaffold":
            return fp.Scaffold(step=self.step, local_steps=steps)
        return fp.FedAvg(step=self.step, local_steps=steps, normalise=False)

    @property
    def channel(self) -> Any:
        """What happens to messages; None: nothing."""
        chain = [] if self.clip is None else [fp.channel.Clip(self.clip)]
        chain += [fp.channel.Gaussian(self.noise)] if self.noise else []
        chain += [] if self.top is None else [fp.channel.TopK(self.top, feedback=False)]
        return chain or None

    @property
    def start(self) -> Any:
        """Zero, or where networks start. Before only the largest numbers are sent: a random model, at which classes
        that an agent has not seen do not change alike."""
        own = self.problem.start()
        return own if self.top is None else 0.1 * np.random.default_rng(4).standard_normal(np.shape(own))

    def run(self, rounds: int, **options: Any) -> Any:
        options |= {"participation": self.participants, "channel": self.channel, "start": self.start}
        return fp.run(self.algorithm, self.problem, rounds, **options)

    def parameters(self, model: Any) -> dict[str, np.ndarray]:
        """By name, as peers hold them: a column for each class."""
        return dict(model) if isinstance(model, dict) else {"w": np.ascontiguousarray(np.transpose(model))}


def _stored(agents: int, dimension: int, rows: int = 100) -> Any:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((agents, rows, dimension))
    models = 1 + SPREAD**0.5 * rng.standard_normal((agents, dimension))
    y = np.einsum("knd,kd->kn", A, models) + NOISE**0.5 * rng.standard_normal((agents, rows))
    return fp.problems.LeastSquares(list(A), list(y), mean=True, batch=1)


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
DIGITS = replace(MAIN[2], seconds=2.0)
SITES = tuple(
    Job(f"sites-{k}", f"a federation of {k} sites", "sites", agents=k, step=0.05, rounds=rounds)
    for k, rounds in ((3, 30), (20, 15))
)
REAL = (
    Job("cnn", "McMahan's CNN on images", "images", agents=30, participants=5, step=0.005, batch=20, rounds=6,
        seconds=5.0),
    Job("transformer", "a transformer of two layers on letters", "text", agents=30, participants=5, step=0.05,
        rounds=6, seconds=4.0),
    Job("loans", "logistic regression on the loans of 50 states", "loans", agents=50, step=0.5, batch=50, rounds=100),
    replace(DIGITS, name="clipped", title="softmax on digits, changes clipped", clip=1.0),
    replace(DIGITS, name="private", title="softmax on digits, private (DP-FedAvg)", clip=1.0, noise=0.3),
    replace(DIGITS, name="compressed", title="softmax on digits, a tenth of a change is sent", data="noisy digits",
            top=0.1),
    *SITES,
)  # fmt: skip
JOBS = {job.name: job for job in (*MAIN, *AGENTS, *SIZES, *STEPS, *REAL)}


def read(folder: Path) -> Job:
    """A job whose rows were written: they are read as a peer reads them."""
    job = JOBS[folder.name]
    if job.data not in KINDS:
        return job
    with np.load(folder / "job.npz") as arrays:
        count = len(arrays["groups"])  # behind the rows there is padding
        return replace(job, rows=(arrays["X"][:count], arrays["y"][:count], arrays["groups"]))


def score(job: Job, model: np.ndarray) -> float:
    """How good a flat model is: the squared distance to w*, the area under the curve of sensitivities (loans), or the
    share of rows that it gets right."""
    if job.kind == "linear":
        return float(((model - job.problem.solution()) ** 2).sum())
    import jax
    from jax_model import OUTPUTS

    X, y, _ = (a[::4] for a in job.table) if job.data == "images" else job.table
    like, w, place = job.parameters(job.start), {}, 0
    for name in sorted(like):
        w[name] = model[place : place + like[name].size].reshape(like[name].shape).astype(like[name].dtype)
        place += like[name].size
    with jax.enable_x64(True):
        parts = [np.asarray(OUTPUTS[job.kind](w, X[at : at + 500])) for at in range(0, len(X), 500)]
    outputs = np.concatenate(parts)
    if job.kind == "logistic":
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(y, outputs))
    return float((outputs.argmax(-1) == y).mean())
