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
        each = np.array(list(found.per_agent(method).values()))
        fair = fp.metrics.fairness(each[np.isfinite(each)])
        print(f"{method:<10}{fair.mean:8.4f}{fair.worst:13.4f}{fair.best:12.4f}{fair.jain:8.3f}")

    pooled, coupled = found.per_agent("pooled"), found.per_agent("coupled")
    gain = {name: pooled[name] - coupled[name] for name in pooled if np.isfinite(pooled[name])}
    print("\ncentres that gain most from a model of their own, held near those of others")
    print(f"{'centre':<8}{'patients':>9}{'deaths a month':>16}{'pooled':>9}{'coupled':>9}")
    size = dict(zip(names.astype(str), patients, strict=True))
    for name in sorted(gain, key=gain.__getitem__, reverse=True)[:5]:
        rate = 100 * data.y[data.groups.astype(str) == name].mean()
        print(f"{name:<8}{size[name]:9}{rate:14.1f} %{pooled[name]:9.3f}{coupled[name]:9.3f}")
    found.plot(path, title="Death in a month on dialysis")
    print(f"picture: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
