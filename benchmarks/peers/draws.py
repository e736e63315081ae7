"""Who draws what in the jobs? fedpoint's own draws, written down for everybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jobs import KINDS, Job

from fedpoint.core.algorithm import samples_per_round
from fedpoint.core.random import Key, Stream
from fedpoint.core.steps import most_steps
from fedpoint.engine.session import Session
from fedpoint.experiment import Experiment
from fedpoint.problems.oracle import Mine
from fedpoint.problems.rows import Batch


class Draws:
    """Rows, and which of them every participant of every round takes at each of its steps."""

    def __init__(self, job: Job):
        asked = Experiment(job.algorithm, job.problem, participation=job.participants)
        self.session = Session(asked.bind(), 1)
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
        steps = np.broadcast_to(most_steps(session.algorithm.local_steps), job.agents)
        most = samples_per_round(session.algorithm) or int(steps.max())
        with jax.enable_x64(True):

            def one(round, agent):
                mine = Mine(jax.tree.map(lambda a: a[agent], inputs.own), inputs.common)
                stream = Stream(agents_key, round, agent)
                plan = oracle.plan(mine, stream)
                return jax.vmap(lambda e: oracle.draw(mine, plan, stream.row(e), e))(jnp.arange(most))

            def of_round(round):
                tick = session.timing.at(schedule, inputs.p, round)
                who = jnp.arange(job.agents, dtype=jnp.int32) if tick.agents is None else tick.agents
                return who, jax.lax.map(lambda k: one(round, k), who)

            who, drawn = jax.jit(lambda rs: jax.lax.map(of_round, rs))(jnp.arange(job.rounds, dtype=jnp.int32))
            who, drawn = np.asarray(who), jax.tree.map(np.asarray, drawn)
        return who, drawn, steps[who]


def _columns(job: Job, table: Any) -> tuple[np.ndarray, np.ndarray]:
    X, y = np.asarray(table[0]), np.asarray(table[1])
    if job.kind == "linear":
        return X, y
    if job.kind == "softmax":
        return X, y.argmax(1)
    if job.kind == "logistic":
        return X, (y[:, 0] > 0).astype(np.int64)
    return (X.astype(np.int64) if job.data == "text" else X), y.astype(np.int64)


def write(job: Job, folder: Path) -> None:
    """job.json and job.npz, for peers."""
    folder.mkdir(parents=True, exist_ok=True)
    draws, start = Draws(job), job.parameters(job.start)
    arrays = {name: getattr(draws, name) for name in ("X", "y", "who", "rows", "batches", "steps")}
    if job.data in KINDS:
        arrays["groups"] = np.repeat(np.arange(job.agents), job.problem.counts)
    np.savez(folder / "job.npz", **arrays, **{f"start.{n}": a for n, a in start.items()})
    facts: dict[str, Any] = {
        n: getattr(job, n)
        for n in ("name", "kind", "method", "step", "agents", "rounds", "seconds", "clip", "noise", "top")
    }
    facts |= {"parameters": sorted(start), "batch": 1 if job.kind == "linear" else job.batch}
    facts["epochs"] = 1 if job.kind == "linear" else job.steps
    (folder / "job.json").write_text(json.dumps(facts))
