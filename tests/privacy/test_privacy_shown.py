"""Where a run is shown, its privacy is: in print, in its folder, on the report, by `fedpoint run`."""

import json
import math

import dp_accounting as dp
import numpy as np
import pytest
from click.testing import CliRunner

import fedpoint as fp

PRIVATE = [fp.channel.Clip(1.0), fp.channel.Gaussian(30.0)]
EPSILON = dp.get_epsilon_gaussian(30 / math.sqrt(7), 1e-5)
LINE = f"epsilon {EPSILON:.3g} at delta 1e-05"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "private"
    quad = fp.problems.Quadratic(1.0, np.arange(6.0)[:, None])
    run = fp.run(fp.FedAvg(step=0.1), quad, rounds=7, channel=PRIVATE, folder=path)
    assert LINE in repr(run) and LINE in run._repr_html_()
    return path


def test_a_folder_keeps_it(folder):
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["privacy"].startswith(LINE) and "add or remove one agent" in summary["privacy"]
    loaded = fp.load(folder)
    assert loaded.is_private and loaded.privacy_line == summary["privacy"]


def test_a_report_shows_it(folder):
    from fedpoint.show.page import write

    quad = fp.problems.Quadratic(1.0, np.arange(6.0)[:, None])
    page = write([fp.load(folder, quad)], folder.parent / "report.html")
    text = page.read_text()
    assert LINE in text and "Privacy of agents" in text and "Not counted: " in text
    assert "Clip(norm = 1, each = False), Gaussian(multiplier = 30, at = hub)" in text  # how messages were sent
    assert ">bytes<" in text and "squared distance to the solution" in text  # on the same page


def test_a_run_without_noise_says_nothing_of_it(tmp_path):
    run = fp.run(fp.FedAvg(step=0.1), fp.problems.Quadratic(1.0, [[0.0]]), rounds=2, folder=tmp_path / "run")
    assert "epsilon" not in repr(run) and run.privacy_line == ""
    assert "privacy" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_the_command_line_says_it(tmp_path):
    from fedpoint.cli import main

    text = """
rounds = 7
algorithm = {name = "fedavg", step = 0.1}
channel = [{kind = "clip", norm = 1.0}, {kind = "gaussian", multiplier = 30.0}]
problem = {kind = "quadratic", H = [1.0, 1.0], centers = [[0.0], [1.0]]}
"""
    (tmp_path / "e.toml").write_text(text)
    done = CliRunner().invoke(main, ["run", str(tmp_path / "e.toml"), "--folder", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert f"Privacy of agents, FedAvg: {LINE}" in done.output


def test_what_has_no_account_says_why():
    class Own(fp.Uniform):
        def tick(self, key, p, round):
            return super().tick(key, p, round)

    quad = fp.problems.Quadratic(1.0, np.arange(6.0)[:, None])
    run = fp.run(fp.FedAvg(step=0.1), quad, rounds=2, channel=PRIVATE, participation=Own(2))
    assert run.privacy_line.startswith("not accounted: Own: no account of privacy covers")
    assert repr(run).endswith("not accounted>")
