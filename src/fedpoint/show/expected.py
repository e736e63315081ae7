"""What does a forecast look like before its run? The expected error, the band of single runs, and where it ends.

Plain numbers and lines, made here and nowhere else: files, reports, notebooks and the live page draw them alike. A run
fills the picture in: every single run thin, their mean thick.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted, evenly, finite, rounded
from fedpoint.show.lines import ONE_RUN, ChartLine, Numbers
from fedpoint.show.markup import number

if TYPE_CHECKING:
    from fedpoint.results.forecast import Forecast

TAILS = (0.1, 0.9)  # probabilities between which the band of single runs lies
SINGLE_RUNS = f"{round(100 * (TAILS[1] - TAILS[0]))} % of single runs, forecast"
PLACES = 30  # rounds at which the band is computed; between them it is interpolated
LEAST = 1e-3  # of the floor: a level below it would stretch the axis and say nothing
MEANS = 4  # times as long for a running mean, which falls slowly
SAME = 0.02  # levels that differ by less than this share are one


class Expected(TypedDict, total=False):
    """What a picture of a forecast is made of; without a curve, `no_curve` is why."""

    measures: str  # what goes up the axis
    proviso: str
    diverges: bool
    floor: float | None
    bias2: float | None
    drift2: float | None
    bias: float | None
    drift: float | None
    noise_bias: float | None
    no_curve: str
    at: list[float]
    curve: Numbers
    low: Numbers  # 80 % of single runs lie between these
    high: Numbers


def expected(f: Forecast, rounds: int, most: int) -> Expected:
    """The picture over so many rounds, its curve at no more than `most` of them."""
    try:
        at, curve = _curve(f, rounds, most)
    except FedpointError as error:
        return {**_ends(f), "no_curve": str(error)}
    found: Expected = {**_ends(f), "at": at.tolist(), "curve": rounded(curve)}
    band = _band(f, at)
    if band is not None:
        found["low"], found["high"] = rounded(band[0]), rounded(band[1])
    return found


def settling_rounds(f: Forecast, most: int = 20_000) -> int:
    """Rounds after which the expected error has settled, or a few hundred."""
    rate = f.pace
    if rate is None or not 0 < rate < 1 or f.diverges:
        return 200 + (f.burn_in or 0)
    rounds = int(np.clip(np.ceil(8 / -np.log(max(rate, 1e-3))), 20, most))
    return rounds if f.burn_in is None else f.burn_in + MEANS * rounds


def _ends(f: Forecast) -> Expected:
    what = "squared distance to the solution" if f.optimum is not None else "squared distance to the limit"
    return {
        "measures": what if f.measure == "error" else "loss above its minimum",
        "proviso": f.proviso,
        "diverges": bool(f.diverges),
        "floor": finite(f.floor),
        "bias2": finite(f.bias2),
        "drift2": finite(f.drift2),
        "bias": finite(f.bias),
        "drift": finite(f.drift),
        "noise_bias": finite(f.noise_bias),
    }


def _curve(f: Forecast, rounds: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most so many rounds, and the expected curve at them; one that diverges ends where it has done so."""
    with np.errstate(all="ignore"):
        curve = np.asarray(f.curve(rounds))
        near = np.flatnonzero(curve <= 1e30 * (1 + curve[0]))
    at = evenly(int(near[-1]) + 1, most)
    return at, curve[at]


def _band(f: Forecast, at: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Quantiles of a single run's error at these rounds; None where no law is known, or nothing is random."""
    last = int(at[-1])
    if f.noiseless or f.diverges or last < 1:
        return None
    some = np.unique(np.geomspace(1, last, PLACES).round().astype(int))
    try:
        known = np.array([[f.quantile(p, int(t)) for p in TAILS] for t in some])
    except FedpointError:  # the notes say why
        return None
    across, ways = np.log1p(at), np.log1p(some)
    low, high = (np.exp(np.interp(across, ways, np.log(np.maximum(q, 1e-300)))) for q in known.T)
    start = at == 0  # where every run begins
    begun = np.asarray(f.curve(0))[0]
    return np.where(start, begun, low), np.where(start, begun, high)


# What is drawn of it


def lines(e: Expected) -> list[ChartLine]:
    """The expected curve with its band, and the levels at which it ends."""
    found: list[ChartLine] = []
    if "curve" in e:
        curve: ChartLine = {"name": forecast_name(e), "x": e["at"], "y": e["curve"], "colour": "ink", "dash": "dashed"}
        if "low" in e:
            curve["low"], curve["high"] = e["low"], e["high"]
        found.append(curve)
    return found + levels(e)


def forecast_name(e: Expected) -> str:
    """What a forecast's curve is called: with what it leaves out."""
    return f"forecast, {e['proviso']}" if e["proviso"] else "forecast"


def levels(e: Expected) -> list[ChartLine]:
    """Floor and squared bias; where noise is a part of the bias, also what it would be without: the drift."""
    floor, bias2, drift2 = e.get("floor"), e.get("bias2"), e.get("drift2")
    if e.get("diverges"):
        return []
    noisy = bool(e.get("noise_bias"))
    known = [("floor", floor, 1), ("bias²", bias2, 2), ("drift²", drift2 if noisy else None, 3)]
    seen = [(name, float(v), c) for name, v, c in known if v is not None and v > LEAST * (floor or 0.0)]
    found: list[ChartLine] = []
    for name, value, colour in seen:
        before = found[-1] if found else None
        if before is not None and math.isclose(before["level"], value, rel_tol=SAME):
            before["name"] = f"{before['name'].rpartition(' ')[0]} = {name} {number(value, 2)}"
            continue
        found.append({"name": f"{name} {number(value, 2)}", "level": value, "colour": colour, "dash": "dotted"})
    if noisy and not drift2:
        for line in found:
            line["name"] = line["name"].replace("bias²", "bias² (noise)")
    return found


def run_lines(rounds: np.ndarray, values: np.ndarray, points: int, singles: int) -> list[ChartLine]:
    """The mean over repeats (repeats, n) thick, and the first `singles` of them thin; each at most so many points."""
    some = evenly(len(rounds), points)
    found: list[ChartLine] = [_of_run("run", rounds[some], values[:, some].mean(0), "thick")]
    if len(values) > 1:
        few = evenly(len(rounds), max(points // singles, min(points, 40)))
        found += [_of_run(ONE_RUN, rounds[few], one, "thin") for one in values[:singles, few]]
    return found


def _of_run(name: str, rounds: np.ndarray, values: np.ndarray, width: str) -> ChartLine:
    line: ChartLine = {"name": name, "x": rounds.tolist(), "y": rounded(values), "colour": 0, "width": width}
    return {**line, "quiet": True} if width == "thin" else line


def note(e: Expected, repeats: int = 1, keyed: bool = False) -> str:
    """What the lines do not say of themselves; keyed: a key says what the band and thin lines are."""
    said = [f"grey: {SINGLE_RUNS}"] if "low" in e and not keyed else []
    if repeats > 1:
        said.append(f"run: mean of {counted(repeats, 'repeat')}" + ("" if keyed else ", thin: single ones"))
    if e.get("noise_bias") and e.get("drift"):
        parts = f"drift {number(e['drift'], 2)}, noise {number(e['noise_bias'], 2)}"
        said.append(f"bias {number(e.get('bias'), 2)}: {parts}")
    return "; ".join(said)
