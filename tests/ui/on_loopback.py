"""A server of the live page, as `fedpoint ui` runs it, and a plain client."""

import contextlib
import faulthandler
import http.client
import queue
import sys
import threading

import pytest
from click.testing import CliRunner

FIRST = """
rounds = 40
repeats = 8
[problem]
kind = "quadratic"
agents = 2
dim = 1
curvature = [0.5, 2.0]
spread = 1.0
noise = 0.01
[algorithm]
name = "fedavg"
step = 0.1
local_steps = 3
normalise = true
"""


def begun(folder):
    """A run interrupted before its first round: the folder as it is while the first rounds are computed."""
    from fedpoint.cli import main
    from fedpoint.engine.session import Session

    def interrupted(*_):
        raise KeyboardInterrupt

    file = folder.with_suffix(".toml")
    file.write_text(FIRST.replace("rounds = 40", "rounds = 60"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "advance", interrupted)
        CliRunner().invoke(main, ["run", str(file), "--folder", str(folder), "-q", "--no-figure"])


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode()


class Client:
    """A plain http client: what it sends is what is meant, malformed or not."""

    def __init__(self, port, token=None):
        self.port, self.token = port, token
        self.address = f"http://127.0.0.1:{port}/"

    def get(self, path, method="GET", headers=None, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    @contextlib.contextmanager
    def open(self, path):
        """The answer while it comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            yield connection.getresponse()


@contextlib.contextmanager
def serving(runs, host="127.0.0.1", warm=False):
    """The server in a thread, ended as Ctrl-C ends it."""
    from fedpoint.ui.server import serve

    told, started = [], queue.Queue()
    options = {"host": host, "port": 0, "tell": told.append, "warm": warm, "started": started.put}
    thread = threading.Thread(target=serve, args=(runs,), kwargs=options)
    thread.start()
    server = started.get(timeout=30)
    address = told[0].split()[-1]
    port = int(address.split(":")[2].split("/")[0])
    client = Client(port, address.partition("token=")[2] or None)
    client.server = server
    try:
        yield client
    finally:
        server.handle_exit(2, None)
        thread.join(timeout=60)
        if thread.is_alive():
            faulthandler.dump_traceback(sys.__stderr__)  # where it hangs
        assert not thread.is_alive(), "the server did not end"
