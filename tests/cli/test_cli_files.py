"""A TOML file: what it can say, and every mistake at once with its line, its value and what is allowed."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.config import Mistakes, parse, read
from fedpoint.config.lines import key_lines, line_of

QUADRATIC = {"kind": "quadratic", "agents": 4, "dim": 2}


def experiment(algorithm=None, participation=None, problem=None, **rest):
    algorithm = {"name": "fedavg", "step": 0.1} if algorithm is None else algorithm
    content = {"problem": problem or QUADRATIC, "algorithm": algorithm, **rest}
    return parse(content | ({} if participation is None else {"participation": participation}), "test")


def mistakes(**content):
    with pytest.raises(Mistakes) as caught:
        experiment(**content)
    return str(caught.value)


# Mistakes.


def test_every_mistake_is_reported_at_once_with_its_line(cli, toml):
    path = toml("""\
        rounds = -3   # it's "wrong"
        sed = 1
        repeats = "two"
        participation = {count = 2, keeep = 3}

        [problem]
        kind = "linear_stream"
        agents = 0
        dmi = 3
        noise = nan

        [[algorithm]]
        name = "fedavg"
        stepp = 0.1
        step = [-0.1, 0.2, "big"]
        local_steps = {epoch = 3}
        normalise = 1

        [[algorithm]]
        name = "fedagv"

        [[algorithm]]
        name = "scaffold"
        step = [
            {inverse_time = {scale = 1}}]
        option = 3.5
        """)
    result = cli("run", path, status=2)
    assert result.stdout == "" and "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert lines[0] == f"Error: {path}: 15 mistakes"
    expected = [
        "line 1: rounds = -3: must be at least 0",
        "line 2: sed = 1: unknown key; did you mean 'seed'?",
        'line 3: repeats = "two": must be a whole number',
        "line 4: participation.keeep = 3: unknown key; did you mean 'keep'?",
        "line 8: problem.agents = 0: must be at least 1",
        "line 9: problem.dmi = 3: unknown key; did you mean 'dim'?",
        "line 10: problem.noise = nan: must be a finite number",
        "line 14: algorithm[1].stepp = 0.1: unknown key; did you mean 'step'?",
        "line 15: algorithm[1].step = -0.1: must be above 0",
        'line 15: algorithm[1].step = "big": must be a number',
        "line 16: algorithm[1].local_steps = {epoch = 3}: epoch is not a form that a value can have: did you mean",
        "line 17: algorithm[1].normalise = 1: must be true or false",
        "line 20: algorithm[2].name = \"fedagv\": unknown algorithm 'fedagv': did you mean 'fedavg'?",
        "line 24: algorithm[3].step = {inverse_time = {scale = 1}}: inverse_time also needs offset",
        "line 26: algorithm[3].option = 3.5: must be a whole number",
    ]
    for line, start in zip(lines[1:], expected, strict=True):
        assert line.strip().startswith(start)


def test_what_is_wrong_only_together_is_reported_with_the_rest(toml):
    path = toml("""\
        participation = [2, 9]
        [problem]
        kind = "quadratic"
        agents = 4
        [[algorithm]]
        name = "fedavg"
        step = 0.1
        local_steps = {per_agent = [1, 2]}
        [[algorithm]]
        name = "scaffnew"
        step = 0.1
        probability = 0.5
        """)
    with pytest.raises(Mistakes) as caught:
        read(path)
    text = str(caught.value)
    assert "3 mistakes" in text
    assert "line 1: participation = 9: Uniform: 9 participants of 4 agents: choose at most 4" in text
    assert "line 5: algorithm[1]: FedAvg: local_steps has 2 values, but there are 4 agents" in text
    assert "line 9: algorithm[2]: Scaffnew cannot run with participation Uniform" in text


@pytest.mark.parametrize(
    "text, message",
    [
        ("rounds = = 3", "line 1, column 10: not TOML"),
        ("rounds = 3\n[problem\n", "line 2, column 9: not TOML"),
        ("rounds = 3\nrounds = 4\n", "not TOML: Cannot overwrite a value"),
    ],
)
def test_syntax(cli, toml, text, message):
    assert message in cli("run", toml(text), status=2).stderr


def test_files_that_are_none(cli, tmp_path):
    assert "there is no file nothing.toml" in cli("run", "nothing.toml", status=2).stderr
    assert "is a folder, not a file" in cli("run", tmp_path, status=2).stderr
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    assert "is not UTF-8" in cli("run", "latin.toml", status=2).stderr
    (tmp_path / "empty.toml").write_text("")
    result = cli("run", "empty.toml", status=2)
    assert "problem: is missing; it has a kind: linear_stream" in result.stderr
    assert "algorithm: is missing" in result.stderr


@pytest.mark.parametrize(
    "content, message",
    [
        ({"problem": {"kind": "least_square"}}, "unknown kind; did you mean 'least_squares'?"),
        ({"problem": {"agents": 3}}, 'problem: missing "kind"'),
        ({"problem": {"kind": "least_squares", "rows": [5, 3]}}, "or [least, most]"),
        ({"problem": {"kind": "least_squares", "weights": [1.0, 0.0]}}, "problem.weights[2] = 0.0: must be above 0"),
        ({"problem": {"kind": "least_squares", "weights": [1.0]}}, "there are 20 agents"),
        ({"problem": {"kind": "least_squares", "sampling": "shuffle"}}, "needs batch="),
        ({"problem": {"kind": "quadratic", "H": 1.0}}, "give both H and centers"),
        ({"problem": {"kind": "quadratic", "H": [[1.0, float("inf")]], "centers": [[1.0], [2.0]]}}, "H is inf at"),
        ({"problem": {"kind": "quadratic", "H": 1.0, "centers": [[1.0], [1.0, 2.0]]}}, "the same length"),
        ({"problem": {"kind": "quadratic", "H": 1.0, "centers": [[1.0]], "dim": 3}}, "leave out what draws them: dim"),
        ({"algorithm": {"name": "fedavg"}}, "FedAvg needs step"),
        ({"algorithm": {"step": 1}}, "must be a table with a name"),
        ({"algorithm": []}, "the list is empty"),
        ({"algorithm": {"name": "fedprox"}}, "give step=, or exact=True"),
        ({"algorithm": {"name": "fedopt", "step": 0.1, "server": "adm"}}, "did you mean 'adam'?"),
        ({"algorithm": {"name": "fedavg", "step": []}}, "an empty list"),
        ({"algorithm": {"name": "fedavg", "step": [[0.1]]}}, "write an array as {values"),
        ({"algorithm": {"name": "fednova", "step": 0.1, "pull": {"per_agent": [1, 1, 1, 1]}}}, "one for all agents"),
        ({"algorithm": {"name": "fedavg", "step": {"per_agent": [0.1, "x"]}}}, "must be a list of numbers"),
        ({"algorithm": {"name": "fedavg", "step": 0.1, "local_steps": 1.5}}, "must be whole numbers"),
        ({"algorithm": {"name": "fedavg", "step": 0.1, "local_steps": {"stragglers": 0.5}}}, "also needs steps"),
        ({"algorithm": {"name": "fedavg", "step": 0.1, "local_steps": {"epochs": 2}}}, "a stream has no epoch"),
        ({"algorithm": {"name": "fedavg", "step": 0.1, "optimiser": {"optax": "tracee"}}}, "did you mean 'trace'?"),
        ({"algorithm": {"name": "fedadam", "step": 0.1, "server": "sgd"}}, "unknown key"),
        ({"algorithm": {"name": "fedavg", "step": [0.1] * 300}}, "compare at most 200"),
        ({"participation": "everone"}, "did you mean 'everyone'?"),
        ({"participation": 0}, "must be at least 1"),
        ({"participation": 1.5}, "must be a number of agents, the name of a scheme, or a table"),
        ({"participation": {"scheme": "byweight"}}, "ByWeight needs count"),
        ({"participation": {"count": 2, "probability": 1.5}}, "above 0 and at most 1"),
        ({"participation": {"count": 2, "keep": 1}}, "give either a probability or a trace"),
        ({"participation": {"count": 2, "trace": "none.csv"}}, "availability trace none.csv"),
        ({"participation": []}, "the list is empty"),
        ({"stop": 0}, "stop = 0: must be above 0"),
        ({"record_every": 0}, "record_every = 0: must be at least 1"),
        ({"exact": "yes"}, "must be true or false"),
        ({"seed": -1}, "seed = -1: must be at least 0"),
    ],
)
def test_one_clear_message(content, message):
    assert message in mistakes(**content)


def test_lines_of_keys():
    text = '''# a = 1
a = """
b = 2
"""
"c" = [ # [
  1, "]",
]
[d]
e.f = {g = 1}
[[h]]
i = 1
[[h]]
  i = "# no"
[h.j]
k = 1
'''
    lines = key_lines(text)
    assert lines == {
        ("a",): 2,
        ("c",): 5,
        ("d",): 8,
        ("d", "e", "f"): 9,
        ("h",): 10,
        ("h", 0): 10,
        ("h", 0, "i"): 11,
        ("h", 1): 12,
        ("h", 1, "i"): 13,
        ("h", "j"): 14,
        ("h", "j", "k"): 15,
    }
    assert line_of(lines, ("d", "e", "f", "g")) == 9 and line_of(lines, ("x",)) is None


# What can be said.


@pytest.mark.parametrize(
    "table, algorithm",
    [
        ({"name": "fedavg", "step": 1}, fp.FedAvg(step=1.0)),
        ({"name": "FedAvg", "step": {"per_agent": [1, 2, 3, 4]}}, fp.FedAvg(step=[1, 2, 3, 4])),
        (
            {"name": "fedavg", "step": {"inverse_time": {"scale": 2, "offset": 8.0}}, "local_steps": 3},
            fp.FedAvg(step=fp.steps.InverseTime(2, 8.0), local_steps=3),
        ),
        (
            {"name": "fedavg", "step": {"lecture004": {"strong": 0.5, "smooth": 2.0, "local_steps": 3}}},
            fp.FedAvg(step=fp.steps.InverseTime.lecture004(0.5, 2.0, 3)),
        ),
        (
            {"name": "fedavg", "step": {"exponential": {"initial": 0.5, "factor": 0.9}}},
            fp.FedAvg(step=fp.steps.Exponential(0.5, 0.9)),
        ),
        (
            {"name": "fedprox", "step": 0.1, "local_steps": {"stragglers": 0.5, "steps": 10}},
            fp.FedProx(step=0.1, local_steps=fp.steps.Stragglers(10, 0.5)),
        ),
        ({"name": "fedyogi", "step": 0.1, "server_step": 0.3}, fp.FedYogi(step=0.1, server_step=0.3)),
        (
            {"name": "general_rule", "step": 0.1, "local_steps": 2, "coefficients": {"values": [1.0, 0.5]}},
            fp.GeneralRule(step=0.1, local_steps=2, coefficients=[1.0, 0.5]),
        ),
    ],
)
def test_algorithms(table, algorithm):
    assert experiment(algorithm=table)[0].experiment.algorithm == algorithm


def test_an_optax_transformation():
    made = experiment(algorithm={"name": "fedavg", "step": 0.1, "optimiser": {"optax": "trace", "decay": 0.9}})
    assert hasattr(made[0].experiment.algorithm.optimiser, "update")


def test_participation(tmp_path):
    (tmp_path / "trace.csv").write_text("1,0,1,1\n0,1,1,1\n")
    trace = np.array([[1, 0, 1, 1], [0, 1, 1, 1]])
    cases = [
        (3, fp.Uniform(3)),
        ("everyone", fp.Everyone()),
        ({"scheme": "by_weight", "count": 2}, fp.ByWeight(2)),
        ({"count": 2, "plain": True}, fp.Uniform(2, plain=True)),
        (
            {"scheme": "importance", "count": 2, "probabilities": [0.1, 0.2, 0.3, 0.4]},
            fp.Importance(2, [0.1, 0.2, 0.3, 0.4]),
        ),
        (
            {"count": 3, "probability": 0.5, "keep": 2, "minimum": 2},
            fp.Answering(fp.Uniform(3), probability=0.5, keep=2, minimum=2),
        ),
        ({"probability": [0.5, 0.6, 0.7, 0.8]}, fp.Answering(fp.Everyone(), probability=[0.5, 0.6, 0.7, 0.8])),
        ({"trace": "trace.csv"}, fp.Answering(fp.Everyone(), trace=trace)),
    ]
    for text, scheme in cases:
        assert experiment(participation=text)[0].experiment.participation == scheme


@pytest.mark.parametrize(
    "table, kind, agents",
    [
        ({"kind": "linear_stream", "agents": 7, "variance": 2.0}, fp.problems.LinearStream, 7),
        ({"kind": "least_squares", "agents": 3, "rows": [2, 9], "mean": True}, fp.problems.LeastSquares, 3),
        ({"kind": "logistic", "agents": 3, "batch": 4, "sampling": "shuffle"}, fp.problems.Logistic, 3),
        ({"kind": "logistic", "agents": 3, "classes": 4, "intercept": True}, fp.problems.Logistic, 3),
        ({"kind": "digits", "agents": 30, "dirichlet": 0.05}, fp.problems.Logistic, 30),
        ({"kind": "quadratic", "H": [1.0, 2.0], "centers": [[0.0], [3.0]]}, fp.problems.Quadratic, 2),
        ({"kind": "quadratic"}, fp.problems.Quadratic, 10),
        ({"kind": "linear_system", "agents": 3, "noise": 0.1, "noise_A": 0.01}, fp.problems.LinearSystem, 3),
        ({"kind": "linear_system", "A": [[[1.0]], [[2]]], "b": [[0.0], [3.0]]}, fp.problems.LinearSystem, 2),
        ({"kind": "garnet", "agents": 3, "states": 6, "dim": 2, "heterogeneity": 0.5}, fp.problems.TD, 3),
        ({"kind": "frozen_lake", "agents": 2, "success": 0.7, "features": 3}, fp.problems.TD, 2),
    ],
)
def test_problems(table, kind, agents):
    made = experiment(problem=table)
    problem = made[0].experiment.problem
    assert type(problem) is kind and problem.agents == agents
    again = parse(made.content, "again")  # the content of a folder makes the same problem
    assert again.content == made.content
    assert again[0].experiment.problem.weights.tobytes() == problem.weights.tobytes()
    assert (made[0].held_out is not None) == (table["kind"] == "digits")


def test_lists_make_a_comparison():
    made = experiment(
        algorithm=[{"name": "fedavg", "step": [0.1, 0.2], "local_steps": [1, 5]}, {"name": "fedadam", "step": 0.1}],
        participation=[2, 4],
    )
    assert made.comparison and len(made) == 10
    assert made[0].name == "FedAvg, step=0.1, local_steps=1, Uniform(2)"
    assert made[-1].name == "FedAdam, Uniform(4)"
    alone = parse(made[3].content, "alone")
    assert not alone.comparison and alone[0].experiment.algorithm == made[3].experiment.algorithm
