"""A forecast is drawn before its run: curve, band of single runs, floor and bias; alike in files, pages, notebooks."""

import re

import numpy as np
import pytest
import reading
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

import fedpoint as fp
from fedpoint.show import charts, expected, palette, svg
from fedpoint.show.figures import COLOURS, INK
from fedpoint.show.plots import expected_panel


@pytest.fixture(scope="module")
def noisy():
    """Curvatures differ and local steps are several: FedAvg has a bias, and noise around it."""
    problem = fp.problems.Quadratic([0.5, 2.0], [[0.0], [2.0]], noise=0.2)
    method = fp.FedAvg(step=0.1, local_steps=5, normalise=False)
    return fp.forecast(method, problem, start=[3.0]), fp.run(method, problem, rounds=30, repeats=4, start=[3.0])


@pytest.fixture(scope="module")
def drawn(noisy):
    return expected.expected(noisy[0], 30, 400)


def test_the_band_lies_between_quantiles_of_single_runs(noisy, drawn):
    f = noisy[0]
    assert drawn["at"] == list(range(31))
    np.testing.assert_allclose(drawn["curve"], f.curve(30), rtol=1e-4)
    assert drawn["low"][0] == drawn["high"][0] == drawn["curve"][0]  # all runs begin at one place
    for t in (1, 2, 5, 30):  # among the places where it is computed
        assert [drawn["low"][t], drawn["high"][t]] == pytest.approx([f.quantile(p, t) for p in (0.1, 0.9)], rel=1e-4)
    for t in range(1, 31):  # between them, straight in log of error over log of rounds: the curve bends little
        assert [drawn["low"][t], drawn["high"][t]] == pytest.approx([f.quantile(p, t) for p in (0.1, 0.9)], rel=0.02)


def test_a_band_needs_a_law():
    problem = fp.problems.Quadratic([0.5, 2.0], [[0.0], [2.0]], noise=0.2)
    method = fp.FedAvg(step=0.1, local_steps=5)
    still = expected.expected(fp.forecast(method, problem, exact=True), 9, 400)
    sampled = expected.expected(fp.forecast(method, problem, floor="sampled"), 9, 400)
    assert "curve" in still and "low" not in still and "curve" in sampled and "low" not in sampled
    gone = expected.expected(fp.forecast(fp.FedAvg(step=9.0), problem), 400, 400)
    assert "low" not in gone and expected.levels(gone) == [] and gone["curve"][-1] > 1e20


def names(**numbers):
    return [line["name"] for line in expected.levels(numbers)]


def test_levels_tell_drift_from_noise():
    assert names(floor=0.5, bias2=0.25, drift2=0.25, noise_bias=0.0) == ["floor 0.5", "bias² 0.25"]
    assert names(floor=0.5, bias2=0.25, drift2=0.09, noise_bias=0.2) == ["floor 0.5", "bias² 0.25", "drift² 0.09"]
    assert names(floor=0.5, bias2=0.25, drift2=0.0, noise_bias=0.5) == ["floor 0.5", "bias² (noise) 0.25"]
    assert names(floor=0.5, bias2=0.25, drift2=0.249, noise_bias=1e-4) == ["floor 0.5", "bias² = drift² 0.25"]
    assert names(floor=0.25, bias2=0.25, drift2=0.25, noise_bias=0.0) == ["floor = bias² 0.25"]  # nothing is random
    assert names(floor=0.5, bias2=1e-7) == ["floor 0.5"]  # too far below to be drawn
    assert names(floor=None, bias2=0.25) == ["bias² 0.25"] and names(floor=0.0, bias2=0.0) == []
    assert names(floor=0.5, bias2=0.25, diverges=True) == []


def test_the_note_splits_the_bias():
    parts = {"bias": 0.5, "drift": 0.3, "noise_bias": 0.4}
    assert expected.note(parts) == "bias 0.5: drift 0.3, noise 0.4"
    assert expected.note({**parts, "noise_bias": 0.0, "low": []}, 8) == (
        "grey: 80 % of single runs, forecast; run: mean of 8 repeats, thin: single ones"
    )


def test_a_file_shows_what_was_computed(noisy, drawn):
    f, run = noisy
    before, after = f.plot(rounds=30).axes[0], f.plot(run=run)
    reading.check(after)
    (band,) = (c for c in before.collections if isinstance(c, PolyCollection))
    corners = band.get_paths()[0].vertices
    for side, edge in ((drawn["low"], min), (drawn["high"], max)):
        np.testing.assert_allclose([edge(corners[corners[:, 0] == t, 1]) for t in range(31)], side)
    by_colour = {to_hex(line.get_color()): line.get_ydata() for line in before.lines}
    np.testing.assert_allclose(by_colour[INK], drawn["curve"])
    np.testing.assert_allclose(by_colour[COLOURS[1].lower()], [f.floor] * 2)
    np.testing.assert_allclose(by_colour[COLOURS[2].lower()], [f.bias**2] * 2)
    *singles, mean = sorted((line for line in after.axes[0].lines if to_hex(line.get_color()) == COLOURS[0].lower()),
                            key=lambda line: line.get_linewidth())  # fmt: skip
    np.testing.assert_allclose(mean.get_ydata(), run.error.mean(0), rtol=1e-4)
    np.testing.assert_allclose([line.get_ydata() for line in singles], run.error, rtol=1e-4)
    assert mean.get_zorder() >= singles[0].get_zorder() and mean.get_linewidth() > 3 * singles[0].get_linewidth()


def test_a_notebook_and_a_page_draw_the_same_lines(drawn):
    lines = expected.lines(drawn)
    picture = svg.picture(expected_panel(drawn, lines))
    assert picture.count('class="band') == 1 and all(line["name"] in picture for line in lines)
    page = charts.chart("t", "y", [{**line, "xs": [line["x"]]} if "x" in line else line for line in lines])
    heights = [re.search(r'd="(M[^"]*)Z" class="band', text)[1] for text in (picture, page)]
    assert heights[0] == heights[1]  # one band in both


def test_thin_lines_lie_behind_and_have_no_label(noisy):
    own = expected.run_lines(noisy[1].rounds, noisy[1].error, 100, 3)
    assert [line.get("width") for line in own] == ["thick", "thin", "thin", "thin"]  # no more than three of four
    picture = svg.picture(expected_panel({"measures": "error"}, own))
    widths = re.findall(r'stroke-width="([0-9.]+)"[^>]*vector-effect', picture)
    assert (
        widths == [str(palette.WIDTHS[w]) for w in ["thin"] * 3 + ["thick"]]
        and picture.count(">run<") == 1
        and expected.ONE_RUN not in picture
    )


def test_around_an_unknown_solution_the_axis_says_so():
    rows = np.array([1.0, 1.0, 2.0, 2.0])
    problem = fp.problems.Loss(lambda w, x: (w**2 - x) ** 2, np.array(0.5), rows, groups=[0, 0, 1, 1])
    f = fp.forecast(fp.FedAvg(step=0.01), problem, around=np.array(1.2))
    assert f.plot(rounds=5).axes[0].get_ylabel() == "squared distance to the limit"
