"""Patients of dialysis centres: who dies within a year?"""

from __future__ import annotations

import warnings

import numpy as np

from fedpoint.data.dataset import Dataset, encoded, package
from fedpoint.errors import FedpointError

DISEASES = {"congen": "congenital", "diabetes": "diabetes", "renal": "renal", "other": "other disease"}


def dialysis(months: int | None = 12) -> Dataset:
    """Haemodialysis patients of the 67 federally funded centres of Rio de Janeiro State (extra `data`).

    Columns: age, the month in which treatment began (1 to 44) and what the kidneys failed from, as zeros and ones
    against hypertension. Sa Carvalho, Henderson, Shimakura and Sousa (2003), "Survival of hemodialysis patients:
    modeling differences in risk of dialysis centers", International Journal for Quality in Health Care 15; the data set
    Dialysis of the R package RcmdrPlugin.survival.

    Args:
        months: y is 1 for those who died within so many months, 0 for those who were observed for longer. Who left
            earlier alive is left out: nothing is known of him; so is everybody who began within `months` of the end
            of the study, of whom only the deaths would be left. None: all 6,805 patients, y is whether a death was
            seen. In both cases extra has `time`, the months of observation, and `died`.
    """
    if months is not None and (isinstance(months, bool) or not isinstance(months, int) or not 1 <= months <= 43):
        raise FedpointError(f"months must be a whole number from 1 to 43, or None; got {months!r}")
    loader = package("SurvSet.data").SurvLoader()
    with warnings.catch_warnings():  # its pickles were written by NumPy 1
        warnings.simplefilter("ignore")
        found = loader.load_dataset("Dialysis")
    table = found["df"]
    time, died = np.asarray(table["time"], dtype=int), np.asarray(table["event"], dtype=int)
    disease = np.asarray(table["fac_disease"], dtype=str)
    begin = np.asarray(table["num_begin"], dtype=float)
    X, features = encoded(
        {"age": table["num_age"], "month of begin": begin}
        | {name: (disease == key).astype(float) for key, name in DISEASES.items()}
    )
    everybody = months is None
    soon = (died == 1) & (everybody | (time <= (months or 0)))
    rows = Dataset(
        X=X,
        y=soon.astype(int),
        groups=np.asarray(table["fac_center"], dtype=str),
        features=features,
        target="death" if everybody else f"death within {months} months",
        licence="Dialysis: R package RcmdrPlugin.survival, GPL (>= 2), read from the Python package SurvSet, GPL 3; "
        "not in fedpoint",
        source="Sa Carvalho et al. (2003)",
        extra={"time": time, "died": died},
    )
    if months is None:
        return rows
    return rows.rows((soon | (time > months)) & (begin + months <= begin.max()))
