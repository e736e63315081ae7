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

    kind: "linear" (squared error / 2), "logistic", "softmax", "network" (one hidden layer), "cnn" or "transformer",
    cross entropy: means over a batch. X, y: rows. who: (rounds, participants). parameters: name -> start.
    rounds: how many may be asked for. clip, noise, top: what happens to an agent's change (jobs.py).
    """

    def __init__(self, folder):
        folder = Path(folder)
        facts = json.loads((folder / "job.json").read_text())
        self.name, self.kind, self.method = facts["name"], facts["kind"], facts["method"]
        self.step, self.agents, self.rounds = facts["step"], facts["agents"], facts["rounds"]
        self.seconds = facts["seconds"]  # for which a peer should measure
        self.clip, self.noise, self.top = facts["clip"], facts["noise"], facts["top"]
        with np.load(folder / "job.npz") as arrays:
            self.X, self.y, self.who = arrays["X"], arrays["y"], arrays["who"]
            self._rows, self._batches, self._steps = arrays["rows"], arrays["batches"], arrays["steps"]
            self.parameters = {n: arrays["start." + n] for n in facts["parameters"]}
        self.batch, self.epochs = facts["batch"], facts["epochs"]
        self.slot = [{int(k): i for i, k in enumerate(who)} for who in self.who]

    def batches(self, round, agent):
        """The rows of each local step of an agent in a round."""
        place = (round % self.rounds) * self.who.shape[1] + self.slot[round % self.rounds][int(agent)]
        first, last = self._steps[place], self._steps[place + 1]
        bounds = self._batches[first : last + 1]
        return [self._rows[a:b] for a, b in itertools.pairwise(bounds)]

    def participants(self, round):
        return [int(k) for k in self.who[round % self.rounds]]


def work_of_all():
    """Seconds on a processor of all processes that carry the mark of this one (processes.py), ended ones as far as
    somebody waited for them."""
    mark, total = f"PEER_MARK={os.environ['PEER_MARK']}".encode(), 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/environ", "rb") as file:
                    if mark not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry.name}/stat") as file:
                    total += sum(map(int, file.read().rpartition(")")[2].split()[11:15]))
            except OSError:
                continue  # it ended meanwhile
    return total / os.sysconf("SC_CLK_TCK")


def wire():
    """Bytes over loopback since its namespace was made: every peer has one of its own (alone.py)."""
    with open("/proc/net/dev") as file:
        return next((int(line.split(":")[1].split()[0]) for line in file if line.strip().startswith("lo:")), 0)


class Clock:
    """Rounds and when they ended. The first is apart: it comes after start-up and compilation.

    Blocks are [rounds, seconds, seconds on a processor, bytes over loopback], of at least BLOCK seconds.
    many: the job is done by several processes, all of which count.
    """

    BLOCK = 0.25

    def __init__(self, many=False):
        self.work = work_of_all if many else time.process_time
        self.first, self.last, self.blocks, self.begun, self.rounds = None, None, [], None, 0

    def start(self):
        """A new block begins."""
        self.begun, self.rounds = self._now(), 0

    def lap(self, rounds=1):
        """So many more rounds are done."""
        self.last = time.time() - BEGUN
        if self.first is None:
            self.first = time.time() - BEGUN
            self.start()
            return
        self.rounds += rounds
        if time.time() - self.begun[0] >= self.BLOCK:
            self._end()
            self.start()

    def close(self):
        """What is left makes a last block, where there is none else."""
        if not self.blocks and self.rounds:
            self._end()

    def enough(self, job):
        return sum(b[1] for b in self.blocks) > job.seconds

    def _now(self):
        return time.time(), self.work(), wire()

    def _end(self):
        self.blocks.append([self.rounds, *(b - a for a, b in zip(self.begun, self._now()))])  # noqa: B905


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
    if job.kind == "logistic":
        return {"w": (1 / (1 + np.exp(-(x @ w["w"]))) - y) @ x / len(y)}
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


def sent(job, w, end):
    """An agent's change as it arrives: clipped, or its largest numbers only."""
    change = {n: end[n] - w[n] for n in w}
    if job.clip is not None:
        length = np.sqrt(sum((v**2).sum() for v in change.values()))
        change = {n: v * min(1.0, job.clip / max(length, 1e-300)) for n, v in change.items()}
    if job.top is not None:
        for v in change.values():
            left_out = v.size - int(np.ceil(job.top * v.size))
            v.ravel()[np.argpartition(np.abs(v.ravel()), left_out)[:left_out]] = 0.0
    return change
