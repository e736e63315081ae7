"""How does a run on several processes scale? Time and bytes of a round, memory of an agent, a million agents.

    make bench JOB=cluster ARGS="--seconds 8 --write"

Rounds per second without compilation, from runs of about so many seconds on real processes of this machine. `--write`
puts the figures into benchmarks/CLUSTER.md and docs/scale.md.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import fedpoint as fp
from fedpoint.engine.cluster.blocks import BLOCKS

D, STEPS, WIDE = 10, 5, 100_000
SMALL, LARGE, MILLION, PARTICIPANTS = 10_000, 100_000, 1_000_000, 1_000
LIMIT = 4.0  # GB for a million agents
SCALE = Path(__file__).parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- figures: benchmarks/cluster.py -->\n", "<!-- /figures -->\n"
WORK = fp.FedAvg(step=0.02, local_steps=STEPS, normalise=True)


def million() -> None:
    """A million agents in this process; prints what it took. Started apart, so that its memory is its own."""
    import resource

    run = fp.run(WORK, streams(MILLION), rounds=300, participation=PARTICIPANTS, record_every=100)
    run = run.extend(1500)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"{run.speed} {peak} {run.error[0, -1]}")


def memory(pid: int, of: str) -> float:
    """Bytes of a process by a line of its status; RssAnon is without pages of files, which can be dropped again."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return 1024.0 * int(status[of].split()[0])


class Watch:
    """Time of a round between the first and the last progress, and what processes hold: at their largest, and last."""

    def __init__(self, seconds: float):
        self.seconds, self.first, self.last = seconds, None, None
        self.peak, self.held = {}, {}

    def __call__(self, progress) -> None:
        now = time.perf_counter(), progress.round
        self.first = self.first or now
        self.last = now
        for child in multiprocessing.active_children():
            files = memory(child.pid, "RssFile")
            self.peak[child.name] = max(self.peak.get(child.name, 0.0), memory(child.pid, "VmHWM") - files)
            self.held[child.name] = memory(child.pid, "RssAnon")
        if now[0] - self.first[0] > self.seconds:
            raise Enough

    @property
    def ms(self) -> float:
        return 1e3 * (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


class Enough(Exception):
    pass


def streams(agents: int, dim: int = D) -> fp.problems.LinearStream:
    return fp.problems.LinearStream.sample(agents=agents, dim=dim, seed=0)


def stored() -> fp.problems.LeastSquares:
    """Rows of 168 MB."""
    X, groups = np.random.default_rng(0).standard_normal((1_000_000, 20)), np.repeat(np.arange(5_000), 200)
    return fp.problems.LeastSquares(X, X.sum(1), groups=groups, mean=True, batch=4)


def measure(problem, processes: int, seconds: float, fast=False, participation=None, steps=STEPS) -> Watch:
    watch = Watch(seconds)
    with contextlib.suppress(Enough):
        fp.run(
            fp.FedAvg(step=0.02, local_steps=steps, normalise=True),
            problem,
            rounds=10_000_000,
            record_every=1_000_000,
            participation=participation,
            processes=fp.Processes(processes, fast_reduce=fast),
            callbacks=watch,
        )
    L, d = participation or problem.agents, len(problem.start())
    sums = "all-reduce" if fast else "blocks"
    said = f"K {problem.agents:>9,}  d {d:>7,}  L {L:>9,}  {processes} processes, {sums}: {watch.ms:.3f} ms a round"
    print(said, file=sys.stderr, flush=True)
    return watch


def moved(processes: int, fast: bool, dim: int = D) -> float:
    """Bytes that a process sends and receives in a round of FedAvg, from the shapes of its collectives."""
    if processes == 1:
        return 0.0
    if fast:  # an all-reduce in a ring
        return 2 * 2 * (processes - 1) / processes * dim * 8
    return 2 * (processes - 1) / processes * BLOCKS * dim * 8


@dataclass
class Figures:
    """Milliseconds of rounds by name, memory, and the model's constants from some of them."""

    t: dict[str, float]
    million: tuple[float, float, float]  # in this process: rounds a second, GB, error
    shared: dict[int, Watch]  # a million agents on so many processes
    rows: dict[int, Watch]  # stored rows
    per_agent: float  # bytes

    @property
    def work(self) -> float:
        """ms of an agent and round."""
        return (self.t["strong"] - self.t["empty"]) / LARGE

    @property
    def tell(self) -> float:
        return self.t["empty, 2"] - self.t["empty"] / 2

    @property
    def tell_fast(self) -> float:
        return self.t["empty, 2, fast"] - self.t["empty"] / 2

    @property
    def band(self) -> str:
        wire = self.t["wide, 2, fast"] - self.t["wide"] / 2 - self.tell_fast
        return f"{moved(2, True, WIDE) / wire / 1e6:.2f} GB/s over loopback" if wire > 0 else "no bandwidth resolved"

    @property
    def model(self) -> dict[str, float]:
        """What the model says of rows that its constants are not from."""
        half = LARGE / 2 * self.work
        return {
            "half": self.t["empty"] + half,
            "strong, 2": self.t["empty"] / 2 + half + self.tell,
            "strong, 2, fast": self.t["empty"] / 2 + half + self.tell_fast,
        }


def figures(seconds: float) -> Figures:
    alone = subprocess.run([sys.executable, __file__, "--million"], capture_output=True, text=True, check=True)
    speed, peak, error = (float(x) for x in alone.stdout.split())
    print(f"a million agents: {speed:.0f} rounds/s, {peak:.2f} GB", file=sys.stderr, flush=True)
    few, many, wide = streams(64), streams(LARGE), streams(64, WIDE)
    t = {
        "empty": measure(few, 1, seconds, steps=1).ms,
        "empty, 2": measure(few, 2, seconds, steps=1).ms,
        "empty, 2, fast": measure(few, 2, seconds, steps=1, fast=True).ms,
        "half": measure(streams(LARGE // 2), 1, seconds).ms,
        "strong": measure(many, 1, seconds).ms,
        "strong, 2": measure(many, 2, seconds).ms,
        "strong, 2, fast": measure(many, 2, seconds, fast=True).ms,
        "wide": measure(wide, 1, seconds, steps=1).ms,
        "wide, 2, fast": measure(wide, 2, seconds, steps=1, fast=True).ms,
    }
    shared = {n: measure(streams(MILLION), n, seconds, participation=PARTICIPANTS) for n in (1, 2)}
    t["million"], t["million, 2"] = (shared[n].ms for n in (1, 2))
    small = measure(streams(SMALL), 1, 2.0, participation=PARTICIPANTS)
    per_agent = (max(shared[1].peak.values()) - max(small.peak.values())) / (MILLION - SMALL)
    rows = {n: measure(stored(), n, 2.0, participation=100) for n in (1, 2)}
    return Figures(t, (speed, peak, error), shared, rows, per_agent)


def row(found: Figures, name: str, key: str, processes: int, fast: bool, agents: int, dim: int = D) -> str:
    expected = f"{found.model[key]:.3f}" if key in found.model else "-"
    sums = "-" if processes == 1 else "all-reduce" if fast else f"{BLOCKS} blocks"
    said = f"| {name} | {agents:,} | {dim:,} | {processes} | {sums} | {found.t[key]:.3f} | {expected} "
    return said + f"| {moved(processes, fast, dim):,.0f} |"


def taken() -> str:
    """Where and beside what the figures were taken."""
    load = os.getloadavg()[2]
    beside = "" if load < 2 * (os.cpu_count() or 1) else ": beside other work, so times are good to a factor of several"
    return f"jax {jax.__version__}, {os.cpu_count()} cores, {platform.machine()}; load {load:.1f}{beside}"


def page(found: Figures) -> list[str]:
    """benchmarks/CLUSTER.md."""
    return [
        "# Many processes",
        "",
        f"Written by `make bench JOB=cluster ARGS=--write` ({taken()}). FedAvg on streams, d = {D}, {STEPS} "
        f"local steps "
        "(empty: one step). Bytes are those that a process sends and receives, from the shapes of the "
        "collectives in the "
        "compiled program. Model: what the cost model of docs/scale.md says of rows that its constants are not from.",
        "",
        "| round | agents | d | processes | sums | ms | model | bytes |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
        row(found, "empty", "empty", 1, False, 64),
        row(found, "empty", "empty, 2", 2, False, 64),
        row(found, "empty", "empty, 2, fast", 2, True, 64),
        row(found, "weak: one process", "half", 1, False, LARGE // 2),
        row(found, "strong: one process", "strong", 1, False, LARGE),
        row(found, "strong and weak: two", "strong, 2", 2, False, LARGE),
        row(found, "strong and weak: two", "strong, 2, fast", 2, True, LARGE),
        row(found, "wide model", "wide", 1, False, 64, WIDE),
        row(found, "wide model", "wide, 2, fast", 2, True, 64, WIDE),
        row(found, f"{PARTICIPANTS:,} participants", "million", 1, False, MILLION),
        row(found, f"{PARTICIPANTS:,} participants", "million, 2", 2, False, MILLION),
        "",
        *summary(found),
    ]


def summary(found: Figures) -> list[str]:
    """What docs/scale.md says too."""
    t, model, work = found.t, found.model, found.work
    speed, peak, error = found.million
    # Every agent has its numbers on one host; its weight, its name and its place in the draws on all.
    hosts, agents, own = 100, 10_000_000, 8 * (D + 2)
    hops = np.log2(hosts) * found.tell_fast + moved(hosts, True) / 1e6  # a network of 1 GB/s
    everyone = t["empty"] / BLOCKS + agents / hosts * work + hops
    sampled = t["empty"] / BLOCKS + (t["million"] - t["empty"]) / hosts + hops
    room = (agents * max(found.per_agent - own, 0.0) + agents / hosts * own) / 1e9
    one, two = (found.rows[n] for n in (1, 2))
    return [
        "| constant | measured | |",
        "|---|---:|---|",
        f"| t_0 | {t['empty']:.2f} ms | 64 agents, one step |",
        f"| c E d | {1e3 * work:.2f} us | an agent's round: d = {D}, E = {STEPS} |",
        f"| r(2), ordered sum | {found.tell:.2f} ms | all-reduce: {found.tell_fast:.2f} ms |",
        f"| B | {found.band} | all-reduce of {WIDE:,} numbers |",
        f"| memory | {found.per_agent:.0f} bytes an agent | of which {own} are its data; the rest, its "
        f"weight and name, "
        "is on every process |",
        "",
        f"**The model against measurements it was not fitted to.** {LARGE // 2:,} agents in one process: model "
        f"{model['half']:.0f} ms, measured {t['half']:.0f} ms. {LARGE:,} agents on two: model "
        f"{model['strong, 2']:.0f} ms, "
        f"measured {t['strong, 2']:.0f} ms; with all-reduces {model['strong, 2, fast']:.0f} ms, measured "
        f"{t['strong, 2, fast']:.0f} ms.",
        "",
        f"**Strong scaling**, {LARGE:,} agents: two processes are {t['strong'] / t['strong, 2']:.2f} times "
        f"as fast as one "
        f"(all-reduce {t['strong'] / t['strong, 2, fast']:.2f}). **Weak scaling**, {LARGE // 2:,} agents a "
        f"process: two "
        f"take {t['strong, 2'] / t['half']:.2f} times as long as one.",
        "",
        f"**A million agents** (d = {D}, {PARTICIPANTS:,} participants a round) in one process of `fp.run`: "
        f"{speed:.0f} "
        f"rounds a second, {peak:.2f} GB at the peak (limit {LIMIT:g} GB: "
        f"{'met' if peak < LIMIT else 'missed'}), error "
        f"{error:.2g} after 1,500 rounds. Shared out: {max(found.shared[1].peak.values()) / 1e9:.2f} GB in "
        f"one process of "
        f"the job, {sum(found.shared[2].peak.values()) / 1e9:.2f} GB in two together.",
        "",
        f"**Stored rows** of 168 MB (5,000 agents): the process of a job of one holds "
        f"{max(one.held.values()) / 1e6:.0f} MB in the run ({max(one.peak.values()) / 1e6:.0f} MB at its "
        f"peak, while it "
        f"takes its agents), each of two at most {max(two.held.values()) / 1e6:.0f} MB "
        f"({max(two.peak.values()) / 1e6:.0f} MB); the rest is Python, JAX and its compiler.",
        "",
        f"**{hosts} hosts and {agents // 1_000_000} million agents**, if the model holds, with all-reduces "
        f"in log2(hosts) "
        f"hops of the latency measured here and 1 GB/s: {everyone:.0f} ms a round of everyone "
        f"({agents / everyone / 1e3:.1f} million agents a second), {sampled:.1f} ms with {PARTICIPANTS:,} "
        f"participants, "
        f"which is latency; {room:.1f} GB a host, nearly all of it what every host knows of every agent.",
    ]


def put(path: Path, lines: list[str]) -> None:
    """The lines between the marks of a page, or the whole of one without."""
    text = "\n".join(lines) + "\n"
    if path == SCALE:
        before, rest = path.read_text().split(BEGIN)
        text = before + BEGIN + f"\nTaken on {taken()}.\n\n" + text + END + rest.split(END)[1]
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/CLUSTER.md and the figures of docs/scale.md"
    )
    parser.add_argument("--million", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.million:
        return million()
    found = figures(options.seconds)
    print("\n".join(page(found)))
    if options.write:
        put(Path(__file__).with_name("CLUSTER.md"), page(found))
        put(SCALE, summary(found))


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
