"""A logistic regression of a million rows at 50 sites: processor time and memory beside statsmodels' pooled GLM.

    python benchmarks/regressions.py [ROWS] [SITES] [COLUMNS]

Each runs in a process of its own; memory is the peak beyond that of the table, in units of the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

SHAPE = ("1000000", "50", "30")  # rows, sites, columns


def table_of(rows: int, sites: int, columns: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = {f"x{j}": rng.normal(size=rows) for j in range(columns)}
    eta = sum((0.3 if j % 2 else -0.2) * made[f"x{j}"] for j in range(5)) - 0.5
    made["y"] = (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(float)
    made["site"] = rng.integers(0, sites, rows)
    return pd.DataFrame(made)


def memory(what: str) -> float:
    """VmRSS: what the process holds; VmHWM: the most since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(float(line.split()[1]) for line in lines if line.startswith(what))


def one(which: str, rows: int, sites: int, columns: int) -> dict[str, float | list[float]]:
    formula = "y ~ " + " + ".join(f"x{j}" for j in range(columns))
    small = table_of(2000, sites, columns)  # imports and programs, before anything is measured
    fit_with(which, formula, small)
    table = table_of(rows, sites, columns)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    size, before, start = float(table.memory_usage().sum()), memory("VmRSS"), time.process_time()
    params, errors = fit_with(which, formula, table)
    seconds = time.process_time() - start
    return {
        "seconds": seconds,
        "memory": (memory("VmHWM") - before) / size,
        "table": size,
        "params": params,
        "errors": errors,
    }


def fit_with(which: str, formula: str, table: pd.DataFrame) -> tuple[list[float], list[float]]:
    if which == "fedpoint":
        import fedpoint as fp

        fit = fp.glm(formula, table, groups="site", family="binomial")
        return fit.params.tolist(), fit.bse.tolist()
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    pooled = smf.glm(formula, table, family=sm.families.Binomial()).fit()
    return pooled.params.tolist(), pooled.bse.tolist()


def compared(
    shape: Sequence[str] = SHAPE, python: str = sys.executable, limit: float = 900.0
) -> dict[str, dict[str, float]]:
    """Both, one after the other: seconds of processor time, memory in tables, and how far the fits are apart."""
    found = {}
    for which in ("fedpoint", "statsmodels"):
        command = [python, __file__, which, *shape]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit)
        found[which] = json.loads(done.stdout.strip().splitlines()[-1])
    ours, theirs = found["fedpoint"], found["statsmodels"]
    apart = {what: float(np.abs(np.subtract(ours.pop(what), theirs.pop(what))).max()) for what in ("params", "errors")}
    made = dict(zip(("rows", "sites", "columns"), map(int, shape), strict=True))
    return {**found, "apart": apart, "shape": made}


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("fedpoint", "statsmodels"):
        print(json.dumps(one(sys.argv[1], *map(int, sys.argv[2:5]))))
        return
    found = compared(sys.argv[1:4] or SHAPE)
    for which in ("fedpoint", "statsmodels"):
        seconds, tables = found[which]["seconds"], found[which]["memory"]
        print(f"{which:12} {seconds:8.1f} s of processor time, {tables:5.2f} times the table's memory more")
    for what, difference in found["apart"].items():
        print(f"largest difference of {what}: {difference:.1e}")
    print(f"processor time: {found['fedpoint']['seconds'] / found['statsmodels']['seconds']:.2f} of statsmodels'")


if __name__ == "__main__":
    main()
