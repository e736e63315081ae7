"""A form of the live page: which experiments it describes, and how the page starts them."""

import json
import time
import tomllib
from urllib.parse import urlencode

import pytest

import fedpoint as fp
from fedpoint.core.errors import FedpointError
from fedpoint.ui.forms import content, form

GIVEN = {
    "problem": "quadratic",
    "problem.agents": "4",
    "algorithm": "fedavg",
    "algorithm.step": "0.1",
    "participation": "2",
    "rounds": "30",
    "repeats": "2",
    "exact": "true",
}


def test_a_form_describes_what_a_file_does(tmp_path):
    made = content({**GIVEN, "algorithm.local_steps": ""})  # left to its default
    assert made["problem"] == {"kind": "quadratic", "agents": 4} and made["algorithm"] == {
        "name": "fedavg",
        "step": 0.1,
    }
    assert (made["participation"], made["rounds"], made["exact"]) == (2, 30, True)


def test_every_problem_and_method_can_be_chosen():
    asked = form()
    assert {p["name"] for p in asked["problem"]} >= {"quadratic", "logistic", "linear_stream", "digits"}
    names = {m["name"] for m in asked["algorithm"]}
    assert names == {name for name, card in fp.CATALOGUE.items() if not card.network}
    for choice in (*asked["problem"], *asked["algorithm"]):
        assert choice["title"] and all(f["help"] for f in choice["fields"]), choice["name"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"problem": "table"}, "unknown problem 'table'"),
        ({"algorithm": "<b>"}, "unknown algorithm '<b>'"),
        ({"algorithm.step": ""}, "FedAvg needs step"),
        ({"algorithm.step": "fast"}, "algorithm.step = 'fast' is not a number"),
        ({"participation": "9"}, "choose at most 4"),
        ({"rounds": "200000"}, "more than a form starts"),
        ({"problem.agents": "100000"}, "more than a form starts"),
        ({"problem.file": "/etc/passwd"}, "does not ask for 'problem.file'"),
        ({"start": "model.npz"}, "does not ask for 'start'"),
        ({"exact": "maybe"}, "choose one of false, true"),
    ],
)
def test_mistakes_are_one_message(changed, says):
    with pytest.raises(FedpointError, match=says):
        content({**GIVEN, **changed})


def asked(page, path, given, **headers):
    return page.get(f"{path}?{urlencode(given)}", "POST", {"Origin": page.address.rstrip("/"), **headers})


def test_only_the_page_itself_starts_runs(page):
    before = sorted(page.runs.iterdir())
    start = f"/api/start?{urlencode(GIVEN)}"
    assert page.get(start).status == 405  # GET
    assert page.get(start, "POST").status == 403  # no browser's page
    assert page.get(start, "POST", {"Origin": "http://evil.example"}).status == 403
    assert asked(page, "/api/start", GIVEN, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert asked(page, "/api/runs", {}).status == 405  # nothing else is asked with POST
    assert asked(page, "/api/start", {**GIVEN, "rounds": "x"}).status == 400
    assert asked(page, "/api/stop", {"name": "first"}).status == 400  # not started here
    assert sorted(page.runs.iterdir()) == before


def test_a_run_is_started_and_stopped(page):
    written = page.get(f"/api/file?{urlencode(GIVEN)}")
    assert tomllib.loads(written.text) == content(GIVEN)
    answer = asked(page, "/api/start", {**GIVEN, "rounds": "100000", "problem.dim": "200"})
    assert answer.status == 200, answer.text
    name = json.loads(answer.text)["name"]
    curves = json.loads(page.get(f"/api/run?name={name}").text)
    assert curves["stoppable"] and curves["rounds"] == 100_000
    assert (page.runs / f"{name}.toml").exists()
    assert asked(page, "/api/stop", {"name": name}).status == 200
    end = time.monotonic() + 60
    while json.loads(page.get(f"/api/run?name={name}").text)["stoppable"]:
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.1)
