"""A logistic regression of a million rows at 50 sites: processor time and memory beside statsmodels' pooled GLM.

    python benchmarks/regressions.py [ROWS] [SITES] [COLUMNS]

Each runs in a process of its own; memory is the peak beyond that of the table, in units of the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd


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


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("fedpoint", "statsmodels"):
        print(json.dumps(one(sys.argv[1], *map(int, sys.argv[2:5]))))
        return
    shape = sys.argv[1:4] or ["1000000", "50", "30"]
    found = {}
    for which in ("fedpoint", "statsmodels"):
        done = subprocess.run([sys.executable, __file__, which, *shape], capture_output=True, text=True, check=True)
        found[which] = json.loads(done.stdout.strip().splitlines()[-1])
        own = found[which]
        print(
            f"{which:12} {own['seconds']:8.1f} s of processor time, {own['memory']:5.2f} times the table's memory more"
        )
    ours, theirs = found["fedpoint"], found["statsmodels"]
    for what in ("params", "errors"):
        print(f"largest difference of {what}: {np.abs(np.subtract(ours[what], theirs[what])).max():.1e}")
    print(f"processor time: {ours['seconds'] / theirs['seconds']:.2f} of statsmodels'")


if __name__ == "__main__":
    main()
