"""Which patients die on dialysis, and is it the centre or the disease? 6,805 patients of 67 centres, by `fp.cox`.

    python examples/dialysis.py [FOLDER]     # FOLDER: where the picture goes, default this one

Data: fp.data.dialysis(), with the Python package SurvSet (extra `data`, a download of 47 MB).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import fedpoint as fp

OTHERS = ["congenital", "diabetes", "renal", "other"]  # than hypertension, from which most kidneys failed


def patients() -> pd.DataFrame:
    """One row a patient: age, what the kidneys failed from, months of observation, whether a death was seen."""
    found = fp.data.dialysis(monthly=False)
    table = pd.DataFrame(found.X, columns=found.features).rename(columns={"other disease": "other"})
    disease = np.where(table[OTHERS].any(axis=1), table[OTHERS].idxmax(axis=1), "hypertension")
    return table[["age", *OTHERS]].assign(
        decades=table["age"] / 10, disease=disease, centre=found.groups, months=found.extra["time"], died=found.y
    )


def main(folder: Path) -> None:
    table = patients()
    print("# Who are these patients?\n")
    print(fp.statistics.table_one(table, groups="centre", columns=["age", "disease"], by="died", floor=None).summary())

    print("\n# How long do they live?\n")
    seen = {"time": "months", "event": "died", "groups": "centre"}
    print(fp.statistics.kaplan_meier(table, **seen, by="disease", floor=None).summary())
    print(fp.statistics.logrank(table, **seen, by="disease", floor=None))

    print("\n# At which rates do they die?\n")
    fit = fp.cox("decades + " + " + ".join(OTHERS), table, **seen)
    print("\n".join(fit.summary().splitlines()[:15]))
    print("of the disease:", fit.compare(fp.cox("decades", table, **seen)))
    fit.plot(folder / "dialysis.png", title="Death on dialysis, 6,805 patients, stratified by 67 centres")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
