"""Units and container files: they connect a party, approve nothing, and hold no key."""

import configparser
import json
import shlex
import shutil
import subprocess

import pytest
from click.testing import CliRunner
from malicious import METHOD, TABLE, write_table
from parts import trial_of
from studies import content

from fedpoint.cli import main
from fedpoint.cli.federate import federate
from fedpoint.federation.flare.kits import Kit
from fedpoint.federation.flare.parties import consent
from fedpoint.federation.site.engagement import Engagement
from fedpoint.federation.study import parse

STUDY = parse(content(METHOD, TABLE, rounds=3, sites=["north", "south"]))


@pytest.fixture
def trial(tmp_path, monkeypatch):
    return trial_of(STUDY, tmp_path / "project", monkeypatch)


@pytest.fixture
def kits(trial):
    return trial.project.folder


def approve(trial, data):
    consent(trial.kits["north"], trial.parts["north"], data)


def service(kit, out, *more):
    return CliRunner().invoke(main, ["federate", "service", str(kit), "--folder", str(out), *more])


def unit(path):
    read = configparser.RawConfigParser(strict=True)
    read.optionxform = str
    read.read_string(path.read_text())
    return read


def test_a_site_connects_and_reads_what_it_has_approved(trial, kits, tmp_path):
    """Nothing in the unit approves anything: that is a person's, or the policy's."""
    data = write_table(tmp_path / "100% dose.csv")
    approve(trial, data)
    assert service(kits / "north", tmp_path / "out").exit_code == 0
    made = unit(tmp_path / "out" / "fedpoint-trial-north.service")["Service"]
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(made["ExecStart"])]
    assert words[1:5] == ["-m", "fedpoint", "federate", "site"] and words[5] == str(kits / "north")
    context = federate.commands["site"].make_context("site", words[5:])
    assert context.params == {"kit": kits / "north", "lift_stop": False}
    assert shlex.split(made["ReadOnlyPaths"].replace("%%", "%")) == [str(data)]
    assert made["RestartPreventExitStatus"] == "1 2" and made["ProtectSystem"] == "strict"
    assert shlex.split(made["ReadWritePaths"]) == [str(kits / "north")]


def test_the_container_mounts_the_kit_and_copies_nothing(trial, kits, tmp_path):
    data = write_table(tmp_path / "t.csv")
    approve(trial, data)
    service(kits / "north", tmp_path / "out")
    text = (tmp_path / "out" / "Containerfile").read_text()
    assert "COPY" not in text and "ADD" not in text and f"-v {data}:{data}:ro" in text
    (entry,) = [line for line in text.splitlines() if line.startswith("ENTRYPOINT")]
    words = json.loads(entry.removeprefix("ENTRYPOINT "))
    assert words == ["fedpoint", "federate", "site", "/kit"]


def test_a_server_publishes_its_port(kits, tmp_path):
    assert service(kits / "server", tmp_path / "out", "--user", "study-user").exit_code == 0
    assert "-p 8102:8102" in (tmp_path / "out" / "Containerfile").read_text()
    assert unit(tmp_path / "out" / "fedpoint-trial-server.service")["Service"]["User"] == "study-user"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(trial, kits, tmp_path):
    """Of a folder with a blank and a percent sign in its name."""
    place = tmp_path / "50% of it"
    shutil.copytree(kits / "north", place)
    consent(Kit(place), Engagement.read(place / "studies" / "trial.1"), write_table(tmp_path / "a b$.csv"))
    assert service(place, tmp_path / "out", "--user", "root").exit_code == 0
    path = str(tmp_path / "out" / "fedpoint-trial-north.service")
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "trial-north" in done.stderr) == (0, False), done.stderr


def test_mistakes(kits, tmp_path):
    assert "runs no service" in service(kits / "admin", tmp_path / "out").output
    assert "is not the name of an account" in service(kits / "server", tmp_path / "out", "--user", "a b").output
    assert "is not a kit" in service(tmp_path / "none", tmp_path / "out").output
