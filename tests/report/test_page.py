"""A report is one file that needs nothing else, says what it cannot say, and reads for everybody."""

import base64
import copy
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.config.load import load
from fedpoint.show import charts as drawn
from fedpoint.show import facts as gathered
from fedpoint.show import figures, from_data, page, palette
from fedpoint.store.records import RoundRecords

EXPERIMENT = """
rounds = 12
repeats = 3
seed = 5
[problem]
kind = "quadratic"
agents = 4
dim = 1
curvature = [0.5, 2.0]
spread = 4.0
noise = 0.2
[algorithm]
name = "scaffold"
step = [0.1, 0.05] # one program serves both
local_steps = 5
"""
LABELS = ["SCAFFOLD, step=0.1", "SCAFFOLD, step=0.05"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a comparison."""
    place = tmp_path_factory.mktemp("report")
    (place / "two.toml").write_text(EXPERIMENT)
    done = CliRunner().invoke(
        main, ["run", str(place / "two.toml"), "--folder", str(place / "runs"), "-q", "--no-figure"]
    )
    assert done.exit_code == 0, done.output
    return place / "runs"


@pytest.fixture(scope="module")
def facts(runs):
    """What the page of the comparison is made of: the forecasts by another process, once."""
    found = [load(path.parent) for path in sorted(runs.glob("*/run.json"))]
    return gathered.facts_of(found, gathered.parts_of(found, patience=300.0))


@pytest.fixture(scope="module")
def text(facts):
    return page.page(facts, "Two <methods>")


def charts(text: str) -> list[dict]:
    return [json.loads(found) for found in re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)]


def test_the_page_needs_nothing_else_and_allows_nothing_else(text):
    assert len(text.encode()) < 500_000
    without_names = text.replace("http://www.w3.org/2000/svg", "")  # the name of a language, not an address
    body = re.sub(r"<pre>.*?</pre>", "", without_names, flags=re.S)  # BibTeX may have addresses, as text
    assert not re.search(r"https?://|//cdn|url\((?!#)|@import|<link|<img|<iframe", body)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#x27;", "'")
    script = re.findall(r"<script>(.*?)</script>", text, re.S)
    style = re.findall(r"<style>(.*?)</style>", text, re.S)
    assert len(script) == len(style) == 1
    for kind, inline in (("script", script[0]), ("style", style[0])):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"<[^>]*\sstyle=|<[^>]*\son\w+=", re.sub(r"<script>.*?</script>", "", text, flags=re.S))


def test_the_page_says_everything(text, facts):
    error = next(chart for chart in charts(text) if chart["title"] == "Error")
    names = [line["name"] for line in error["lines"]]
    assert names[:2] == ["run", "forecast"] and any("floor" in n for n in names)
    run, expected = error["lines"][:2]
    assert (
        error["xs"][run["at"]][0] == list(range(13))
        and run["at"] == expected["at"] == 0
        and len(expected["low"]) == len(run["y"]) == 13
    )
    singles = [line for line in error["lines"] if line.get("width") == "thin"]
    np.testing.assert_allclose([line["y"] for line in singles], facts[0].run.error, rtol=1e-4)
    assert all(low <= y <= high for low, y, high in zip(*(expected[s] for s in ("low", "y", "high")), strict=True))
    np.testing.assert_allclose(run["y"], facts[0].run.error.mean(0), rtol=1e-4)
    assert expected["y"][0] == pytest.approx(run["y"][0], rel=1e-4)  # a forecast begins where the run does
    both = charts(text)[0]
    assert [line["name"] for line in both["lines"]][:2] == LABELS
    sent = facts[1].run.cost
    assert both["xs"][both["lines"][1]["at"]][1][-1] == sent.floats_down + sent.floats_up
    for word in ("Jain", "worst tenth", "How to cite", "@inproceedings{karimireddy", "seed", "SHA-256", "config.toml"):
        assert word in text, word
    assert text.count("✓ As forecast, ") == 2
    assert f"jax {facts[0].run.stored.meta['versions']['jax']}" in text
    assert facts[0].parts["agents"]["losses"] == pytest.approx(
        np.mean([facts[0].run.problem.losses(model) for model in facts[0].run.model], 0), rel=1e-4
    )


def test_the_same_runs_give_the_same_bytes_anywhere(facts, text, runs, tmp_path):
    assert page.page(facts, "Two <methods>") == text
    assert str(runs) not in text
    moved = [load(shutil.copytree(f.run.stored.path, tmp_path / f.run.stored.path.name)) for f in facts]
    again = [page.Facts(run, f.label, f.colour, f.parts, f.among) for run, f in zip(moved, facts, strict=True)]
    assert page.page(again, "Two <methods>") == text


def test_many_runs_fit_on_a_page(facts):
    """As many as a page takes, each as long as can be seen."""
    many, rounds = gathered.MOST_RUNS, 20_000
    long = copy.copy(facts[0].run)
    used, curve = np.cumsum(np.full((2, rounds, 3), 40), axis=1), np.random.default_rng(0).random((2, rounds))
    long.records = RoundRecords(np.arange(rounds), long.history, used, error=curve, loss=curve)
    long._error = long._loss = curve
    long.evaluation, long.evaluated_rounds = {"accuracy": curve[:, ::100]}, long.rounds[::100]
    agents = {**facts[0].parts["agents"], "losses": [0.123] * 1000, "weights": [0.001] * 1000}
    part = {"at": list(range(400)), "curve": [0.12345] * 400, "text": "x" * 400, "floor": 0.1, "proviso": ""}
    parts = {"time": {}, "network": {}, "agents": {**agents, "names": ["agent"] * 1000}, "forecast": part}
    for count in (1, 3, 4, gathered.IN_FULL, many):
        shown = [page.Facts(long, f"a method, step={i}", i, parts, among=count) for i in range(count)]
        assert len(page.page(shown, "many").encode()) < 500_000, count


def test_text_stays_text(facts):
    one = facts[0]
    bad = "</script><script>alert(1)</script>"
    parts = {
        "network": {},
        "time": {},
        "agents": {**one.parts["agents"], "names": [bad] * 4},
        "forecast": {"missing": bad, "text": bad},
    }
    made = page.page([page.Facts(one.run, bad, i, parts, among=2) for i in (0, 1)], bad)
    assert "<script>alert" not in made and "&lt;script&gt;alert(1)" in made
    assert made.count("<script") == 1 + len(charts(made))
    assert all(chart["lines"][0]["name"] in (bad, "run") for chart in charts(made))


def test_the_command_writes_into_the_folder_of_the_run(runs):
    folder = next(runs.glob("2-*"))
    done = CliRunner().invoke(main, ["report", str(folder), "--patience", "0"])
    assert done.exit_code == 0 and "report.html" in done.output, done.output
    text = (folder / "report.html").read_text()
    assert "<h1>SCAFFOLD on Quadratic</h1>" in text and "longer than 0 seconds" in text
    (folder / "report.html").unlink()


def test_what_takes_long_is_left_out(runs, tmp_path):
    path = page.write([runs], tmp_path / "all.html", patience=0.0)
    text = path.read_text()
    assert text.count("it takes longer than 0 seconds") == 2
    assert LABELS[0] in text and charts(text)


def test_a_process_that_dies_is_said(runs, monkeypatch):
    monkeypatch.setattr(from_data.sys, "executable", shutil.which("false"))
    found = from_data.ask(list(runs.glob("1-*")), 30.0)
    assert found[0]["network"] == {} and "ended early" in found[0]["forecast"]["missing"]


def test_without_data_the_page_says_what_is_missing(facts, tmp_path, monkeypatch):
    problem, algorithm = facts[0].run.problem, facts[0].run.algorithm
    fp.run(algorithm, problem, rounds=3, folder=tmp_path / "run")
    monkeypatch.setattr(gathered, "ask", lambda folders, patience: [from_data.all_of(load(f)) for f in folders])
    text = page.write([tmp_path / "run"]).read_text()
    assert "Not here: losses per agent and fairness, the forecast: the data of the run in run are not" in text
    assert "Not here: the loss: it was not evaluated while the run went on" in text
    assert [chart["title"] for chart in charts(text)] == ["Error"]
    # With the problem everything is there.
    whole = page.write([fp.load(tmp_path / "run", problem)], tmp_path / "whole.html").read_text()
    assert "Not here" not in whole and "Jain" in whole


def test_without_a_solution_the_loss_is_shown(tmp_path):
    rows = np.array([1.0, 1.0, 2.0, 2.0])
    problem = fp.problems.Loss(lambda w, x: (w**2 - x) ** 2, np.array(0.5), rows, groups=[0, 0, 1, 1])
    fp.run(fp.FedAvg(step=0.01), problem, rounds=4, folder=tmp_path / "run", losses_every=1)
    run = load(tmp_path / "run")
    text = page.page([page.Facts(run, "FedAvg", 0, from_data.all_of(run))], "x")
    assert [chart["title"] for chart in charts(text)] == ["Loss"]
    np.testing.assert_allclose(charts(text)[0]["lines"][0]["y"], run.loss[0], rtol=1e-4)


def test_a_network_is_drawn(tmp_path):
    network = fp.Network.ring(5)
    problem = fp.problems.Quadratic([1.0] * 5, np.arange(5.0)[:, None])
    schedule = fp.InStep(fp.Clock(work=[1.0, 1.0, 1.0, 1.0, 2.5], law="constant"))
    method = fp.FedGD(step=0.1, coupling=0.5)
    fp.run(method, problem, rounds=6, network=network, schedule=schedule, folder=tmp_path / "run")
    text = page.write([fp.load(tmp_path / "run", problem)], tmp_path / "a.html").read_text()
    assert "comparisons made: </strong>FedGD does what its forecast says." in text
    picture = re.search(r'<svg[^>]*aria-label="Network of 5 nodes and 5 edges[^>]*>(.*?)</svg>', text, re.S)[1]
    assert picture.count("<circle") == 5
    error, *_, disagreement = charts(text)
    assert disagreement["title"] == "Disagreement"
    # On a clock, curves can be drawn over virtual time: all wait for the slowest.
    assert (error["axes"][3]["name"], error["axes"][3]["label"]) == ("virtual time", "virtual seconds")
    assert error["xs"][0][3] == [2.5 * t for t in range(7)] and error["xs"][0][0] == list(range(7))
    # Without the data the network is drawn all the same, from what the folder states.
    assert "places" in from_data.all_of(load(tmp_path / "run"))["network"]


def test_virtual_time_is_offered_only_where_all_have_it():
    lines = [{"name": n, "colour": 0, "xs": [[0, 1]] * ways, "y": [1, 2]} for n, ways in (("a", 4), ("b", 3))]
    assert [len(charts(drawn.chart("t", "y", some))[0]["axes"]) for some in (lines[:1], lines)] == [4, 3]


def test_a_check_that_compared_nothing_is_no_success(facts):
    verdict = {"good": None, "headline": "Undecided, 0 of 1: no", "checks": [{"name": "path", "ok": None}]}
    one = facts[0]
    part = {"verdict": {**verdict, "checks": [{**verdict["checks"][0], "words": "no", "z": None}]}, "text": ""}
    text = page.page([page.Facts(one.run, "x", 0, {**one.parts, "forecast": part})], "t")
    assert "– Undecided, 0 of 1: " in text and "✓" not in text


def test_mistakes_are_said(tmp_path, runs):
    for given, out, words in [
        ([], None, "nothing to report"),
        ([runs], tmp_path / "a.pdf", "ends in .html"),
        ([runs], tmp_path / "none" / "a.html", "does not exist"),
        ([tmp_path], None, "not a run folder"),
        ([tmp_path / "none"], None, "no run folder"),
        ([runs] * 13, tmp_path / "a.html", "too many"),
        ([object()], None, r"from the folder of a run, got object: give fp.run\(..., folder=...\)"),
    ]:
        with pytest.raises(fp.FedpointError, match=words):
            page.write(given, out, patience=0.0)


def test_a_diverged_run_has_a_page(tmp_path):
    problem = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    with pytest.raises(fp.Diverged):
        fp.run(fp.FedAvg(step=50.0, local_steps=9, normalise=False), problem, rounds=4000, folder=tmp_path / "run")
    text = page.write([fp.load(tmp_path / "run", problem)], tmp_path / "a.html").read_text()
    assert "Diverged by round" in text


# Everybody can read it


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def palettes() -> list[dict[str, str]]:
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", page.asset("curves.css"))
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in blocks]


def test_the_palette_has_contrast_in_light_and_in_dark():
    light, dark, chosen = palettes()
    assert dark == chosen and set(light) == set(dark)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for colours in (light, dark):
        text = [name for name in colours if name not in ("paper", "card", "grid", "rule")]
        for name in text:
            for back in ("paper", "card"):
                assert contrast(colours[name], colours[back]) >= 4.5, (name, back)
        assert contrast(colours["rule"], colours["paper"]) >= 3  # borders of what can be pressed


def test_files_pages_and_pictures_have_one_palette():
    light, dark, _ = palettes()
    assert tuple(light[f"c{i}"] for i in range(7)) == palette.ON_WHITE and figures.COLOURS == palette.ON_WHITE
    assert tuple(dark[f"c{i}"] for i in range(7)) == palette.ON_BLACK
    grey = (palette.INK, palette.PALE, palette.GRID, palette.RULE)
    assert tuple(light[name] for name in ("ink", "pale", "grid", "rule")) == grey
    drawn = re.findall(r"\.(\w+) \{[^}]*stroke-(?:width|dasharray)", page.asset("curves.css"))
    assert set(drawn) <= {"line", "circle"}  # of the read-out: widths and dashes are the picture's own


def test_pictures_without_a_style_sheet_read_on_light_and_dark():
    for colour in palette.ON_BOTH:
        assert contrast(colour, "#ffffff") >= 3 and contrast(colour, "#111111") >= 3, colour


def test_names_for_who_cannot_see(text):
    assert '<html lang="en">' in text and 'name="viewport"' in text and 'href="#report"' in text
    assert all("aria-label" in found or "aria-hidden" in found for found in re.findall(r"<svg[^>]*>", body_of(text)))
    assert text.count("<summary>Numbers</summary>") == len(charts(text))  # each chart as a table too
    assert text.count("<h1>") == 1 and all(t in text for t in ("<main", "<header", "<nav", "<footer"))
    assert not re.search(r"<th(?![^>]*scope)[ >]", body_of(text))


def body_of(text: str) -> str:
    return re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.S)


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium: apt-get install chromium")
def test_a_browser_draws_it_without_a_complaint(text, tmp_path):
    (tmp_path / "a.html").write_text(text)
    asked = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    own = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run([*asked, own, (tmp_path / "a.html").as_uri()], capture_output=True, text=True, timeout=60)
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    count = len(charts(text))
    assert done.stdout.count('class="picture fp-curves"') == count and done.stdout.count('type="radio"') == 3 * count


def test_assets_are_part_of_the_package():
    folder = Path(page.__file__).parent / "assets"
    assert {path.name for path in folder.iterdir()} == {"curves.css", "curves.js", "page.css", "page.js"}
    assert "fedpointCurves" in page.asset("curves.js")
