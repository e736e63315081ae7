"""The live page without a browser: what it gives, what it refuses, and how it ends."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import sys
import threading
import time
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from on_loopback import begun, serving

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.config.load import load
from fedpoint.show.page import write as write_report
from fedpoint.store.folder import RunFolder
from fedpoint.ui import outlook
from fedpoint.ui import serving as serving_module
from fedpoint.ui.computations import WAITING, Busy, Computations, Superseded
from fedpoint.ui.playground import Control, Playground
from fedpoint.ui.runs import Runs

CONFIG = {
    "rounds": 10,
    "seed": 0,
    "repeats": 1,
    "record_every": 1,
    "exact": False,
    "algorithm": {"name": "fedavg"},
    "problem": {"class": "Quadratic", "agents": 2},
}
META = {
    "engine": "",
    "message": {"down": 1, "up": 1, "width": 8},
    "model": [{"name": "model", "path": []}],
    "use": {},
}


def test_the_page_and_its_policy(page):
    answer = page.get("/")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers
    names = re.findall(r'(?:src|href)="(/[^"]+)"', answer.text)
    assert len(names) >= 5
    for name in names:
        found = page.get(name)
        assert found.status == 200, name
        assert "content-security-policy" in found.headers


def test_no_outside_resource_and_no_inline_script():
    for name, content in serving_module.static_files().items():
        text = content.decode()
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, name
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*src=)|\son[a-z]+=|style=|<style", text)
        assert "eval(" not in text and "style=" not in text, name


def test_state_and_lessons(page):
    state = json.loads(page.get("/api/state").text)
    assert [p["name"] for p in state["playgrounds"]] == ["averaging", "coupling", "local-steps"]
    assert set(state["compilation"].values()) <= {"waiting", "compiling", "ready"}
    titles = [lesson["title"] for lesson in json.loads(page.get("/api/lessons").text)]
    assert "FedAvg" in titles and "SCAFFLSA" in titles


def test_a_playground_answers_twice(page):
    """The forecast first, then the simulation; numbers out of range are brought into it."""
    with page.open("/api/play/coupling?coupling=1e9&reader=abc&number=1") as answer:
        assert answer.status == 200
        forecast, simulated = (json.loads(answer.readline()) for _ in range(2))
    assert (forecast["kind"], simulated["kind"]) == ("forecast", "simulate")
    assert forecast["values"]["coupling"] == 100.0
    names = [[line["name"] for line in answer["chart"]["lines"]] for answer in (forecast, simulated)]
    assert names == [["forecast"], ["simulation", "forecast"]] and len(simulated["history"]) == 61
    assert "against" in forecast and "against" not in simulated  # which the forecast decides


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/nothing", 404, "Not Found"),
        ("/static/../server.py", 404, ""),
        ("/static/%2e%2e/server.py", 404, ""),
        ("/static/..%2fserver.py", 404, ""),
        ("/static/style.css/", 404, ""),
        ("/api/play/none?reader=a&number=1", 404, "no playground"),
        ("/api/play/coupling?coupling=nan&reader=a&number=1", 400, "must be a number"),
        ("/api/play/coupling?coupling=1;2&reader=a&number=1", 400, "must be a number"),
        ("/api/play/coupling?other=1&reader=a&number=1", 400, "no slider"),
        ("/api/play/coupling?coupling=1", 400, "a reader and a number"),
        ("/api/play/coupling?reader=A/&number=1", 400, "a reader and a number"),
        ("/api/play/coupling?reader=a&number=-1", 400, "a reader and a number"),
        ("/api/run", 400, "Which run"),
        ("/api/run?name=none", 404, "no run"),
        ("/api/run?name=../../etc", 404, "no run"),
        ("/api/run?name=first/../first", 404, "no run"),
        ("/api/run?name=/etc/passwd", 404, "no run"),
        ("/api/run?name=%00", 404, "no run"),
        ("/api/follow?name=..", 404, "no run"),
        ("/api/forecast?name=..", 404, "no run"),
        ("/api/forecast", 400, "Which run"),
        ("/api/report", 400, "1 to 24 runs"),
        ("/api/report?name=first&name=../first", 404, "no run"),
        ("/api/report?" + "&".join(f"name={i}" for i in range(25)), 400, "1 to 24 runs"),
        ("/api/run?name=" + "x" * 3000, 414, "longer than"),
    ],
)
def test_refused(page, path, status, says):
    answer = page.get(path)
    assert answer.status == status
    assert says in answer.text and "Traceback" not in answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (405, {"method": "POST"}),
        (405, {"method": "DELETE"}),
        (413, {"body": b"x" * 10}),
        (421, {"headers": {"Host": "evil.example"}}),
        (421, {"headers": {"Host": "127.0.0.1.evil.example:8642"}}),
        (421, {"headers": {"Host": "192.168.1.5"}}),
        (403, {"headers": {"Sec-Fetch-Site": "cross-site"}}),
        (403, {"headers": {"Origin": "http://evil.example"}}),
        (403, {"headers": {"Origin": "null"}}),
        (431, {"headers": {"X": "y" * 20_000}}),
        (431, {"headers": {f"X{i}": "y" for i in range(2500)}}),
    ],
)
def test_refused_requests(page, status, request_):
    assert page.get("/api/runs", **request_).status == status


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no name
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 20_000,  # a head without an end
    ],
)
def test_malformed_requests(page, sent):
    with socket.create_connection(("127.0.0.1", page.port), timeout=10) as door:
        door.sendall(sent)
        assert door.recv(100).startswith(b"HTTP/1.1 4")
    assert page.get("/").status == 200  # it goes on


def test_half_a_request_is_not_waited_for(page, monkeypatch):
    monkeypatch.setattr(serving_module, "HEAD", 0.2)
    with socket.create_connection(("127.0.0.1", page.port), timeout=10) as door:
        door.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert door.recv(100) == b""
    # A whole one has all the time it needs, and so has a second one on the same connection.
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)) as connection:
        for _ in range(2):
            connection.request("GET", "/")
            assert connection.getresponse().read()
    with page.open("/api/play/coupling?reader=half&number=1") as answer:
        time.sleep(0.3)
        assert len(answer.read().splitlines()) == 2


def test_names_of_this_machine_are_let_in(page):
    for name in (f"localhost:{page.port}", "127.0.0.1", f"[::1]:{page.port}"):
        assert page.get("/", headers={"Host": name}).status == 200


def test_runs_are_listed_with_their_curves(page):
    listed = {run["name"]: run for run in json.loads(page.get("/api/runs").text)}
    assert listed["first"]["state"] == "finished" and listed["first"]["algorithm"] == "fedavg"
    found = json.loads(page.get("/api/run?name=first").text)
    loaded = fp.load(page.runs / "first")
    assert found["x"] == list(range(41))
    assert found["error"]["mean"] == pytest.approx(loaded.error.mean(0).tolist(), rel=1e-5)
    assert found["loss"]["high"] == pytest.approx(loaded.loss.max(0).tolist(), rel=1e-5)


def test_a_run_has_its_forecast_and_its_report(page):
    """Made once, however often they are asked for; the report is that of `fedpoint report`, under its own policy."""
    found = json.loads(page.get("/api/forecast?name=first").text)
    error = found["charts"]["error"]
    *_, curve, floor, bias = error["lines"]
    assert curve["name"] == "forecast" and error["xs"][curve["at"]] == [list(range(41))] and found["good"] is True
    problem = load(page.runs / "first").problem
    f = fp.forecast(fp.FedAvg(step=0.1, local_steps=3, normalise=True), problem)
    assert curve["y"] == pytest.approx(f.curve(40), rel=1e-4)
    assert (floor["level"], bias["level"]) == pytest.approx((f.floor, f.bias2), rel=1e-6)
    begun = time.monotonic()
    report = page.get("/api/report?name=first&name=first")
    assert time.monotonic() - begun < 2  # the same parts: no other process
    assert report.status == 200 and report.headers["content-type"].startswith("text/html")
    policy = report.headers["content-security-policy"]
    assert report.text.count("sha256-") >= 2 and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert all(f"'{digest}'" in policy for digest in re.findall(r"sha256-[\w+/=]+", report.text))
    written = write_report([load(page.runs / "first", problem)], page.runs / "written.html").read_text()
    assert report.text == written
    assert not (page.runs / "first" / "report.html").exists()  # the page writes nothing


def test_a_forecast_is_there_before_the_first_round(page, tmp_path):
    """A run that has only begun: its start is on disk, and the forecast goes on to the last round asked for."""
    begun(tmp_path / "begun")
    runs = Runs(tmp_path)
    assert runs.curves("begun")["reached"] == 0 and runs.curves("begun")["x"] == [0]
    found = asyncio.run(outlook.Outlook(runs).of("begun"))
    curve = found["lines"][0]
    assert curve["x"][-1] == 60 and curve["low"][-1] < curve["y"][-1] < curve["high"][-1]
    assert found["note"].startswith("grey: 80 %") and found["good"] is None


def test_what_is_computed_for_runs_is_bounded_and_ends(tmp_path, monkeypatch):
    """Eight runs wait at most; the end of the server is the end of them."""
    for i in range(outlook.WAITING + 1):
        RunFolder.create(tmp_path / str(i), {"rounds": 1}, meta={}).close()

    def endless(paths, patience, stop):
        assert stop.wait(30)
        return [{}]

    monkeypatch.setattr(outlook, "ask", endless)
    monkeypatch.setattr(outlook, "readable", lambda path: None)

    async def many():
        made = outlook.Outlook(Runs(tmp_path))
        works = [asyncio.create_task(made.parts(str(i))) for i in range(outlook.WAITING)]
        await asyncio.sleep(0.2)
        with pytest.raises(Busy):
            await made.parts(str(outlook.WAITING))
        made.close()
        await asyncio.wait_for(asyncio.gather(*works), 10)

    asyncio.run(many())


def read_event(answer):
    """(name, data) of the next server-sent event."""
    name = data = None
    while True:
        text = answer.readline().decode()
        assert text, "the stream ended"
        if text.startswith("event:"):
            name = text[6:].strip()
        elif text.startswith("data:"):
            data = json.loads(text[5:])
        elif text == "\n" and name:
            return name, data


def test_a_run_in_progress_is_followed(page):
    """Commits of another program's are seen, up to the end."""
    gate = threading.Event()
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])

    def slow(progress):
        if progress.round >= 8:
            gate.wait(30)

    def go():
        fp.run(fp.FedAvg(step=0.1), quad, rounds=200, folder=page.runs / "live", callbacks=[slow])

    thread = threading.Thread(target=go)
    thread.start()
    try:
        while "live" not in Runs(page.runs).names() or RunFolder.open(page.runs / "live").newest() is None:
            time.sleep(0.02)
        with page.open("/api/follow?name=live") as answer:
            name, begun = read_event(answer)
            assert begun["charts"]["error"]["lines"][0]["name"] == "run"
            assert name == "curves" and begun["state"] == "running" and begun["reached"] < 200
            gate.set()
            while True:
                name, data = read_event(answer)
                if name == "end":
                    break
                last = data
        assert last["state"] == "finished" and last["x"][-1] == 200
    finally:
        gate.set()
        thread.join(60)


def test_what_is_no_run_is_not_shown(tmp_path):
    (tmp_path / "secret").mkdir()
    folder = RunFolder.create(tmp_path / "secret" / "run", CONFIG, meta=META)
    folder.close()
    shown = tmp_path / "shown"
    (shown / "empty").mkdir(parents=True)
    (shown / "link").symlink_to(tmp_path / "secret")
    RunFolder.create(shown / "a" / "b", CONFIG, meta=META).close()
    (shown / "broken").mkdir()
    (shown / "broken" / "run.json").write_text("{")
    runs = Runs(shown)
    assert sorted(runs.names()) == ["a/b", "broken"]
    assert {run["name"]: run["state"] for run in runs.list()}["broken"] == "unreadable"
    with pytest.raises(fp.FedpointError, match="no run"):
        runs.folder("link/run")
    assert Runs(tmp_path / "missing").list() == []
    assert runs.curves("a/b")["x"] == []  # nothing committed yet


def test_the_list_answers_whatever_lies_among_the_runs(tmp_path):
    """Pipes, links, names that are no text, and a configuration that JSON cannot hold."""
    odd = os.fsdecode(b"r\xff")
    for name in ("good", "pipe", "link", odd):
        RunFolder.create(tmp_path / "runs" / name, CONFIG, meta=META).close()
    RunFolder.create(tmp_path / "runs" / "nan", {**CONFIG, "rounds": float("nan")}, meta=META).close()
    (tmp_path / "runs" / "pipe" / "events.jsonl").unlink()
    os.mkfifo(tmp_path / "runs" / "pipe" / "events.jsonl")
    (tmp_path / "secret").write_text('{"event": "started"}\n')
    (tmp_path / "runs" / "link" / "events.jsonl").unlink()
    (tmp_path / "runs" / "link" / "events.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "runs" / "folder")
    with serving(tmp_path / "runs") as client:
        listed = {run["name"]: run for run in json.loads(client.get("/api/runs").text)}
        states = {name: run["state"] for name, run in listed.items()}
        shown = r"r\udcff"
        assert states == {
            "good": "running",  # by this process
            shown: "running",
            **dict.fromkeys(("pipe", "link", "nan"), "unreadable"),
        }
        assert "is a pipe" in listed["pipe"]["message"] and "is a symbolic link" in listed["link"]["message"]
        assert json.loads(client.get(f"/api/run?name={quote(shown)}").text)["x"] == []
        for name in ("pipe", "link", "nan"):
            for page in ("run", "follow", "forecast", "report"):
                answer = client.get(f"/api/{page}?name={name}")
                assert answer.status in (200, 404) and name in answer.text, page


def test_elsewhere_a_token_is_asked_for(tmp_path):
    with serving(tmp_path, host="0.0.0.0") as client:
        assert client.token and len(client.token) >= 32
        assert client.get("/").status == 401
        assert client.get("/api/runs").status == 401
        assert client.get("/?token=wrong").status == 401
        answer = client.get(f"/?token={client.token}")
        assert answer.status == 303 and answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        known = {"Cookie": cookie.partition(";")[0]}
        assert client.get("/api/runs", headers=known).text == "[]"
        assert client.get("/", headers={**known, "Host": "192.168.1.5:80"}).status == 200
        assert client.get("/", headers={**known, "Host": "evil.example"}).status == 421


def test_a_port_in_use_gets_one_message(page, tmp_path):
    result = CliRunner().invoke(main, ["ui", "--port", str(page.port), "--runs", str(tmp_path)])
    assert result.exit_code == 2
    assert f"port {page.port} is in use" in result.output and len(result.output.splitlines()) == 1


def test_runs_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    result = CliRunner().invoke(main, ["ui", "--runs", str(file)])
    assert result.exit_code == 2 and "not a folder" in result.output


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = CliRunner().invoke(main, ["ui", "--runs", str(tmp_path)])
    assert result.exit_code == 2 and "fedpoint[ui]" in result.output


class Slow(Playground):
    """Says when it works, and waits to be let go."""

    name, title, about, formula, rounds = "slow", "", "", "", 1
    controls = (Control("x", "x", "x", "", (0.0, 1.0), 0.0),)

    def __init__(self):
        self.gate, self.seen = threading.Event(), []

    def experiments(self, values):
        return {}

    def forecast(self, values):
        return {}

    def simulate(self, values):
        self.seen.append(values["x"])
        self.gate.wait(30)
        return {}


def test_superseded_requests_are_dropped():
    slow = Slow()
    computations = Computations({"slow": slow})

    async def ask(number):
        computations.note("me", "slow", number)
        return await computations.compute("simulate", "me", "slow", number, {"x": number})

    async def story():
        first = [asyncio.create_task(ask(n)) for n in (1, 2)]  # both threads are busy
        while len(slow.seen) < 2:
            await asyncio.sleep(0.01)
        later = []
        for n in range(3, 60):  # more than may wait, were they not void
            later.append(asyncio.create_task(ask(n)))
            await asyncio.sleep(0.001)
        slow.gate.set()
        return await asyncio.gather(*first, *later, return_exceptions=True)

    *old, newest = asyncio.run(story())
    assert computations.close()
    assert all(isinstance(r, Superseded) for r in old) and "seconds" in newest
    assert slow.seen == [1, 2, 59]


def test_too_many_readers_are_told_so():
    slow = Slow()
    computations = Computations({"slow": slow})

    async def ask(reader):
        computations.note(reader, "slow", 1)
        return await computations.compute("simulate", reader, "slow", 1, {"x": 0})

    async def story():
        tasks = [asyncio.create_task(ask(str(r))) for r in range(WAITING + 3)]
        await asyncio.sleep(0.05)
        slow.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(story())
    assert computations.close()
    assert [isinstance(r, Busy) for r in results] == [False] * WAITING + [True] * 3


def test_a_playground_that_fails_is_said(caplog):
    class Broken(Slow):
        def warm(self):
            raise RuntimeError("no")

    computations = Computations({"broken": Broken()})
    computations.warm()
    while computations.compilation["broken"] != "failed":
        time.sleep(0.01)
    assert computations.close()
    assert computations.compilation == {"broken": "failed"} and "cannot be compiled" in caplog.text


def test_open_streams_do_not_hold_up_the_end(tmp_path):
    """The run is unfinished and this process is alive, so that its stream would go on."""
    folder = RunFolder.create(tmp_path / "run", CONFIG, meta=META)
    folder.append_event({"event": "started"})
    with serving(tmp_path) as client, client.open("/api/follow?name=run") as answer:
        assert read_event(answer)[1]["state"] == "running"
        begun = time.monotonic()
        client.server.handle_exit(2, None)
        answer.read()
        assert time.monotonic() - begun < 5
    folder.close()


def test_the_end_does_not_wait_for_a_computation():
    slow = Slow()
    computations = Computations({"slow": slow})
    computations.warm()
    while not slow.seen:
        time.sleep(0.01)
    assert not computations.close(patience=0.05)
    slow.gate.set()
    assert computations.close()
