"""Is a comparison the runs themselves, told apart?"""

import importlib
import json

import numpy as np
import pytest

import fedpoint as fp

QUAD = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
METHODS = [
    fp.FedAvg(step=0.2, local_steps=5, normalise=True),
    fp.FedAvg(step=0.2, local_steps=1, normalise=True),
    fp.Scaffold(step=0.2, local_steps=5),
]


@pytest.fixture(scope="module")
def comparison():
    return fp.compare(METHODS, QUAD, rounds=30, repeats=4, seed=2)


def test_rows_are_the_runs(comparison):
    rows = comparison.table()
    assert [r["method"] for r in rows] == ["FedAvg, local_steps=5", "FedAvg, local_steps=1", "SCAFFOLD"]
    alone = fp.run(METHODS[0], QUAD, rounds=30, repeats=4, seed=2)
    last = alone.error[:, -1]
    assert rows[0]["error"] == last.mean() and rows[0]["loss"] == alone.loss[:, -1].mean()
    assert rows[0]["error_se"] == pytest.approx(last.std(ddof=1) / 2)
    assert rows[0]["rounds"] == 30 and rows[0]["evaluations"] == 30 * 2 * 5
    assert rows[0]["floats_up"] == 30 * 2 and rows[2]["floats_up"] == 30 * 2 * 2
    assert all(r["speed"] > 0 for r in rows)


def test_text_is_aligned(comparison):
    lines = str(comparison).splitlines()
    assert len(lines) == 5 and len({len(line) for line in lines}) == 1
    assert lines[0].split()[:2] == ["method", "rounds"] and "±" in lines[2]
    assert repr(comparison) == "<Comparison of 3 runs: FedAvg, local_steps=5; FedAvg, local_steps=1; SCAFFOLD>"


def test_a_comparison_is_a_mapping_from_labels(comparison):
    assert comparison["SCAFFOLD"] is comparison[2] is comparison[-1] is comparison.runs[2]
    assert list(comparison) == comparison.keys() == comparison.labels and len(comparison) == 3
    assert dict(comparison) == dict(comparison.items()) and comparison.values() == comparison.runs
    assert "SCAFFOLD" in comparison and "FedProx" not in comparison
    with pytest.raises(fp.FedpointError, match="no run 'Scafold': did you mean 'SCAFFOLD'"):
        comparison["Scafold"]
    for place in (3, -4):
        with pytest.raises(fp.FedpointError, match=f"has 3 runs, from 0 on: there is no run {place}"):
            comparison[place]
    for strange in (1.0, None, True):
        with pytest.raises(fp.FedpointError, match="by its label or its place"):
            comparison[strange]


def test_a_dictionary_gives_the_labels(tmp_path):
    both = fp.compare({"plain": METHODS[0], "corrected": METHODS[2]}, QUAD, rounds=3, repeats=2, folder=tmp_path)
    assert both.labels == ["plain", "corrected"] and both["corrected"].algorithm == METHODS[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-plain", "2-corrected"]
    with pytest.raises(fp.FedpointError, match="leave out labels="):
        fp.compare({"plain": METHODS[0]}, QUAD, labels=["a"])
    with pytest.raises(fp.FedpointError, match="nothing to compare"):
        fp.compare({}, QUAD)


def test_json(comparison):
    read = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert read["problem"] == "Quadratic" and read["agents"] == 2 and read["seed"] == 2 and read["repeats"] == 4
    assert [m["method"] for m in read["methods"]] == comparison.labels


def test_picture(comparison, tmp_path):
    figure = comparison.plot(tmp_path / "all.png", x="evaluations")
    assert (tmp_path / "all.png").exists()
    np.testing.assert_allclose(figure.axes[0].lines[2].get_ydata(), comparison.runs[2].error.mean(0))
    assert comparison.labels == [t.get_text() for t in figure.axes[0].texts[:3]]


def test_without_a_known_solution():
    def loss(w, batch):
        return ((w - batch) ** 2).mean() + w**4

    own = fp.problems.Loss(loss, np.zeros(()), np.array([1.0, 2.0, 3.0, 4.0]), groups=[0, 0, 1, 1])
    both = fp.compare([fp.FedAvg(step=0.01), fp.FedAvg(step=0.02)], own, rounds=3)
    assert both.table()[0]["error"] is None and both.table()[0]["loss_se"] is None
    assert both.plot().axes[0].get_ylabel() == "loss"
    assert "-" in str(both).splitlines()[2].split()


def test_given_labels_and_one_shot_callbacks():
    seen = []
    both = fp.compare(
        iter(METHODS[:2]),
        QUAD,
        labels=["many", "one"],
        rounds=3,
        repeats=4,
        callbacks=iter([lambda p: seen.append(p.round)]),
    )
    assert both.labels == ["many", "one"] and seen.count(3) == 2


def test_experiments_are_compared():
    """They may differ in who takes part, and then the labels say so; they are on one problem."""
    few = fp.Experiment(METHODS[2], QUAD, participation=1, seed=2, repeats=4)
    both = fp.compare([few, few.replace(participation=None)], rounds=5)
    assert both.labels == ["SCAFFOLD, Uniform(1)", "SCAFFOLD, Everyone()"]
    assert np.array_equal(both.runs[0].history, fp.run(few, rounds=5).history)
    with pytest.raises(fp.FedpointError, match="on different problems"):
        fp.compare([few, few.replace(problem=fp.problems.Quadratic(1.0, [[0.0], [1.0]]))])
    with pytest.raises(fp.FedpointError, match="an experiment has its problem"):
        fp.compare([few], QUAD, rounds=5)


def test_each_run_has_its_folder(monkeypatch, tmp_path):
    module, asked = importlib.import_module("fedpoint.verbs.compare"), []
    monkeypatch.setattr(module, "run", lambda *a, folder, **k: asked.append(folder))
    fp.compare(METHODS, QUAD, folder=tmp_path)
    assert asked == [tmp_path / f"{n}" for n in ("1-fedavg-local-steps-5", "2-fedavg-local-steps-1", "3-scaffold")]


def test_divergence_names_the_culprit():
    with pytest.raises(fp.Diverged, match=r"^FedAvg, step=9: FedAvg diverged") as caught:
        fp.compare([fp.FedAvg(step=0.1), fp.FedAvg(step=9.0)], QUAD, rounds=200, repeats=4)
    assert caught.value.round > 0


@pytest.mark.parametrize(
    "algorithms, labels, message",
    [
        ([], None, "nothing to compare"),
        ([3], None, r"algorithms must be a list whose elements are .* or a dictionary whose values are .*; got \[3\]"),
        (["fedavg"], None, "FedAvg needs step"),
        (METHODS, ["a"], "1 label for 3 algorithms"),
        (METHODS[:2], ["a", "a"], "the same"),
    ],
)
def test_mistakes(algorithms, labels, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.compare(algorithms, QUAD, labels=labels)
