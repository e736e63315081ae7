"""Do the figures show the numbers, and do they arrive on disk whole?"""

import itertools
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

import fedpoint as fp
from fedpoint.results.labels import labels_of, short
from fedpoint.show import plots
from fedpoint.show.plots import curves

ROUNDS = np.arange(0, 50, 5)


def made_up(algorithm=None, repeats=3, scale=1.0, **changes):
    """A run without running: what `curves` reads of one."""
    decay = scale * np.exp(-0.1 * ROUNDS) * np.arange(1, repeats + 1)[:, None]
    used = np.broadcast_to(np.outer(ROUNDS, [4, 2, 6]), (repeats, len(ROUNDS), 3))
    parts = {
        "algorithm": algorithm or fp.FedAvg(step=0.1),
        "participation": fp.Everyone(),
        "rounds": ROUNDS,
        "error": decay,
        "loss": decay + 1,
        "used": used,
        "has_error": True,
        "has_loss": True,
        "info": SimpleNamespace(message=(10, 3, 8, 6.0)),  # answers of half precision
        "evaluation": {"accuracy": 1 - 0.1 * decay[:, :4], "loss": decay[:, :4] + 7},
        "evaluated_rounds": ROUNDS[:4],
    }
    return SimpleNamespace(**{**parts, **changes})


def texts(figure):
    return [t.get_text() for t in figure.axes[0].texts]


def test_line_is_the_mean_and_band_the_middle_of_the_repeats():
    run = made_up(repeats=11)
    ax = curves([run]).axes[0]
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), ROUNDS)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), run.error.mean(0))
    assert ax.get_yscale() == "log"
    (band,) = (c for c in ax.collections if isinstance(c, PolyCollection))
    corners = band.get_paths()[0].vertices
    at_start = corners[corners[:, 0] == 0, 1]
    # 1, 2, ..., 11 at the start: the 10th and 90th percentile are 2 and 10.
    assert at_start.min() == pytest.approx(2) and at_start.max() == pytest.approx(10)


def test_one_repeat_has_no_band():
    figure = curves([made_up(repeats=1)])
    assert not figure.axes[0].collections and texts(figure) == ["FedAvg"]


@pytest.mark.parametrize(
    "x, factor",
    [
        ("rounds", 1),
        ("messages", 4 + 2),
        ("floats", 4 * 10 + 2 * 3),
        ("bytes", 4 * 10 * 8 + 2 * 6),
        ("evaluations", 6),
    ],
)
def test_across(x, factor):
    figure = curves([made_up()], x=x)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), factor * ROUNDS)
    assert figure.axes[0].get_xlabel() == plots.AXES[x]


def test_held_out_metrics():
    ax = curves([made_up()], what="accuracy", x="evaluations").axes[0]
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), 6 * ROUNDS[:4])
    assert ax.get_yscale() == "linear" and ax.get_ylabel() == "held-out accuracy"
    assert curves([made_up()], what="held-out loss").axes[0].lines[0].get_ydata()[0] == 9
    assert curves([made_up()], what="loss").axes[0].lines[0].get_ydata()[0] == 3


def test_an_error_of_exactly_zero_has_no_place_on_a_log_axis():
    error = np.array([[1.0, 0.1] + [0.0] * 8])
    y = curves([made_up(error=error)]).axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(np.isnan(y), error[0] == 0)
    negative = curves([made_up(loss=error - 0.5)], what="loss")
    assert negative.axes[0].get_yscale() == "linear"


def test_long_runs_are_thinned_to_what_can_be_seen():
    n = 20_000
    run = made_up(rounds=np.arange(n), error=np.linspace(2, 1, n)[None], used=np.zeros((1, n, 3)))
    x = curves([run]).axes[0].lines[0].get_xdata()
    assert len(x) == plots.POINTS and x[0] == 0 and x[-1] == n - 1


def test_lines_are_told_apart_and_labelled_at_their_ends():
    runs = [made_up(fp.FedAvg(step=0.1, local_steps=e, normalise=True), scale=2.0**e) for e in range(1, 13)]
    figure = curves(runs)
    ax = figure.axes[0]
    assert len({(to_hex(line.get_color()), str(line._dash_pattern)) for line in ax.lines}) == 12
    labels = [t for t in ax.texts if t.get_text().startswith("FedAvg")]
    assert [t.get_text() for t in labels] == [f"FedAvg, local_steps={e}" for e in range(1, 13)]
    figure.draw_without_rendering()
    boxes = sorted((t.get_window_extent() for t in labels), key=lambda b: b.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))
    assert max(b.x1 for b in boxes) <= figure.bbox.x1 and boxes[-1].y1 <= figure.bbox.y1


def test_participation_is_named_where_it_differs():
    runs = [made_up(participation=fp.Everyone()), made_up(participation=fp.Uniform(10), scale=9)]
    assert [t for t in texts(curves(runs)) if "FedAvg" in t] == ["FedAvg, Everyone()", "FedAvg, Uniform(10)"]


def test_given_labels_and_title():
    figure = curves([made_up(), made_up(scale=9)], labels=["a", "b"], title="both")
    assert texts(figure)[:2] == ["a", "b"] and figure.axes[0].get_title(loc="left") == "both"
    assert "mean of 3 repeats" in texts(figure)[2]


@pytest.mark.parametrize(
    "ending, magic", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")]
)
def test_formats_by_the_ending(tmp_path, ending, magic):
    path = tmp_path / f"figure.{ending}"
    curves([made_up()], path)
    first = path.read_bytes()
    assert first.startswith(magic)
    curves([made_up()], str(path))
    assert path.read_bytes() == first  # the same figure, the same bytes
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")
    figure = curves([made_up()])

    def fail(file, **_):
        file.write(b"half")
        raise RuntimeError("no more")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(RuntimeError):
        plots.save(figure, path)
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"path": "figure.jpg"}, "figure.jpg: a picture is saved as png, svg or pdf"),
        ({"path": "figure"}, "png, svg or pdf"),
        ({"path": "nowhere/figure.png"}, "the folder nowhere does not exist"),
        ({"what": "eror"}, "did you mean 'error'"),
        ({"what": "acuracy"}, "held-out accuracy"),
        ({"x": "round"}, "did you mean 'rounds'"),
        ({"labels": ["a", "b"]}, "2 labels for 1 run: give one each"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fp.FedpointError, match=message):
        curves([made_up()], **options)


def test_mistakes_of_the_runs():
    with pytest.raises(fp.FedpointError, match="at least one run"):
        curves([])
    flat = fp.problems.LeastSquares([np.array([[1.0, 1.0]])], [np.array([1.0])])
    with pytest.raises(fp.FedpointError, match=r"not unique.*run.loss has the objective"):
        curves([fp.run(fp.FedAvg(0.1), flat, rounds=2)], what="error")
    neither = made_up(has_error=False, has_loss=False)
    with pytest.raises(fp.FedpointError, match="there is no loss; name a held-out metric with what=: accuracy, loss"):
        curves([neither])
    with pytest.raises(fp.FedpointError, match="there is no loss; give"):
        curves([made_up(has_error=False, has_loss=False, evaluation={})])


def test_the_loss_is_drawn_where_the_error_of_a_run_is_not_known():
    known, unknown = made_up(), made_up(scale=2.0, has_error=False)
    for runs in ([unknown], [known, unknown]):
        ax = curves(runs).axes[0]
        assert ax.get_ylabel() == "loss"
        for run, line in zip(runs, ax.lines, strict=True):
            np.testing.assert_allclose(line.get_ydata(), run.loss.mean(0))


def test_a_line_that_diverges_does_not_flatten_the_others():
    steady, gone = made_up(repeats=1), made_up(repeats=1)
    gone.error = np.geomspace(1.0, 1e90, len(ROUNDS))[None]
    gone.error[:, -3:] = np.nan, np.inf, np.nan
    ax = curves([steady, gone], labels=["steady", "gone"]).axes[0]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), steady.error[0])
    assert ax.get_yscale() == "log" and ax.lines[1].get_ydata().max() == 100  # times the start, which is 1
    assert ax.get_ylim()[1] < 1e4 and ax.get_ylim()[0] > 1e-4


def test_a_real_run(tmp_path):
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    run = fp.run(fp.FedAvg(step=0.5, local_steps=5, normalise=True), quad, rounds=20)
    run.plot(str(tmp_path / "run.svg"))
    line = curves([run], x="floats").axes[0].lines[0]
    assert line.get_xdata()[-1] == run.cost.floats_up + run.cost.floats_down
    np.testing.assert_allclose(line.get_ydata(), run.error[0])
    assert curves([run], x="evaluations").axes[0].lines[0].get_xdata()[-1] == run.cost.evaluations


def test_a_run_without_a_known_solution_draws_its_loss(tmp_path):
    problem = fp.problems.Loss(lambda w, x: ((w - x) ** 2).mean() + w**4, np.zeros(()), np.array([1.0, 2.0, 3.0]))
    run = fp.run(fp.FedAvg(step=0.01), problem, rounds=5)
    ax = run.plot(str(tmp_path / "run.png")).axes[0]
    assert ax.get_ylabel() == "loss"
    np.testing.assert_allclose(ax.lines[0].get_ydata(), run.loss[0])


def test_bytes_across_are_those_that_a_run_cost():
    """A lossy channel's answers are shorter than what goes down."""
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    run = fp.run(fp.FedAvg(step=0.5), quad, rounds=3, channel=fp.channel.Cast("float16"))
    assert run.cost.bytes_up < run.cost.bytes_down
    assert run.plot(x="bytes").axes[0].lines[0].get_xdata()[-1] == run.cost.bytes_up + run.cost.bytes_down


def test_matplotlib_is_loaded_when_drawing_and_pyplot_never():
    program = """
import sys, fedpoint
assert "matplotlib" not in sys.modules
import fedpoint.show.plots as plots
assert "matplotlib" not in sys.modules
plots.one_axes()
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_labels_show_what_differs():
    a, b = fp.FedAvg(step=0.1, local_steps=2, normalise=True), fp.FedAvg(step=0.2, local_steps=2, normalise=True)
    assert labels_of([a, b, fp.Scaffold(step=0.1)]) == ["FedAvg, step=0.1", "FedAvg, step=0.2", "SCAFFOLD"]
    assert labels_of([a, a]) == ["FedAvg (1)", "FedAvg (2)"]
    assert labels_of([a]) == ["FedAvg"]


def test_short_values():
    values = [0.1, 3, True, None, "I", np.array([1, 2, 9]), fp.Uniform(3), fp.ByWeight(2), fp.steps.Epochs(2), len]
    expected = "0.1 3 True None I 1..9 Uniform(3) ByWeight(2) Epochs(2) builtin_function_or_method"
    assert " ".join(short(v) for v in values) == expected
