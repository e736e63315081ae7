"""What notebooks show is small, escaped and without script; the tutorial runs from top to bottom."""

import importlib.util
import sys
import xml.dom.minidom
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import fedpoint as fp
from fedpoint.results.certificate import Certificate, Finding, Unexercised
from fedpoint.results.verdict import Check, Verdict
from fedpoint.show import svg
from fedpoint.show.drawing import Side, panel

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.ipynb"
BAD = "<img src=x onerror=alert(1)>"


def checked(html: str) -> str:
    """Well-formed, small, and nothing that runs or is fetched."""
    elements = xml.dom.minidom.parseString(html).getElementsByTagName("*")
    assert len(html) < 30_000
    assert {e.tagName for e in elements}.isdisjoint({"script", "style", "link", "img", "a"})
    attributes = {name for e in elements for name in e.attributes.keys()}  # noqa: SIM118 - not a dictionary
    assert not any(name.startswith("on") or name in ("src", "href") for name in attributes)
    assert {e.getAttribute("style") for e in elements} <= {"", "text-align:left"}  # no colour of its own
    return html


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The cells of the tutorial, and what each of them shows."""
    found = importlib.util.spec_from_file_location("site_of_docs", TUTORIAL.parent / "site.py")
    site = importlib.util.module_from_spec(found)
    sys.modules["site_of_docs"] = site
    found.loader.exec_module(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tutorial"))
        names: dict = {}
        values = [cell.value for cell in site.played(TUTORIAL, names) if cell.value is not None]
        names["page"], names["loaded"] = Path("tutorial-run", "report.html").read_text(), fp.load("tutorial-run")
    return SimpleNamespace(names=names, values=values)


def test_the_tutorial_runs_and_shows_itself(shown):
    assert sum(hasattr(type(value), "_repr_html_") for value in shown.values) == 4
    assert shown.names["verdict"].passed and shown.values[-3] == 0  # SCAFFOLD's bias
    assert "As forecast, " in shown.names["page"] and "Not here" not in shown.names["page"]


def test_a_run_shows_its_numbers_and_its_curve(shown):
    for run in (shown.names["run"], shown.names["loaded"]):
        html = checked(run._repr_html_())
        assert "FedAvg on Quadratic" in html or "fedavg on Quadratic, tutorial-run" in html
        assert "squared distance to the solution" in html and "<th" in html and 'role="img"' in html


def test_a_run_of_any_models_shows_its_loss():
    X, names = np.linspace(0, 1, 12)[:, None], np.repeat(["a", "b"], 6)
    task = fp.problems.AnyModel(X, X[:, 0], groups=names, models=LinearRegression(), shared=X[::3])
    run = fp.run(fp.FedRelax(coupling=1.0), task, network=fp.Network.from_edges([("a", "b")]), rounds=2)
    html = checked(run._repr_html_())
    assert "FedRelax on AnyModel, 2 agents" in html and "<path" in html and ">loss</th>" in html


def test_a_forecast_shows_floor_and_bias(shown):
    html = checked(shown.names["forecast"]._repr_html_())
    assert "bias²" in html and ">rate</th>" in html and "from w*" in html


def test_a_verdict_and_a_comparison_show_their_rows(shown):
    verdict = shown.names["verdict"]
    assert checked(verdict._repr_html_()).count("<tr>") == 1 + len(verdict.checks)
    html = checked(shown.names["comparison"]._repr_html_())
    assert html.count("<tr>") == 3 and "SCAFFOLD" in html and "<path" in html


def test_text_stays_text():
    verdict = Verdict("contradicted", BAD, [Check(BAD, None, None, None, None, BAD)], None)
    certificate = Certificate(
        *(BAD, None, "unknown", BAD, "unknown", None, BAD, [Finding(BAD, True, None, "", BAD)], 0),
        unexercised=[Unexercised(BAD, 3, BAD, BAD)],
    )
    for html in (verdict._repr_html_(), certificate._repr_html_()):
        assert "<img" not in html and "&lt;img" in checked(html)
    line = {"name": BAD, "colour": 0, "x": [0, 1], "y": [1.0, 2.0]}
    picture = svg.picture(panel([line], Side(BAD), Side(BAD), BAD, BAD))
    assert "<img" not in picture
    xml.dom.minidom.parseString(picture)


def test_a_plan_shows_choices_and_what_is_excluded():
    from fedpoint.show.html import plan_html

    choice = SimpleNamespace(
        title="FedAvg", step=0.1, local_steps=3, participation=fp.Everyone(), rounds=7, floats=1e5, evaluations=300.0,
        seconds=None, error=0.01, floor=None, promise="exact",
    )  # fmt: skip
    plan = SimpleNamespace(
        choices=[choice], excluded=[SimpleNamespace(method=BAD, reason=BAD)], notes=["in expectation"], budget=None,
        minimise="communication", measure="error", target=0.02, problem=SimpleNamespace(agents=3), affordable=None,
        measured=[], missed=[], confidence=None, unseen=[], seconds=None, privacy=None, advice="", what="E|w - w*|^2",
    )  # fmt: skip
    html = checked(plan_html(plan))
    assert "FedAvg" in html and "100k" in html and "1 excluded" in html and "in expectation" in html
    plan.choices = []
    assert "Nothing reaches it." in checked(plan_html(plan))


@pytest.mark.parametrize("log", [True, False])
def test_curves_that_cannot_be_drawn_are_left_out(log):
    """Gaps, zeros, nothing at all, one point, a curve that is constant."""
    for y in ([1.0, None, 0.0, float("inf"), 2.0], [0.0] * 5, [float("nan")] * 5, [3.0] * 5):
        lines = [{"name": "a", "colour": 0, "x": list(range(5)), "y": y}, {"name": "l", "colour": 1, "level": y[0]}]
        picture = svg.picture(panel(lines, Side("x"), Side("y", log)))
        xml.dom.minidom.parseString(picture)
        assert "nan" not in picture and "inf" not in picture
    for lines in ([], [{"name": "a", "colour": 0, "x": [0], "y": [1.0]}]):
        xml.dom.minidom.parseString(svg.picture(panel(lines, Side("x"), Side("y", log))))


def test_large_networks_stay_small(rng):
    K, E = 1200, 6000
    picture = svg.network(
        rng.normal(size=(K, 2)), rng.integers(K, size=(E, 2)), rng.random(E), ["x"] * K, rng.random(K)
    )
    assert len(picture) < 260_000 and picture.count("<circle") == K
    alone = svg.network(np.zeros((1, 2)), np.zeros((0, 2), int), np.zeros(0), ["one"])
    xml.dom.minidom.parseString(alone)
