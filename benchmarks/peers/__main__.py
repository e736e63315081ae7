"""fedpoint beside other frameworks: the same jobs, data, splits and draws, in one go.

    python benchmarks/peers [--peers a,b] [--jobs x,y] [--json FILE]

Each peer, and fedpoint, is installed from its package into an environment of its own below build/peers. Writes
benchmarks/RESULTS.md with docs/peers.png, and benchmarks/REAL.md with docs/peers-real.png (`--jobs real`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import catalogue
import draws
import environments
import explain
import jobs
import numpy as np
import page
import processes
import real_page
import regressions
from catalogue import PEERS, PLACE, Peer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).resolve().parent
POOLED = "pooled"  # the regression beside statsmodels
OWN = 180.0  # seconds for fedpoint at one job
LIVE = 400.0  # for a federation of real sites, whoever makes it
AGAIN, AGAIN_SCALED = 4, 2  # times that what decides a target is measured after the first time, in turn
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def measure(python: Path, name: str, job: jobs.Job, limit: float, *arguments: str) -> dict[str, Any]:
    """One peer (or fedpoint) at one job, in a new process."""
    out = PLACE / "out" / f"{name}-{job.name}"
    out.mkdir(parents=True, exist_ok=True)
    report = out / "report.json"
    report.unlink(missing_ok=True)
    environment = {"PEER_OUT": str(out), "FEDPOINT_CACHE": str(PLACE / "cache")}
    if job.kind != "network" or job.size < 1000:  # small work: threads do not pay, and idle ones spin
        environment |= ONE_THREAD
    if job in jobs.REAL:  # one thread for everybody
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    script = f"run_{name}_sites.py" if job.live else f"run_{name}.py"
    command = [str(python), str(HERE / script), str(PLACE / "jobs" / job.name), *arguments]
    ended = processes.run(command, out / "log.txt", limit, environment)
    facts: dict[str, Any] = {"peer": name, "job": job.name, "memory": ended.memory, "error": ended.error}
    if not report.exists():
        return facts
    told = json.loads(report.read_text())
    if arguments == ("cold",):
        return facts | {n: told[n] for n in ("first", "rounds", "version")}
    return facts | figures(job, told, np.load(out / "model.npy"))


def figures(job: jobs.Job, told: dict[str, Any], model: np.ndarray) -> dict[str, Any]:
    """What a report says, and how far its model is from fedpoint's after as many rounds."""
    file, ours = PLACE / "jobs" / job.name / "history.npy", None
    if file.exists() and not job.noise:  # noise of its own makes every model another one
        history = np.load(file, mmap_mode="r")
        ours = np.asarray(history[told["rounds"]]) if told["rounds"] < len(history) else None
    each, work, wire = ([block[i] / block[0] for block in told["blocks"]] for i in (1, 2, 3))
    return {
        "version": told["version"],
        "rounds": told["rounds"],
        "first": told["first"],
        "last": told["last"],
        "round": statistics.median(each) if each else None,
        "work": statistics.median(work) if work else None,
        "wire": statistics.median(wire) if wire else None,
        "blocks": len(each),
        "counted": told.get("counted"),
        "apart": None if ours is None else float(np.abs(ours - model).max() / (1 + np.abs(ours).max())),
        "score": jobs.score(job, model),
    }


class Measurement:
    """All of it, step by step."""

    def __init__(self, peers: list[str], chosen: list[str], console: Console, own: Path | None):
        self.peers = [PEERS[p] for p in peers if set(PEERS[p].jobs) & set(chosen)]
        self.console, self.given = console, own
        self.main = [job for job in jobs.MAIN if job.name in chosen]
        self.real = [job for job in jobs.REAL if job.name in chosen]
        others = (*jobs.MAIN, *jobs.REAL)
        self.scaling = [job for job in jobs.JOBS.values() if job not in others and job.name in chosen]
        self.pooled = POOLED in chosen
        self.pythons: dict[str, Path] = {}
        self.found: dict[str, Any] = {
            "machine": machine(),
            "installed": {},
            "runs": [],
            "loads": [],
        }

    def install(self) -> None:
        self.console.log("installing fedpoint")
        self.own, error = (self.given, "") if self.given else environments.install_fedpoint()
        if error:
            sys.exit(f"fedpoint does not install: {error}")
        for peer in self.peers:
            self.console.log(f"installing {peer.title}")
            python, error = (
                environments.install(peer.environment or peer.name, peer.packages) if peer.packages else (self.own, "")
            )
            self.found["installed"][peer.name] = error
            if error:
                self.console.log(f"  [red]{peer.title} does not install[/]: {error}")
            else:
                self.pythons[peer.name] = python

    def run(self) -> dict[str, Any]:
        self.begun = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        whole = (*self.main, *self.real)
        again = sum(2 * self._again(job) for job in whole)
        total = sum(1 + len(self._doing(job)) for job in whole) + again + len(self.scaling) * 4
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task("", total=total)

            def step(text: str) -> None:
                bar.update(task, description=text, advance=1)

            for job in whole:
                self._main(job, step)
            for job in self.scaling:
                self._scaled(job, step)
            self._decide(step)
        if self.pooled:
            self.console.log("regression: fedpoint and statsmodels")
            self.found["pooled"] = regressions.compared(python=str(self.own))
            self._save()
        return self.found

    def _save(self) -> None:
        """After every step: what was measured is not lost with a run that is stopped."""
        self.found["seconds"] = time.monotonic() - self.begun
        fresh = PLACE / "results.json.new"
        fresh.write_text(json.dumps(self.found, indent=1))
        fresh.replace(PLACE / "results.json")

    def _keep(self, facts: dict[str, Any]) -> None:
        self.found["runs"].append(facts)
        self.found["loads"].append(round(os.getloadavg()[0], 1))
        self._save()
        rate = f"{1 / facts['round']:,.4g} rounds/s" if facts.get("round") else facts["error"] or "one round only"
        self.console.log(f"{facts['job']:12s} {facts['peer']:10s} {rate}")

    def _fedpoint(self, job: jobs.Job, *only: str) -> dict[str, Any]:
        return measure(self.own, "fedpoint", job, LIVE if job.live else OWN, *only)

    def _peer(self, name: str, job: jobs.Job) -> dict[str, Any]:
        if job.live:
            return measure(self.pythons[name], name, job, LIVE, str(PEERS[name].live or job.rounds))
        told = () if PEERS[name].rounds is None else (str(PEERS[name].rounds),)
        return measure(self.pythons[name], name, job, PEERS[name].limit, *told)

    def _main(self, job: jobs.Job, step: Any) -> None:
        """fedpoint and all others; then again, in turn, fedpoint and the fastest framework, if their ratio is a target.

        The machine's speed changes: a median over some minutes sees less of that than one look.
        """
        draws.write(job, PLACE / "jobs" / job.name)
        step(f"{job.name}: fedpoint")
        cold = {} if job.live else {"compiled": self._fedpoint(job, "cold").get("first")}
        self._keep(self._fedpoint(job) | cold)
        for peer in self._doing(job):
            step(f"{job.name}: {peer.title}")
            self._keep(self._peer(peer.name, job))
        if times := self._again(job):
            by = "work" if job in self.real else "round"
            rivals = page.Results(self.found).frameworks(job.name, by)[:1]
            self._in_turn(times, [(name, job) for name in ("fedpoint", *rivals)], step)

    def _doing(self, job: jobs.Job) -> list[Peer]:
        return [peer for peer in self.peers if peer.name in self.pythons and job.name in peer.jobs]

    @staticmethod
    def _again(job: jobs.Job) -> int:
        if job.live:
            return 0
        return AGAIN if job.name in page.TARGETS else AGAIN_SCALED if job.name in real_page.TARGETS else 0

    def _in_turn(self, times: int, pairs: list[tuple[str, jobs.Job]], step: Any) -> None:
        for _ in range(times):
            for name, job in pairs:
                step(f"{job.name}: {name}, again")
                self._keep(self._fedpoint(job) if name == "fedpoint" else self._peer(name, job))

    def _scaled(self, job: jobs.Job, step: Any) -> None:
        """fedpoint, the two fastest frameworks, and for large models the hand-written loop."""
        draws.write(job, PLACE / "jobs" / job.name)
        step(f"{job.name}: fedpoint")
        self._keep(self._fedpoint(job))
        names = page.fastest(self.found["runs"])[:2]
        if job.kind == "network" and "jax" in self.pythons:
            names = [*names, "jax"]
        for name in names:
            step(f"{job.name}: {PEERS[name].title}")
            self._keep(self._peer(name, job))

    def _decide(self, step: Any) -> None:
        """Once more what the targets of scaling are about."""
        few, many, large = jobs.AGENTS[0], jobs.AGENTS[-1], jobs.SIZES[-1]
        if few in self.scaling and many in self.scaling:
            self._in_turn(AGAIN_SCALED, [("fedpoint", few), ("fedpoint", many)], step)
        if large in self.scaling and "jax" in self.pythons:
            self._in_turn(AGAIN_SCALED, [("fedpoint", large), ("jax", large)], step)


def machine() -> str:
    with open("/proc/cpuinfo") as file:
        model = next(
            (line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown processor"
        )
    return f"{os.cpu_count()} cores of {model}, Python {sys.version.split()[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help=f"only these, by commas: {', '.join(PEERS)}")
    parser.add_argument("--jobs", help=f"only these, by commas: real (all of them), {', '.join(jobs.JOBS)}, {POOLED}")
    parser.add_argument("--here", action="store_true", help="fedpoint as this Python has it, not installed afresh")
    parser.add_argument("--json", type=Path, help="the figures, also into this file")
    parser.add_argument("--page", action="store_true", help="write the pages again, from build/peers/results.json")
    options = parser.parse_args()
    if options.page:
        write(json.loads((PLACE / "results.json").read_text()))
        return 0
    real = [job.name for job in jobs.REAL]
    peers = options.peers.split(",") if options.peers else list(PEERS)
    named = options.jobs.split(",") if options.jobs else [*jobs.JOBS, POOLED]
    chosen = [job for name in named for job in ([*real, POOLED] if name == "real" else [name])]
    unknown = [f"no peer {p!r}" for p in peers if p not in PEERS] + [
        f"no job {j!r}" for j in chosen if j not in jobs.JOBS and j != POOLED
    ]
    if unknown:
        parser.error("; ".join(unknown))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    console = Console(stderr=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    measurement = Measurement(peers, chosen, console, Path(sys.executable) if options.here else None)
    measurement.install()
    for name in ("cache", "out"):
        shutil.rmtree(PLACE / name, ignore_errors=True)
    (PLACE / "out").mkdir()
    found = measurement.run()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(page.text(found), real_page.text(found), sep="\n")
    if options.peers:
        console.log("only some were measured: the pages stay as they are")
    else:
        write(found)
    return 0


def add_explanations(found: dict[str, Any]) -> None:
    """Of models that differ, from where they were left."""
    for run in found["runs"]:
        if jobs.JOBS[run["job"]].method == "scaffold" and (run.get("apart") or 0.0) > page.PARITY:
            model = np.load(PLACE / "out" / f"{run['peer']}-{run['job']}" / "model.npy")
            run["explained"] = explain.explain(PLACE / "jobs" / run["job"], model, run["rounds"])


def write(found: dict[str, Any]) -> None:
    """The pages of which all jobs were measured, and their pictures."""
    root, measured = catalogue.ROOT, {run["job"] for run in found["runs"]}
    real = {job.name for job in jobs.REAL}
    if measured >= real:
        (root / "benchmarks" / "REAL.md").write_text(real_page.text(found))
        real_page.picture(found, root / "docs" / "peers-real.png")
    if measured >= set(jobs.JOBS) - real:
        add_explanations(found)
        (root / "benchmarks" / "RESULTS.md").write_text(page.text(found))
        page.picture(found, root / "docs" / "peers.png")


if __name__ == "__main__":
    sys.exit(main())
