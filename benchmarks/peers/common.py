"""What every peer needs, with NumPy alone: read a job, time its rounds, report. Runs on Python 3.9 as well.

A job is `job.json` (the numbers) and `job.npz` (the arrays): who takes part in each round, and for each of them the
rows of every local step. A peer computes with these, so all compute the same.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

BEGUN = float(os.environ.get("PEER_BEGUN") or time.time())  # when the process was started


class Job:
    """A job as a peer sees it.

    kind: "linear" (squared error / 2), "softmax" or "network" (one hidden layer), cross entropy: means over a batch.
    X, y: rows. who: (rounds, participants). parameters: name -> start. rounds: how many may be asked for.
    """

    def __init__(self, folder):
        folder = Path(folder)
        facts = json.loads((folder / "job.json").read_text())
        self.name, self.kind, self.method = facts["name"], facts["kind"], facts["method"]
        self.step, self.agents, self.rounds = facts["step"], facts["agents"], facts["rounds"]
        self.seconds = facts["seconds"]  # for which a peer should measure
        with np.load(folder / "job.npz") as arrays:
            self.X, self.y, self.who = arrays["X"], arrays["y"], arrays["who"]
            self._rows, self._batches, self._steps = arrays["rows"], arrays["batches"], arrays["steps"]
            self.parameters = {n: arrays["start." + n] for n in facts["parameters"]}
        self.classes, self.epochs = facts["classes"], facts["epochs"]
        self.slot = [{int(k): i for i, k in enumerate(who)} for who in self.who]

    def batches(self, round, agent):
        """The rows of each local step of an agent in a round."""
        place = (round % self.rounds) * self.who.shape[1] + self.slot[round % self.rounds][int(agent)]
        first, last = self._steps[place], self._steps[place + 1]
        bounds = self._batches[first : last + 1]
        return [self._rows[a:b] for a, b in itertools.pairwise(bounds)]

    def participants(self, round):
        return [int(k) for k in self.who[round % self.rounds]]


class Clock:
    """Rounds and when they ended. The first is apart: it comes after start-up and compilation.

    Blocks are [rounds, seconds, seconds of this process on a processor], of at least BLOCK seconds.
    """

    BLOCK = 0.25

    def __init__(self):
        self.first, self.last, self.blocks, self.begun, self.rounds = None, None, [], None, 0

    def start(self):
        """A new block begins."""
        self.begun, self.rounds = (time.time(), time.process_time()), 0

    def lap(self, rounds=1):
        """So many more rounds are done."""
        self.last = time.time() - BEGUN
        if self.first is None:
            self.first = time.time() - BEGUN
            self.start()
            return
        self.rounds += rounds
        seconds, work = time.time() - self.begun[0], time.process_time() - self.begun[1]
        if seconds >= self.BLOCK:
            self.blocks.append([self.rounds, seconds, work])
            self.start()

    def close(self):
        """What is left makes a last block, where there is none else."""
        if not self.blocks and self.rounds:
            self.blocks.append([self.rounds, time.time() - self.begun[0], time.process_time() - self.begun[1]])

    def enough(self, job):
        return sum(b[1] for b in self.blocks) > job.seconds


def measure(job, one_round, flat, **facts):
    """one_round(r) until the time is over; the model is that after the job's rounds, or after as many as were done."""
    clock, r = Clock(), 0
    while not clock.enough(job):
        one_round(r)
        clock.lap()
        r += 1
        if r == job.rounds:  # beyond them, with the same draws again, it is for the clock
            model, last = flat(), clock.last
    if r >= job.rounds:
        clock.last, r = last, job.rounds
    else:
        model = flat()
    report(clock, r, model, **facts)


def report(clock, rounds, model, **more):
    """Hand the figures to whoever started this process: the model as an array, the rest as a line of JSON."""
    clock.close()
    out = Path(os.environ["PEER_OUT"])
    np.save(out / "model.npy", np.asarray(model, np.float64))
    facts = dict(
        first=clock.first, last=clock.last, blocks=clock.blocks, rounds=rounds, python=sys.version.split()[0], **more
    )
    (out / "report.json").write_text(json.dumps(facts))


def flatten(parameters):
    """All parameters in the order of their names."""
    return np.concatenate([np.asarray(parameters[n], np.float64).ravel() for n in sorted(parameters)])


# Gradients in NumPy, for frameworks that leave the model to the user.


def gradient(job, w, rows):
    """The gradient of a batch at the parameters w, by name."""
    x, y = job.X[rows], job.y[rows]
    if job.kind == "linear":
        return {"w": (x @ w["w"] - y) @ x / len(y)}
    if job.kind == "softmax":
        return {"w": x.T @ _errors(x @ w["w"], y)}
    hidden = np.maximum(x @ w["w1"] + w["b1"], 0)
    error = _errors(hidden @ w["w2"] + w["b2"], y)
    back = (error @ w["w2"].T) * (hidden > 0)
    return {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}


def _errors(logits, y):
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p / len(y)


def local_steps(job, w, batches):
    """Plain local gradient steps."""
    w = {n: v.copy() for n, v in w.items()}
    for rows in batches:
        for n, g in gradient(job, w, rows).items():
            w[n] -= job.step * g
    return w
