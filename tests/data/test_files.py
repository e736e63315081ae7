"""`fedpoint run` on files: a table named in a TOML file, from the first round to predictions."""

import json
import textwrap
from pathlib import Path

import click.testing
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.config import Mistakes, parse, read

FILE = """\
rounds = 100
[problem]
kind = "table"
file = "loans.csv"
target = "default"
agent = "bank"
held_out = 0.25
ridge = 0.1
[algorithm]
name = "fedavg"
step = 0.5
local_steps = 2
normalise = true
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """loans.csv and loans.toml in a folder `data`, seen from above."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    lines = ["bank,income,home,one,default"]
    for i in range(60):
        income = 5 + rng.standard_normal()
        default = "yes" if rng.random() < 1 / (1 + np.exp(income - 5)) else "no"
        lines.append(f"{'abc'[i % 3]},{income:.4f},{'rent' if rng.random() < 0.4 else 'own'},1,{default}")
    Path("data").mkdir()
    Path("data/loans.csv").write_text("\n".join(lines) + "\n")
    Path("data/loans.toml").write_text(FILE)


def cli(*arguments, status=0):
    result = click.testing.CliRunner().invoke(main, [str(a) for a in arguments], prog_name="fedpoint")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


def edited(old, new, path="data/loans.csv"):
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def test_run_resume_forecast_check_predict():
    result = cli("run", "data/loans.toml", "--folder", "r", "--json", "--no-figure", "-q")
    assert result.stderr == "Note: constant, and left out: one.\n"
    done = json.loads(result.stdout)["runs"][0]
    assert {"error", "loss", "accuracy", "log_loss"} <= set(done)
    # What Python makes of the same file.
    table = fp.data.read_table("data/loans.csv", "default", "bank", held_out=0.25)
    problem = table.problem(ridge=0.1)
    run = fp.run(
        fp.FedAvg(step=0.5, local_steps=2, normalise=True), problem, rounds=100, evaluate=table.evaluation(problem)
    )
    assert done["log_loss"]["mean"] == pytest.approx(run.evaluation["log_loss"][0, -1], rel=1e-12)

    cli("resume", "r", "--rounds", 200, "--no-figure", "-q")
    again = fp.load("r")
    assert again.rounds[-1] == 200
    np.testing.assert_array_equal(again.history[:, :101], run.history)
    assert "FedAvg on Logistic: 3 agents, 3 parameters" in cli("forecast", "data/loans.toml").stdout
    cli("check", "r")

    # The model finds its columns by name, in any order, encodes and scales them as it learnt.
    rows = [line.split(",") for line in Path("data/loans.csv").read_text().splitlines()]
    Path("new.csv").write_text("\n".join(",".join([row[4], row[2], row[1]]) for row in rows) + "\n")
    found = json.loads(cli("predict", "r", "new.csv", "--target", "default", "--json").stdout)
    whole = fp.data.read_table("data/loans.csv", "default", "bank", scale=False)
    mean, scale = table.recipe[0].mean, table.recipe[0].scale
    X = np.column_stack([(whole.X[:, 0] - mean) / scale, whole.X[:, 1]])
    assert found["accuracy"] == pytest.approx(problem.evaluate(again.model[0], X, whole.y)["accuracy"])
    edited("rent", "castle", "new.csv")
    assert "1 cell of unknown categories" in cli("predict", "r", "new.csv").stderr
    edited("income", "incom", "new.csv")
    assert "new.csv has no column 'income': did you mean 'incom'?" in cli("predict", "r", "new.csv", status=2).stderr


def test_other_data_are_refused():
    cli("run", "data/loans.toml", "--folder", "r", "--no-figure", "-q")
    edited("own", "rent")
    for command in (("resume", "r", "--rounds", 200), ("check", "r")):
        result = cli(*command, status=2)
        assert "data/loans.csv: the data have changed since the run was begun" in result.stderr
    edited("rent", "own")
    cli("resume", "r", "--rounds", 120, "--no-figure", "-q")
    Path("data/loans.csv").unlink()
    assert "there is no file data/loans.csv" in cli("resume", "r", "--rounds", 200, status=2).stderr


def test_what_is_wrong_with_the_data_stands_at_the_keys():
    edited('agent = "bank"', 'agent = "bnk"', "data/loans.toml")
    edited('target = "default"', 'target = "defaults"', "data/loans.toml")
    edited("local_steps", "lokal_steps", "data/loans.toml")
    result = cli("run", "data/loans.toml", status=2)
    assert result.stdout == ""
    assert [line.split("Known")[0].strip() for line in result.stderr.splitlines()] == [
        "Error: data/loans.toml: 3 mistakes",
        "line 5: problem.target = \"defaults\": data/loans.csv has no column 'defaults': did you mean 'default'?",
        "line 6: problem.agent = \"bnk\": data/loans.csv has no column 'bnk': did you mean 'bank'?",
        "line 12: algorithm.lokal_steps = 2: unknown key; did you mean 'local_steps'?",
    ]
    Path("data/loans.toml").write_text(FILE)
    edited(",own,", ",,")
    edited("\na,", "\na,x")
    lines = cli("run", "data/loans.toml", status=2).stderr.splitlines()
    assert len(lines) == 3 and "not a number" in lines[1] and "'home' is empty" in lines[2]
    assert lines[1].startswith("  line 4: problem.file: data/loans.csv: row 1, column 'income' is 'x")


def test_one_file_per_agent_and_partitions():
    table = {"kind": "table", "files": "sites/*.csv", "target": "y", "model": "linear", "ridge": 0.5}
    Path("sites").mkdir()
    for name, slope in (("oslo", 1.0), ("rome", 2.0)):
        rows = "\n".join(f"{x},{slope * x}" for x in range(5))
        Path(f"sites/{name}.csv").write_text(f"x,y\n{rows}\n")
    content = {"problem": table, "algorithm": {"name": "fedavg", "step": 0.1}}
    made = parse(content, "t")
    assert made[0].experiment.problem.names == ["oslo", "rome"] and made[0].held_out is None
    # Ridge regression on the pooled rows, the intercept free: x has mean 2, variance 2; y = 1.5 x on average.
    np.testing.assert_allclose(made[0].experiment.problem.solution(), [1.5 * np.sqrt(2) / 1.5, 3.0])
    again = parse(made.content, "again")
    assert again.content == made.content and len(made.content["problem"]["sha256"]) == 64
    Path("sites/bonn.csv").write_text("x,y\n1,2\n")  # the pattern finds it: another problem
    with pytest.raises(Mistakes, match="the data have changed"):
        parse(made.content, "again")
    spread = {**table, "partition": {"kind": "quantity", "agents": 4, "alpha": 1.0}}
    assert parse({**content, "problem": spread}, "t")[0].experiment.problem.agents == 4


@pytest.mark.parametrize(
    "change, message",
    [
        ({"file": None}, "problem: give either file, or files"),
        ({"files": "*.csv"}, "problem: give either file, or files"),
        ({"agent": None}, "which agent does a row belong to? Give agent = COLUMN, or a partition"),
        ({"partition": {"kind": "iid", "agents": 3}}, "a partition assigns rows to agents"),
        ({"agent": None, "partition": {"kind": "iid"}}, "missing the number of agents"),
        ({"agent": None, "partition": {"kind": "iid", "agents": 3, "alpha": 1.0}}, "iid has no alpha"),
        ({"agent": None, "partition": {"kind": "dirichlet", "agents": 3, "alfa": 1.0}}, "did you mean 'alpha'?"),
        ({"agent": None, "partition": {"kind": "iid", "agents": 99}}, "problem.partition"),
        ({"missing": "median"}, "problem.missing"),
        ({"held_out": 0.95}, "problem.held_out = 0.95: must be at most 0.9"),
        ({"modell": "linear"}, "unknown key; did you mean 'model'?"),
        ({"model": "linear"}, "'default' holds words"),
        ({"file": "none.csv"}, "problem.file: there is no file"),
        ({"weights": [1.0]}, "weights have shape (1,), but there are 3 agents"),
        ({"sampling": "shuffle"}, "needs batch="),
    ],
)
def test_one_clear_message(change, message):
    problem = {"kind": "table", "file": "data/loans.csv", "target": "default", "agent": "bank", **change}
    problem = {key: value for key, value in problem.items() if value is not None}
    with pytest.raises(Mistakes) as caught:
        parse({"problem": problem, "algorithm": {"name": "fedavg", "step": 0.1}}, "t")
    assert "1 mistake" in str(caught.value) and message in str(caught.value)


def test_a_plan_reads_tables_too():
    """Paths are from the TOML file on, for `fedpoint plan` as for `fedpoint run`."""
    from fedpoint.config.plans import read_plan

    Path("data/plan.toml").write_text(FILE + textwrap.dedent("[plan]\ntarget = 0.1\n"))
    assert read_plan("data/plan.toml").problem.agents == read("data/loans.toml")[0].experiment.problem.agents == 3
