"""How good are forecasts? Random settings of methods, problems, channels and networks: forecast beside run.

    python benchmarks/quality.py [--settings 200] [--seed 0] [--write]

Settings are drawn one by one from (seed, number); what was measured is kept below build/quality, so that an interrupted
run goes on. --write writes benchmarks/QUALITY.md and docs/quality.png.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measured_at import measured_at
from rich.progress import track

import fedpoint as fp
from fedpoint.show.drawing import Side, panel
from fedpoint.show.figures import COLOURS, Line, draw_panel, key, new_figure, save
from fedpoint.show.lines import ChartLine, known

ROOT = Path(__file__).resolve().parents[1]
REPEATS, AGENTS, ROWS, D = 400, 6, 20, 3
LONGEST = 1500  # rounds
NETWORKED = ("diffusion", "exact_diffusion", "extra", "gradient_tracking", "push_sum", "fedgd", "fedsgd", "fedrelax")
COUPLED = ("fedgd", "fedsgd", "fedrelax")  # networks as they are; the others mix
SAYS = ("exact", "accurate", "not accurate")
NAMED = ("floor", "bias", "rate", "rounds to target")


# What is drawn. A stable step is about 2 over the largest curvature.


def means(luck: np.random.Generator) -> tuple[fp.problems.Problem, float]:
    noise = float(luck.choice([0.0, 0.1, 0.5]))
    return fp.problems.Quadratic(luck.uniform(0.5, 2.0, size=AGENTS), luck.normal(size=(AGENTS, D)), noise), 1.0


def stream(luck: np.random.Generator) -> tuple[fp.problems.Problem, float]:
    models = 1.0 + luck.uniform(0, 0.5) * luck.normal(size=(AGENTS, D))
    return fp.problems.LinearStream(models, noise=0.1, weights=luck.uniform(0.5, 2, size=AGENTS)), 0.4


def rows(luck: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, groups = luck.normal(size=(AGENTS * ROWS, D)), np.repeat(np.arange(AGENTS), ROWS)
    lean = luck.uniform(0, 0.6) * luck.normal(size=AGENTS)[groups]
    return X, X @ luck.normal(size=D) + lean, groups


def squares(luck: np.random.Generator) -> tuple[fp.problems.Problem, float]:
    X, score, groups = rows(luck)
    y = score + 0.3 * luck.normal(size=len(X))
    return fp.problems.LeastSquares(X, y, groups=groups, mean=True, batch=int(luck.choice([1, 4, ROWS]))), 0.5


def logistic(luck: np.random.Generator) -> tuple[fp.problems.Problem, float]:
    X, score, groups = rows(luck)
    y = np.where(luck.uniform(size=len(X)) < 1 / (1 + np.exp(-score)), 1, -1)
    return fp.problems.Logistic(X, y, groups, ridge=0.1, batch=int(luck.choice([1, 4, ROWS]))), 2.0


def softmax(luck: np.random.Generator) -> tuple[fp.problems.Problem, float]:
    X, score, groups = rows(luck)
    y = np.digitize(score + 0.3 * luck.normal(size=len(X)), [-0.7, 0.7])
    return fp.problems.Logistic(X, y, groups, ridge=0.2, batch=4), 1.5


PROBLEMS = {"means": means, "stream": stream, "least squares": squares, "logistic": logistic, "softmax": softmax}
METHODS: dict[str, Callable[[float, int, np.random.Generator], fp.Algorithm]] = {
    "fedavg": lambda s, E, luck: fp.FedAvg(s, local_steps=E),
    "fedprox": lambda s, E, luck: fp.FedProx(s, local_steps=E, pull=float(luck.uniform(0.1, 1))),
    "fednova": lambda s, E, luck: fp.FedNova(s, tuple(luck.integers(1, 2 * E + 1, AGENTS).tolist())),
    "scaffold": lambda s, E, luck: fp.Scaffold(s, local_steps=E),
    "scaffnew": lambda s, E, luck: fp.Scaffnew(s, probability=1 / E),
    "gradient_exchange": lambda s, E, luck: fp.GradientExchange(s),
    "parameter_exchange": lambda s, E, luck: fp.ParameterExchange(s),
    "general_rule": lambda s, E, luck: fp.GeneralRule(s, local_steps=E, momentum=0.3),
    "qfedavg": lambda s, E, luck: fp.QFedAvg(q=0.5, step=s, local_steps=E),
    "feddyn": lambda s, E, luck: fp.FedDyn(s, local_steps=E, pull=0.5),
    "fedlin": lambda s, E, luck: fp.FedLin(s, local_steps=E),
    "mime": lambda s, E, luck: fp.Mime(s / 4, local_steps=E, momentum=0.5),
    "fednewton": lambda s, E, luck: fp.FedNewton(),
    "fedavgm": lambda s, E, luck: fp.FedAvgM(s, local_steps=E, server_step=0.5, momentum=0.5),
    "extrapolated": lambda s, E, luck: fp.Extrapolated(fp.FedAvg(s, local_steps=E)),
    "diffusion": lambda s, E, luck: fp.Diffusion(s, local_steps=E),
    "exact_diffusion": lambda s, E, luck: fp.ExactDiffusion(s / 2, local_steps=E),
    "extra": lambda s, E, luck: fp.Extra(s / 2),
    "gradient_tracking": lambda s, E, luck: fp.GradientTracking(s / 8, local_steps=E),
    "push_sum": lambda s, E, luck: fp.PushSum(s / 4, local_steps=E),
    "fedgd": lambda s, E, luck: fp.FedGD(s / 4, coupling=0.5),
    "fedsgd": lambda s, E, luck: fp.FedSGD(s / 4, coupling=0.5, local_steps=E),
    "fedrelax": lambda s, E, luck: fp.FedRelax(coupling=0.5),
}
CHANNELS: dict[str, Callable[[], fp.Channel | list[fp.Channel] | None]] = {
    "": lambda: None,
    "rand_k": lambda: fp.channel.RandK(0.5),
    "quantise": lambda: fp.channel.Quantise(4),
    "erase": lambda: fp.channel.Erase(0.2),
    "clip, gaussian": lambda: [fp.channel.Clip(3.0), fp.channel.Gaussian(0.3)],
}


def draw(seed: int, number: int) -> tuple[dict[str, Any], fp.Experiment]:
    """A setting in words, and as an experiment. Methods take turns, so that each is there as often as others."""
    luck = np.random.default_rng((seed, number))
    method = list(METHODS)[number % len(METHODS)]
    kind = str(luck.choice(list(PROBLEMS)))
    problem, stable = PROBLEMS[kind](luck)
    E, part = int(luck.choice([1, 2, 5, 10])), float(luck.choice([0.05, 0.1, 0.25]))
    options: dict[str, Any] = {}
    channel = ""
    if method in NETWORKED:
        network = fp.Network.ring(AGENTS) if luck.uniform() < 0.5 else fp.Network.random(AGENTS, 4, seed=1)
        options["network"] = network if method in COUPLED else network.mixing()
    else:
        if luck.uniform() < 0.5:
            options["participation"] = int(luck.choice([2, 3]))
        if luck.uniform() < 0.4:
            channel = str(luck.choice(list(CHANNELS)[1:]))
            options["channel"] = CHANNELS[channel]()
    said = {"method": method, "problem": kind, "E": E, "step": round(part * stable, 4), "channel": channel}
    said["who"] = "network" if "network" in options else str(options.get("participation", "all"))
    return said, fp.Experiment(METHODS[method](part * stable, E, luck), problem, seed=number, **options)


# What is measured.


def measure(seed: int, number: int) -> dict[str, Any]:
    """One setting; where the library refuses it, with the reason."""
    try:
        said, experiment = draw(seed, number)
    except fp.FedpointError as error:
        name = list(METHODS)[number % len(METHODS)]
        return {"number": number, "method": name, "problem": "", "refused": str(error)}
    facts: dict[str, Any] = {"number": number, **said}
    try:
        return facts | compared(experiment)
    except fp.FedpointError as error:
        return facts | {"refused": str(error)}


def compared(experiment: fp.Experiment) -> dict[str, Any]:
    begun = time.process_time()
    f = fp.forecast(experiment)
    if f.diverges:
        return {"refused": "it diverges, says the forecast"}
    floor, limit, bias = f.floor, f.limit, f.bias
    if floor is None or limit is None:
        return {"refused": "no floor is forecast"}
    start = float(f.curve(0)[0])
    target = math.sqrt(max(floor, 1e-12 * start) * start)  # half of the way, in digits
    reached = float(f.rounds_to(target)) if floor < 0.5 * start else None
    forecast_seconds = time.process_time() - begun
    slowest = max(float(f.rate or 0.0), math.sqrt(f.rate_ms or 0.0), 0.5)
    if slowest > 1 - 5 / LONGEST:
        return {"refused": f"it takes more than {LONGEST} rounds to settle"}
    rounds = int(np.clip(math.log(1e-4) / math.log(slowest), 40, LONGEST))
    begun = time.process_time()
    run = fp.run(experiment.replace(repeats=REPEATS, record_every=1), rounds=rounds)
    run_seconds = time.process_time() - begun
    errors = np.asarray(run.error)[:, -max(1, rounds // 10) :].mean(1)
    found: dict[str, Any] = {"forecast_seconds": forecast_seconds, "run_seconds": run_seconds, "rounds": rounds}
    left = slowest ** (0.9 * rounds) * math.sqrt(start)  # of the way to the limit, which no error of the mean shows
    unsettled = left * (left + 2 * math.sqrt(floor))
    found["floor"] = [floor, float(errors.mean()), standard_error(errors) + unsettled]
    nodes = experiment.problem.agents if experiment.network is not None else 1
    found |= of_models(f, models_of(run), bias, left, nodes)
    if reached is not None and math.isfinite(reached):
        curve = np.asarray(run.error).mean(0)
        below = np.flatnonzero(curve <= target)
        if len(below):
            found["rounds to target"] = [reached, float(below[0]), 0.0]
    known = f.accuracy
    found["says"] = "exact" if known is None else "accurate" if known.good else "not accurate"
    return found


def models_of(run: fp.Run) -> np.ndarray:
    """(repeats, records, numbers), of all nodes on a network."""
    return np.concatenate([np.asarray(a).reshape(*a.shape[:2], -1) for a in jax.tree.leaves(run.history)], axis=2)


def of_models(f: fp.Forecast, models: np.ndarray, bias: float | None, left: float, nodes: int) -> dict[str, Any]:
    """The mean of the runs: how far from w* it settles, and how fast. Squared distances are means over nodes."""
    found: dict[str, Any] = {}
    last = models[:, -max(1, models.shape[1] // 10) :].mean(1)
    doubt = last.var(0, ddof=1) / REPEATS
    if f.optimum is not None and bias is not None:
        away = (last.mean(0) - np.resize(f.optimum, models.shape[2])) ** 2
        measured = math.sqrt(max(0.0, float((away - doubt).sum()) / nodes))
        found["bias"] = [bias, measured, math.sqrt(float(doubt.sum()) / nodes) + left]
    path = f.mean_path(models.shape[1] - 1)
    told = models.shape[2] // path.shape[1]  # a path is of all nodes, or of their mean
    mean = models.mean(0).reshape(len(path), told, -1).mean(1)
    away = np.linalg.norm(mean - mean[-max(1, len(mean) // 10) :].mean(0), axis=1)
    seen = np.flatnonzero(away > max(50 * math.sqrt(doubt.sum() / told), 1e-3 * away[0]))
    if len(seen) and seen[-1] >= 8:  # over the same rounds: other modes than the slowest are still there
        end = int(seen[-1])
        begin = end // 2
        gone = np.linalg.norm(path - path[-1], axis=1)
        rates = [(g[end] / g[begin]) ** (1 / (end - begin)) for g in (gone, away)]
        found["rate"] = [float(rates[0]), float(rates[1]), 0.0]
    return found


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))


# What is written.


def apart(name: str, forecast: float, measured: float, error: float) -> float:
    """How far a forecast is from the run, as a part of it, beyond 3 standard errors. Of rates: of their logarithms."""
    if name == "rate":
        forecast, measured = (-math.log(min(max(r, 1e-9), 1 - 1e-9)) for r in (forecast, measured))
    beyond = max(0.0, abs(forecast - measured) - 3 * error)
    if name == "rounds to target":
        beyond = max(0.0, beyond - 1)  # whole rounds
    return beyond / max(abs(measured), 1e-12) if beyond > 1e-9 else 0.0


def table(found: list[dict[str, Any]]) -> list[str]:
    lines = ["| | settings | within 5 % | within 10 % | worst | |", "|---|---:|---:|---:|---:|---|"]
    for says in SAYS:
        for name in NAMED:
            rows = [(apart(name, *f[name]), f) for f in found if name in f and f["says"] == says]
            if not rows:
                continue
            parts = np.array([r for r, _ in rows])
            worst, of = max(rows, key=lambda r: r[0])
            named = f"{of['method']}, {of['problem']}, E = {of['E']}, {of['who']}"
            cells = [f"{name}, forecast {says}", str(len(rows)), f"{(parts <= 0.05).mean():.0%}"]
            cells += [f"{(parts <= 0.1).mean():.0%}", f"{worst:.0%}", named if worst > 0.05 else ""]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def text(found: list[dict[str, Any]], seed: int) -> str:
    done, refused = [f for f in found if "floor" in f], [f for f in found if "refused" in f]
    ratios = np.array([f["forecast_seconds"] / f["run_seconds"] for f in done])
    lines = ["# How good forecasts are", ""]
    lines += [
        f"Written by `python benchmarks/quality.py --settings {len(found)} --seed {seed} --write` ({measured_at()}).",
        f"{len(found)} settings drawn at random: {len(METHODS)} methods in turn, {len(PROBLEMS)} kinds of problems of "
        f"{AGENTS} agents, channels, participants, networks.",
        f"{len(done)} are forecast and run {REPEATS} times; {len(refused)} are refused. A forecast is compared with",
        "the mean of the runs, beyond 3 of its standard errors and of what they had not settled yet (rounds to a",
        "target: beyond one round; the rate of the mean: over the same rounds). `f.accuracy` says beforehand whether a",
        "forecast is accurate; exact ones are.",
        "",
        *table(done),
        "",
        f"Processor time of a forecast, compilation included, over that of its {REPEATS} runs: median "
        f"{np.median(ratios):.2f}, nine in ten below {np.quantile(ratios, 0.9):.1f}.",
        "",
        "![Forecast and measured](../docs/quality.png)",
        "",
        "## Where it is bad",
        "",
        "| method | problem | E | step | who | channel | forecast | | forecast | measured |",
        "|---|---|---:|---:|---|---|---|---|---:|---:|",
    ]
    bad = [(apart(n, *f[n]), n, f) for f in done for n in NAMED if n in f and apart(n, *f[n]) > 0.05]
    for _, name, f in sorted(bad, key=lambda b: -b[0]):
        cells = [f[key] for key in ("method", "problem", "E", "step", "who", "channel", "says")]
        lines.append(f"| {' | '.join(str(c) for c in cells)} | {name} | {f[name][0]:.4g} | {f[name][1]:.4g} |")
    lines += ["", "## What is refused", "", "| reason | settings | methods |", "|---|---:|---|"]
    reasons: dict[str, list[str]] = {}
    for f in refused:
        reasons.setdefault(f["refused"], []).append(f["method"])
    for reason, methods in sorted(reasons.items(), key=lambda r: -len(r[1])):
        lines.append(f"| {reason} | {len(methods)} | {', '.join(sorted(set(methods)))} |")
    return "\n".join(lines) + "\n"


def picture(found: list[dict[str, Any]], path: Path) -> None:
    figure = new_figure(13, 3.9)
    axes = figure.subplots(1, len(NAMED))
    for ax, name in zip(axes, NAMED, strict=True):
        told = [f for f in found if name in f and min(f[name][:2]) > 1e-7]
        lines: list[ChartLine] = []
        for colour, says in enumerate(SAYS):
            x, y, error = np.array([f[name] for f in told if f["says"] == says]).reshape(-1, 3).T
            low, high = (y + sign * error for sign in (-1, 1))
            dots: ChartLine = {"name": says, "colour": colour, "dots": True, "x": x.tolist(), "y": known(y)}
            lines.append({**dots, "low": known(low), "high": known(high)})
        both = [v for line in lines for v in (*line["x"], *line["y"]) if v is not None]
        ends = [min(both), max(both)]
        lines.append({"name": "equal", "colour": "pale", "width": "thin", "quiet": True, "x": ends, "y": known(ends)})
        log = name != "rate"
        draw_panel(ax, panel(lines, Side("forecast", log), Side(f"mean of {REPEATS} runs", log), name))
    nowhere = np.zeros(0)
    key(
        figure,
        [Line(nowhere, nowhere, says, COLOURS[i], width=4.0) for i, says in enumerate(SAYS)],
        "the forecast says",
    )
    save(figure, path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write benchmarks/QUALITY.md and docs/quality.png")
    options = parser.parse_args()
    place = ROOT / "build" / "quality" / str(options.seed)
    place.mkdir(parents=True, exist_ok=True)
    found = []
    for number in track(range(options.settings), description="settings"):
        file = place / f"{number}.json"
        if not file.exists():
            facts = measure(options.seed, number)
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps(facts))
            fresh.replace(file)
            print(json.dumps(facts), flush=True)
        found.append(json.loads(file.read_text()))
        if number % 20 == 19:
            jax.clear_caches()
    if options.write:
        (ROOT / "benchmarks" / "QUALITY.md").write_text(text(found, options.seed))
        picture(found, ROOT / "docs" / "quality.png")


if __name__ == "__main__":
    main()
