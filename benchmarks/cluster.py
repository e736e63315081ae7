"""How does a run on several processes scale? Time and bytes of a round, memory of an agent, a million agents.

    python benchmarks/cluster.py [--seconds 8] [--write]

Rounds per second without compilation, from runs of about so many seconds on real processes of this machine. `--write`
puts the figures into benchmarks/CLUSTER.md.
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
from pathlib import Path

import jax
import numpy as np

import fedpoint as fp

D, STEPS = 10, 5
MILLION, PARTICIPANTS, LIMIT = 1_000_000, 1_000, 4.0
WORK = fp.FedAvg(step=0.02, local_steps=STEPS)


def million() -> None:
    """A million agents in this process; prints what it took. Started apart, so that its memory is its own."""
    import resource

    problem = fp.problems.LinearStream.sample(agents=MILLION, dim=D, seed=0)
    run = fp.run(WORK, problem, rounds=300, participation=PARTICIPANTS, record_every=100)
    run = run.extend(1500)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"{run.speed} {peak} {run.error[0, -1]}")


def memory(pid: int) -> float:
    """Bytes that a process has used for itself at its largest; pages of mapped files can be dropped again."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return 1024.0 * (int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0]))


class Watch:
    """Rounds a second between the first and the last progress, and the largest process."""

    def __init__(self, seconds: float):
        self.seconds, self.first, self.last, self.peak = seconds, None, None, {}

    def __call__(self, progress) -> None:
        now = time.perf_counter(), progress.round
        self.first = self.first or now
        self.last = now
        for child in multiprocessing.active_children():
            self.peak[child.name] = max(self.peak.get(child.name, 0.0), memory(child.pid))
        if now[0] - self.first[0] > self.seconds:
            raise Enough

    @property
    def speed(self) -> float:
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


class Enough(Exception):
    pass


def measure(agents: int, processes: int, seconds: float, fast=False, participation=None, dim=D, steps=STEPS) -> Watch:
    problem = fp.problems.LinearStream.sample(agents=agents, dim=dim, seed=0)
    watch = Watch(seconds)
    with contextlib.suppress(Enough):
        fp.run(
            fp.FedAvg(step=0.02, local_steps=steps),
            problem,
            rounds=10_000_000,
            record_every=1_000_000,
            participation=participation,
            processes=fp.Processes(processes, fast_reduce=fast),
            callbacks=watch,
        )
    fast_or = "all-reduce" if fast else "blocks"
    print(
        f"K {agents:>9,}  d {dim:>7,}  L {participation or agents:>9,}  {processes} processes, {fast_or}: "
        f"{1e3 / watch.speed:.3f} ms a round",
        file=sys.stderr,
        flush=True,
    )
    return watch


def moved(processes: int, fast: bool, dim: int = D) -> float:
    """Bytes that a process sends and receives in a round of FedAvg, from the shapes of its collectives."""
    if processes == 1:
        return 0.0
    if fast:  # an all-reduce in a ring
        return 2 * 2 * (processes - 1) / processes * dim * 8
    return 2 * (processes - 1) / processes * 64 * dim * 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--write", action="store_true", help="write benchmarks/CLUSTER.md")
    parser.add_argument("--million", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.million:
        return million()
    alone = subprocess.run([sys.executable, __file__, "--million"], capture_output=True, text=True, check=True)
    speed, peak, error = (float(x) for x in alone.stdout.split())
    print(f"a million agents: {speed:.0f} rounds/s, {peak:.2f} GB", file=sys.stderr, flush=True)

    def ms(*arguments, **more) -> float:
        return 1e3 / measure(*arguments, options.seconds, **more).speed

    small, large = 10_000, 100_000
    t = {
        "empty": ms(64, 1, steps=1),
        "empty, 2": ms(64, 2, steps=1),
        "empty, 2, fast": ms(64, 2, steps=1, fast=True),
        "half": ms(large // 2, 1),
        "strong": ms(large, 1),
        "strong, 2": ms(large, 2),
        "strong, 2, fast": ms(large, 2, fast=True),
        "wide": ms(64, 1, steps=1, dim=100_000),
        "wide, 2, fast": ms(64, 2, steps=1, dim=100_000, fast=True),
    }
    runs = {n: measure(MILLION, n, options.seconds, participation=PARTICIPANTS) for n in (1, 2)}
    few = measure(small, 1, 2.0, participation=PARTICIPANTS)
    per_agent = (max(runs[1].peak.values()) - max(few.peak.values())) / (MILLION - small)
    t["million"], t["million, 2"] = (1e3 / runs[n].speed for n in (1, 2))

    # The model: t = base + agents of a process x work + collective; constants from some rows, checked on the others.
    work = (t["strong"] - t["empty"]) / large  # ms of an agent and round
    tell = t["empty, 2"] - t["empty"] / 2
    tell_fast = t["empty, 2, fast"] - t["empty"] / 2
    wire = t["wide, 2, fast"] - t["wide"] / 2 - tell_fast  # ms
    band = f"{moved(2, True, 100_000) / wire / 1e6:.2f} GB/s over loopback" if wire > 0 else "no bandwidth resolved"
    checks = {
        "strong, 2": t["empty"] / 2 + large / 2 * work + tell,
        "strong, 2, fast": t["empty"] / 2 + large / 2 * work + tell_fast,
        "half": t["empty"] + large / 2 * work,
    }

    def row(name: str, key: str, processes: int, fast: bool, agents: int, dim: int = D) -> str:
        expected = f"{checks[key]:.3f}" if key in checks else "-"
        sums = "-" if processes == 1 else "all-reduce" if fast else "64 blocks"
        return (
            f"| {name} | {agents:,} | {dim:,} | {processes} | {sums} | {t[key]:.3f} | {expected} "
            f"| {moved(processes, fast, dim):,.0f} |"
        )

    # Every agent has its numbers on one host; its weight, its name and its place in the draws on all.
    hosts, agents = 100, 10_000_000
    hops = np.log2(hosts) * tell_fast + moved(hosts, True) / 1e6  # a network of 1 GB/s
    all_of_them = t["empty"] / 64 + agents / hosts * work + hops
    sampled = t["empty"] / 64 + PARTICIPANTS * (t["million"] - t["empty"]) / PARTICIPANTS / hosts + hops
    whole = 8 * (D + 2)
    room = (agents * max(per_agent - whole, 0.0) + agents / hosts * whole) / 1e9
    both = sum(runs[2].peak.values()) / 1e9
    lines = [
        "# Many processes",
        "",
        f"Written by `python benchmarks/cluster.py --write` (jax {jax.__version__}, {os.cpu_count()} shared cores, "
        f"{platform.machine()}; load {os.getloadavg()[0]:.1f} at the end). FedAvg on streams, d = {D}, {STEPS} local "
        "steps (empty: one step). Bytes are those that a process sends and receives, from the shapes of the "
        "collectives in the compiled program.",
        "",
        "| round | agents | d | processes | sums | ms | model | bytes |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
        row("empty", "empty", 1, False, 64),
        row("empty", "empty, 2", 2, False, 64),
        row("empty", "empty, 2, fast", 2, True, 64),
        row("weak: one process", "half", 1, False, large // 2),
        row("strong: one process", "strong", 1, False, large),
        row("strong and weak: two", "strong, 2", 2, False, large),
        row("strong and weak: two", "strong, 2, fast", 2, True, large),
        row("wide model", "wide", 1, False, 64, 100_000),
        row("wide model", "wide, 2, fast", 2, True, 64, 100_000),
        row(f"{PARTICIPANTS:,} participants", "million", 1, False, MILLION),
        row(f"{PARTICIPANTS:,} participants", "million, 2", 2, False, MILLION),
        "",
        f"Strong scaling, {large:,} agents: two processes {t['strong'] / t['strong, 2']:.2f} times one "
        f"(all-reduce {t['strong'] / t['strong, 2, fast']:.2f}). Weak scaling, {large // 2:,} agents a process: "
        f"two take {t['strong, 2'] / t['half']:.2f} times as long as one.",
        "",
        f"Constants: work {1e6 * work:.0f} ns an agent and round ({1e6 * work / STEPS:.0f} ns a local step), "
        f"ordered sum {tell:.2f} ms, all-reduce {tell_fast:.2f} ms, {band}, "
        f"{per_agent:.0f} bytes of memory an agent (its data are {8 * (D + 2)}).",
        "",
        f"What the model says of {hosts} hosts and {agents:,} agents, with all-reduces in log2(hosts) hops of the "
        f"latency measured here and 1 GB/s: {all_of_them:.0f} ms a round of everyone "
        f"({agents / all_of_them / 1e3:.1f} million agents a second), {sampled:.1f} ms with {PARTICIPANTS:,} "
        f"participants, which is latency; {room:.1f} GB a host, nearly all of it what every host knows of every agent.",
        "",
        f"A million agents, d = {D}, {PARTICIPANTS:,} participants a round, in one process of `fp.run`: "
        f"{speed:.0f} rounds a second, {peak:.2f} GB at the peak (limit {LIMIT:g} GB: "
        f"{'met' if peak < LIMIT else 'missed'}), error {error:.2g} after 1,500 rounds. Shared out: "
        f"{max(runs[1].peak.values()) / 1e9:.2f} GB in one process of the job, {both:.2f} GB in two together.",
        "",
    ]
    text = "\n".join(lines)
    print(text)
    if options.write:
        Path(__file__).with_name("CLUSTER.md").write_text(text)


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
