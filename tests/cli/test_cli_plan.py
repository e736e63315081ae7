"""`fedpoint plan`: a table and a picture, or one JSON document."""

import json
from pathlib import Path

import fedpoint as fp

FILE = """
    rounds = 10
    [problem]
    kind = "quadratic"
    agents = 4
    dim = 2
    noise = 0.01
    [algorithm]
    name = "fedavg"
    step = 0.05
    [plan]
    target = 0.05
    methods = ["gradient_exchange", {name = "fedprox", pull = 1.0}]
    local_steps = [2]
    participation = ["everyone", 2]
"""


def test_table_and_picture(cli, toml):
    result = cli("plan", toml(FILE), "--verify", "--top", 1, "--repeats", 20, "-q")
    assert "Gradient exchange" in result.stdout and "mean of 20 runs" in result.stdout
    assert "Picture: file-plan.png" in result.stdout and Path("file-plan.png").stat().st_size > 1000


def test_json_is_the_plan_of_the_library(cli, toml):
    path = toml(FILE)
    document = json.loads(cli("plan", path, "--json", "--no-figure", "--target", 0.1).stdout)
    from fedpoint.config.plans import read_plan

    asked = read_plan(path, target=0.1)
    assert document["target"] == 0.1 and document["figure"] is None
    made = fp.plan(asked.problem, **asked.arguments)
    assert document["choices"] == json.loads(json.dumps(made.to_dict()["choices"]))
    assert {c["method"] for c in document["choices"]} == {"Gradient exchange", "FedProx"}


def test_the_same_file_can_be_run(cli, toml):
    cli("run", toml(FILE), "--no-figure", "-q")


def test_all_mistakes_at_once(cli, toml):
    text = FILE.replace("target = 0.05", 'target = -1\n    goal = 3\n    minimise = "money"').replace(
        "fedprox", "fedpro"
    )
    message = cli("plan", toml(text), status=2).stderr
    assert "4 mistakes" in message and "did you mean 'fedprox'" in message and "plan.goal" in message
    missing = cli("plan", toml(FILE.split("[plan]")[0]), status=2).stderr
    assert "--target" in missing


def test_confidence_and_seconds(cli, toml):
    """On the command line and in the file."""
    path = toml(FILE.replace("target = 0.05", "target = 0.05\n    seconds = 1000"))
    asked = json.loads(cli("plan", path, "--json", "--no-figure", "--confidence", 0.9).stdout)
    assert asked["confidence"] == 0.9 and asked["seconds"] == 1000 and not asked["unseen"]
    assert asked["choices"][0]["promise"] == "verified"
    hurried = cli("plan", path, "--no-figure", "--seconds", 1e-6).stdout
    assert "Not looked at within 1e-06 s" in hurried
    wrong = toml(FILE.replace("target = 0.05", "target = 0.05\n    confidence = 1.5\n    seconds = 0"))
    message = cli("plan", wrong, status=2).stderr
    assert "plan.confidence" in message and "plan.seconds" in message
