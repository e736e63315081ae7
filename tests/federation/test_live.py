"""Real processes: trajectories, what is refused, and kill -9 of everything. Minutes; run by `make test-all`."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time

import numpy as np
import pytest
from live import QUIET, Live, Running, audit
from studies import BOWLS, CONTROL, ROWS, SITES, SYSTEM, content, gap
from test_equality import invariant

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

STUDY = content(CONTROL, BOWLS, rounds=150, quorum=2, deadline=15.0)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    made = Live(tmp_path_factory.mktemp("live"), STUDY)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(live):
    """The study, with nothing in its way."""
    going = Running(live, live.root / "whole")
    going.start()
    return going.result()


def memories(live, root):
    """The folders of hub and sites as `invariant` wants them."""
    for site in SITES:
        files = sorted((live.kits[site].folder / "records").glob("memory-*.npz"), key=lambda p: p.stat().st_mtime)
        (root / site).mkdir(parents=True)
        shutil.copy(files[-1], root / site)
    return root


def test_the_trajectory_is_the_simulation_s(live, whole, tmp_path):
    assert whole.round == 150
    assert gap(whole) <= 1e-10
    shutil.copytree(whole.folder, tmp_path / "hub")
    assert invariant(whole, memories(live, tmp_path)) <= 1e-13
    assert {line["kind"] for line in audit(live, "a")} >= {"columns", "ready", "work", "measure"}


def test_less_than_half_a_second_a_round(whole):
    assert np.median([event["seconds"]["all"] for event in whole.events]) < 0.5


# Refused.


def host_port(live):
    host, _, port = live.study.server.rpartition(":")
    return host, int(port)


def test_plaintext(live, whole):
    with socket.create_connection(host_port(live), timeout=10) as plain:
        plain.settimeout(10)
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            answer = plain.recv(100)
        except OSError:
            answer = b""
    assert not answer or answer[0] in (0x15, 0x16)  # nothing, or an alert of TLS


def handshake(live, context):
    """Whether the server goes on talking with whoever has this certificate."""
    with socket.create_connection(host_port(live), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.settimeout(5)
                secure.sendall(b"x" * 64)
                return bool(secure.recv(1))
        except TimeoutError:
            return True
        except OSError:  # ssl.SSLError among them
            return False


def context_of(certificate=None, key=None):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def test_no_certificate_and_an_unknown_one(live, whole, tmp_path):
    assert not handshake(live, context_of())
    own = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=a/O=fedpoint"]
    key, certificate = tmp_path / "own.key", tmp_path / "own.crt"
    subprocess.run([*own, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    assert not handshake(live, context_of(certificate, key))
    good = live.kits["a"].folder / "startup"
    assert handshake(live, context_of(good / "client.crt", good / "client.key"))  # the test can fail


def test_another_study_s_kits_and_another_authority(live, whole, tmp_path):
    other = Live(tmp_path / "other", {**STUDY, "name": "other"})
    kit = other.kits["a"]
    files = kit.folder / "startup"
    assert not handshake(live, context_of(files / "client.crt", files / "client.key"))
    for party in ("a", "admin"):  # their kits, sent to our server
        for path in (other.kits[party].folder / "startup").glob("*.json"):
            path.write_text(path.read_text().replace(str(host_port(other)[1]), str(host_port(live)[1])))
    object.__setattr__(other.study, "content", {**other.study.content, "server": live.study.server})
    other.kits["admin"].study = other.study
    from fedpoint.federation.engine import Waiting

    with pytest.raises(Waiting), other.lead(wait=15.0) as lead:
        lead.sites()
    other.start("a")
    time.sleep(10)
    log = (live.kits["server"].folder / "process.log").read_text()
    assert log.count("New client a@") == 1
    other.close()


def test_another_version_and_a_changed_study(live, tmp_path):
    kit = tmp_path / "kit"
    shutil.copytree(live.kits["a"].folder, kit)
    command = [sys.executable, "-m", "fedpoint", "federate", "site", str(kit), "--yes"]
    about = json.loads((kit / "kit.json").read_text())
    (kit / "kit.json").write_text(json.dumps({**about, "fedpoint": "0.0.1"}))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "is of fedpoint 0.0.1" in done.stderr
    (kit / "kit.json").write_text(json.dumps(about))
    text = (kit / "study.toml").read_text()
    (kit / "study.toml").write_text(text.replace("rounds = 150", "rounds = 151"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "the study was changed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_site_s_kit_is_no_administrator_s(live, whole, tmp_path):
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from fedpoint.federation.flare.kits import ADMIN

    kit = tmp_path / "admin"
    shutil.copytree(live.kits["admin"].folder, kit)
    for name in ("client.crt", "client.key"):
        shutil.copy(live.kits["a"].folder / "startup" / name, kit / "startup" / name)
    for user in (ADMIN, "a"):
        with pytest.raises(Exception):  # noqa: B017 - the engine has many kinds
            session = new_secure_session(user, str(kit), timeout=10.0)
            session.submit_job(str(live.job(lambda folder: None)))


def fate(live, folder):
    """What becomes of a job."""
    with live.lead() as lead:
        try:
            job = lead.session.submit_job(str(folder))
        except Exception as error:
            return f"not taken: {error}"
        end = time.monotonic() + 120
        while time.monotonic() < end:
            status = str(lead.session.get_job_meta(job).get("status"))
            if status.startswith("FINISHED"):
                return status
            time.sleep(0.5)
        lead.session.abort_job(job)
        return "running"


def test_a_job_with_foreign_code(live, whole, tmp_path):
    mark = tmp_path / "it-ran"

    def add_code(folder):
        custom = folder / "app" / "custom"
        custom.mkdir()
        (custom / "evil.py").write_text(f"open({str(mark)!r}, 'w').write('x')\nclass Evil:\n    pass\n")
        config = folder / "app" / "config" / "config_fed_client.json"
        text = json.loads(config.read_text())
        text["components"] = [{"id": "evil", "path": "evil.Evil", "args": {}}]
        config.write_text(json.dumps(text))

    said = fate(live, live.job(add_code))
    assert not mark.exists()
    assert said.startswith("not taken") or ("FINISHED" in said and "COMPLETED" not in said), said


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_class_outside_the_list(live, whole, side, tmp_path):
    mark = tmp_path / "it-ran"
    before = len(audit(live, "a"))

    def another_class(folder):
        config = folder / "app" / "config" / f"config_fed_{side}.json"
        text = json.loads(config.read_text())
        text["components"] = [{"id": "x", "path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}]
        config.write_text(json.dumps(text))

    said = fate(live, live.job(another_class))
    assert "COMPLETED" not in said, said
    assert not mark.exists()
    assert len(audit(live, "a")) == before


def test_an_administrator_reads_no_files_at_sites(live, whole):
    with live.lead() as lead:
        for function, arguments in (("cat_target", ("a", None, "kit.json")), ("ls_target", ("a",))):
            with pytest.raises(Exception, match=r"(?i)authoriz"):
                getattr(lead.session, function)(*arguments)
    rules = json.loads((live.kits["a"].folder / "local" / "resources.json").read_text())
    assert rules["allow_log_streaming"] is False


def test_the_command_line(live, whole, tmp_path):
    def fedpoint(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "fedpoint", "federate", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=240,
        )

    dry = fedpoint("site", live.kits["a"].folder, "--dry-run", "--json")
    assert [one["kind"] for one in json.loads(dry.stdout)["leaves"]] == ["columns", "ready", "work", "measure"]
    refused = fedpoint("site", live.kits["a"].folder)  # nobody there to consent
    assert refused.returncode != 0
    wrong = fedpoint("server", live.kits["a"].folder)
    assert (wrong.returncode, "is the kit of a" in wrong.stderr) == (2, True)
    taken = fedpoint("server", live.kits["server"].folder)
    assert (taken.returncode, "cannot be used" in taken.stderr) == (2, True)
    here = json.loads(fedpoint("status", live.kits["admin"].folder, "--json").stdout)
    assert (here["sites"], here["missing"], here["jobs"]) == (SITES, [], [])
    assert "nothing runs" in fedpoint("stop", live.kits["admin"].folder).stdout
    again = fedpoint("provision", live.kits["a"].folder / "study.toml", "--folder", live.root / "kits")
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


# kill -9.


def test_kill_a_worker(live, whole, tmp_path):
    """One order without an answer; the next one starts another worker, which remembers."""
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill_worker("b")
    made = going.result()
    assert made.round == 150
    assert gap(made) <= 1e-10
    assert invariant(made, memories(live, tmp_path)) <= 1e-13
    assert made.events[-1]["answered"] == SITES


def test_kill_a_site(live, whole, tmp_path, monkeypatch):
    """The others go on in the next segment; the site comes back with its memory."""
    monkeypatch.setattr("fedpoint.federation.flare.lead.SILENT", 2.0)  # rounds are few: no time to lose
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill("c")
    time.sleep(3)
    live.start("c")
    made = going.result()
    assert gap(made) <= 1e-10
    assert made.events[-1]["answered"] == SITES
    assert invariant(made, memories(live, tmp_path)) <= 1e-13


def test_kill_the_server(live, whole, tmp_path):
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill("server")
    time.sleep(2)
    live.start("server")
    made = going.result()
    assert made.round == 150
    assert gap(made) <= 1e-10
    assert invariant(made, memories(live, tmp_path)) <= 1e-13


def test_stop_and_go_on(live, whole, tmp_path):
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    with live.lead() as lead:
        assert lead.status()["sites"] == SITES
        assert len(lead.stop()) == 1
    going.join(120)
    assert "stopped after round" in str(going.error)
    again = Running(live, tmp_path / "hub", fresh=False)
    again.start()
    made = again.result()
    assert np.array_equal(made.history, whole.history)


@pytest.mark.parametrize(
    "study",
    [
        content(CONTROL, BOWLS, rounds=30, asynchronous={"staleness": {"polynomial": 0.5}}),
        content({"name": "fedrelax", "coupling": 0.5}, {**ROWS, "batch": None}, rounds=20, network="ring"),
        content({"name": "fedgd", "step": 0.05}, {**ROWS, "batch": None}, rounds=30, network="ring", asynchronous={}),
        content({"name": "scafflsa", "step": 0.1, "local_steps": 4}, SYSTEM, rounds=20),
    ],
    ids=["late", "network", "late network", "ScaffLSA"],
)
def test_late_answers_networks_and_linear_systems(study, tmp_path):
    made = Live(tmp_path / "live", {**study, "deadline": 30.0})
    made.start()
    try:
        going = Running(made, tmp_path / "hub")
        going.start()
        result = going.result()
        assert result.round == study["rounds"]
        assert gap(result) <= 1e-10
    finally:
        made.close()


def test_the_demo_shows_the_same_numbers_and_cleans_up(tmp_path):
    """Credit scoring over three banks: columns are scaled and encoded over the wire too."""
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "fedpoint", "federate", "demo", "--rounds", "10", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=own)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["same"]
    assert found["gap"] <= 1e-10
    assert list(tmp_path.glob("fedpoint-*")) == []
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in left
