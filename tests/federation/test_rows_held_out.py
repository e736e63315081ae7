"""Rows that are held out are in nothing but measurements; what those say is right, rounded and above the floor."""

import itertools
import json

import numpy as np
import pytest
from malicious import METHOD, TABLE, Server, answered, failure, refusals, write_table
from studies import BOWLS, content

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.federation import held_out, measurement, preparation, wire
from fedpoint.federation.announcement import announce, lines
from fedpoint.federation.held_out import divide, draw_luck, luck_in
from fedpoint.federation.holding import Holding
from fedpoint.federation.hub import statements
from fedpoint.federation.hub.validate import Invalid
from fedpoint.federation.site.disclosure import Floor, below
from fedpoint.federation.site.site import MODEL, Site
from fedpoint.federation.study import parse

SITES = ["north", "south"]
ALL = ["loss", "accuracy", "auc", "calibration", "confusion"]
FEW = Floor(rows=5, per_category=1, per_class=1)


def study(held=0.25, rounds=3, **more):
    return parse(content(METHOD, {**TABLE, "held_out": held}, rounds=rounds, sites=SITES, **more))


def marked(path, source):
    """A table with one more column that marks a quarter of the rows, of both classes."""
    head, *rows = source.read_text().splitlines()
    lines = [f"{head},fold", *(f"{row},{int(i % 8 in (0, 3))}" for i, row in enumerate(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def data(tmp_path):
    return write_table(tmp_path / "t.csv", rows=80)


@pytest.fixture
def files(tmp_path):
    made = {site: write_table(tmp_path / f"{site}-all.csv", seed, rows=80) for seed, site in enumerate(SITES)}
    return {site: marked(tmp_path / f"{site}.csv", path) for site, path in made.items()}


# Which rows.


def rows_of(columns):
    return sorted(zip(columns["age"].values.tolist(), columns["dose"].values.tolist(), strict=True))


def test_a_share_of_each_class_by_the_sites_own_luck(data):
    table = study().table
    columns = table.read(data)
    one, other = (divide(table, columns, luck) for luck in (b"a" * 32, b"b" * 32))
    for parts in (one, other):
        assert rows_of(columns) == sorted(rows_of(parts.trained) + rows_of(parts.held))
        assert np.bincount(preparation.labels_of(parts.held["ill"])).tolist() == [10, 10]  # a quarter of 40 and 40
    assert rows_of(one.held) == rows_of(divide(table, columns, b"a" * 32).held) != rows_of(other.held)


def test_luck_chooses_every_row_alike(data):
    """Over 200 lucks each row is held out 50 times, give or take sqrt(200 x 3/16) = 6.1: within 4.5 deviations."""
    table = study().table
    columns = table.read(data)
    ages = np.arange(80.0)
    columns["age"].values[:] = ages
    held = [divide(table, columns, bytes([k]) * 32).held["age"].values for k in range(200)]
    times = np.bincount(np.concatenate(held).astype(int), minlength=80)
    assert times.sum() == 200 * 20
    assert np.abs(times - 50).max() < 4.5 * 6.1


def test_luck_is_drawn_once_and_kept(tmp_path):
    assert luck_in(tmp_path) is None
    luck = draw_luck(tmp_path)
    assert luck_in(tmp_path) == draw_luck(tmp_path) == luck and len(luck) == 32
    assert (tmp_path / "luck").stat().st_mode & 0o777 == 0o600
    (tmp_path / "luck").write_bytes(b"short")
    with pytest.raises(fp.FedpointError, match="luck is damaged"):
        luck_in(tmp_path)


def test_a_column_marks_rows(data, tmp_path):
    path = marked(tmp_path / "m.csv", data)
    parts = divide(study("fold").table, study("fold").table.read(path), b"")
    assert [len(some["ill"].values) for some in parts] == [60, 20]
    assert "fold" not in parts.trained and "fold" not in parts.held


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["0", "2"], "column 'fold' is neither 0"),
        (["no", "yes"], "column 'fold' holds words"),
        (["0", "0"], "no row is held out"),
        (["1", "1"], "every row is held out"),
    ],
)
def test_columns_that_mark_nothing(cells, said, tmp_path):
    rows = [f"{i},{i}.5,{'xy'[i % 2]},{i // 2 % 2},{cells[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["age,dose,kind,ill,fold", *rows]) + "\n")
    table = study("fold").table
    with pytest.raises(fp.FedpointError, match=said):
        divide(table, table.read(tmp_path / "t.csv"), b"")


def test_a_class_that_is_held_out_whole_is_refused(tmp_path):
    rows = [f"{i},{i}.5,{'xy'[i % 2]},{i % 2},{i % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["age,dose,kind,ill,fold", *rows]) + "\n")
    table = study("fold").table
    with pytest.raises(fp.FedpointError, match="all rows of class 1 are held out"):
        divide(table, table.read(tmp_path / "t.csv"), b"")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"held": 0.6}, "held_out"),
        ({"held": 0.0}, "held_out"),
        ({"held": "age"}, "says which rows are held out"),
        ({"held": "ill"}, "says which rows are held out"),
        ({"measures": []}, "measures"),
        ({"measures": ["f1"]}, "measures"),
    ],
)
def test_studies_that_cannot_be(more, said):
    with pytest.raises(fp.FedpointError, match=said):
        study(**more)


def test_classes_are_measured_of_classes_only():
    with pytest.raises(fp.FedpointError, match="auc: only for tables whose target is a class"):
        parse(content(problem=BOWLS, measures=["loss", "auc"]))


# Never in training.


def trained_alike(files, tmp_path, change):
    """Whether a study's models stay the same when its held-out rows are changed."""
    made = []
    for name in ("as they are", "changed"):
        made.append(fp.federate(study("fold"), files, folder=tmp_path / name, floor=FEW))
        for path in files.values():
            head, *rows = path.read_text().splitlines()
            path.write_text("\n".join([head, *(change(row) if row.endswith(",1") else row for row in rows)]) + "\n")
    return np.array_equal(made[0].history, made[1].history), made


def other(row):
    age, dose, kind, ill, *rest = row.split(",")
    return ",".join([str(int(age) + 7), str(float(dose) * 3), kind, str(1 - int(ill)), *rest])


def test_held_out_rows_change_measurements_and_nothing_else(files, tmp_path):
    same, made = trained_alike(files, tmp_path, other)
    assert same and made[0].setup == made[1].setup
    assert made[0].measures != made[1].measures
    assert {one["rows"] for one in made[0].measures.values()} == {20.0}


def test_a_held_out_row_in_training_is_seen(files, tmp_path, monkeypatch):
    """The test above fails for a site that trains on one of them."""

    def leaky(table, columns, luck):
        parts = divide(table, columns, luck)
        again = np.arange(len(parts.held["ill"].values)) == 0
        more = {name: column.take(again) for name, column in parts.held.items()}
        joined = {name: column.take(slice(None)) for name, column in parts.trained.items()}
        for name, column in joined.items():
            column.values = np.concatenate([column.values, more[name].values])
        return held_out.Divided(joined, parts.held)

    monkeypatch.setattr("fedpoint.federation.site.site.divide", leaky)
    assert not trained_alike(files, tmp_path, other)[0]


def test_a_study_with_luck_is_replayed_to_the_bit(tmp_path):
    files = {site: write_table(tmp_path / f"{site}.csv", seed, rows=80) for seed, site in enumerate(SITES)}
    made = fp.federate(study(), files, folder=tmp_path / "made", floor=FEW)
    with pytest.raises(fp.FedpointError, match="the luck of north chose its held-out rows"):
        made.problem(files)
    records = {site: tmp_path / "made" / site for site in SITES}
    again = fp.run(made.replay(made.problem(files, records)), rounds=3)
    assert np.abs(np.asarray(again.history)[0] - made.history).max() < 1e-10


def test_a_watch_needs_a_column(tmp_path, files):
    with pytest.raises(fp.FedpointError, match="hold out by a column to watch them"):
        fp.federate(study(), files, folder=tmp_path / "a", expected=files, floor=FEW)
    made = fp.federate(study("fold"), files, folder=tmp_path / "b", expected=files, floor=FEW)
    assert made.alarms == []


# What measurements say.


def test_auc_by_all_pairs(rng):
    """Against the definition, over every pair of rows; ties are half."""
    label = np.tile([0, 1, 2], 11)[:31]
    chances = rng.integers(1, 5, (31, 3)) / 10.0
    areas = []
    for k in range(3):
        pairs = itertools.product(chances[label == k, k], chances[label != k, k])
        areas.append(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))
    assert measurement.auc(chances, label, least=1) == pytest.approx(np.mean(areas), abs=1e-12)
    assert measurement.auc(chances, label, least=11) is None  # the last class has ten rows


def test_bins_have_rows_enough_of_both_outcomes(rng):
    for _ in range(50):
        chance = rng.beta(0.5, 0.7, 60)
        came = rng.random(60) < chance
        table = measurement.calibration(chance, came, rows=20, each=5)
        rows, hits = table[:, 2] * 60, table[:, 1] * table[:, 2] * 60
        assert (rows > 19.9).all() and (hits > 4.9).all() and (rows - hits > 4.9).all()
        assert rows.sum() == pytest.approx(60) or not len(rows)
        assert (table[:, 0] * table[:, 2]).sum() == pytest.approx(chance.mean()) or not len(rows)
    assert len(measurement.calibration(np.full(60, 0.5), np.ones(60, bool), 20, 5)) == 0


def test_confusion_is_of_classes_with_rows_enough():
    predicted, label = np.array([0, 0, 1, 1, 1, 2, 0]), np.array([0, 0, 0, 1, 1, 1, 2])
    made = measurement.confusion(predicted, label, 3, least=2)
    assert made.round(6).tolist() == [[0.666667, 0.333333, 0], [0, 0.666667, 0.333333], [-1, -1, -1]]


def test_measures_are_those_of_the_final_model_on_held_out_rows(files, tmp_path):
    """Computed again from the files and the model."""
    made = fp.federate(study("fold", measures=ALL), files, folder=tmp_path / "made", floor=FEW)
    table, recipe = made.study.table, preparation.features(made.setup["recipe"])
    for site in SITES:
        held = divide(table, table.read(files[site]), b"").held
        problem = preparation.problem_of(table, [held], recipe, made.setup["classes"], held_out=True)
        scores, label = problem.X @ made.model, problem.label
        own = made.measures[site]
        assert own["accuracy"] == round(float(((scores > 0) == label).mean()), 2)
        pairs = itertools.product(scores[label == 1], scores[label == 0])
        assert own["auc"] == pytest.approx(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]), abs=0.005)
        loss = np.log1p(np.exp(-(2 * label - 1) * scores)).mean() + 0.005 * (made.model**2).sum()
        assert own["loss"] == pytest.approx(loss, rel=5e-3)
        confusion = made.tables[site]["confusion"]
        assert confusion[1][1] == round(float((scores[label == 1] > 0).mean()), 2)
        assert all(abs(v * 100 - round(v * 100)) < 1e-9 for rows in made.tables[site].values() for r in rows for v in r)


def test_nothing_of_few_held_out_rows_leaves(data, tmp_path):
    wanted = study(0.1, measures=ALL)
    table = wanted.table
    parts = divide(table, table.read(data), b"")
    said = below(wanted, "north", parts.trained, Floor(), parts.held)
    assert said == [
        "measurements of 8 rows that are held out would leave: the floor is 20; "
        "take part with more rows, or ask for a study that holds out more"
    ]
    assert failure(Site(wanted, "north", tmp_path / "r", data), Server(data, study=wanted).order("columns")) == "floor"
    assert announce(wanted, data)["refused"] == said


def test_floors_of_classes_hold_for_measures(data):
    wanted = study(measures=ALL)
    server = Server(data, study=wanted)
    parts = divide(wanted.table, wanted.table.read(data), b"")
    held = Holding(wanted, server.setup, *parts)
    model = np.full(server.width, 0.1)
    found = held.measure(model, ALL, rows=20, per_class=5)
    assert set(found.numbers) == {"loss", "accuracy", "auc"} and set(found.tables) == {"calibration", "confusion"}
    few = held.measure(model, ALL, rows=20, per_class=11)  # each class has ten
    assert "auc" not in few.numbers and len(few.tables["calibration"]) == 0
    assert (few.tables["confusion"] == -1).all()
    assert set(held.measure(model, ["auc"], 20, 5).numbers) == {"auc"}


def test_a_measurement_too_many_is_refused(data, tmp_path):
    wanted = study(measures=ALL, rounds=3)
    server, site = Server(data, study=wanted), Site(wanted, "north", tmp_path / "records", data, FEW)
    assert [failure(site, order) for order in server.honest()] == [None] * 7
    again = answered(site, server.measure(arrays={"model": np.ones(server.width)}))
    assert again.header["failure"] == "terms" and "tables" not in again.header
    assert "of another model" in refusals(site.folder)[0]


def test_the_screen_says_what_is_held_out_and_measured(data):
    text = "\n".join(lines(announce(study(measures=ALL, share_model=True), data)))
    assert "Rows: 60; they stay here" in text and "Held out: 20 rows more, which are never trained on" in text
    assert "AUC to whole percents, calibration in whole percents by bins above the floor, confusion" in text
    assert "the study ends with its model, which is kept here (share_model = true)" in text
    assert "no model is taken at the end (share_model = false)" in "\n".join(lines(announce(study(), data)))
    assert "fold (1: held out)" in announce(study("fold"))["reads"]


def test_what_leaves_is_no_longer_than_announced(files, tmp_path):
    made = study("fold", measures=ALL)
    fp.federate(made, files, folder=tmp_path / "made", floor=FEW)
    said = {one["kind"]: one["bytes"] for one in announce(made, files["north"], FEW, "north")["leaves"]}
    for line in (tmp_path / "made" / "north" / "audit.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["asked"]["kind"] in ("measure", "end"):
            assert entry["left"]["bytes"] <= said[entry["asked"]["kind"]] + 10  # the site's name, digits of numbers


SAID = {"measures": {"loss": 0.5, "auc": 0.75}, "count": 20, "tables": {"confusion": [[1.0, 0.0], [-1.0, -1.0]]}}


def test_the_hub_takes_what_it_asked_for():
    packet = wire.Packet(SAID, {})
    assert statements.measures(packet, ALL) == {"loss": 0.5, "auc": 0.75, "rows": 20.0}
    assert statements.tables(packet, ALL) == SAID["tables"]
    assert statements.measures(packet, ["loss"]) == {"loss": 0.5, "rows": 20.0}
    assert statements.tables(packet, ["loss"]) == {}


@pytest.mark.parametrize(
    "lie",
    [
        {"measures": {"auc": 1.5}},
        {"measures": {"loss": 0.5, "auc": float("nan")}},
        {"count": 0},
        {"count": 2.5},
        {"tables": []},
        {"tables": {"confusion": 1}},
        {"tables": {"confusion": [[2.0]]}},
        {"tables": {"confusion": [[None]]}},
        {"tables": {"calibration": [[0.5] * 101]}},
        {"tables": {"calibration": [[0.5]] * 101}},
    ],
)
def test_measures_that_cannot_be(lie):
    with pytest.raises(Invalid, match="statement"):
        statements.measures(wire.Packet({**SAID, **lie}, {}), ALL)


# The end.


def test_sites_get_the_model_where_the_study_says_so(files, tmp_path):
    from click.testing import CliRunner

    made = fp.federate(study("fold", share_model=True), files, folder=tmp_path / "made", floor=FEW)
    assert made.ended == SITES
    made.export(tmp_path / "leader.npz")
    said = [
        CliRunner().invoke(main, ["predict", str(model), str(files["north"]), "--target", "ill"])
        for model in (tmp_path / "made" / "north" / MODEL, tmp_path / "leader.npz")
    ]
    assert said[0].exit_code == 0, said[0].output
    assert said[0].output == said[1].output
    none = fp.federate(study("fold"), files, folder=tmp_path / "none", floor=FEW)
    assert none.ended == SITES and not (tmp_path / "none" / "north" / MODEL).exists()


def ended(data, tmp_path, arrays=True, **more):
    """A site after an honest run and an order for its end, and what it answered."""
    wanted = study(**more)
    server, site = Server(data, study=wanted), Site(wanted, "north", tmp_path / "records", data, FEW)
    assert [failure(site, order) for order in server.honest()] == [None] * 7
    model = {"model": np.ones(server.width)} if arrays else {}
    end = server.order("end", model, round=3, merged=2, setup=server.setup)
    return server, site, failure(site, end), end


def test_a_model_that_the_study_does_not_share_is_refused(data, tmp_path):
    _, site, failed, _ = ended(data, tmp_path)
    assert failed == "terms" and not (site.folder / MODEL).exists()
    assert "does not give sites the model (share_model = false)" in refusals(site.folder)[0]


def test_an_end_is_heard_once(data, tmp_path):
    server, site, failed, end = ended(data, tmp_path, share_model=True)
    assert failed is None and (site.folder / MODEL).exists()
    before = (site.folder / MODEL).read_bytes()
    assert failure(site, end) is None  # the same again
    other = server.order("end", {"model": np.zeros(server.width)}, round=3, merged=2, setup=server.setup)
    assert failure(site, other) == "terms" and (site.folder / MODEL).read_bytes() == before
    assert failure(site, server.order("end", {"model": np.zeros(2)}, round=2, merged=2, setup=server.setup)) == "terms"
    assert "with another model" in refusals(site.folder)[0] and "after round 2" in refusals(site.folder)[1]


def test_an_end_without_the_model_that_was_promised_is_refused(data, tmp_path):
    assert ended(data, tmp_path, arrays=False, share_model=True)[2] == "terms"
    assert ended(data, tmp_path / "b", arrays=False)[2] is None


def test_after_the_end_there_is_no_round(data, tmp_path):
    wanted = study()
    server, site = Server(data, study=wanted), Site(wanted, "north", tmp_path / "records", data, FEW)
    assert [failure(site, order) for order in server.honest()[:5]] == [None] * 5  # two of three rounds
    assert failure(site, server.order("end", {}, round=3, merged=1, setup=server.setup)) is None
    assert failure(site, server.work(2)) == "terms"
    assert refusals(site.folder) == ["round 2 was asked for after the end of the run"]


def test_generated_problems_end_with_a_model_too(tmp_path):
    made = fp.federate(content(problem=BOWLS, share_model=True), folder=tmp_path)
    from fedpoint.store.disk import read_npz

    assert np.array_equal(read_npz(tmp_path / "a" / MODEL, "model-of-round")[0]["model"], made.model)
