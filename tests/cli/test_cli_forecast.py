"""`fedpoint forecast` and `fedpoint check`: what they print, how they end."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.config import read

ONE = """
    rounds = 200
    repeats = 8
    seed = 2
    participation = 2
    [problem]
    kind = "quadratic"
    agents = 4
    dim = 2
    noise = 0.01
    [algorithm]
    name = "fedavg"
    step = 0.1
    local_steps = 3
"""
QUADRATIC = 'kind = "quadratic"\n    agents = 4\n    dim = 2\n    noise = 0.01\n'
SHUFFLED = 'kind = "least_squares"\n    agents = 4\n    batch = 4\n    sampling = "shuffle"\n'
BOTH = ONE.replace("step = 0.1\n", "step = [0.1, 0.05]\n")
WILD = ONE.replace("step = 0.1\n", "step = 40.0\n")


def strict(text):
    """JSON without NaN and Infinity, which are no JSON."""

    def refuse(constant):
        raise AssertionError(f"{constant} in JSON")

    return json.loads(text, parse_constant=refuse)


def forecast_of(path, number=0):
    experiment = read(path)
    return fp.forecast(experiment[number].experiment)


def test_the_text_is_the_librarys(cli, toml):
    path = toml(ONE)
    result = cli("forecast", path)
    f = forecast_of(path)
    assert f.text() in result.stdout
    assert f"{f.bias:.4g} from w*" in result.stdout and f"{f.floor:.4g}" in result.stdout
    assert "Traceback" not in result.output and not Path("runs").exists()


def test_after_some_rounds_single_runs_are_told_apart_from_their_mean(cli, toml):
    path = toml(ONE)
    f, said = forecast_of(path), cli("forecast", path, "--rounds", "20").stdout
    low, high = f.quantile(0.1, 20), f.quantile(0.9, 20)
    assert f"at 20       expected error {f.curve(20)[-1]:.4g}" in said
    assert f"80 % of single runs between {low:.4g} and {high:.4g}" in said
    after = strict(cli("forecast", path, "--rounds", "20", "--json").stdout)["forecasts"][0]["after"]
    assert [after["quantile_10"], after["quantile_90"]] == pytest.approx([low, high])
    assert after["error"] == pytest.approx(f.curve(20)[-1]) and low < after["error"] < high


def test_what_has_no_quantiles_is_said(cli, toml):
    result = cli("forecast", toml(WILD), "--rounds", "3", status=4)
    assert "expected error" in result.stdout and "no quantiles: it diverges" in result.stdout
    assert "single runs" not in result.stdout


def test_json(cli, toml):
    path = toml(BOTH)
    result = cli("forecast", path, "--json", "--target", "1e-3")
    document = strict(result.stdout)
    assert [d["method"] for d in document["forecasts"]] == [entry.name for entry in read(path)]
    for number, d in enumerate(document["forecasts"]):
        f = forecast_of(path, number)
        assert d["rate"] == pytest.approx(f.rate) and d["floor"] == pytest.approx(f.floor)
        np.testing.assert_allclose(d["limit"][0], f.limit)
        assert d["diverges"] is False and d["bounds"] and d["assumptions"]
        assert isinstance(d["rounds_to_target"], int | str)


def test_targets(cli, toml):
    path = toml(ONE)
    f = forecast_of(path)
    start = f.curve(0)[0]
    far, near = float((f.floor + start) / 2), float(f.floor / 100)
    result = cli("forecast", path, "--target", repr(far))
    assert f"{int(f.rounds_to(far))} rounds" in result.stdout
    result = cli("forecast", path, "--target", repr(near))
    assert "never: the floor" in result.stdout
    assert (
        "never"
        in strict(cli("forecast", path, "--target", repr(near), "--json").stdout)["forecasts"][0]["rounds_to_target"]
    )
    result = cli("forecast", path, "--target", "0", status=2)
    assert "target must be above 0" in result.output and "Traceback" not in result.output


def test_bounds(cli, toml):
    result = cli("forecast", toml(ONE), "--bounds")
    for bound in forecast_of(Path("file.toml")).bounds:
        assert (bound.void or f"{bound.value:.4g}") in result.stdout


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_figures(cli, toml, ending):
    cli("forecast", toml(ONE), "--figure", f"curve.{ending}")
    assert Path(f"curve.{ending}").stat().st_size > 1000
    result = cli("forecast", toml(ONE), "--figure", "curve.xyz", status=2)
    assert "Traceback" not in result.output


def test_a_file_that_diverges(cli, toml):
    path = toml(WILD)
    result = cli("forecast", path, status=4)
    assert "diverges: the mean grows by" in result.stdout
    (d,) = strict(cli("forecast", path, "--json", "--target", "1e-3", status=4).stdout)["forecasts"]
    assert d["diverges"] is True and d["floor"] is None and "never" in d["rounds_to_target"]
    cli("forecast", path, "--figure", "wild.png", status=4)
    assert Path("wild.png").exists()


def test_a_file_whose_run_settles_nowhere_is_undecided(cli, toml):
    """Adam with long steps at the hub goes back and forth: no limit, but it does not diverge."""
    path = toml(ONE.replace('name = "fedavg"', 'name = "fedadam"\n    server_step = 5.0'))
    result = cli("forecast", path, status=3)
    assert "no limit: its steps do not shrink" in result.stdout
    (d,) = strict(cli("forecast", path, "--json", "--target", "1e-3", status=3).stdout)["forecasts"]
    assert d["diverges"] is False and d["limit"] is None and "it has no limit" in d["rounds_to_target"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("step = 0.1", "step = -0.1"), "step"),
        (("fedavg", "fedagv"), "fedavg"),
        (("noise = 0.01", "noise = -1.0"), "noise"),
        (("participation = 2", "participation = 9"), "9 participants"),
        (("[problem]", "[problem"), "file.toml"),
    ],
)
def test_mistakes_in_the_file(cli, toml, change, words):
    result = cli("forecast", toml(ONE.replace(*change)), status=2)
    assert words in result.output and "Traceback" not in result.output
    assert not result.stdout.strip()


def test_a_file_that_is_not_there(cli):
    assert "nothing.toml" in cli("forecast", "nothing.toml", status=2).output


def test_decaying_steps_and_adaptive_servers(cli, toml):
    adam = ONE.replace('name = "fedavg"', 'name = "fedopt"\n    server = "adam"\n    server_step = 0.05')
    result = cli("forecast", toml(adam))
    assert "adaptive" in result.stdout and "rate" in result.stdout
    strict(cli("forecast", toml(adam), "--json").stdout)


# Check.


def test_a_right_run(cli, toml):
    cli("run", toml(ONE), "--no-figure")
    result = cli("check", "runs/file-1")
    assert result.stdout.startswith("As forecast, 6 of 6 comparisons made: ends at FedAvg's fixed point")
    document = strict(cli("check", "runs/file-1", "--json").stdout)
    assert document["verdict"] == "as forecast"
    assert {c["name"] for c in document["checks"]} >= {"path", "step", "noise", "limit", "floor"}
    cli("check", "runs/file-1", "--figure", "both.png")
    assert Path("both.png").exists()


def test_a_false_claim(cli, toml):
    cli("run", toml(ONE.replace("local_steps = 3", "local_steps = 10")), "--no-figure")
    result = cli("check", "runs/file-1", "--claims", "scaffold", status=1)
    assert result.stdout.startswith("Contradicted by ") and "FAILED  limit" in result.stdout
    document = strict(cli("check", "runs/file-1", "--claims", "scaffold", "--json", status=1).stdout)
    assert document["verdict"] == "contradicted" and document["passed"] is False
    result = cli("check", "runs/file-1", "--claims", "scafold", status=2)
    assert "did you mean" in result.output and "Traceback" not in result.output


def test_comparisons_are_checked_run_by_run(cli, toml):
    cli("run", toml(BOTH), "--no-figure")
    result = cli("check", "runs/file-1")
    assert result.stdout.count("As forecast, ") == 2
    assert len(strict(cli("check", "runs/file-1", "--json").stdout)) == 2


def test_nothing_compared_is_status_3(cli, toml):
    """One run of few rounds over rows in a shuffled order: the forecast is of independent samples."""
    cli("run", toml(ONE.replace(QUADRATIC, SHUFFLED).replace("step = 0.1", "step = 0.001")), "--no-figure")
    result = cli("check", "runs/file-1", status=3)
    assert result.stdout.startswith("Undecided, 0 of ") and "as if samples were independent" in result.stdout
    assert strict(cli("check", "runs/file-1", "--json", status=3).stdout)["verdict"] == "undecided"


def test_no_run_to_check(cli, tmp_path):
    result = cli("check", "nowhere", status=2)
    assert "nowhere" in result.output and "Traceback" not in result.output
    (tmp_path / "empty").mkdir()
    assert "Traceback" not in cli("check", "empty", status=2).output
