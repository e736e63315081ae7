"""A regression over real processes: the fit of all rows together."""

import numpy as np
import pandas as pd
import pytest
from live import QUIET, Live, Running
from studies import SITES

import fedpoint as fp

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]


def test_a_generalised_linear_model(tmp_path):
    rng = np.random.default_rng(2)
    x, site, weight = rng.normal(size=240), np.array(SITES)[np.arange(240) % len(SITES)], rng.integers(1, 4, 240)
    rows = pd.DataFrame({"x": x, "stays": rng.poisson(np.exp(1 + 0.3 * x)), "w": weight})
    files = {}
    for name in SITES:
        files[name] = tmp_path / f"{name}.csv"
        rows[site == name].to_csv(files[name], index=False)
    problem = {"kind": "glm", "formula": "stays ~ x", "family": "poisson", "weights": "w"}
    terms = {"name": "stays", "sites": SITES, "rounds": 8, "measurements": 0, "deadline": 30.0, "problem": problem}
    live = Live(tmp_path / "live", terms, files)
    try:
        live.start()
        going = Running(live, tmp_path / "hub")
        going.start()
        made = going.result()
    finally:
        live.close()
    want = fp.glm("stays ~ x", rows, groups=site, family="poisson", weights="w")
    np.testing.assert_allclose(made.fit.params, want.params, atol=1e-8)
    np.testing.assert_allclose(made.fit.cov_params("sandwich"), want.cov_params("sandwich"), atol=1e-8)
