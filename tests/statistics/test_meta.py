"""Meta-analyses are those of statsmodels and of the literature."""

import numpy as np
import pytest
from statsmodels.stats.meta_analysis import combine_effects

import fedpoint as fp
from fedpoint.statistics import meta, meta_analysis

# BCG vaccine against tuberculosis, 13 trials: log relative risks and sampling variances of R's metafor, dat.bcg.
TRIALS = [  # positive and negative with the vaccine, without it
    (4, 119, 11, 128), (6, 300, 29, 274), (3, 228, 11, 209), (62, 13536, 248, 12619), (33, 5036, 47, 5761),
    (180, 1361, 372, 1079), (8, 2537, 10, 619), (505, 87886, 499, 87892), (29, 7470, 45, 7232), (17, 1699, 65, 1600),
    (186, 50448, 141, 27197), (5, 2493, 3, 2338), (27, 16886, 29, 17825),
]  # fmt: skip


@pytest.fixture(scope="module")
def bcg():
    a, b, c, d = np.array(TRIALS, float).T
    return np.log(a / (a + b)) - np.log(c / (c + d)), np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))


def test_published_values_of_the_bcg_trials(bcg):
    """metafor: REML -0.7145 (0.1798), tau^2 0.3132; DL -0.7141 (0.1787), tau^2 0.3088, Q(12) 152.2330, I^2 92.12 %;
    a fixed effect -0.4303 (0.0405)."""
    reml, dl = meta_analysis(*bcg), meta_analysis(*bcg, method="dl")
    assert reml.tau2 == pytest.approx(0.3132, abs=5e-5) and dl.tau2 == pytest.approx(0.3088, abs=5e-5)
    assert reml.random.values[0] == pytest.approx(-0.7145, abs=5e-5)
    assert reml.random.bse.iloc[0] == pytest.approx(0.1798, abs=5e-5)
    assert dl.random.values[0] == pytest.approx(-0.7141, abs=5e-5)
    assert dl.random.bse.iloc[0] == pytest.approx(0.1787, abs=5e-5)
    assert dl.fixed.values[0] == pytest.approx(-0.4303, abs=5e-5)
    assert dl.fixed.bse.iloc[0] == pytest.approx(0.0405, abs=5e-5)
    assert dl.heterogeneity.statistic == pytest.approx(152.2330, abs=5e-5) and dl.heterogeneity.df == 12
    assert dl.i2 == pytest.approx(0.9212, abs=5e-5)


def test_fixed_and_random_effects_are_those_of_statsmodels(bcg):
    y, se = bcg
    found = meta_analysis(y, se, method="dl")
    want = combine_effects(y, se**2, method_re="dl")
    assert found.tau2 == pytest.approx(want.tau2, rel=1e-12)
    assert found.fixed.values[0] == pytest.approx(want.mean_effect_fe, rel=1e-12)
    assert found.random.values[0] == pytest.approx(want.mean_effect_re, rel=1e-12)
    assert found.random.bse.iloc[0] == pytest.approx(want.sd_eff_w_re, rel=1e-12)
    assert found.heterogeneity.statistic == pytest.approx(want.q, rel=1e-12)
    assert found.i2 == pytest.approx(want.i2, rel=1e-12)
    np.testing.assert_allclose(found.estimates.weight, want.weights_re / want.weights_re.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.random.conf_int().to_numpy()[0], want.conf_int()[1], rtol=1e-8)


def reml_is_stationary(y, se, tau2):
    def minus(t):
        u = 1 / (se**2 + t)
        return np.log(se**2 + t).sum() + np.log(u.sum()) + u @ (y - u @ y / u.sum()) ** 2

    grid = tau2 + np.linspace(-0.5, 0.5, 201) * max(tau2, 0.01)
    return min(minus(t) for t in grid[grid >= 0]) >= minus(tau2) - 1e-12


def test_reml_maximises_the_restricted_likelihood(bcg):
    rng = np.random.default_rng(4)
    cases = [bcg] + [(s * rng.normal(size=6), rng.uniform(0.1, 0.5, 6)) for s in (0.0, 0.3, 2.0)]
    for y, se in cases:
        assert reml_is_stationary(y, se, meta_analysis(y, se).tau2)
    assert not reml_is_stationary(*bcg, meta_analysis(*bcg, method="dl").tau2), "the check would notice another one"


def test_the_interval_of_i2_is_higgins_and_thompsons(bcg):
    """By the standard error of log H, whose formula is written out here."""
    low, high = meta_analysis(*bcg).i2_interval()
    q, k = 152.2330, 13
    error = 0.5 * np.log(q / (k - 1)) / (np.sqrt(2 * q) - np.sqrt(2 * k - 3))
    h = np.sqrt(q / (k - 1)) * np.exp(np.array([-1, 1]) * 1.959964 * error)
    np.testing.assert_allclose([low, high], 1 - 1 / h**2, atol=1e-6)
    assert 0.87 < low < 0.9 < high < 0.96
    alike = meta_analysis([0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.1])
    assert alike.i2 == 0 == alike.i2_interval()[0] and alike.i2_interval()[1] > 0.5 and alike.tau2 == 0


def test_prediction_intervals_cover():
    """400 meta-analyses of 40 sites with tau = 0.5: the prediction interval holds a new effect in 95 %, +- 1.1."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        se = rng.uniform(0.1, 0.4, 40)
        y = 1 + 0.5 * rng.normal(size=40) + se * rng.normal(size=40)
        low, high = meta_analysis(y, se, method="dl").prediction_interval()
        inside += low < 1 + 0.5 * rng.normal() < high
    assert abs(inside / 400 - 0.95) < 3 * 0.011


def test_mistakes_and_a_picture(bcg, tmp_path):
    for arguments, said in (
        (([1.0], [1.0]), "at least 2 sites"),
        (([1.0, 2.0], [1.0, 0.0]), "finite and above 0"),
        (([1.0, 2.0], [1.0]), "2 estimates, but 1 standard error"),
        (({"a": 1.0, "b": 2.0}, [1.0, 1.0]), "of the same sites"),
        (({"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 1.0}), "of the same sites"),
    ):
        with pytest.raises(fp.FedpointError, match=said):
            meta_analysis(*arguments)
    found = meta_analysis(*bcg, name="vaccine")
    found.plot(tmp_path / "forest.svg", ratios=True)
    assert "vaccine" in (tmp_path / "forest.svg").read_text() or (tmp_path / "forest.svg").stat().st_size > 5000
    assert "I^2 = 92" in found.summary() and found.to_dict()["sites"]["1"]["estimate"] == bcg[0][0]
    assert meta.METHODS["dl"] in meta_analysis(*bcg, method="dl").summary()
