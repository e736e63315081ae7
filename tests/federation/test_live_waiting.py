"""Real processes: the commands of a server and its sites, how much memory they hold, and a site's record at the end."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from live import QUIET, Live, Running
from studies import BOWLS, CONTROL, SITES, content

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

STUDY = content(CONTROL, BOWLS, rounds=60, quorum=2, deadline=15.0)
MOST = 80e6  # bytes of a command that waits


def fedpoint(*arguments):
    return [sys.executable, "-m", "fedpoint", "federate", *map(str, arguments)]


def tree(process):
    """The memory of a command and of all that it started: {what it runs: bytes}."""
    own = psutil.Process(process.pid)
    return {_module(one): one.memory_info().rss for one in [own, *own.children(recursive=True)]}


def _module(process):
    words = process.cmdline()
    return words[words.index("-m") + 1].rpartition(".")[2]


@pytest.fixture
def live(tmp_path):
    made = Live(tmp_path / "live", STUDY)
    commands = {}
    try:
        commands["server"] = subprocess.Popen(fedpoint("server", made.kits["server"].folder), stderr=subprocess.PIPE)
        for site in SITES:
            command = fedpoint("site", made.kits[site].folder)
            commands[site] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        yield made, commands
    finally:
        for process in commands.values():
            process.send_signal(signal.SIGTERM)
        for process in commands.values():
            with process:
                process.stderr.read()
        made.close()


def test_commands_wait_in_little_memory_and_a_study_runs(live, tmp_path):
    made, commands = live
    going = Running(made, tmp_path / "hub")
    going.start()
    going.reach(5)
    held = {name: tree(process) for name, process in commands.items()}
    print(json.dumps({name: {k: round(v / 1e6) for k, v in one.items()} for name, one in held.items()}))
    assert all(one["waiting"] <= MOST for one in held.values()), held
    pid = made.kits["b"].folder / "party.pid"
    first = int(pid.read_text())
    os.kill(first, signal.SIGKILL)  # its command starts it again
    result = going.result()
    assert result.round == STUDY["rounds"]
    assert int(pid.read_text()) != first
    with made.lead() as lead:
        lead._gather(120.0, 120.0, lambda event: None)
        assert lead.sites() == SITES
    for site in SITES:
        audit = fedpoint("audit", made.kits[site].folder, "--against", result.folder, "--json")
        done = subprocess.run(audit, capture_output=True, text=True, timeout=60)
        found = json.loads(done.stdout)
        assert (done.returncode, found["verified"], found["leader"]) == (0, True, "agrees"), found
    begun = time.monotonic()
    for process in commands.values():
        process.send_signal(signal.SIGINT)
    assert [process.wait(60) for process in commands.values()] == [130] * 4
    assert time.monotonic() - begun < 40
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(made.root) not in left
