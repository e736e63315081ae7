"""`fedpoint certify FILE.py:NAME`."""

import json
import sys

import pytest

FILE = """
    import numpy as np

    import fedpoint as fp
    from beside import STEP


    def right(w, agents):
        ends = []
        for agent in agents:
            y = w
            for _ in range(3):
                y = y - STEP * agent.field(y)
            ends.append(agent.weight * agent.population / len(agents) * (y - w))
        return w + sum(ends)


    def wrong(w, agents):
        ends = []
        for agent in agents:
            y = w
            for _ in range(3):
                y = y - STEP * agent.field(y)
            ends.append(y)
        return np.mean(ends, axis=0)


    class Forgets(fp.Scaffold):
        def local(self, heard, memory, agent):
            message, new = fp.Scaffold.local(self, heard, memory, agent)
            return message, memory


    forgets = Forgets(step=0.1, local_steps=5)


    def identity(w, agents):
        return w


    def noisy(w, agents):
        print("a round")
        return w + 1


    class NotOne:
        pass


    class Refuses(fp.FedAvg):
        def check(self):
            raise RuntimeError("not today")
"""


@pytest.fixture
def file(toml):
    toml("STEP = 0.05\n", "beside.py")
    return toml(FILE, "mine.py")


def test_a_function_that_is_right(cli, file):
    told = cli("certify", f"{file}:right", "--claims", "fedavg", "--set", "step=0.05", "--set", "local_steps=3")
    assert told.output.startswith("right is FedAvg, as it claims.")


def test_a_function_that_is_convicted(cli, file):
    told = cli("certify", f"{file}:wrong", "--claims", "fedavg", "--json", status=1)
    document = json.loads(told.stdout)
    assert not document["passed"] and document["mistake"] == "weights_dropped"
    assert document["settings"] == {"step": pytest.approx(0.05), "local_steps": 3}


@pytest.mark.parametrize("name", ["Forgets", "forgets"])
def test_a_class_and_an_object_claim_what_they_derive_from(cli, file, name):
    told = cli("certify", f"{file}:{name}", status=1)
    assert "claims to be SCAFFOLD and is not: control_never_stored" in told.output


def test_what_nobody_knows_has_a_status_of_its_own(cli, file):
    told = cli("certify", f"{file}:identity", status=3)
    assert told.output.startswith("identity is neither a known method nor a known mistake: verdict unknown.")
    assert "no agent is ever asked for anything" in told.output


def test_json_carries_verdict_and_reason_and_nothing_that_the_file_prints(cli, file):
    document = json.loads(cli("certify", f"{file}:noisy", "--json", status=3).stdout)
    assert (document["verdict"], document["passed"], document["mistake"]) == ("unknown", False, None)
    assert "no agent is ever asked" in document["reason"] and document["unexercised"] == []
    assert json.loads(cli("certify", f"{file}:right", "--json").stdout)["verdict"] == "passed"
    assert json.loads(cli("certify", f"{file}:wrong", "--json", status=1).stdout)["verdict"] == "convicted"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.py"], "give FILE:NAME"),
        (["other.py:right"], "there is no file other.py"),
        (["mine.py:rigth"], "did you mean 'right'"),
        (["mine.py:right", "--set", "step"], "--set expects NAME=VALUE"),
        (["mine.py:STEP"], "subject must be an Algorithm, an Experiment or a function; got 0.05"),
        (["mine.py:np"], "subject must be an Algorithm, an Experiment or a function; got"),
        (["mine.py:NotOne"], "NotOne is not an fp.Algorithm"),
        (["mine.py:Refuses"], "Refuses raised RuntimeError: not today (mine.py, line"),
        (["mine.py:right", "--claims", "fedavgg"], "did you mean"),
    ],
)
def test_mistakes_of_the_caller(cli, file, arguments, message):
    told = cli("certify", *arguments, status=2)
    assert message in told.stderr and told.stderr.count("\n") == 1


BAD_FILES = {
    "syntax": ("def round(w, agents)\n    return w\n", "expected ':' (bad.py, line 1: def round(w, agents))"),
    "indentation": ("def round(w, agents):\nreturn w\n", "(bad.py, line 2: return w)"),
    "not text": (b"\x00\xff", "(bad.py"),
    "import": (
        "import math\nimport nowhere.at.all\n",
        "ModuleNotFoundError: No module named 'nowhere' (bad.py, line 2: import nowhere.at.all)",
    ),
    "name": ("from math import nothing\n", "(bad.py, line 1: from math import nothing)"),
    "exception": ("x = [1]\n\ny = x[3]\n", "IndexError: list index out of range (bad.py, line 3: y = x[3])"),
    "below": ("def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero (bad.py, line 2:"),
    "ours": ("import fedpoint as fp\nm = fp.FedAvg(step=-1.0)\n", "(bad.py, line 2: m = fp.FedAvg(step=-1.0))"),
    "exit": ("import sys\nsys.exit(0)\n", "it exits the program (bad.py, line 2: sys.exit(0)); put code"),
    "beside": ("import crooked\n", "invalid syntax (crooked.py, line 2: y = = 1)"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_does_not_import_is_one_message_with_the_line(cli, tmp_path, case):
    text, message = BAD_FILES[case]
    (tmp_path / "crooked.py").write_text("x = 1\ny = = 1\n")
    (tmp_path / "bad.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    told = cli("certify", "bad.py:round", status=2)
    assert told.stderr.startswith("Error: bad.py cannot be imported: ") and told.stderr.count("\n") == 1
    assert message in told.stderr


@pytest.mark.parametrize(
    "name", ["right", "nowhere", "STEP"], ids=["which is examined", "which is not there", "which is refused"]
)
def test_modules_and_their_path_are_afterwards_as_before(cli, file, name):
    """Also those that lie beside the file, and what the file itself did to the path."""
    path, modules = list(sys.path), set(sys.modules)
    file.write_text(file.read_text() + "\nimport sys\nsys.path.append('elsewhere')\n")
    cli("certify", f"{file}:{name}", status=0 if name == "right" else 2)
    assert sys.path == path and not {"mine", "beside", "certified_mine"} & (set(sys.modules) - modules)


def test_a_file_may_be_called_as_a_module_is(cli, file):
    """It hides nothing, and what was changed in it counts at once."""
    other = file.with_name("json.py")
    other.write_text(file.read_text())
    assert cli("certify", f"{other}:right").output.startswith("right has no known mistake.")
    assert sys.modules["json"] is json
    other.write_text(file.read_text().replace("return w + sum(ends)", "return w"))
    cli("certify", f"{other}:right", status=3)


def test_a_file_that_fails_leaves_no_modules(cli, tmp_path):
    (tmp_path / "helper_of_bad.py").write_text("x = 1\n")
    (tmp_path / "bad.py").write_text("import helper_of_bad\n1 / 0\n")
    path = list(sys.path)
    cli("certify", "bad.py:round", status=2)
    assert sys.path == path and not {"helper_of_bad", "bad", "certified_bad"} & set(sys.modules)
