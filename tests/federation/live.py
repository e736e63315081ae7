"""A real federation on this machine: a server and three sites as processes, with mutual TLS."""

import contextlib
import gc
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from studies import SITES

from fedpoint.federation.flare.demo import free_port
from fedpoint.federation.flare.lead import Lead
from fedpoint.federation.flare.parties import consent
from fedpoint.federation.flare.processes import end, start
from fedpoint.federation.flare.trial import begin, signed_for
from fedpoint.federation.study import parse

QUIET = [  # the engine's own sockets, in sessions whose server was killed
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Live:
    """Its processes; `close` ends them all."""

    def __init__(self, root: Path, content: dict, data: dict | None = None):
        self.root = root
        self.study = parse({**content, "server": f"localhost:{free_port()}"})
        self.project, self.kits, self.signed, self.parts = begin(self.study, root / "kits")
        self.processes = {}
        self.kills = Counter()  # what was killed
        for site in self.study.sites:
            consent(self.kits[site], self.parts[site], (data or {}).get(site))

    def turn_to(self, content: dict):
        """Another study of the same parties, while they run: every site has fetched it, and consents to it."""
        self.study = parse({**content, "server": self.study.server})
        _, _, self.signed, self.parts = signed_for(self.project, self.kits, self.study)
        for site in SITES:
            consent(self.kits[site], self.parts[site], None)

    def start(self, *names):
        for name in names or ("server", *self.study.sites):
            self.processes[name] = start(self.kits[name])

    def stop(self, name):
        end(self.processes.pop(name))

    def kill(self, name, whole=True):
        """kill -9, of the party's process or of all it started."""
        process = self.processes.pop(name)
        if whole:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        self.kills["server" if name == "server" else "site"] += 1
        return process

    def kill_job(self, name):
        """kill -9 of the party's half of the job at work, if there is one."""
        for child in psutil.Process(self.processes[name].pid).children():
            child.kill()
            self.kills["job"] += 1

    def kill_worker(self, site, at_work=False):
        """kill -9 of the process that does the site's work, if it is there; `at_work`: with an order before it."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            worker = int((self.parts[site].folder / "worker.pid").read_text())
            if at_work:
                os.kill(worker, signal.SIGSTOP)
                time.sleep(1.0)  # a round takes a tenth of it: the next order waits
            os.kill(worker, signal.SIGKILL)
            self.kills["worker"] += 1

    def lead(self, wait=120.0):
        return Lead(self.kits["admin"], self.signed, wait=wait)

    def job(self, change):
        """A job folder as ours, changed by a function of its path."""
        from fedpoint.federation.flare.lead import job_folder

        where = self.root / f"job-{time.time_ns()}"
        made = job_folder(self.signed.title, self.study.sites, "", where)
        change(made)
        return made

    def close(self):
        print(f"killed: {dict(self.kills)}")  # shown by pytest -s
        for process in self.processes.values():
            end(process)
        self.processes = {}
        shutil.rmtree(self.root, ignore_errors=True)
        gc.collect()  # sockets of the engine's sessions, while the test that made them still ignores their warnings


class Running(threading.Thread):
    """A study that is run in the background; `events` are its rounds."""

    def __init__(self, live, folder, fresh=True):
        super().__init__(daemon=True)
        self.live, self.folder, self.fresh = live, folder, fresh
        self.events, self.said, self.made, self.error = [], [], None, None

    def tell(self, event):
        (self.events if "round" in event else self.said).append(event)

    def run(self):
        try:
            with self.live.lead() as lead:
                self.made = lead.run(self.folder, self.tell, self.fresh, wait=240.0)
        except Exception as error:
            self.error = error

    def reach(self, round, seconds=240):
        """Wait until a round is told of."""
        self.hear(lambda: any(event["round"] >= round for event in self.events), seconds)

    def hear(self, condition, seconds=240):
        """Wait for what is told."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.error is None, self.error
            assert time.monotonic() < end, f"waited in vain: {self.said[-3:]}"
            time.sleep(0.05)

    def result(self, seconds=420):
        self.join(seconds)
        assert self.error is None, self.error
        assert self.made is not None, f"not done: {self.said[-3:]}"
        return self.made


def memories(live, root):
    """The folders of hub and sites as `invariant` wants them."""
    for site in SITES:
        files = sorted(live.parts[site].records.glob("memory-*.npz"), key=lambda p: p.stat().st_mtime)
        (root / site).mkdir(parents=True)
        shutil.copy(files[-1], root / site)
    return root


def audit(live, site):
    path = live.parts[site].records / "audit.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]
