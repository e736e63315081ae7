"""The command that waits while a party's processes work: small, and nothing is left when it ends.

Real processes, but for the engine: a package called nvflare stands in for it, which starts a job and waits.
"""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from parts import key, part_of, trial_of
from studies import BOWLS, CONTROL, content

from fedpoint.core.errors import FedpointError
from fedpoint.federation.flare.kits import Kit
from fedpoint.federation.flare.waiting import Refusals
from fedpoint.federation.identity import certificates
from fedpoint.federation.identity.certificates import Authority
from fedpoint.federation.protocol import OWN
from fedpoint.federation.study import parse
from fedpoint.store.disk import write_bytes

MOST = 80e6  # bytes
ENGINE = """
import pathlib, subprocess, sys, time
kit = pathlib.Path(sys.argv[sys.argv.index("-m") + 1])
job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with (kit / "started").open("a") as file:
    file.write(f"{job.pid}\\n")
time.sleep(600)
"""


@pytest.fixture
def kit(tmp_path):
    """A site's kit, and an engine beside it."""
    for name in ("client.client_train", "server.server_train"):
        path = tmp_path / "engine" / "nvflare" / "private" / "fed" / "app" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True)
        path.write_text(ENGINE)
    for folder in ("nvflare", "nvflare/private", "nvflare/private/fed", "nvflare/private/fed/app"):
        (tmp_path / "engine" / folder / "__init__.py").touch()
    study, folder = parse(content(CONTROL, BOWLS)), tmp_path / "kit"
    (folder / "local").mkdir(parents=True)
    about = {"party": "a", "project": "trial", "server": f"localhost:{free_port()}", **OWN.plain()}
    (folder / "kit.json").write_text(json.dumps(about))
    part = part_of(folder / "studies" / "trial.1", "a", study)
    part.records.mkdir()
    (part.folder / "consent.json").write_text("{}")
    return folder


class Command:
    """A command at a terminal; what it says is read as it comes."""

    def __init__(self, kit, *arguments):
        paths = [str(kit.parent / "engine"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.kit, self.log = kit, kit.parent / "terminal"
        with self.log.open("wb") as terminal:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdout=terminal,
                stderr=terminal,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )

    @property
    def said(self):
        return self.log.read_text()

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.02)

    def jobs(self):
        """The process numbers of the jobs, one for every start of the engine."""
        path = self.kit / "started"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def engine(self):
        return psutil.Process(int((self.kit / "party.pid").read_text()))

    def ended(self, seconds=30):
        """Its status, when nothing of it is left."""
        status = self.process.wait(seconds)
        own = [int((self.kit / "party.pid").read_text()), *self.jobs()] if self.jobs() else []
        assert not [pid for pid in own if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        return status


@pytest.fixture
def waiting(kit):
    command = Command(kit, "fedpoint.federation.flare.waiting", str(kit), "a")
    try:
        command.until(lambda: len(command.jobs()) == 1)
        yield command
    finally:
        if command.process.poll() is None:
            command.process.terminate()
            command.process.wait(30)


@pytest.mark.parametrize("party", ["site", "server"])
def test_the_command_holds_no_jax_once_it_waits(party, kit):
    """Which the command line has loaded: the process is the same, what it holds is not."""
    about = json.loads((kit / "kit.json").read_text())
    name = "a" if party == "site" else "server"
    (kit / "kit.json").write_text(json.dumps({**about, "party": name}))
    authority = Authority.new("trial")
    (kit / "startup").mkdir()
    write_bytes(kit / "startup" / "rootCA.pem", certificates.pem(authority.certificate))
    made = authority.certify(key(0).public_key(), name, party)
    write_bytes(Kit(kit).certificate_file, certificates.pem(made))
    command = Command(kit, "fedpoint", "federate", party, str(kit))
    try:
        command.until(lambda: len(command.jobs()) == 1, 120)
        held = psutil.Process(command.process.pid).memory_info().rss
        assert held <= MOST, f"{held / 1e6:.0f} MB"
    finally:
        command.process.send_signal(signal.SIGINT)
        status = command.ended()
    assert (status, "interrupted" in command.said) == (130, True)


def free_port():
    from fedpoint.federation.flare.demo import free_port

    return free_port()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_friendly_kill_leaves_nothing_running(number, waiting):
    waiting.process.send_signal(number)
    assert waiting.ended() == 130
    assert "Traceback" not in waiting.said


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.6, *(pytest.param(t, marks=pytest.mark.slow) for t in (0.02, 0.3))])
def test_at_any_moment(moment, kit):
    """Also while it starts: a kill that comes before it can be heeded waits for it."""
    code = f"""
import pathlib, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 15])
from fedpoint.federation.flare.waiting import Own, hand_over
print("ready", flush=True)
hand_over(Own(pathlib.Path({str(kit)!r}), "a"))
"""
    paths = [str(kit.parent / "engine"), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    with process:
        process.stdout.readline()
        time.sleep(moment)
        process.terminate()
        assert process.wait(30) == 130
    started = kit / "started"
    for pid in map(int, started.read_text().split()) if started.exists() else ():
        assert not psutil.pid_exists(pid)


def test_an_engine_that_ends_is_started_again_and_the_screen_says_so(waiting):
    waiting.engine().kill()
    waiting.until(lambda: len(waiting.jobs()) == 2)
    assert (
        "the engine's process was ended by SIGKILL and is started again; a rejoins, and nothing is lost" in waiting.said
    )
    os.kill(waiting.jobs()[0], signal.SIGKILL)  # an orphan of the engine's, in a session of its own


def test_an_engine_that_ends_at_once_is_not_started_for_ever(kit, monkeypatch):
    from fedpoint.federation.flare import waiting

    class Process:
        def poll(self):
            return 7

    class Running:
        def __init__(self, party):
            starts.append(party)

        def __enter__(self):
            return Process()

        def __exit__(self, *_):
            pass

    import threading

    starts = []
    for name, value in (("running", Running), ("AGAIN", 0.0), ("LOOK", 0.0)):
        monkeypatch.setattr(waiting, name, value)
    with pytest.raises(FedpointError, match="ended 20 times in a minute"):
        waiting.Waiting(waiting.Own(kit, "a"), threading.Event()).wait()
    assert len(starts) == 20


def note(kit, name, text, mode="a"):
    with (kit / "studies" / "trial.1" / "records" / name).open(mode) as file:
        file.write(json.dumps({"time": "2026-01-01T00:00:00+00:00", "text": text}) + "\n")


def test_refused_orders_are_told_at_the_terminal(waiting):
    note(waiting.kit, "refusals.jsonl", "round 999 is beyond the 50 rounds of the study")
    waiting.until(lambda: "trial.1 refused: round 999 is beyond the 50 rounds of the study" in waiting.said)
    note(waiting.kit, "refusals.jsonl", "clear \x1b[2J\nthe screen")
    waiting.until(lambda: "refused: clear ?[2J?the screen" in waiting.said)
    assert waiting.said.count("refused:") == 2


def test_a_site_that_stopped_itself_ends_the_command(waiting):
    note(waiting.kit, "refusals.jsonl", "three in a row")
    note(waiting.kit, "stopped.json", "3 orders in a row were refused", "w")
    assert waiting.ended() == 1
    assert "a has stopped itself in trial.1: 3 orders in a row were refused" in waiting.said
    assert "refused: three in a row" in waiting.said
    assert "nothing runs here any more" in waiting.said


def test_a_site_that_is_stopped_does_not_start(kit):
    note(kit, "stopped.json", "3 orders in a row were refused", "w")
    command = Command(kit, "fedpoint.federation.flare.waiting", str(kit), "a")
    assert command.ended() == 1
    assert command.jobs() == []


def test_what_is_followed_is_told_once_and_whole(tmp_path):
    path = tmp_path / "refusals.jsonl"
    path.write_text('{"text": "of last time"}\n')
    refusals = Refusals(path)
    assert refusals.fresh() == []
    with path.open("a") as file:
        file.write('{"text": "one"}\n{"text": "t')
        file.flush()
        assert refusals.fresh() == ["one"]
        assert refusals.fresh() == []
        file.write('wo"}\nnoise\n[]\n{}\n')
        file.flush()
        assert refusals.fresh() == ["two", *["the note about it cannot be read"] * 3]
    path.write_text('{"text": "new"}\n')  # somebody put the old one aside
    assert refusals.fresh() == ["new"]
    path.unlink()
    assert refusals.fresh() == []


def test_a_site_whose_record_was_changed_approves_nothing(tmp_path, monkeypatch):
    from fedpoint.federation.flare.parties import consent
    from fedpoint.federation.site.chain import LOG, Chain, origin

    trial = trial_of(parse(content(CONTROL, BOWLS)), tmp_path / "project", monkeypatch)
    own, part = trial.kits["a"], trial.parts["a"]
    part.records.mkdir()
    made = Chain(part.records, origin(part.fingerprint, "a"))
    for number in range(3):
        made.append({"asked": {"round": number}})
    consent(own, part, None)
    (part.folder / "consent.json").unlink()
    log = part.records / LOG
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(FedpointError, match="was changed after it was written"):
        consent(own, part, None)
    assert not (part.folder / "consent.json").exists()
