"""Does a sweep tell its points apart: in a line, in a table, in a picture, and by the best of them?"""

import numpy as np
import pytest

import fedpoint as fp

QUAD = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
STEPS = [0.1, 0.5]


@pytest.fixture(scope="module")
def sweep():
    return fp.sweep(fp.FedAvg(step=0.1), QUAD, over={"step": STEPS, "local_steps": [1, 3]}, rounds=20, repeats=3)


@pytest.fixture(scope="module")
def unsolved():
    problem = fp.problems.Loss(lambda w, x: ((w - x) ** 2).mean() + w**4, np.zeros(()), np.array([1.0, 2.0, 3.0]))
    return fp.sweep(fp.FedAvg(step=0.1), problem, over={"step": [0.01, 0.02]}, rounds=1)


def test_in_a_line(sweep, unsolved):
    assert repr(sweep) == "<Sweep of FedAvg over step and local_steps: 4 points, 20 rounds, 3 repeats>"
    assert repr(unsolved) == "<Sweep of FedAvg over step: 2 points, 1 round, 1 repeat>"
    assert len(sweep) == 4 and sweep.labels[1] == "step=0.1, local_steps=3"


def test_a_row_is_the_run_at_a_point(sweep):
    row = sweep.table()[2]
    alone = fp.run(fp.FedAvg(step=0.5), QUAD, rounds=20, repeats=3)
    assert (row["step"], row["local_steps"]) == (0.5, 1)
    np.testing.assert_allclose([row["error"], row["loss"]], [alone.error[:, -1].mean(), alone.loss[:, -1].mean()])
    assert row["error_se"] == pytest.approx(alone.error[:, -1].std(ddof=1) / np.sqrt(3))


def test_printed_it_is_a_table(sweep, unsolved):
    lines = str(sweep).splitlines()
    assert lines[0].split() == ["step", "local_steps", "final", "error", "final", "loss"] and len(lines) == 2 + 4
    assert "±" in lines[2] and "error" not in str(unsolved)


def test_the_picture_has_a_line_for_each_point(sweep, unsolved, tmp_path):
    ax = sweep.plot(tmp_path / "sweep.png", x="evaluations").axes[0]
    assert (tmp_path / "sweep.png").exists() and [t.get_text() for t in ax.texts[:4]] == sweep.labels
    for i, line in enumerate(ax.lines):
        np.testing.assert_allclose(line.get_ydata(), sweep.error[i].mean(0))
        np.testing.assert_array_equal(line.get_xdata(), sweep.used[i, ..., 2].mean(0))
    assert ax.lines[1].get_xdata()[-1] == 20 * 2 * 3  # rounds, agents, local steps of that point
    assert unsolved.plot().axes[0].get_ylabel() == "loss"
    with pytest.raises(fp.FedpointError, match="have no 'eror': did you mean 'error'"):
        sweep.plot(what="eror")
    with pytest.raises(fp.FedpointError, match="no error"):
        unsolved.plot(what="error")


def test_no_point_is_the_best_where_all_diverged():
    wild = fp.sweep(fp.FedAvg(step=0.1), QUAD, over={"step": [1e8, 1e9]}, rounds=60)
    assert not np.isfinite(wild.error[..., -1]).any()
    with pytest.raises(fp.FedpointError, match=r"every point of the sweep diverged: step=1e\+08; step=1e\+09"):
        wild.best()


def test_parts_that_stay_with_agents_are_swept_as_they_are_run():
    """The first number of two is shared."""
    problem = fp.problems.Loss(
        lambda w, x: ((w["a"] + w["b"] - x) ** 2 + w["b"] ** 2).mean(),
        {"a": np.zeros(()), "b": np.zeros(())},
        np.array([1.0, 2.0, 3.0]),
    )
    options = {"rounds": 3, "share": "a"}
    swept = fp.sweep(fp.FedAvg(step=0.1), problem, over={"step": [0.1, 0.2]}, **options)
    for i, step in enumerate([0.1, 0.2]):
        run = fp.run(fp.FedAvg(step=step), problem, **options)
        for name in ("a", "b"):
            np.testing.assert_allclose(swept.model[name][i], run.model[name][0], rtol=1e-12)
