"""The dossier: all that a data-protection officer asks for is there and right, and nothing is fetched."""

import html
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner
from malicious import METHOD, TABLE, write_table
from parts import part_of
from studies import BOWLS, content

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.data.floor import Floor
from fedpoint.federation.dossier import Dossier, compose, difference, forecast_rows, interval, write
from fedpoint.federation.result import StudyResult
from fedpoint.federation.site.audit_report import lines, report
from fedpoint.federation.study import parse

SITES = ["north", "south"]
FLOOR = Floor(rows=10, per_category=2, per_class=3)
STUDY = parse(
    content(
        METHOD,
        {**TABLE, "held_out": 0.25},
        rounds=3,
        sites=SITES,
        purpose="predict <script>alert(1)</script> & who falls ill",
        measures=["loss", "accuracy", "auc", "calibration", "confusion"],
    )
)
HEADINGS = [
    "1. Description of the processing",
    "2. Necessity and proportionality",
    "3. Risks to the people in the data",
    "4. Measures against these risks",
    "5. What came of it",
    "6. How to check this",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study with two sites, and the kit of one."""
    root = tmp_path_factory.mktemp("dossier")
    files = {site: write_table(root / f"{site}.csv", seed, rows=120) for seed, site in enumerate(SITES)}
    fp.federate(STUDY, files, folder=root / "run", floor=FLOOR)
    (root / "north").mkdir()
    part_of(root / "north", "north", STUDY)
    shutil.copytree(root / "run" / "north", root / "north" / "records")
    (root / "north" / "consent.json").write_text(json.dumps({"site": "north", "floor": FLOOR.plain()}))
    return root


@pytest.fixture(scope="module")
def page(made):
    out = made / "dossier.html"
    said = CliRunner().invoke(
        main, ["federate", "dossier", str(made / "run" / "hub"), "--kit", str(made / "north"), "--output", str(out)]
    )
    assert said.exit_code == 0, said.output
    return out.read_text()


class Tables(HTMLParser):
    """Rows of cells, as text."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.open = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        self.open = tag in ("td", "th", "code")
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.open and self.rows:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag):
        self.open = False


def row(page, *first):
    (found,) = [one for one in Tables(page).rows if one[: len(first)] == list(first)]
    return found


def test_the_headings_are_those_of_an_impact_assessment(page):
    assert re.findall(r"<h2>(.*?)</h2>", page) == HEADINGS
    for letter in "abcd":
        assert f"Article 35(7)({letter})" in page


def test_what_left_is_what_the_site_noted(made, page):
    """The hub's tally of each kind, against the site's own record."""
    lines = [json.loads(line) for line in (made / "north" / "records" / "audit.jsonl").read_text().splitlines()]
    work = [line["left"] for line in lines if line["asked"]["kind"] == "work"]
    numbers = sum(int(np.prod(shape)) for left in work for shape in left["arrays"].values())
    total = sum(left["bytes"] for left in work)
    assert row(page, "north", "changes of the model")[2:] == ["3", f"{numbers:,}", f"{total:,}"]
    whole = sum(line["left"]["bytes"] for line in lines)
    assert row(page, "north", "in all")[-1] == f"{whole:,}"
    assert "The record of north (8 lines) is whole" in page
    assert "No record was given of south" in page


def test_the_commands_give_the_same_models_again(made, page, monkeypatch, capsys):
    """They are copied from the page, the names of files put in."""
    (text,) = re.findall(r"Commands</h3><pre>(.*?)</pre>", page, re.DOTALL)
    text = html.unescape(text)
    files = {site: str(made / f"{site}.csv") for site in SITES}
    text = text.replace('{"SITE": "SITE.csv", ...}', repr(files))
    records = {site: str(made / "run" / site) for site in SITES}
    text = text.replace('{"SITE": "KIT/studies/NAME.N/records", ...}', repr(records))
    monkeypatch.chdir(made / "run")
    exec(text[text.index("import numpy") :], {})
    assert float(capsys.readouterr().out) == 0.0  # to the bit


def test_what_an_audit_prints_of_secure_sums_is_what_left(tmp_path):
    """Keys and masked numbers, which are no changes of the model."""
    privacy = {"epsilon": 3.0, "delta": 1e-5, "clip": 1.0, "noise": "shared"}
    study = parse(content(rounds=2, secure=True, privacy=privacy, measurements=0))
    fp.federate(study, folder=tmp_path / "run")
    (tmp_path / "a").mkdir()
    part = part_of(tmp_path / "a", "a", study)
    shutil.copytree(tmp_path / "run" / "a", tmp_path / "a" / "records")
    out = "\n".join(lines(report(part.folder)))
    for said in ("2 sets of fresh public keys", "2 masked changes of the model", "2 signatures of who is left"):
        assert said in out
    assert "no study has" not in out and "2 changes of the model" not in out
    page = write(tmp_path / "run" / "hub", tmp_path / "d.html", [tmp_path / "a"]).read_text()
    assert row(page, "a", "masked changes of the model")[2] == "2"
    used = row(page, "a", "2", "the site")
    assert used[3:] == ["3", "3"] and row(page, "b", "2", "the hub")[3:] == ["3", "3"]


def test_a_record_that_was_changed_is_called_broken(made, tmp_path):
    shutil.copytree(made / "north", tmp_path / "north")
    path = tmp_path / "north" / "records" / "audit.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    out = tmp_path / "d.html"
    args = ["federate", "dossier", str(made / "run" / "hub"), "--kit", str(tmp_path / "north"), "--output", str(out)]
    assert CliRunner().invoke(main, args).exit_code == 0
    assert "is BROKEN" in out.read_text() and "is whole" not in out.read_text()


def test_terms_controls_and_floors(made, page):
    assert row(page, "floor of rows")[1] == "applied"
    assert row(page, "rows held out")[1:] == ["applied", "0.25"]
    assert row(page, "robust gathering")[1:] == ["not applied", "–"]
    assert row(page, "alarm about a site")[1] == "not applied"
    assert row(page, "north", "10")[1:] == ["10", "2", "3"]  # its floor
    assert row(page, "features")[1] == "age, dose, kind"
    assert "Terms as entered" in page and "local_steps = 2" in page
    study = StudyResult(made / "run" / "hub").study
    assert study.fingerprint in page and row(page, "held out")[1] == "25 % by each site's own luck"


def test_everything_is_escaped_and_nothing_is_fetched(page):
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; who" in page
    assert "default-src &#x27;none&#x27;" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)


def test_fairness_has_intervals(made, page):
    found = StudyResult(made / "run" / "hub").measures
    low, high = interval(found["north"]["accuracy"], 30)
    assert row(page, "north", "30")[-1] == f"{low:.3f} to {high:.3f}"
    assert "points more often at" in page
    assert "Confusion at north" in page and "Calibration at south" in page


def test_intervals_cover(rng):
    """Of 400 draws of 60 rows, Wilson's interval covers the chance nearly always: 95 % and more, less 4 deviations."""
    for chance in (0.5, 0.85, 0.97):
        shares = np.round(rng.binomial(60, chance, 400) / 60, 2)
        covered = np.mean([interval(p, 60)[0] <= chance <= interval(p, 60)[1] for p in shares])
        assert covered > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 400)
    ends = [
        difference((round(a / 60, 2), 60), (round(b / 60, 2), 60)) for a, b in rng.binomial(60, [0.9, 0.7], (400, 2))
    ]
    assert np.mean([low <= 0.2 <= high for low, high in ends]) > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 400)
    assert interval(1.0, 20)[1] == 1.0 and interval(0.0, 20)[0] == 0.0


def test_the_forecast_stands_beside_the_outcome(tmp_path):
    """Exact fields: the model is where the forecast says, to rounding."""
    problem = {**BOWLS, "noise": 0.0}
    made = fp.federate(content({"name": "fedavg", "step": 0.3, "local_steps": 2}, problem, rounds=4), folder=tmp_path)
    rows = dict(forecast_rows(Dossier(made)))
    assert rows["forecast"] == rows["outcome"]
    assert "Forecast and outcome" in compose(Dossier(made))


def test_a_forecast_takes_rows(made, page, tmp_path):
    assert "No forecast: it takes rows, which only the sites have" in page
    other = parse({**STUDY.content, "problem": {**TABLE, "missing": "mean"}})
    files = {site: made / f"{site}.csv" for site in SITES}
    found = fp.federate(other, files, folder=tmp_path, floor=FLOOR)
    rows = dict(forecast_rows(Dossier(found, files=files)))
    forecast, outcome = float(rows["forecast"]), float(rows["outcome"])
    assert abs(forecast - outcome) < 0.02 * outcome  # full batches: nothing is random


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--output", "x.pdf"], "must be an HTML|is an HTML file"),
        (["--expected", "north"], "write SITE=FILE"),
        (["--expected", "west=x.csv"], "west: not a site of trial"),
        (["--kit", "nowhere"], "does not know trial"),
    ],
)
def test_mistakes_are_one_message(made, more, said):
    got = CliRunner().invoke(main, ["federate", "dossier", str(made / "run" / "hub"), *more])
    assert got.exit_code == 2 and re.search(said, got.output), got.output
    assert CliRunner().invoke(main, ["federate", "dossier", str(made)]).exit_code == 2


def test_the_same_folder_gives_the_same_bytes(made, page):
    again = compose(Dossier(StudyResult(made / "run" / "hub")))
    assert again == compose(Dossier(StudyResult(made / "run" / "hub")))
