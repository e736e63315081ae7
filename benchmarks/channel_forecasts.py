"""How good is the forecast over channels that are not linear? Floors beside long runs, with what the forecast says of
itself.

Writes benchmarks/CHANNEL_FORECASTS.md. `python benchmarks/channel_forecasts.py` (about ten
minutes; a name of a problem does a part of it and leaves the other rows as they are).

Messages are taken as normal there (`theory/messages.py`). They are not where a few samples decide (batch 1), nor where
large steps multiply the noise of single samples.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np

import fedpoint as fp

ROUNDS, REPEATS = 200, 400
PAGE = Path(__file__).with_name("CHANNEL_FORECASTS.md")
C, Poisson = fp.channel, fp.participation.Poisson


def quadratic() -> fp.problems.Quadratic:
    rng = np.random.default_rng(0)
    H = np.array([np.diag(rng.uniform(0.5, 2, 4)) for _ in range(6)])
    return fp.problems.Quadratic(H, rng.normal(size=(6, 4)), noise=0.3)


def logistic(batch: int) -> fp.problems.Logistic:
    rng = np.random.default_rng(1)
    X, w = rng.normal(size=(240, 3)), np.repeat(rng.normal(size=(6, 3)), 40, axis=0)
    y = (rng.random(240) < 1 / (1 + np.exp(-(X * w).sum(1)))).astype(float)
    return fp.problems.Logistic(X, y, groups=np.repeat(np.arange(6), 40), batch=batch, ridge=0.1)


PROBLEMS = {"quadratic": quadratic, "logistic, batch 8": lambda: logistic(8), "logistic, batch 1": lambda: logistic(1)}
STEPS = {"quadratic": 0.1, "logistic, batch 8": 0.3, "logistic, batch 1": 0.3}
CASES = {
    "Clip(0.3)": (C.Clip(0.3), 3),
    "Clip(0.1)": (C.Clip(0.1), 3),
    "Clip(0.3), Gaussian(0.3)": ([C.Clip(0.3), C.Gaussian(0.3)], Poisson(0.5)),
    "TopK(0.5), no feedback": (C.TopK(0.5, feedback=False), 3),
    "Sign, no feedback": (C.Sign(feedback=False), 3),
    "Quantise(3)": (C.Quantise(3), 3),
}


def row(name: str, case: str) -> str:
    problem, (channel, who) = PROBLEMS[name](), CASES[case]
    method, began = fp.FedAvg(STEPS[name], 3), time.process_time()
    f = fp.forecast(method, problem, participation=who, channel=channel)
    floor, took = f.floor, time.process_time() - began
    run = fp.run(method, problem, rounds=ROUNDS, repeats=REPEATS, participation=who, channel=channel, seed=1)
    each = run.error[:, ROUNDS // 2 :].mean(1)
    off = f"{floor / each.mean() - 1:+.1%} +- {each.std(ddof=1) / math.sqrt(REPEATS) / each.mean():.1%}"
    says = f"{f.accuracy.floor:+.1%} +- {f.accuracy.error:.1%}" if f.accuracy is not None else "-"
    good = "-" if f.accuracy is None else "yes" if f.accuracy.good else "no"
    plain = "-" if f.without_channel is None else f"{f.without_channel.floor:.4g}"
    return f"| {name} | {case} | {f.noise_by} | {plain} | {floor:.4g} | {off} | {says} | {good} | {took:.0f} |"


HEAD = """# Forecasts over channels that are not linear

`python benchmarks/channel_forecasts.py`. FedAvg, 6 agents, 3 local steps, 3 of 6 agents (or Poisson with q = 0.5).
Floors E|w - w*|^2 forecast before the run, beside the mean of rounds 100 to 200 of 400 runs. "says" is what the
forecast itself says beforehand, from drawn rounds: by how much these put the floor higher. Seconds are processor
time of forecast and floor, programs compiled included.

| problem | channel | how | floor without it | floor | forecast / measured | says | good | seconds |
|---|---|---|---|---|---|---|---|---|
"""


def main(names: list[str]) -> None:
    rows: dict[tuple[str, str], str] = {}
    if PAGE.exists():
        for line in PAGE.read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) > 3 and cells[1] in PROBLEMS:
                rows[cells[1], cells[2]] = line
    for name in names or PROBLEMS:
        for case in CASES:
            rows[name, case] = row(name, case)
            print(rows[name, case], flush=True)
            kept = [rows[n, c] for n in PROBLEMS for c in CASES if (n, c) in rows]
            PAGE.write_text(HEAD + "\n".join(kept) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
