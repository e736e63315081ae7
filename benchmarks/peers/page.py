"""What was measured, as a page and a picture."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import jobs
from catalogue import PEERS

PARITY = 1e-5  # the most by which a model may differ, relative to its largest number: pfl averages in single precision
TARGETS = {"streamed": 450.0, "stored": 4000.0, "softmax": 12.0}  # times as fast as the fastest framework
COLD = 100  # rounds of the softmax job, from a new process


class Results:
    """Figures by peer and job."""

    def __init__(self, found: dict[str, Any]):
        self.found = found
        self.runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for run in found["runs"]:
            self.runs.setdefault((run["peer"], run["job"]), []).append(run)

    def seconds(self, peer: str, job: str) -> float | None:
        """Of a round: the median over its processes."""
        each = [r["round"] for r in self.runs.get((peer, job), []) if r.get("round")]
        return statistics.median(each) if each else None

    def ratio(self, peer: str, job: str) -> float | None:
        return self._beside("round", (peer, job), ("fedpoint", job))

    def _beside(self, what: str, one: tuple[str, str], other: tuple[str, str]) -> float | None:
        """How many times as long one takes as the other. Where both were measured in turn, the median of the ratios of
        neighbours: the machine's speed, which changes within minutes, is in both. Else the ratio of their medians."""
        a, b = ([r[what] for r in self.runs.get(key, []) if r.get(what)] for key in (one, other))
        if not a or not b:
            return None
        if len(a) == len(b):
            return statistics.median(x / y for x, y in zip(a, b, strict=True))
        return statistics.median(a) / statistics.median(b)

    def work_ratio(self, peer: str, job: str) -> float | None:
        """By processor time, of all processes of a peer: it does not see who else uses the machine."""
        return self._beside("work", (peer, job), ("fedpoint", job))

    def median(self, what: str, peer: str, job: str) -> float | None:
        """Of its processes."""
        each = [r[what] for r in self.runs.get((peer, job), []) if r.get(what) is not None]
        return statistics.median(each) if each else None

    def first(self, peer: str, job: str) -> dict[str, Any]:
        return self.runs.get((peer, job), [{}])[0]

    def memory(self, peer: str, job: str) -> int | None:
        each = [r["memory"] for r in self.runs.get((peer, job), []) if r.get("round")]
        return max(each) if each else None

    def cold(self, peer: str) -> float | None:
        """Seconds from a new process to the end of the softmax job's hundredth round: the median over its processes."""

        def one(run: dict[str, Any]) -> float:
            if peer == "fedpoint":  # its first mark is after all of them
                return run["first"]
            return run["last"] if run["rounds"] == COLD else run["first"] + (COLD - 1) * run["round"]

        each = [one(run) for run in self.runs.get((peer, "softmax"), []) if run.get("round")]
        return statistics.median(each) if each else None

    def frameworks(self, job: str, by: str = "round") -> list[str]:
        """Those that were measured at a job, the fastest first; by="work": by processor time."""
        names = [p for p, peer in PEERS.items() if peer.kind == "framework" and self.seconds(p, job)]
        return sorted(names, key=lambda p: self.median(by, p, job) or math.inf)

    def targets(self) -> list[tuple[str, float, str, float, float | None]]:
        """(what, value, sense, target, value by processor time) of all that was measured."""
        rows: list[tuple[str, float, str, float, float | None]] = []
        for job, target in TARGETS.items():
            if self.frameworks(job) and self.seconds("fedpoint", job):
                best = self.frameworks(job)[0]
                what = f"{jobs.JOBS[job].title}: times as fast as {PEERS[best].title}"
                rows.append((what, self.ratio(best, job) or math.nan, ">=", target, self.work_ratio(best, job)))
        colds = {p: c for p in self.frameworks("softmax") if (c := self.cold(p))}
        ours = self.cold("fedpoint")
        if colds and ours:
            best = min(colds, key=lambda p: colds[p])
            what = f"softmax, cold, {COLD} rounds: times as fast as {PEERS[best].title}"
            rows.append((what, colds[best] / ours, ">=", 3.0, None))
        shares = [
            (self.memory("fedpoint", j.name) or math.nan) / least
            for j in jobs.MAIN
            if (least := min((m for p in self.frameworks(j.name) if (m := self.memory(p, j.name))), default=0))
        ]
        if shares:
            rows.append(("memory, over the least of a framework's (worst job)", max(shares), "<=", 1.0, None))
        large = jobs.SIZES[-1].name
        for what, one, other, target in (
            ("time per round, K = 100,000 over K = 100 at L = 10", ("fedpoint", "agents-100000"),
             ("fedpoint", "agents-100"), 1.3),
            ("1,000,000 parameters: time over the hand-written JAX loop's", ("fedpoint", large), ("jax", large), 1.2),
        ):  # fmt: skip
            if (value := self._beside("round", one, other)) is not None:
                rows.append((what, value, "<=", target, self._beside("work", one, other)))
        return rows


def fastest(runs: list[dict[str, Any]]) -> list[str]:
    """Frameworks by their speed over the main jobs (geometric mean), the fastest first."""
    results = Results({"runs": runs})
    logs: dict[str, list[float]] = {}
    for job in jobs.MAIN:
        for peer in results.frameworks(job.name):
            logs.setdefault(peer, []).append(math.log(results.seconds(peer, job.name) or math.inf))
    most = max((len(v) for v in logs.values()), default=0)
    return sorted((p for p in logs if len(logs[p]) >= min(3, most)), key=lambda p: statistics.mean(logs[p]))


def text(found: dict[str, Any]) -> str:
    results = Results(found)
    lines = [
        "# fedpoint beside other frameworks",
        "",
        f"Written by `make bench-peers` in {found.get('seconds', 0) / 60:.0f} minutes, installation apart, on "
        f"{found.get('machine', 'an unknown machine')}. All compute with the same rows, splits, participants and "
        "batches: those that fedpoint draws, written to a file. Streamed samples are drawn by fedpoint as it goes; the "
        "others read theirs from that file, which is less work. Every agent counts alike: a plain mean is right.",
        "",
        "- rounds/s: warm, the median of blocks of rounds. What decides a target is measured three or five times, in "
        "turn (a job on fedpoint and on the fastest framework): the median, and for ratios that of the ratios of "
        "neighbours. "
        "Only ratios within this run mean anything; by processor time they are blind to what else the machine does "
        "(of all processes of a peer).",
        "- start-up: seconds from the start of the process to the end of its first round, imports and compilation too. "
        "fedpoint: to the end of all rounds of the job, compiled programs cached (without a cache in brackets).",
        "- memory: the most seen at once, over all processes of the peer (proportional shares).",
        f"- apart: the largest difference to fedpoint's model after as many rounds, relative; up to {PARITY:g} it is "
        "the same model.",
        "",
    ]
    if found.get("loads"):
        least, most = min(found["loads"]), max(found["loads"])
        busy = ": others were using it, so processor time says more than seconds" if most > 4 else ""
        lines += [f"Load average of the machine meanwhile: {least:g} to {most:g}{busy}.", ""]
    if found.get("note"):
        lines += [found["note"], ""]
    for job in jobs.MAIN:
        if results.runs.get(("fedpoint", job.name)):
            lines += _job(results, job)
    lines += _cold(results)
    for title, group, unit in (
        ("Scaling in agents: microseconds a round, L = 10, d = 10, one step", jobs.AGENTS, 1e6),
        ("Scaling in parameters: milliseconds a round, L = 10, one epoch", jobs.SIZES, 1e3),
        ("Scaling in local steps: microseconds a round, L = 10, d = 10, batch 1", jobs.STEPS, 1e6),
    ):
        lines += _scaling(results, title, group, unit)
    lines += _targets(results)
    lines += _notes(found)
    return "\n".join(lines).rstrip() + "\n"


def number(value: float | None, digits: int = 4) -> str:
    """So many digits, in full up to ten millions."""
    return "" if value is None or math.isnan(value) else format(float(f"{value:.{digits}g}"), ",.7g")


def _job(results: Results, job: jobs.Job) -> list[str]:
    goal = "accuracy" if job.kind != "linear" else "squared error"
    lines = [f"## {job.title[0].upper()}{job.title[1:]}", ""]
    who = "everyone" if job.participants is None else f"{job.participants} participants"
    lines += [f"{job.agents} agents, {who}, {job.rounds} rounds drawn.", ""]
    lines += [
        f"| | rounds/s | fedpoint faster by | by processor time | start-up, s | memory, MB | rounds | {goal} | apart |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    own = results.first("fedpoint", job.name)
    compiled = f" ({own['compiled']:.1f})" if own.get("compiled") else ""
    lines.append(_row(results, "fedpoint", "**fedpoint**", job.name, compiled))
    for kind, label in (("framework", ""), ("primitives", " (primitives)"), ("plain", "")):
        names = [p for p, peer in PEERS.items() if peer.kind == kind and results.runs.get((p, job.name))]
        for name in sorted(names, key=lambda p: results.seconds(p, job.name) or math.inf):
            lines.append(_row(results, name, PEERS[name].title + label, job.name))
    return [*lines, "", *_explained(results, job)]


def _explained(results: Results, job: jobs.Job) -> list[str]:
    """Why a model is another one: a plain NumPy loop with that one thing done otherwise ends at it."""
    lines = []
    for name, peer in PEERS.items():
        why, apart = results.first(name, job.name).get("explained", ("", math.inf))
        if apart <= PARITY:
            lines.append(f"- {peer.title}: {why}. A NumPy loop that does so ends at its model (apart {apart:.0e}).")
        elif why:
            lines.append(f"- {peer.title}: not explained.")
    return [*lines, ""] if lines else []


def _row(results: Results, peer: str, title: str, job: str, more: str = "") -> str:
    run = results.first(peer, job)
    seconds, memory = results.seconds(peer, job), results.memory(peer, job)
    if seconds is None:
        return f"| {title} | {run.get('error') or 'no second round'} | | | | | {run.get('rounds', '')} | | |"
    ratio = "" if peer == "fedpoint" else number(results.ratio(peer, job), 3)
    apart = "" if peer == "fedpoint" else apart_of(run)
    cells = [
        number(1 / seconds),
        ratio,
        "" if peer == "fedpoint" else number(results.work_ratio(peer, job), 3),
        f"{run['first']:.1f}{more}",
        number((memory or 0) / 1e6, 3),
        str(run["rounds"]),
        f"{run['score']:.4g}",
        apart,
    ]
    return f"| {title} | " + " | ".join(cells) + " |"


def apart_of(run: dict[str, Any], most: float = PARITY) -> str:
    if run["apart"] is None:
        return ""
    return f"{run['apart']:.0e}" + ("" if run["apart"] <= most else " **another model**")


def _cold(results: Results) -> list[str]:
    ours = results.cold("fedpoint")
    if ours is None:
        return []
    lines = [
        f"## Softmax on digits from a new process, {COLD} rounds",
        "",
        "Start-up and rounds together (for those that did fewer rounds: start-up, and as many rounds at their speed).",
        "",
        "| | seconds | fedpoint is faster by |",
        "|---|---:|---:|",
        f"| **fedpoint** | {ours:.2f} | |",
    ]
    each = {p: c for p in PEERS if (c := results.cold(p)) is not None}
    order = sorted(each, key=lambda p: each[p])
    lines += [f"| {PEERS[name].title} | {each[name]:.2f} | {each[name] / ours:.2f} |" for name in order]
    return [*lines, ""]


def _scaling(results: Results, title: str, group: tuple[jobs.Job, ...], unit: float) -> list[str]:
    order = ["fedpoint", *PEERS]
    names = [p for p in order if any(results.seconds(p, job.name) for job in group)]
    if "fedpoint" not in names:
        return []
    titles = ["**fedpoint**", *(PEERS[p].title for p in names[1:])]
    lines = [f"## {title}", "", "| | " + " | ".join(titles) + " | apart |", "|---|" + "---:|" * (len(names) + 1)]
    for job in group:
        cells = []
        for name in names:
            seconds, ratio = results.seconds(name, job.name), results.ratio(name, job.name)
            error = results.first(name, job.name).get("error", "")
            times = "" if name == "fedpoint" or ratio is None else f" ({number(ratio, 3)} times)"
            cells.append(error if seconds is None else f"{number(seconds * unit)}{times}")
        aparts = [a for p in names[1:] if (a := results.first(p, job.name).get("apart")) is not None]
        apart = f"{max(aparts):.0e}" if aparts else ""
        lines.append(f"| {job.title} | " + " | ".join(cells) + f" | {apart} |")
    return [*lines, ""]


def _targets(results: Results) -> list[str]:
    rows = results.targets()
    if not rows:
        return []
    lines = ["## Targets", "", "| | value | target | | by processor time |", "|---|---:|---:|---|---:|"]
    for what, value, sense, target, work in rows:
        met = value >= target if sense == ">=" else value <= target
        verdict = "met" if met else "missed"
        lines.append(f"| {what} | {number(value, 3)} | {sense} {number(target)} | {verdict} | {number(work, 3)} |")
    return [*lines, ""]


def _notes(found: dict[str, Any]) -> list[str]:
    lines = ["## Who was measured", ""]
    for name, peer in PEERS.items():
        if name not in found["installed"]:
            continue
        versions = {r["version"] for r in found["runs"] if r["peer"] == name and r.get("version")}
        about = f"- {peer.title} {', '.join(sorted(versions))}".rstrip()
        if peer.packages:
            about += f" (`pip install {' '.join(peer.packages)}`)"
        if found["installed"][name]:
            about += f": does not install: {found['installed'][name]}"
        elif peer.note:
            about += f": {peer.note}"
        lines.append(about + ".")
    return [*lines, "", "A run that failed stands in its table with the error it gave."]


def colour(peer: str) -> str:
    """fedpoint's, that of frameworks, or that of loops written by hand."""
    from fedpoint.show.palette import ON_WHITE, RULE

    kind = "own" if peer == "fedpoint" else PEERS[peer].kind
    return {"own": ON_WHITE[0], "framework": ON_WHITE[1]}.get(kind, RULE)


def title(peer: str) -> str:
    return "fedpoint" if peer == "fedpoint" else PEERS[peer].title


def picture(found: dict[str, Any], file: Path) -> None:
    """How many times as fast as fedpoint's a round is, by job."""
    from fedpoint.show.figures import log_axis, new_figure, save, style

    results = Results(found)
    shown = [j for j in jobs.MAIN if results.seconds("fedpoint", j.name)]
    figure = new_figure(3.4 * len(shown), 3.6)
    for ax, job in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        names = [p for p in PEERS if results.seconds(p, job.name)]
        names = ["fedpoint", *sorted(names, key=lambda p: results.seconds(p, job.name) or math.inf)]
        rates = [1 / (results.seconds(p, job.name) or math.inf) for p in names]
        ax.barh(range(len(names)), rates, color=[colour(p) for p in names])
        style(ax, "rounds a second", title=job.title)
        log_axis(ax, 4)
        ax.set_xlim(0.5 * min(rates), 2 * max(rates))  # the least is a bar too
        ax.set_yticks(range(len(names)), [title(p) for p in names])
        ax.invert_yaxis()
        ax.grid(False, axis="y")
    figure.suptitle("frameworks in orange, hand-written loops and primitives in grey", fontsize=9)
    save(figure, file, dpi=120)
