"""Below its floor a site says nothing: the screen says why before consent, and the site refuses whatever is asked."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from malicious import METHOD, TABLE, Server, answered, failure, refusals, write_table
from parts import trial_of
from studies import BOWLS, content

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.data.floor import DEFAULT, Floor
from fedpoint.data.recipe import Feature
from fedpoint.federation.announcement import announce, lines
from fedpoint.federation.site import disclosure
from fedpoint.federation.site.disclosure import below, few_by_filling, rows_behind_a_message
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import parse

SITES = ["north", "south"]
FEW = Floor(rows=2, per_category=1, per_class=1)


def study(algorithm=METHOD, **more):
    return parse(content(algorithm, {**TABLE, **more}, rounds=3, sites=SITES))


def table(path, ages, kinds, ill, doses=None):
    doses = np.arange(len(ages)) + 0.5 if doses is None else doses
    rows = [f"{a},{d},{k},{y}" for a, d, k, y in zip(ages, doses, kinds, ill, strict=True)]
    path.write_text("\n".join(["age,dose,kind,ill", *rows]) + "\n")
    return path


def even(count):
    return {
        "ages": range(count),
        "kinds": ["xy"[i % 2] for i in range(count)],
        "ill": [i // 2 % 2 for i in range(count)],
    }


def said(path, floor=DEFAULT, wanted=None):
    wanted = wanted or study()
    return below(wanted, "north", wanted.table.read(path), floor)


def test_enough_is_enough(tmp_path):
    assert said(table(tmp_path / "t.csv", **even(20))) == []


def test_a_few_rows(tmp_path):
    path = table(tmp_path / "t.csv", **even(6))
    assert said(path) == ["the mean of 6 rows would leave: the floor is 20; take part with more rows"]
    assert said(path, FEW) == []


def test_a_single_row_is_below_any_floor(tmp_path):
    path = table(tmp_path / "t.csv", [40], ["x"], [1])
    assert said(path, FEW) == ["the mean of 1 row would leave: the floor is 2; take part with more rows"]
    with pytest.raises(fp.FedpointError, match="rows = 1 must be a whole number, at least 2"):
        Floor(rows=1)


@pytest.mark.parametrize("wrong", [{"rows": 2.5}, {"per_category": 0}, {"per_class": True}, {"rows": -3}])
def test_floors_that_are_none(wrong):
    with pytest.raises(fp.FedpointError, match="must be a whole number, at least"):
        Floor(**wrong)


def test_all_that_is_below_at_once(tmp_path):
    """A rare category, a rare class, a column with few values, and messages of few rows."""
    one = even(40)
    one["kinds"] = ["rare", "rare", *one["kinds"][2:]]
    one["ill"] = [i == 7 for i in range(40)]
    one["ill"] = [int(y) for y in one["ill"]]
    path = table(tmp_path / "t.csv", **one, doses=["3.5" if i < 4 else "" for i in range(40)])
    found = said(path, wanted=study(batch=4))
    assert len(found) == 4
    assert found[0].startswith("the mean of 4 values of column 'dose' would leave: the floor is 20")
    assert found[1].startswith("categories of column 'kind' with few rows would leave: rare (2); the floor is 5")
    assert found[2].startswith("classes of 'ill' with few rows would leave: 1 (1); the floor is 5")
    assert found[3].startswith("a message of 8 rows would leave (batch and local steps): the floor is 20")


@pytest.mark.parametrize("flagged", [1, 4, 5, 20])
def test_a_flag_of_few_rows_is_below_the_floor(flagged, tmp_path):
    """A column of numbers that is 0 in all rows but these: what is summed with it is summed over them. A message of
    FedAvg at w = 0 is then that row's 1/2 - y: its class."""
    one = even(40)
    path = table(tmp_path / "t.csv", **one, doses=[int(i < flagged) for i in range(40)])
    few = f"sums over {flagged} row{'s' * (flagged > 1)} would leave: column 'dose' is 0 in all others; the floor is 5"
    assert [text.startswith(few) for text in said(path)] == [True] * (flagged < 5)


@pytest.mark.parametrize(
    ("column", "gaps", "fill", "refused"),
    [
        ("dose", 1, None, False),  # what an honest server says
        ("kind", 1, None, False),
        ("dose", 1, 1e9, True),
        ("dose", 4, -1e9, True),
        ("dose", 5, 1e9, False),  # as many as may be spoken of
        ("dose", 1, 30.0, False),
        ("kind", 1, "zz", True),  # a category of the other site's
        ("kind", 5, "zz", False),
    ],
)
def test_a_server_cannot_mark_rows_by_what_fills_their_gaps(column, gaps, fill, refused, tmp_path):
    """Rows with a gap in `dose` that is filled with 1e9 would be all that the message says of that column."""
    lines = write_table(tmp_path / "t.csv").read_text().splitlines()
    place = lines[0].split(",").index(column)
    for i in range(1, 1 + gaps):
        cells = lines[i].split(",")
        lines[i] = ",".join([*cells[:place], "", *cells[place + 1 :]])
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    server = Server(tmp_path / "t.csv")
    for recipe in (server.recipe, server.setup["recipe"]) if fill is not None else ():
        for one in recipe:
            one |= {"fill": fill} if one["column"] == column else {}
    site = Site(server.study, "north", tmp_path / "records", tmp_path / "t.csv")
    assert [failure(site, order) for order in (server.order("columns"), server.order("moments"))] == [None, None]
    assert failure(site, server.order("ready")) == ("floor" if refused else None)
    assert failure(site, server.work(0)) == ("floor" if refused else None)


def test_a_column_of_gaps_marks_no_row(tmp_path):
    path = table(tmp_path / "t.csv", **even(3), doses=["", "", ""])
    wanted = study(missing="mean")
    assert few_by_filling(wanted.table.read(path), [Feature("dose", fill=1e9)], Floor(2, 5, 1)) == []


def test_a_target_that_only_few_rows_have_is_below_the_floor(tmp_path):
    """Of a linear model: X'y is then the sum of these rows."""
    path = table(tmp_path / "t.csv", **even(40), doses=[7.5 * (i == 3) for i in range(40)])
    wanted = study(model="linear", target="dose", features=["age", "kind"])
    assert said(path, wanted=wanted)[0].startswith("sums over 1 row would leave: column 'dose' is 0 in all others")


def test_dates_are_numbers_and_not_categories(tmp_path):
    rows = [f"2020-01-{i + 1:02},{i}" for i in range(25)]
    (tmp_path / "t.csv").write_text("\n".join(["day,cost", *rows]) + "\n")
    wanted = parse(
        content({"name": "fedavg", "step": 0.1},
                {"kind": "table", "model": "linear", "target": "cost", "features": ["day"]},
                rounds=2, sites=SITES)
    )  # fmt: skip
    assert said(tmp_path / "t.csv", wanted=wanted) == []


AVERAGE = {"name": "fedavg", "step": 0.1}
MESSAGES = {  # an algorithm, the batch, and the fewest of 40 rows behind a message of the first site
    "one step": (AVERAGE, 5, 5),
    "several steps": ({**AVERAGE, "local_steps": 3}, 5, 15),
    "all rows": (AVERAGE, None, 40),
    "more draws than rows": ({**AVERAGE, "local_steps": 9}, 5, 40),
    "each its own": ({**AVERAGE, "local_steps": {"per_agent": [2, 8]}}, 5, 10),
    "stragglers may stop after one step": ({**AVERAGE, "local_steps": {"stragglers": 0.5, "steps": 4}}, 5, 5),
    "epochs": ({**AVERAGE, "local_steps": {"epochs": 1}}, 5, 40),
    "a random number of steps": ({"name": "scaffnew", "step": 0.1, "probability": 0.1}, 5, 5),
    "a proximal step": ({"name": "fedprox", "pull": 0.4, "exact": True}, 5, 40),
    "wrapped": ({"name": "averaged", "inner": {**AVERAGE, "local_steps": 3}}, 5, 15),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_rows_behind_a_message(name):
    algorithm, batch, expected = MESSAGES[name]
    wanted = study(algorithm, **({} if batch is None else {"batch": batch}))
    assert rows_behind_a_message(wanted, "north", 40) == expected


def test_exact_fields_are_of_all_rows():
    wanted = parse({**content(AVERAGE, {**TABLE, "batch": 5}, rounds=3, sites=SITES), "exact": True})
    assert rows_behind_a_message(wanted, "north", 40) == 40


# The site itself.


def test_a_site_below_its_floor_says_nothing_whatever_is_asked(tmp_path, monkeypatch):
    """No count, no category; and it is not the server's fault."""
    path = table(tmp_path / "t.csv", **even(6))
    server = Server(path, study=study())
    site = Site(study(), "north", tmp_path / "records", path)
    for order in server.honest() * 2:
        answer = answered(site, order)
        assert answer.header["failure"] in ("floor", "terms", "memory")
        assert not answer.arrays and "rows" not in answer.header
        (site.folder / "stopped.json").unlink(missing_ok=True)
        site.answers.all["refused"] = 0
    assert failure(site, server.order("columns")) == "floor"
    monkeypatch.setattr(disclosure, "below", lambda *_: [])
    assert answered(site, server.order("columns")).header["rows"] == 6  # so it is the floor that keeps it


def test_the_floor_does_not_stop_a_site(tmp_path):
    path = table(tmp_path / "t.csv", **even(6))
    site = Site(study(), "north", tmp_path / "records", path)
    assert [failure(site, Server(path, study=study()).order("columns")) for _ in range(5)] == ["floor"] * 5
    assert refusals(site.folder) == []


def test_a_rehearsal_has_a_floor_too(tmp_path):
    files = {site: table(tmp_path / f"{site}.csv", **even(6)) for site in SITES}
    with pytest.raises(fp.FedpointError, match=r"north cannot take part \(floor\): it has too few rows"):
        fp.federate(study(), files, folder=tmp_path / "default")
    made = fp.federate(study(), files, floor=FEW, folder=tmp_path / "few")
    assert made.round == 3
    assert fp.federate(content(problem=BOWLS, rounds=2)).round == 2  # generated data have none


# The consent screen.


def test_the_screen_says_what_is_enforced():
    found = announce(study())
    text = "\n".join(lines(found))
    for part in (
        "Enforced by this site, whatever the server asks:",
        "at most 3 runs of at most 3 rounds, each once and in order",
        "measurements after round 3 only: loss to 3 digits, accuracy to whole percents",
        "at most 27 bits each, 81 in all",
        "sent again unchanged, at most 100 times",
        "3 orders in a row that break these terms stop the site, until it is started with --lift-stop",
        "nothing of fewer than 20 rows, 5 rows of a category or 5 of a class leaves",
    ):
        assert part in text, text
    assert found["terms"] == {
        "rounds": 3, "runs": 3, "measured_after": [3], "bits": 27, "repeats": 100, "strikes": 3,
    }  # fmt: skip
    assert found["floor"] == {"rows": 20, "per_category": 5, "per_class": 5}
    assert json.loads(json.dumps(found)) == found


def test_the_screen_without_measurements():
    text = "\n".join(lines(announce(parse(content(measurements=0)))))
    assert "no measurement of a model" in text
    assert "measure (" not in text


@pytest.fixture
def trial(tmp_path, monkeypatch):
    return trial_of(study(), tmp_path / "project", monkeypatch)


@pytest.fixture
def kit(trial):
    return trial.kits["north"].folder


@pytest.fixture
def part(trial):
    return trial.parts["north"].folder


def run(kit, *options, command="approve"):
    return CliRunner().invoke(main, ["federate", command, str(kit), *map(str, options)])


def test_the_command_refuses_before_consent_and_says_so_in_words(kit, part, tmp_path):
    path = table(tmp_path / "t.csv", **even(6))
    out = run(kit, "--data", path, "--yes")
    assert out.exit_code == 2
    assert "Refused: the mean of 6 rows would leave: the floor is 20" in out.output
    assert "nothing was approved and nothing has left" in out.output
    assert not (part / "consent.json").exists()
    out = run(kit, "--data", path, "--dry-run", "--json")
    assert out.exit_code == 2
    assert json.loads(out.stdout)["refused"] == [
        "the mean of 6 rows would leave: the floor is 20; take part with more rows"
    ]
    assert "age" in out.stdout and '"rows": 6' in out.stdout
    out = run(kit, "--data", path, "--dry-run", "--floor-rows", 4, "--floor-per-category", 3, "--floor-per-class", 2)
    assert out.exit_code == 0, out.output
    assert "nothing of fewer than 4 rows, 3 rows of a category or 2 of a class leaves" in out.output
    assert run(kit, "--data", path, "--dry-run", "--floor-rows", 1).exit_code == 2


def test_a_stopped_site_starts_only_when_the_stop_is_lifted(kit, part, tmp_path, monkeypatch):
    path = write_table(tmp_path / "t.csv")
    assert run(kit, "--data", path, "--yes", "--floor-rows", 30).exit_code == 0
    assert json.loads((part / "consent.json").read_text())["floor"] == {"rows": 30, "per_category": 5, "per_class": 5}
    (part / "records").mkdir(exist_ok=True)
    (part / "records" / "stopped.json").write_text('{"time": "now", "text": "round 999 was asked for"}')
    started = []
    monkeypatch.setattr("fedpoint.federation.flare.waiting.hand_over", lambda *_: started.append(1))
    out = run(kit, command="site")
    assert out.exit_code == 2
    assert "north has stopped itself in trial.1 (round 999 was asked for)" in out.output
    assert "--lift-stop" in out.output
    assert not started
    assert run(kit, "--lift-stop", command="site").exit_code == 0
    assert started
    assert not (part / "records" / "stopped.json").exists()
