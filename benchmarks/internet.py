"""What does a round cost across the internet? The model of docs/scale.md with links, hubs of hubs and shards.

    python benchmarks/internet.py [--check] [--write]

A round asks L of K agents for an answer of d numbers and merges the first n that come. --check holds the model's
seconds against runs of a million agents on a virtual clock, in one process and in four. --write puts both into
docs/scale.md.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from measured_at import measured_at
from scipy import stats

import fedpoint as fp

SCALE = Path(__file__).parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- figures: benchmarks/internet.py -->\n", "<!-- /figures -->\n"
MILLION, ASKED, KEPT, LOST = 1_000_000, 1_000, 800, 0.1


@dataclass(frozen=True)
class Link:
    """latency: seconds one way. up, down: numbers of 4 bytes a second."""

    latency: float
    up: float
    down: float

    @classmethod
    def of(cls, latency: float, up_mbit: float, down_mbit: float) -> Link:
        return cls(latency, up_mbit * 1e6 / 32, down_mbit * 1e6 / 32)

    def there_and_back(self, numbers: float) -> float:
        return 2 * self.latency + numbers / self.down + numbers / self.up


@dataclass(frozen=True)
class Agents:
    """work: mean seconds of an agent's local steps, lognormal with this spread of the logarithm; trace: seconds that
    were seen, in its place. answers: the probability that an answer comes.
    """

    work: float
    spread: float
    link: Link
    answers: float = 1.0
    trace: tuple[float, ...] = ()

    def quantile(self, p: float) -> float:
        if self.trace:
            return float(np.quantile(self.trace, p, method="inverted_cdf"))
        return self.work * math.exp(self.spread * stats.norm.ppf(p) - self.spread**2 / 2)

    def nth(self, n: int, asked: int) -> float:
        """Expected seconds of work of the n-th to answer, given that n answer: of c answers it is a Beta(n, c - n + 1)
        quantile."""
        if not self.spread and not self.trace:
            return self.work
        chances = stats.binom.pmf(np.arange(n, asked + 1), asked, self.answers)
        seen = np.flatnonzero(chances > 1e-6 * chances.max())
        some = seen[np.linspace(0, len(seen) - 1, min(len(seen), 9)).astype(int)]
        each = [self._of(n, n + int(i)) for i in some]
        return float(np.average(np.interp(seen, some, each), weights=chances[seen]))

    def _of(self, n: int, count: int) -> float:
        law = stats.beta(n, count - n + 1)
        low, high = law.ppf(1e-9), law.ppf(1 - 1e-9)
        nodes, weights = np.polynomial.legendre.leggauss(400)
        at = 0.5 * (high - low) * (nodes + 1) + low
        density = weights * law.pdf(at)
        return float(np.dot(density, [self.quantile(p) for p in at]) / density.sum())


@dataclass(frozen=True)
class Hub:
    """shards: machines that hold a part of the model each. adds: numbers a second that one of them adds."""

    link: Link
    shards: int = 1
    adds: float = 5e8

    def busy(self, numbers: float, sent: int, heard: int) -> float:
        moved = sent * numbers / self.link.down + heard * numbers / self.link.up
        return (moved + heard * numbers / self.adds) / self.shards


@dataclass(frozen=True)
class Round:
    """One round: K agents, of which so many are asked, and the first so many answers kept.

    regions: hubs below the hub, which share the agents and go through `inner` rounds for one of the hub.
    """

    numbers: float
    agents: Agents
    hub: Hub
    asked: int
    kept: int
    regions: int = 1
    inner: int = 1
    region: Hub | None = None

    def seconds(self) -> dict[str, float]:
        """Waiting for agents, the hubs of regions, the hub, and all of it; bytes at the hub, at an agent, in total."""
        d, below = self.numbers, self.region if self.region is not None else self.hub
        asked, kept = self.asked // self.regions, self.kept // self.regions
        away = self.agents.nth(kept, asked) + self.agents.link.there_and_back(d)
        inside = self.inner * (away + below.busy(d, asked, kept))
        above = 0.0
        at_hub = 4 * d * (self.asked + self.kept)
        total = self.inner * at_hub
        if self.region is not None:
            above = below.link.there_and_back(d) + self.hub.busy(d, self.regions, self.regions)
            at_hub = 8 * d * self.regions
            total += at_hub
        return {
            "agents": self.inner * away,
            "regions": inside - self.inner * away,
            "hub": above,
            "round": inside + above,
            "bytes at the hub": at_hub,
            "bytes at an agent": 8 * d * self.inner,
            "bytes": total,
        }


HOME, OFFICE, CENTRE = Link.of(0.04, 20, 100), Link.of(0.01, 1_000, 1_000), Link.of(0.001, 25_000, 25_000)
PHONES = Agents(work=20.0, spread=0.8, link=HOME, answers=0.9)
SMALL = Round(1e6, PHONES, Hub(CENTRE), asked=1_000, kept=800)
SETTINGS = {
    "a model of 10^6, 1,000 of 10^7 phones, the first 800": SMALL,
    "the same, the first 900": replace(SMALL, kept=900),
    "10,000 of them, the first 8,000": replace(SMALL, asked=10_000, kept=8_000),
    "the same, 20 regions, 5 rounds inside": replace(
        SMALL, asked=10_000, kept=8_000, regions=20, inner=5, region=Hub(OFFICE)
    ),
    "10^9 numbers, 100 hospitals of 1 Gbit/s, one hub": Round(
        1e9, Agents(600.0, 0.3, OFFICE), Hub(CENTRE), asked=100, kept=100
    ),
    "the same in 16 shards": Round(1e9, Agents(600.0, 0.3, OFFICE), Hub(CENTRE, 16), asked=100, kept=100),
    "the same, 10 regions, 5 rounds inside": Round(
        1e9,
        Agents(600.0, 0.3, OFFICE),
        Hub(CENTRE, 16),
        asked=100,
        kept=100,
        regions=10,
        inner=5,
        region=Hub(CENTRE, 4),
    ),
}


def table() -> list[str]:
    heads = ["agents, s", "regions, s", "hub, s", "a round, s", "at the hub", "at an agent", "in all"]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name, setting in SETTINGS.items():
        found = setting.seconds()
        cells = [f"{found[n]:,.3g}" for n in ("agents", "regions", "hub", "round")]
        cells += [size(found[n]) for n in ("bytes at the hub", "bytes at an agent", "bytes")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def size(count: float) -> str:
    power = min(int(math.log10(max(count, 1)) // 3), 4)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


# Beside runs.


def check(processes: int | None, rounds: int = 60) -> tuple[float, float, float, float]:
    """Virtual seconds of a round: model and run with its standard error; and real seconds of a round of the run."""
    agents = Agents(work=1.0, spread=0.5, link=Link(0.0, math.inf, math.inf), answers=1 - LOST)
    clock = fp.Clock(work=1.0, law="lognormal", spread=0.5, travel=0.05)
    waits = fp.Waiting(clock, count=ASKED, keep=KEPT, dropout=LOST, deadline=60.0)
    lab = fp.problems.LinearStream.sample(agents=MILLION, dim=10, seed=0)
    method = fp.FedAvg(step=0.02, local_steps=5)
    begun = time.perf_counter()
    run = fp.run(method, lab, rounds=rounds, schedule=waits, processes=processes)
    each = np.diff(np.asarray(run.time)[0])
    expected = agents.nth(KEPT, ASKED) + 2 * 0.05
    return expected, float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each))), time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="hold the model against runs of a million agents")
    parser.add_argument("--write", action="store_true", help="put what was found into docs/scale.md")
    options = parser.parse_args()
    lines = [f"Written by `python benchmarks/internet.py --check --write` ({measured_at()}).", "", *table(), ""]
    if options.check:
        for processes in (None, 4):
            model, run, error, real = check(processes)
            where = "one process" if processes is None else f"{processes} processes"
            lines.append(
                f"A million agents, {ASKED:,} asked, the first {KEPT} kept, {LOST:.0%} lost, in {where}: a round takes "
                f"{run:.4f} ± {error:.4f} virtual seconds, {model:.4f} by the model (60 rounds in {real:.0f} s, "
                "compilation and data included)."
            )
            lines.append("")
    print("\n".join(lines))
    if options.write:
        before, rest = SCALE.read_text().split(BEGIN)
        SCALE.write_text(before + BEGIN + "\n" + "\n".join(lines).rstrip() + "\n" + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    main()
