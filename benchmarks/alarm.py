"""How soon is a site found that does something else than it should, and what does watching cost?

Writes benchmarks/ALARM.md and docs/alarm.png. `python benchmarks/alarm.py [seeds]`. Odd sites are those of the tests.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "federation"))

import watched  # noqa: E402
from studies import AVERAGE, CONTROL, FULL, ROWS, content  # noqa: E402
from watched import Forgetful, drawing, rehearsed, scaled, stakes, with_rows_of  # noqa: E402

import fedpoint as fp  # noqa: E402
from fedpoint.federation.hub.expectation import REFERENCE, SIMULATED  # noqa: E402
from fedpoint.federation.transport import Event  # noqa: E402
from fedpoint.show.drawing import Side, panel  # noqa: E402
from fedpoint.show.lines import ChartLine, known  # noqa: E402
from fedpoint.show.plots import drawn  # noqa: E402

ROUNDS = 30
CLASSES = {"kind": "logistic", "agents": 3, "rows": [40, 60], "dim": 4, "batch": 8}
SETTINGS = {
    "FedAvg, least squares, 4 to 9 rows, batches of 2": content(AVERAGE, ROWS, rounds=ROUNDS),
    "SCAFFOLD, logistic, 40 to 60 rows, batches of 8": content(CONTROL, CLASSES, rounds=ROUNDS),
    "the same, 2 of 3 sites a round": content(CONTROL, CLASSES, rounds=ROUNDS, participation=2),
    "SCAFFOLD, least squares, full fields": content(CONTROL, FULL, rounds=ROUNDS),
}
ODD = {
    "half of its answers' length": (scaled(0.5), "scaled"),
    "twice": (scaled(2.0), "scaled"),
    "ten times": (scaled(10.0), "scaled"),
    "sign flipped": (scaled(-1.0), "sign flipped"),
    "rows of another site": (with_rows_of(0), "foreign rows"),
    "memory lost": (Forgetful, "lost control"),
}


def found(study: dict, kind: type, reason: str, seeds: int, own: bool) -> str:
    """How often site b is found, called by the right reason, and after how many of its answers; others accused."""
    answers, right, wrong = [], 0, 0
    for seed in range(seeds):
        _, alarms = rehearsed({**study, "seed": seed}, {1: drawing(1000 + seed, kind) if own else kind})
        wrong += any(site != "b" for site in alarms)
        if "b" in alarms:
            answers.append(alarms["b"]["round"] - alarms["b"]["since"] + 1)
            right += alarms["b"]["reason"] == reason
    if not answers:
        return f"0 of {seeds}"
    text = f"{len(answers)} of {seeds}, {right} named; {np.median(answers):.0f} ({max(answers)}) rounds"
    return text + (f"; {wrong} others accused" if wrong else "")


def power(seeds: int) -> list[str]:
    lines = ["| what site b does | it draws as the study says | it draws for itself |", "|---|---|---|"]
    for setting, study in SETTINGS.items():
        lines.append(f"| **{setting}** | | |")
        for odd, (kind, reason) in ODD.items():
            if kind is Forgetful and study["algorithm"] is AVERAGE:
                continue  # it remembers nothing
            both = [found(study, kind, reason, seeds, own) for own in (False, True)]
            lines.append(f"| {odd} | {both[0]} | {both[1]} |")
            print(lines[-1], flush=True)
    return lines


def seconds(study: dict, expected: bool, kinds: dict) -> list[float]:
    """Of the processor, for rounds that did not compile anything: other work on the machine does not count."""
    ends: list[float] = []

    def note(event: Event) -> None:
        if "round" in event:
            ends.append(time.process_time())

    watched.site_module.Holding = lambda *args: kinds.get(args[1]["index"], watched.Holding)(*args)
    fp.federate(study, expected=expected, tell=note)
    return np.diff(ends[ROUNDS // 2 :]).tolist()


def costs() -> list[str]:
    lines = ["| study | a round | watched, all honest | one site bet against |", "|---|---|---|---|"]
    ways = [(False, {}), (True, {}), (True, {1: drawing(1)})]
    for setting, study in SETTINGS.items():
        rounds = [[seconds(study, *way) for way in ways] for _ in range(3)]  # in turns
        plain, honest, odd = (float(np.median(one)) for one in zip(*rounds, strict=True))
        lines.append(f"| {setting} | {1e3 * plain:.1f} ms | {honest / plain:.2f} | {odd / plain:.1f} |")
        print(lines[-1], flush=True)
    return lines


def picture() -> None:
    """Stakes of the three sites of a study in which b sends twice what it should from round 10 on."""

    class LaterTwice(watched.Scaled):
        def work(self, heard, kept, round):
            self.factor = 2.0 if round >= 10 else 1.0
            return super().work(heard, kept, round)

    traces: dict[str, list[float]] = {"a": [], "b": [], "c": []}

    def note(watch: watched.Watch) -> None:
        for site, stake in stakes(watch).items():
            traces[site].append(stake)

    study = SETTINGS["SCAFFOLD, logistic, 40 to 60 rows, batches of 8"]
    _, alarms = rehearsed({**study, "rounds": 20}, {0: drawing(3), 1: LaterTwice}, note)
    kinds = {"a": "a: honest, draws for itself", "b": "b: twice its answers from round 10 on", "c": "c: honest"}
    lines: list[ChartLine] = []
    for i, (site, label) in enumerate(kinds.items()):
        x = [float(t) for t in range(len(traces[site]))]
        lines.append({"name": label, "colour": i, "x": x, "y": known(traces[site])})
    lines.append({"name": "alarm at 3 / 0.01 = 300", "level": 300.0, "colour": "pale", "dash": "dashed"})
    up = Side("stake of the bet", log=True, low=1e-3, high=1e6)
    note = f"the alarm about b is given after round {alarms['b']['round']}"
    drawn(panel(lines, Side("round", whole=True), up, note=note), ROOT / "docs" / "alarm.png")
    print(alarms["b"]["text"])


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    begun = time.perf_counter()
    picture()
    cost, table = costs(), power(seeds)
    took = f"`python benchmarks/alarm.py {seeds}`, {time.perf_counter() - begun:.0f} s"
    sizes = f"{REFERENCE} answers for mean and spread and {SIMULATED} to rank among are simulated"
    parts = [
        f"# The alarm about a site\n\nWritten by {took}. Three sites, {ROUNDS} rounds, {seeds} seeds; b is odd in "
        f"every round. For each\nanswer of a site that is bet against, {sizes}.",
        "## What is found\n\nHow often b is found and called by the right reason; the median number of rounds (the "
        "largest) from its first answer\nthat could not be reproduced to the alarm, both counted. Nobody else is "
        "accused unless it says so.",
        "\n".join(table),
        "## What watching costs\n\nSeconds of the processor for a round in one process (`fp.federate`: hub, sites, "
        "files), and the same round\nwatched as a multiple of it. A watch does the work of every site that "
        "answers once more.",
        "\n".join(cost),
    ]
    (ROOT / "benchmarks" / "ALARM.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
