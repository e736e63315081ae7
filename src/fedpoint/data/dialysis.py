"""Patients of dialysis centres: who dies, month by month?"""

from __future__ import annotations

import warnings

import numpy as np

from fedpoint.core.arguments import checked
from fedpoint.data.dataset import Dataset, encoded, package

DISEASES = {"congen": "congenital", "diabetes": "diabetes", "renal": "renal", "other": "other disease"}


@checked
def dialysis(monthly: bool = True) -> Dataset:
    """6,805 haemodialysis patients of the 67 federally funded centres of Rio de Janeiro State (extra `data`).

    Columns: age, the month of the study in which treatment began (1 to 44) and what the kidneys failed from, as zeros
    and ones against hypertension. Sa Carvalho, Henderson, Shimakura and Sousa (2003), "Survival of hemodialysis
    patients: modeling differences in risk of dialysis centers", International Journal for Quality in Health Care 15;
    the data set Dialysis of the R package RcmdrPlugin.survival.

    Args:
        monthly: one row for every month that a patient was observed, 96,345 in all, with the log of the months on
            dialysis as one more column; y is 1 in the month of death. A logistic regression of these rows is
            survival analysis in discrete time, and patients who leave alive cost nothing but their later months. To
            leave them out instead would not do: some centres pass nearly all their patients on within three months, and
            would keep those who died. False: one row a patient, y is whether a death was seen.
            extra has `patient` (a number: hold out patients, not months), and `time`, the months of observation.
    """
    loader = package("SurvSet.data").SurvLoader()
    with warnings.catch_warnings():  # its pickles were written by NumPy 1
        warnings.simplefilter("ignore")
        table = loader.load_dataset("Dialysis")["df"]
    time, died = np.asarray(table["time"], dtype=int), np.asarray(table["event"], dtype=int)
    disease = np.asarray(table["fac_disease"], dtype=str)
    columns = {"age": np.asarray(table["num_age"], float), "month of begin": np.asarray(table["num_begin"], float)}
    columns |= {name: (disease == key).astype(float) for key, name in DISEASES.items()}
    patient = np.repeat(np.arange(len(time)), time if monthly else 1)
    if monthly:
        month = 1 + np.arange(len(patient)) - np.repeat(np.cumsum(time) - time, time)
        columns = {name: column[patient] for name, column in columns.items()} | {"log months": np.log(month)}
        died = died[patient] * (month == time[patient])
    X, features = encoded(columns)
    return Dataset(
        X=X,
        y=died,
        groups=np.asarray(table["fac_center"], dtype=str)[patient],
        features=features,
        target="death in a month" if monthly else "death",
        licence="Dialysis: R package RcmdrPlugin.survival, GPL (>= 2), read from the Python package SurvSet, GPL 3; "
        "not in fedpoint",
        source="Sa Carvalho et al. (2003)",
        extra={"patient": patient, "time": time[patient]},
    )
