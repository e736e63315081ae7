"""A run needs no more of the system than Windows has; what needs POSIX says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

USE = """
import fedpoint as fp
from fedpoint.core.errors import FedpointError

quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
run = fp.run(fp.FedAvg(step=0.1, local_steps=2), quad, rounds=4, folder="a")
run.extend(8)
again = fp.load("a", quad).extend(12)
whole = fp.run(fp.FedAvg(step=0.1, local_steps=2), quad, rounds=12, folder="b")
assert (again.model == whole.model).all() and again.rounds[-1] == 12
import os
os.mkdir("empty")
fp.run(fp.FedAvg(step=0.1), quad, rounds=1, folder="empty")  # an empty folder may have the name
os.symlink("b", "link")
os.rename("a/model.npz", "elsewhere.npz")
os.symlink("../elsewhere.npz", "a/model.npz")
for wrong in (
    lambda: fp.run(fp.FedAvg(step=0.1), quad, rounds=4, processes=2),
    lambda: fp.run(fp.FedAvg(step=0.1), quad, rounds=4, folder="b"),
    lambda: fp.load("a", quad),
):
    try:
        wrong()
    except FedpointError as error:
        print(error)
"""


def without_posix(code, folder):
    command = [sys.executable, str(HERE / "without_posix.py"), code]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "FEDPOINT_CACHE": "off"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return without_posix(USE, tmp_path_factory.mktemp("windows")).splitlines()


def test_runs_begin_and_go_on(said):
    assert len(said) == 3  # nothing before the refusals failed


def test_what_needs_posix_says_so(said):
    assert (
        said[0]
        == f"a run on several processes needs Linux or macOS, and this is {sys.platform}: run it without processes="
    )


def test_a_folder_is_not_written_twice_nor_through_links(said):
    assert "already holds a run" in said[1] and "is a symbolic link" in said[2]


def test_the_command_line_refuses_real_sites(tmp_path):
    code = "import sys; sys.argv = ['fedpoint', 'federate', 'status']; from fedpoint.__main__ import main; main()"
    command = [sys.executable, str(HERE / "without_posix.py"), code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "a study over real sites needs Linux or macOS" in done.stderr
    assert "Traceback" not in done.stderr
