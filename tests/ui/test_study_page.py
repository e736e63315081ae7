"""Pages of a federated study: what the leader and a site see, that nobody else may ask, and a browser that shows it."""

import contextlib
import json
import os
import queue
import shutil
import threading
import time

import pytest
from click.testing import CliRunner
from on_loopback import Client

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.cli.federate_page import source_of
from fedpoint.federation.flare.trial import begin
from fedpoint.federation.site import stop
from fedpoint.federation.study import parse
from fedpoint.federation.transport import NoAnswerYet
from fedpoint.ui.study_page import serve
from fedpoint.ui.study_views import LeaderSource, SiteSource, leader_view

SITES = ["north", "south"]
STUDY = parse(
    {
        "name": "trial",
        "sites": SITES,
        "server": "localhost:8102",
        "rounds": 4,
        "measurements": 2,
        "share_model": True,
        "problem": {"kind": "quadratic", "H": [1.0, 2.0], "centers": [[0.0], [1.0]]},
        "algorithm": {"name": "fedavg", "step": 0.5},
    }
)
PART = "studies/trial.1"
BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study in process, its result, and the kits of a site and the leader beside it."""
    root = tmp_path_factory.mktemp("study")
    result = fp.federate(STUDY, folder=root / "run")
    project = begin(STUDY, root / "project").project
    shutil.copytree(project.folder / "north", root / "north")
    shutil.copytree(root / "run" / "north", root / "north" / PART / "records")
    return root, result


class Told:
    """Stands for `Lead`: what the server would say."""

    def __init__(self, **said):
        self.study, self.said, self.closed = STUDY, said, False

    def status(self, since=0):
        if not self.said:
            raise NoAnswerYet("no server answered")
        return {"sites": ["north"], "unheard": {"south": 7.2}, "jobs": [], **self.said}

    def close(self):
        self.closed = True


def text_of(view):
    return json.dumps(view)


def test_the_leader_sees_who_is_there_and_what_came_of_it(made):
    root, _ = made
    lead = Told(jobs=[])
    view = LeaderSource(lead, root / "run" / "hub").look()
    assert (view["state"], view["round"], view["rounds"], view["lead"]) == ("ended", 4, 4, "The study has ended.")
    sites = {row[0]: row for row in view["sections"][0]["table"][1:]}
    assert sites["north"][1] == "connected" and sites["south"][1] == "silent for 7 s"
    assert sites["north"][2] == "50 %" and sites["north"][-1] == "yes"
    rounds = next(one for one in view["sections"] if one["heading"] == "Last rounds")["table"]
    assert [row[0] for row in rounds[1:]] == ["3", "2", "1", "0"] and rounds[1][2] == "north, south"
    measured = next(one for one in view["sections"] if one["heading"] == "Measurements")["table"]
    assert [row[:2] for row in measured[1:]] == [[f"round {n}", site] for n in (2, 4) for site in SITES]


def test_while_a_job_runs_the_leader_sees_what_the_server_says(made):
    event = {"round": 1, "merged": False, "answered": ["north"], "refused": {"south": "late"}, "seconds": {}, "up": 300}
    waiting = {"waiting": "work", "for": ["south"]}
    said = {"jobs": ["j"], "round": 2, "events": [event], "waiting": waiting, "alarms": [{"text": "south is odd"}]}
    view = leader_view(STUDY, Told(**said).status(), None)
    assert (view["state"], view["round"], view["lead"]) == ("running", 2, "Waiting for south (work).")
    assert "south is odd" in text_of(view) and "south: late" in text_of(view) and "abandoned" in text_of(view)


def test_a_server_that_is_away_is_said_and_the_result_is_shown_all_the_same(made):
    root, _ = made
    view = LeaderSource(Told(), root / "run" / "hub").look()
    assert view["lead"] == "no server answered" and view["round"] == 4
    none = LeaderSource(Told(), root / "nothing").look()
    later = Told()
    later.study = parse({**STUDY.content, "rounds": 6})
    assert LeaderSource(later, root / "run" / "hub").look()["round"] == 0  # the result of the version before
    assert (none["state"], none["round"]) == ("waiting", 0)


def test_a_site_sees_its_own_record(made):
    root, result = made
    view = SiteSource(source_of(root / "north", None, None).part).look()
    assert (view["title"], view["state"], view["round"]) == ("north in trial", "ended", 4)
    left = next(one for one in view["sections"] if one["heading"] == "What left this site")["table"]
    assert ["changes of the model", "4"] in [row[:2] for row in left]
    given = next(one for one in view["sections"] if one["heading"] == "Measurements that this site gave")["table"]
    assert given[-1] == ["round 4", f"loss {result.measures['north']['loss']}"]
    assert "It is in " in text_of(view) and "None was changed, removed or moved." in text_of(view)
    assert "south" not in text_of(view)  # nothing of others


def test_a_site_that_has_not_begun_or_has_stopped(made, tmp_path):
    root, _ = made
    shutil.copytree(root / "north", tmp_path / "north")
    source = source_of(tmp_path / "north", None, None)
    assert source.look() is source.look()  # read again only when it has changed
    stop.note_stop(tmp_path / "north" / PART / "records", "<b>three</b>")
    assert source.look()["state"] == "stopped" and "<b>three</b>" in source.look()["lead"]
    shutil.rmtree(tmp_path / "north" / PART / "records")
    assert source.look()["lead"] == "No order has reached this site yet."


def test_the_leader_sees_who_has_not_approved(made):
    status = {"sites": ["north"], "approved": ["north"], "unheard": {}, "jobs": []}
    (sites,) = [one for one in leader_view(STUDY, status, None)["sections"] if one["heading"] == "Sites"]
    assert [row[:2] for row in sites["table"][1:]] == [["north", "connected"], ["south", "has not approved it"]]


def test_the_server_has_no_page(made):
    root, _ = made
    for kit in ("project/server", "run"):
        got = CliRunner().invoke(main, ["federate", "page", str(root / kit)])
        assert got.exit_code == 2 and "does not know a study" in got.output
    assert isinstance(source_of(root / "project", None, None), LeaderSource)


# Served.


@contextlib.contextmanager
def serving(source, host="127.0.0.1"):
    told, started = [], queue.Queue()
    thread = threading.Thread(target=serve, args=(source, host, 0, told.append, started.put))
    thread.start()
    server = started.get(timeout=30)
    client = Client(int(told[0].split(":")[3].split("/")[0]), told[0].partition("token=")[2] or None)
    try:
        yield client
    finally:
        server.handle_exit(2, None)
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    """A site's page; its name and reasons are hostile text."""
    root, _ = made
    kit = tmp_path_factory.mktemp("kit") / "north"
    shutil.copytree(root / "north", kit)
    with serving(source_of(kit, None, None)) as client:
        client.kit = kit
        yield client


def test_the_page_is_given_to_this_machine_only(page):
    assert json.loads(page.get("/api/study").text)["round"] == 4
    assert page.get("/").status == 200 and "default-src 'none'" in page.get("/").headers["content-security-policy"]
    assert page.get("/api/study", headers={"Host": "evil.example"}).status == 421
    assert page.get("/api/study", headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert page.get("/api/study", method="POST").status == 405
    assert page.get("/records/luck").status == 404


def test_elsewhere_a_token_is_asked_for(made):
    root, _ = made
    with serving(source_of(root / "north", None, None), "0.0.0.0") as client:
        assert client.token and client.get("/api/study").status == 401
        cookie = client.get(f"/?token={client.token}").headers["set-cookie"].split(";")[0]
        assert client.get("/api/study", headers={"Cookie": cookie}).status == 200


def test_a_source_that_fails_is_one_message(made):
    class Broken:
        def look(self):
            raise fp.FedpointError("the disk is gone")

        def close(self):
            self.closed = True

    source = Broken()
    with serving(source) as client:
        answer = client.get("/api/study")
        assert (answer.status, answer.text) == (400, "the disk is gone\n")
        with client.open("/api/follow") as stream:
            assert b"the disk is gone" in stream.read(300)
    assert source.closed


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no browser: apt-get install chromium chromium-driver")
def test_a_browser_shows_a_site_its_study_as_it_goes_on(page):
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=420,900"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which does not work for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))

    def shows(script, wanted):
        end = time.monotonic() + 30
        while browser.execute_script(script) != wanted:
            assert time.monotonic() < end, browser.execute_script("return document.body.innerText")
            time.sleep(0.05)

    try:
        browser.get(page.address)
        shows("return document.getElementById('state').textContent", "ended")
        assert browser.execute_script("return document.querySelector('label').textContent") == "Round 4 of 4"
        assert browser.execute_script("return document.querySelectorAll('section').length") >= 4
        stop.note_stop(page.kit / PART / "records", "<b id='bad'>three</b>")
        shows("return document.getElementById('state').textContent", "stopped")
        assert "<b id='bad'>three</b>" in browser.execute_script("return document.body.innerText")
        assert browser.execute_script("return document.getElementById('bad')") is None
        wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert browser.execute_script(wide)  # on a phone nothing sticks out
        assert browser.get_log("browser") == []
    finally:
        browser.quit()
