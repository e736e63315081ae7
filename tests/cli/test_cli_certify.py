"""`fedpoint certify FILE.py:NAME`."""

import json

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
"""


@pytest.fixture
def file(toml):
    toml("STEP = 0.05\n", "beside.py")
    return toml(FILE, "mine.py")


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """What a file brings into the process leaves it with the test."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("mine", "beside"):
        sys.modules.pop(name, None)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.py"], "name a file and what is in it"),
        (["other.py:right"], "there is no file other.py"),
        (["mine.py:rigth"], "did you mean 'right'"),
        (["mine.py:right", "--set", "step"], "--set takes NAME=VALUE"),
        (["mine.py:STEP"], "an algorithm object or a function"),
        (["mine.py:right", "--claims", "fedavgg"], "did you mean"),
    ],
)
def test_mistakes_of_the_caller(cli, file, arguments, message):
    told = cli("certify", *arguments, status=2)
    assert message in told.stderr
