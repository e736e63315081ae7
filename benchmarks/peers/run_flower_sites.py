"""A federation on Flower: a SuperLink and SuperNodes as processes on loopback, insecure, and an app.

Its processes need a quiet machine: a client's task is dropped when the process for it starts too slowly.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Job

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
WAIT = 380.0  # seconds for the run to end
APP = """[project]
name = "sites"
version = "1.0.0"
description = "a federation"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "fedpoint"
[tool.flwr.app.components]
serverapp = "flower_sites:server"
clientapp = "flower_sites:client"
[tool.flwr.app.config]
folder = "{folder}"
rounds = {rounds}
"""
LINK = """[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:8000"
insecure = true
"""


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def main(folder, rounds):
    job = Job(folder)
    with tempfile.TemporaryDirectory(prefix="sites-", ignore_cleanup_errors=True) as place:
        app, home = Path(place) / "app", Path(place) / "home"
        app.mkdir()
        home.mkdir()
        (home / "config.toml").write_text(LINK)
        (app / "pyproject.toml").write_text(APP.format(folder=Path(folder).resolve(), rounds=rounds))
        shutil.copy(HERE / "flower_sites.py", app)
        paths = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(HERE), "FLWR_HOME": str(home)}
        environment = {**os.environ, **paths, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1"}

        def start(*command):
            return subprocess.Popen([str(BIN / command[0]), *command[1:]], env=environment, cwd=place)

        started = [start("flower-superlink", "--insecure", "--disable-runtime-dependency-installation")]
        try:
            for k in range(job.agents):
                link = ("--insecure", "--superlink", "127.0.0.1:8000", "--port", str(9094 + k))
                started.append(start("flower-supernode", *link, "--node-config", f"agent={k}"))
            end, report = time.time() + WAIT, Path(os.environ["PEER_OUT"]) / "report.json"
            while not listens(8000) and time.time() < end:
                time.sleep(0.1)
            if start("flwr", "run", str(app), "here").wait(WAIT):
                sys.exit("RuntimeError: flwr run does not take the app")
            while not report.exists() and time.time() < end:
                time.sleep(0.1)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(10)


if __name__ == "__main__":
    main(*sys.argv[1:])
