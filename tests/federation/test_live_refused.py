"""Real processes: what is refused, each for its own reason, beside the same with the right kit, which works."""

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time

import pytest
from live import QUIET, Live, Running, audit
from studies import BOWLS, CONTROL, SITES, content

from fedpoint.federation.flare import kits, rules

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

STUDY = content(CONTROL, BOWLS, rounds=3, quorum=2, deadline=15.0)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """All sites have taken part once."""
    made = Live(tmp_path_factory.mktemp("refused"), STUDY)
    made.start()
    going = Running(made, made.root / "whole")
    going.start()
    assert going.result().round == 3
    yield made
    made.close()


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Kits of another study, and so of another authority; nothing of it runs."""
    made = Live(tmp_path_factory.mktemp("other"), {**STUDY, "name": "other"})
    yield made
    made.close()


def port_of(live):
    return int(live.study.server.rpartition(":")[2])


def files_of(live, party, name="client"):
    startup = live.kits[party].folder / "startup"
    return startup / f"{name}.crt", startup / f"{name}.key"


def alert(live, *certificate):
    """What the server's TLS says to whoever has this certificate; None when it goes on listening."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(*certificate)
    with (
        socket.create_connection(("localhost", port_of(live)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.settimeout(5)
        try:
            return secure.recv(1)
        except TimeoutError:
            return None
        except ssl.SSLError as error:
            return error.reason


def wait_for(path, text, seconds=120):
    """Until a log says something."""
    end = time.monotonic() + seconds
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < end, f"{path} never said {text!r}"
        time.sleep(0.2)


def test_plaintext(live):
    with socket.create_connection(("localhost", port_of(live)), timeout=10) as plain:
        plain.settimeout(10)
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            answer = plain.recv(100)  # no answer in time would be an error: the server hangs up
        except ConnectionResetError:
            answer = b""
    assert not answer or answer[0] == 0x15  # an alert of TLS
    assert alert(live, *files_of(live, "a")) is None


def test_no_certificate_and_unknown_ones(live, other, tmp_path):
    assert alert(live) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    own = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=a/O=fedpoint"]
    certificate, key = tmp_path / "own.crt", tmp_path / "own.key"
    subprocess.run([*own, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    assert alert(live, certificate, key) == "TLSV1_ALERT_UNKNOWN_CA"
    assert alert(live, *files_of(other, "a")) == "TLSV1_ALERT_UNKNOWN_CA"
    assert alert(live, *files_of(live, "a")) is None


def heard_by(impostor, certificate, key):
    """What a TLS server with this certificate hears from the first who calls: the failure, or None where it trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    impostor.settimeout(120)
    plain, _ = impostor.accept()
    with plain:
        plain.settimeout(20)
        try:
            with context.wrap_socket(plain, server_side=True) as secure:
                assert secure.recv(1)
                return None
        except ssl.SSLError as error:
            return error.reason


def test_a_site_talks_to_no_server_of_another_authority(other, tmp_path):
    """Nor in plaintext: its first bytes are a handshake, and the server's certificate ends it."""
    site = Live(tmp_path / "own", {**STUDY, "name": "own"})
    try:
        with socket.create_server(("127.0.0.1", port_of(site))) as impostor:
            site.start("a")
            assert heard_by(impostor, *files_of(other, "server", "server")) == "TLSV1_ALERT_UNKNOWN_CA"
            assert heard_by(impostor, *files_of(site, "server", "server")) is None
    finally:
        site.close()


def test_kits_of_another_study(live, other):
    from fedpoint.federation.transport import NoAnswerYet

    for party in ("a", "admin"):  # sent to our server
        for path in (other.kits[party].folder / "startup").glob("*.json"):
            path.write_text(path.read_text().replace(str(port_of(other)), str(port_of(live))))
    other.kits["admin"].server = live.study.server
    with pytest.raises(NoAnswerYet, match="cannot connect to server"), other.lead(wait=15.0) as lead:
        lead.sites()
    with live.lead(wait=15.0) as lead:
        assert lead.sites() == SITES
    other.start("a")
    try:
        wait_for(other.kits["a"].folder / "process.log", "CERTIFICATE_VERIFY_FAILED")
    finally:
        other.stop("a")
    log = (live.kits["server"].folder / "process.log").read_text()
    assert log.count("New client a@") == 1


def test_another_protocol_and_a_changed_study(live, tmp_path):
    kit = tmp_path / "kit"
    shutil.copytree(live.kits["a"].folder, kit)
    command = [sys.executable, "-m", "fedpoint", "federate", "approve", str(kit), live.study.name, "--dry-run"]
    file = kit / "studies" / live.signed.title / "study.toml"
    about, text = json.loads((kit / "kit.json").read_text()), file.read_text()

    def said():
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    assert said()[0] == 0
    (kit / "kit.json").write_text(json.dumps({**about, "fedpoint": "0.0.1"}))
    assert said()[0] == 0  # another release of the same protocol
    (kit / "kit.json").write_text(json.dumps({**about, "protocol": 99, "fedpoint": "9.9.9"}))
    code, error = said()
    assert (code, "at a, install fedpoint 9.9.9" in error) == (2, True)
    (kit / "kit.json").write_text(json.dumps(about))
    file.write_text(text.replace("rounds = 3", "rounds = 4"))
    code, error = said()
    assert (code, "the study was changed since it was signed" in error) == (2, True)


def test_a_site_s_kit_is_no_administrator_s(live, tmp_path):
    """Not under the administrator's name, which the certificate does not bear; and its own name may do nothing."""
    from nvflare.apis.fl_exception import FLCommunicationError
    from nvflare.fuel.flare_api.api_spec import AuthorizationError
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    fake, log = tmp_path / "admin", live.kits["server"].folder / "process.log"
    shutil.copytree(live.kits["admin"].folder, fake)
    for path in files_of(live, "a"):
        shutil.copy(path, fake / "startup" / path.name)
    job = str(live.job(lambda folder: None))
    before = log.read_text().count("CNMismatch")
    with pytest.raises(FLCommunicationError, match="client_registration"):
        new_secure_session(kits.ADMIN, str(fake), timeout=20.0)
    assert log.read_text().count("CNMismatch") == before + 1
    session = new_secure_session("a", str(fake), timeout=20.0)
    with contextlib.closing(session):
        for function, arguments, right in (
            ("submit_job", (job,), "submit_job"),
            ("list_jobs", (), "list_jobs"),
            ("get_system_info", (), "check_status"),
        ):
            with pytest.raises(AuthorizationError, match=f"user 'a' is not authorized for '{right}'"):
                getattr(session, function)(*arguments)
    assert fate(live, job)["status"] == "FINISHED:COMPLETED"  # the very same, with the administrator's kit


def fate(live, folder):
    """What becomes of a job: the engine's notes about it, once it is over."""
    with live.lead() as lead:
        job = lead.session.submit_job(str(folder))
        end = time.monotonic() + 180
        while time.monotonic() < end:
            found = lead.session.get_job_meta(job)
            if str(found.get("status")).startswith("FINISHED"):
                return found
            time.sleep(0.5)
        lead.session.abort_job(job)
        raise AssertionError(f"the job goes on: {found}")


def with_code(mark):
    def change(folder):
        custom, config = folder / "app" / "custom", folder / "app" / "config" / "config_fed_client.json"
        custom.mkdir()
        (custom / "evil.py").write_text(f"open({str(mark)!r}, 'w').write('x')\nclass Evil:\n    pass\n")
        text = json.loads(config.read_text())
        config.write_text(json.dumps({**text, "components": [{"id": "evil", "path": "evil.Evil", "args": {}}]}))

    return change


def test_a_job_with_foreign_code(live, tmp_path):
    found = fate(live, live.job(with_code(tmp_path / "it-ran")))
    assert found["status"] == "FINISHED:FAILED_TO_RUN"
    assert found["job_deploy_detail"] == ["server: BYOC not permitted"]
    assert not (tmp_path / "it-ran").exists()


def test_sites_refuse_foreign_code_also_from_a_server_that_does_not(live, tmp_path, monkeypatch):
    live.stop("server")
    lax = json.loads(json.dumps(rules.RULES))
    lax["permissions"][rules.ROLE]["byoc"] = "any"
    with monkeypatch.context() as patched:
        patched.setattr(rules, "RULES", lax)
        live.start("server")
    try:
        with live.lead() as lead:
            lead._gather(120.0, 120.0, lambda event: None)
        found = fate(live, live.job(with_code(tmp_path / "it-ran")))
    finally:
        live.stop("server")
        live.start("server")
    assert found["status"] == "FINISHED:FAILED_TO_RUN"
    detail = found["job_deploy_detail"]
    assert detail[0] == "server: OK"
    assert {line for line in detail if "BYOC" in line} == {f"{s}: NVFLARE_ERROR: BYOC not permitted" for s in SITES}
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_class_outside_the_list(live, side, tmp_path):
    """Refused by whoever would load it; its log says so, and no data were touched."""
    mark, before = tmp_path / "it-ran", len(audit(live, "a"))
    log = live.kits["a" if side == "client" else "server"].folder / "process.log"

    def another_class(folder):
        config = folder / "app" / "config" / f"config_fed_{side}.json"
        text = json.loads(config.read_text())
        text["components"] = [{"id": "x", "path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}]
        config.write_text(json.dumps(text))

    found = fate(live, live.job(another_class))
    assert found["status"] in ("FINISHED:ABNORMAL", "FINISHED:EXECUTION_EXCEPTION"), found
    refusals = [line for line in log.read_text().splitlines() if str(mark) in line and "ComponentNotAuthorized" in line]
    assert refusals
    assert not mark.exists()
    assert len(audit(live, "a")) == before


def test_a_job_of_another_protocol(live, tmp_path):
    def newer(folder):
        config = folder / "app" / "config" / "config_fed_server.json"
        text = json.loads(config.read_text())
        text["workflows"][0]["args"] |= {"protocol": 99, "fedpoint": "9.9.9"}
        config.write_text(json.dumps(text))

    before, found = len(audit(live, "a")), fate(live, live.job(newer))
    with live.lead() as lead:
        outcome = lead._outcome(found["job_id"], tmp_path)
    assert outcome["state"] == "failed"
    assert "at the server, install fedpoint 9.9.9" in outcome["message"]
    assert len(audit(live, "a")) == before


def test_an_administrator_reads_no_files_at_sites(live):
    from nvflare.fuel.flare_api.api_spec import AuthorizationError

    with live.lead() as lead:
        lead._gather(120.0, 120.0, lambda event: None)
        for function, arguments in (("cat_target", ("a", None, "kit.json")), ("ls_target", ("a",))):
            with pytest.raises(AuthorizationError):
                getattr(lead.session, function)(*arguments)
    rules = json.loads((live.kits["a"].folder / "local" / "resources.json").read_text())
    assert rules["allow_log_streaming"] is False
