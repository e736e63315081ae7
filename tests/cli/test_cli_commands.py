"""What answers at once, what is mistyped, and the catalogue."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

import fedpoint
from fedpoint.cli import COMMANDS, main
from fedpoint.cli.status import URGENCY, Status

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}


def test_help_and_version_load_neither_jax_nor_matplotlib():
    code = """
import sys
from fedpoint.cli import main
for arguments in (["--help"], ["--version"]):
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0
slow = {"jax", "matplotlib", "sklearn", "networkx", "numpy", "pydantic", "rich"} & set(sys.modules)
assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "fedpoint, version" in done.stdout and all(name in done.stdout for name in COMMANDS)


def test_python_m_fedpoint():
    done = subprocess.run(
        [sys.executable, "-m", "fedpoint", "--version"], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.stdout == f"fedpoint, version {fedpoint.__version__}\n"


def test_names_load_when_used_and_tools_see_the_same():
    tree = ast.parse(Path(fedpoint.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(node.module, name.name) for node in block.body for name in node.names}
    lazy = {(module, name) for name, module in fedpoint._HOME.items()}
    assert seen == lazy | {tuple(home.rsplit(".", 1)) for home in fedpoint._SUBMODULES.values()}
    assert all(getattr(fedpoint, name) is not None for name in fedpoint.__all__)
    assert set(dir(fedpoint)) == set(fedpoint.__all__)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        fedpoint.runn  # noqa: B018


def every_command(group=main, path=("fedpoint",)):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))


def test_help_begins_with_the_summary_in_the_imperative():
    """One short sentence that lists of commands show whole, and for commands the one that `fedpoint --help` shows."""
    for path, command in every_command():
        summary = inspect.cleandoc(command.help).split("\n\n")[0]
        listed = COMMANDS[path[1]] if len(path) == 2 else command.get_short_help_str(65)
        assert summary.rstrip(".") == listed.rstrip("."), path
        assert summary.endswith(".") and not summary.split()[0].endswith("s"), path
        assert all(option.help for option in command.params if isinstance(option, click.Option)), path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli, command):
    assert "Usage: fedpoint " + command in cli(command, "--help").stdout


def test_exit_statuses_are_one_table(cli):
    table = "0 success, 1 contradicted or convicted, 2 bad input, 3 undecided, 4 diverged, 130 interrupted"
    assert f"Exit status: {table}." in " ".join(cli("--help").stdout.split())
    page = (Path(__file__).resolve().parents[2] / "docs/safety.md").read_text(encoding="utf-8")
    assert all(f"| {int(status)} | {status.meaning} |" in page for status in Status)


def test_the_worst_of_several_statuses_is_told():
    assert Status.worst([]) == Status.FINE
    assert Status.worst([Status.FINE, Status.UNDECIDED, Status.DIVERGES]) == Status.DIVERGES
    assert Status.worst([Status.DIVERGES, Status.CONTRADICTED]) == Status.CONTRADICTED
    assert set(URGENCY) == set(Status)


def test_a_mistyped_command(cli):
    assert "there is no command 'rnu': did you mean 'run'?" in cli("rnu", status=2).stderr


@pytest.mark.parametrize(
    "arguments", [("run", "a.toml", "--fodler", "x"), ("resume", "x", "--ronds", "3"), ("algorithms", "--josn")]
)
def test_a_mistyped_option(cli, arguments):
    assert "Did you mean" in cli(*arguments, status=2).stderr


def test_algorithms(cli):
    names = set(fedpoint.CATALOGUE)
    text = cli("algorithms").stdout
    assert all(name in text for name in names)
    cards = json.loads(cli("algorithms", "--json").stdout)
    assert {card["name"] for card in cards} == names
    fedavg = next(card for card in cards if card["name"] == "fedavg")
    assert fedavg["parameters"]["step"] == "required" and fedavg["parameters"]["local_steps"] == 1
    assert any("McMahan" in reference for reference in fedavg["references"])


@pytest.mark.parametrize("name", ["fedprox", "SCAFFOLD", "q-FedAvg", "FedAdam"])
def test_one_algorithm(cli, name):
    text = cli("algorithms", name).stdout
    assert "Where it ends" in text and "name = " in text and "Parameters:" in text


def test_an_unknown_algorithm(cli):
    assert "unknown algorithm 'fedpro': did you mean 'fedprox'?" in cli("algorithms", "fedpro", status=2).stderr


# Citations.


def keys(result):
    return re.findall(r"^@\w+\{(\S+),$", result.stdout, re.MULTILINE)


def test_cite_algorithms(cli):
    assert keys(cli("cite", "scaffold")) == ["karimireddy2020scaffold", "fedpoint"]
    both = keys(cli("cite", "fedavg", "fedadam", "fedavg"))
    assert both[-1] == "fedpoint" and len(set(both)) == len(both) == 5
    assert "did you mean 'scaffold'" in cli("cite", "scafold", status=2).stderr


def test_cite_a_file_and_a_run(cli, toml):
    path = toml("""
        rounds = 2
        participation = {scheme = "importance", count = 2, probabilities = [0.5, 0.5]}
        [problem]
        kind = "quadratic"
        agents = 2
        [[algorithm]]
        name = "scaffold"
        step = 0.1
        """)
    expected = ["karimireddy2020scaffold", "rizk2022federated", "fedpoint"]
    assert keys(cli("cite", path)) == expected
    cli("run", path, "--folder", "r", "--no-figure")
    assert keys(cli("cite", "r")) == expected


def test_cite_a_run_of_ones_own_algorithm(cli):
    class Mine(fedpoint.Algorithm):
        step: float

        def init(self, w):
            return w, ()

        def local(self, w, memory, agent):
            return -self.step * agent.field(w), memory

        def combine(self, w, inbox):
            return w + inbox.mean

    problem = fedpoint.problems.Quadratic(1.0, [[0.0], [1.0]])
    trace = np.ones((600, 2))  # too large for the folder to hold
    scheme = fedpoint.Answering(fedpoint.ByWeight(2), trace=trace)
    fedpoint.run(Mine(0.1), problem, rounds=2, participation=scheme, folder="r")
    assert keys(cli("cite", "r")) == ["li2020convergence", "fedpoint"]
