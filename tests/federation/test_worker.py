"""A site's work in a process of its own: killed with -9, it is one order without an answer; nothing is forgotten."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from studies import BOWLS, CONTROL, content

from fedpoint.federation import wire
from fedpoint.federation.protocol import OWN
from fedpoint.federation.site.site import Site
from fedpoint.federation.site.worker import Worker
from fedpoint.federation.study import parse
from fedpoint.store.disk import to_toml


def test_killed_between_two_rounds_and_in_one(tmp_path):
    study = parse(content(CONTROL, BOWLS))
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "study.toml").write_bytes(to_toml(study.content))
    (kit / "consent.json").write_text(json.dumps({"site": "a", "study": study.fingerprint, "data": None, "floor": {}}))
    setup = {"index": 0, "share": 0.25, "heaviest": 0.25, "recipe": [], "classes": None}

    def order(round, merged):
        head = {**OWN.plain(), "study": study.fingerprint, "run": "ab", "kind": "work", "setup": setup}
        heard = {".w": np.full(2, 0.1 * round), ".c": np.zeros(2)}
        return wire.encode({**head, "round": round, "merged": merged}, heard)

    def message(data):
        packet = wire.decode(data)
        assert "failure" not in packet.header, packet.header
        return packet.arrays

    here, worker = Site(study, "a", tmp_path / "here"), Worker(kit, 60.0)
    try:
        for round, merged in ((0, -1), (1, 0)):
            expected = message(here.answer(order(round, merged)))
            found = message(worker.ask(order(round, merged)))
            assert all(np.array_equal(found[name], expected[name]) for name in expected)
            if round == 0:  # between two orders: the answer has left, its memory is on disk
                os.kill(worker.process.pid, signal.SIGKILL)
                worker.process.wait()
        worker.process.send_signal(signal.SIGSTOP)  # in the middle of one: it does not answer in time
        worker.deadline = 0.2
        with pytest.raises(OSError, match="deadline"):
            worker.ask(order(2, 1))
        assert worker.process is None
    finally:
        worker.close()


def test_half_a_message_is_waited_for_until_the_deadline_only(tmp_path, monkeypatch):
    """Its length says that more comes, and nothing more comes."""
    half = "import os, struct, sys, time; os.write(int(sys.argv[-1]), struct.pack('!i', 100) + b'half'); time.sleep(99)"
    honest = subprocess.Popen
    monkeypatch.setattr(
        "subprocess.Popen", lambda command, **rest: honest([sys.executable, "-c", half, *command[3:]], **rest)
    )
    worker = Worker(tmp_path, 0.5)
    worker.start()
    worker.ready = True
    begun = time.monotonic()
    with pytest.raises(OSError, match="deadline"):
        worker.ask(b"order")
    assert worker.process is None and time.monotonic() - begun < 20


def test_a_worker_that_cannot_start_is_an_order_without_an_answer(tmp_path):
    worker = Worker(tmp_path, 5.0)  # no kit
    with pytest.raises(OSError, match="gone"):
        worker.ask(b"order")
    assert "consent.json" in (tmp_path / "site.log").read_text()
