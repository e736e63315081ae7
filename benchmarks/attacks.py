"""One site of five lies, in every round: what becomes of the model, and is it known who?

Twenty kinds of lies, with a robust mean at the hub and without. Writes benchmarks/ATTACKS.md.
`python benchmarks/attacks.py [seeds]`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.federation import wire
from fedpoint.federation.federate import federate
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.result import StudyResult

SITES = ["a", "b", "c", "d", "e"]
LIAR = "e"
FIRST = 2  # orders before the rounds: columns, ready
ROUNDS = 25
ROBUST = {"kind": "trimmed_mean", "count": 1}

Arrays = dict[str, np.ndarray]
Lie = Callable[[int, Arrays], Arrays]  # of the round and the honest answer


def study(seed: int, **more: Any) -> dict[str, Any]:
    """Least squares on 40 rows a site, drawn by one model of ones: how far fits are from it is the luck of the rows."""
    rows = {"kind": "least_squares", "agents": 5, "rows": 40, "dim": 4, "noise": 1.0, "mean": True, "seed": seed}
    base = {"name": "attacked", "sites": SITES, "server": "localhost:8102", "rounds": ROUNDS, "record_every": ROUNDS}
    method = {"name": "fedavg", "step": 0.3, "local_steps": 2}
    return {**base, "quorum": 3, "measurements": 0, "problem": {**rows, "heterogeneity": 0.0}, "algorithm": method,
            **more}  # fmt: skip


def each(of: Callable[[np.ndarray], np.ndarray]) -> Lie:
    return lambda round, arrays: {name: of(array) for name, array in arrays.items()}


def noise(factor: float) -> Lie:
    """As long as the answer, times a factor, in any direction."""

    def lie(round: int, arrays: Arrays) -> Arrays:
        luck = np.random.default_rng(round)
        drawn = {name: luck.normal(size=array.shape) for name, array in arrays.items()}
        return {name: factor * d * np.linalg.norm(arrays[name]) / np.linalg.norm(d) for name, d in drawn.items()}

    return lie


def stale() -> Lie:
    first: list[Arrays] = []

    def lie(round: int, arrays: Arrays) -> Arrays:
        first.append(arrays)
        return first[0]

    return lie


def late(start: int, then: Lie) -> Lie:
    """Honest at first."""
    return lambda round, arrays: arrays if round < start else then(round, arrays)


def now_and_then(then: Lie) -> Lie:
    return lambda round, arrays: then(round, arrays) if round % 4 == 3 else arrays


def first_number(by: float) -> Lie:
    def of(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.flat[0] = by
        return array

    return each(of)


LIES: dict[str, Callable[[], Lie]] = {
    "sign flipped": lambda: each(lambda a: -a),
    "sign flipped, 3 times as long": lambda: each(lambda a: -3 * a),
    "twice as long": lambda: each(lambda a: 2 * a),
    "10 times as long": lambda: each(lambda a: 10 * a),
    "1,000 times as long": lambda: each(lambda a: 1000 * a),
    "half as long": lambda: each(lambda a: a / 2),
    "zeros": lambda: each(np.zeros_like),
    "noise as long as the answer": lambda: noise(1.0),
    "noise 100 times as long": lambda: noise(100.0),
    "ones everywhere": lambda: each(np.ones_like),
    "a constant push of 0.1": lambda: each(lambda a: a + 0.1),
    "a constant push of 1": lambda: each(lambda a: a + 1.0),
    "one number 50": lambda: first_number(50.0),
    "one number withheld": lambda: first_number(0.0),
    "numbers in another order": lambda: each(lambda a: a[::-1].copy()),
    "its first answer again and again": stale,
    "honest for 10 rounds, then flipped and 5 times as long": lambda: late(10, each(lambda a: -5 * a)),
    "a push of 5 in every fourth round": lambda: now_and_then(each(lambda a: a + 5.0)),
    "not a number": lambda: each(lambda a: np.full_like(a, np.nan)),
    "the largest number there is": lambda: each(lambda a: np.full_like(a, sys.float_info.max)),
}


def lying(lie: Lie) -> list[Fault]:
    """The liar's answers of all rounds."""

    def change(round: int) -> Callable[[bytes], bytes]:
        def of(data: bytes) -> bytes:
            packet = wire.decode(data)
            return wire.encode(packet.header, lie(round, dict(packet.arrays)))

        return of

    return [Fault(LIAR, FIRST + t, change(t)) for t in range(ROUNDS)]


def distance(made: StudyResult) -> float:
    """Of the fit from the model of ones that drew the rows."""
    return float(np.linalg.norm(np.asarray(made.model) - 1.0))


class Honest(NamedTuple):
    """The distances of runs in which nobody lies, by the draw of the rows."""

    distances: list[float]

    @property
    def deviation(self) -> float:
        return float(np.std(self.distances, ddof=1))

    def off(self, distances: list[float]) -> float:
        """By how many standard deviations of honest runs these are farther, in the mean over the same rows."""
        same = self.distances[: len(distances)]
        return (float(np.mean(distances)) - float(np.mean(same))) / self.deviation

    def __str__(self) -> str:
        return f"{np.mean(self.distances):.3f} +- {self.deviation:.3f}"


def honest(seeds: int, **more: Any) -> Honest:
    return Honest([distance(federate(study(seed, **more))) for seed in range(seeds)])


def robust(lie: Callable[[], Lie], seeds: int, gather: dict[str, Any] = ROBUST) -> list[float]:
    return [distance(federate(study(seed, gather=gather), faults=lying(lie()))) for seed in range(seeds)]


class Plain(NamedTuple):
    """What becomes of weighted sums, and how the liar is known."""

    distance: float | None  # None: no model
    named: list[str]  # sites that are accused, by whatever
    how: str


def plain(lie: Callable[[], Lie], seed: int = 0) -> Plain:
    """The hub knows which rows to expect."""
    events: list[dict[str, Any]] = []
    ended, made = "", None
    try:
        made = federate(study(seed, patience=3), faults=lying(lie()), expected=True, tell=events.append)
    except FedpointError as error:
        ended = str(error)
    rounds = [event for event in events if "round" in event]
    found = {
        "refused": {site for event in rounds for site in event["refused"]},
        "marked by its length": {site for event in rounds for site in event["marks"]},
        "alarm": {alarm["site"] for event in rounds for alarm in event.get("alarms", [])},
    }
    how = [name for name, sites in found.items() if sites]
    reasons = sorted({alarm["reason"] for event in rounds for alarm in event.get("alarms", [])})
    words = ", ".join(how) + (f" ({', '.join(reasons)})" if reasons else "") + ("; the study ended" if ended else "")
    return Plain(None if made is None else distance(made), sorted(set().union(*found.values())), words)


def main(seeds: int = 3) -> None:
    begun, load = time.process_time(), os.getloadavg()[1]
    sums, trimmed = honest(4 * seeds), honest(4 * seeds, gather=ROBUST)
    lines = [
        "# One liar among five sites",
        "",
        f"`python benchmarks/attacks.py {seeds}`; load average of the machine before: {load:.1f}.",
        "",
        "Least squares, 40 rows a site, FedAvg, 25 rounds; one site lies in every round. Distances are those of the",
        f"fit from the model that drew the rows. {4 * seeds} honest runs, each on other rows: {sums} by weighted sums,",
        f'{trimmed} by the trimmed mean (`gather = {{kind = "trimmed_mean", count = 1}}`). Standard deviations are',
        f"the latter's, from the honest runs on the same rows ({seeds} draws of them; weighted sums: the first).",
        "",
        "| lie | trimmed mean: distance | in standard deviations | weighted sums: distance | named | how |",
        "|---|---|---|---|---|---|",
    ]
    for name, lie in LIES.items():
        found, seen = robust(lie, seeds), plain(lie)
        far = "none" if seen.distance is None else f"{seen.distance:.3g}"
        named = ", ".join(seen.named) or "nobody"
        lines.append(f"| {name} | {np.mean(found):.3f} | {trimmed.off(found):+.1f} | {far} | {named} | {seen.how} |")
        print(lines[-1], flush=True, file=sys.stderr)
    lines += ["", f"All of this took {time.process_time() - begun:.0f} s of processor time."]
    Path(__file__).with_name("ATTACKS.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
