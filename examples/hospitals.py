"""Hospitals: the risk of dying in a month on dialysis, in 67 centres of 4 to 241 patients.

Should a centre trust its own few patients, one model for all, or its own model held near those of centres like it? And
which centres does one model for all serve badly? Rows are months of patients; patients are held out, not months.

Run it: python examples/hospitals.py [picture.png]      (needs the extra data: pip install 'fedpoint[data]')
"""

import sys

import numpy as np

import fedpoint as fp

SPLITS = 3


def draw(data: fp.data.Dataset, seed: int, share: float, among: np.ndarray | None = None) -> np.ndarray:
    """A mask: the months of so many of each centre's patients (of those `among`), at least one left to each."""
    rng, chosen = np.random.default_rng(seed), []
    allowed = np.ones(len(data), bool) if among is None else among
    for centre in np.unique(data.groups):
        own = np.unique(data.extra["patient"][allowed & (data.groups == centre)])
        chosen.extend(rng.choice(own, min(round(share * len(own)), len(own) - 1), replace=False))
    return np.isin(data.extra["patient"], chosen)


def main(path: str = "hospitals.png") -> None:
    data = fp.data.dialysis()
    names, first = np.unique(data.groups), np.unique(data.extra["patient"], return_index=True)[1]
    patients = np.array([(data.groups[first] == name).sum() for name in names])
    print(data, data.licence, sep="\n")
    print(f"{len(names)} centres of {patients.min()} to {patients.max()} patients; {data.y.sum()} deaths\n")

    def test(seed: int) -> np.ndarray:
        return draw(data, seed, 0.3)

    def validation(seed: int) -> np.ndarray:
        return draw(data, 1000 + seed, 0.3, among=~test(seed))

    options = {"groups": data.groups, "split": test, "validation": validation, "seeds": SPLITS, "weight": "rows"}
    found = fp.baselines(data.X, data.y, **options, ridge="tuned")
    print(found)

    print("\nheld-out log loss over centres, each counted once")
    print(f"{'method':<10}{'mean':>8}{'worst tenth':>13}{'best tenth':>12}{'Jain':>8}")
    for method in found.methods:
        each = found.per_agent(method)
        fair = fp.metrics.fairness(each[np.isfinite(each)])
        print(f"{method:<10}{fair.mean:8.4f}{fair.worst:13.4f}{fair.best:12.4f}{fair.jain:8.3f}")

    gap = found.per_agent("pooled") - found.per_agent("coupled")
    print("\ncentres that gain most from a model of their own, held near those of others")
    print(f"{'centre':<8}{'patients':>9}{'deaths a month':>16}{'pooled':>9}{'coupled':>9}")
    for k in np.argsort(-np.nan_to_num(gap, nan=-np.inf))[:5]:
        rate = 100 * data.y[data.groups == names[k]].mean()
        errors = found.per_agent("pooled")[k], found.per_agent("coupled")[k]
        print(f"{names[k]:<8}{patients[k]:9}{rate:14.1f} %{errors[0]:9.3f}{errors[1]:9.3f}")
    found.plot(path, title="Death in a month on dialysis")
    print(f"picture: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
