"""A column of dates is a number: days since 1970-01-01, whoever wrote it and however it is read."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.data.dates import EXAMPLES, FORMS, days, forms_of

DATES = ["2019-01-03", "2020-02-29", "2021-12-30", "2020-01-01", "2018-07-07", "1969-12-31", "2021-01-01", "2020-10-10"]
DAYS = (np.array(DATES, "datetime64[D]") - np.datetime64("1970-01-01")).astype(int)
BANKS, Y = list("aabbaabb"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.5]


def table(dates, **options):
    options = {"target": "y", "agent": "bank", **options}
    return fp.data.read_table({"bank": BANKS, "opened": dates, "y": Y}, **options)


def unscaled(read):
    return read.X[:, 0] * read.recipe[0].scale + read.recipe[0].mean


@pytest.mark.parametrize(
    "word, form, expected",
    [
        ("1970-01-02", "iso", 1.0),
        ("1970-01-02T06:00", "iso", 1.25),
        ("1970-01-02 12:00:00.000000000", "iso", 1.5),
        ("1970-01-02T00:00:00+06:00", "iso with zone", 0.75),
        ("1970-01-02T12:00Z", "iso with zone", 1.5),
        ("2.1.1970", "day first", 1.0),
        ("02/01/1970 18:00", "day first", 1.75),
        ("01-02-1970", "month first", 1.0),
        ("1970-01-02", "day first", 1.0),  # what cannot be misread is taken
        ("1970-02-30", "iso", None),
        ("1970-01-02T12:00Z", "iso", None),
        ("13/01/1970", "month first", None),
        ("2/1.1970", "day first", None),
        ("1970", "iso", None),
        ("soon", "iso", None),
    ],
)
def test_days_since_the_reference(word, form, expected):
    assert days(word, form) == expected


def test_examples_are_of_their_form():
    assert {form: forms_of([word]) for form, word in EXAMPLES.items()} == {form: [form] for form in FORMS}


def test_a_column_of_dates_becomes_days_and_a_note_says_so():
    read = table(DATES)
    np.testing.assert_allclose(unscaled(read), DAYS)
    assert read.features == ["opened"]
    assert read.notes == ["column 'opened': dates from 1969-12-31 to 2021-12-30, taken as days since 1970-01-01"]
    plain = table(DAYS.tolist())
    np.testing.assert_array_equal(read.X, plain.X)


def test_however_it_is_read(tmp_path):
    expected = table(DATES).X
    lines = ["bank,opened,y", *(f"{b},{d},{y}" for b, d, y in zip(BANKS, DATES, Y, strict=True))]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    np.testing.assert_array_equal(fp.data.read_table(tmp_path / "a.csv", "y", "bank").X, expected)
    for dates in (np.array(DATES, "datetime64[ns]"), [np.datetime64(d).item() for d in DATES]):
        np.testing.assert_array_equal(table(dates).X, expected)


def test_frames_and_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"bank": BANKS, "opened": pandas.to_datetime(DATES), "y": Y})
    expected = table(DATES).X
    for name, opened in {"naive": frame["opened"], "dates": frame["opened"].dt.date}.items():
        frame.assign(opened=opened).to_parquet(tmp_path / f"{name}.parquet")
        np.testing.assert_array_equal(fp.data.read_table(tmp_path / f"{name}.parquet", "y", "bank").X, expected)
    zoned = frame.assign(opened=frame["opened"].dt.tz_localize("Asia/Tokyo"))
    zoned.to_parquet(tmp_path / "zoned.parquet")
    for source in (zoned, tmp_path / "zoned.parquet"):
        read = fp.data.read_table(source, "y", "bank")
        np.testing.assert_allclose(unscaled(read), DAYS - 9 / 24)
        assert read.notes[0].endswith("taken as days since 1970-01-01 UTC")


def test_missing_dates_are_missing_numbers():
    gap = [*DATES[:4], "", *DATES[5:]]
    with pytest.raises(fp.FedpointError, match="row 5, column 'opened' is empty"):
        table(gap)
    assert len(table(gap, missing="drop").y) == 7
    filled = table(gap, missing="mean")
    assert filled.recipe[0].fill == pytest.approx(np.delete(DAYS, 4).mean())
    assert filled.X[4, 0] == pytest.approx(0, abs=1e-12)


def written(order):
    return [f"{d[8:]}/{d[5:7]}/{d[:4]}" if order == "day first" else f"{d[5:7]}/{d[8:]}/{d[:4]}" for d in DATES]


@pytest.mark.parametrize("order", ["day first", "month first"])
def test_the_column_tells_the_order_of_day_and_month(order):
    read = table(written(order))
    np.testing.assert_allclose(unscaled(read), DAYS)
    assert read.recipe[0].dates == order


def test_files_tell_it_together(tmp_path):
    """Of one file alone the order would be open."""
    for name, dates in {"a": ["01/02/2020", "03/04/2020"], "b": ["05/06/2020", "25/06/2020"]}.items():
        lines = ["opened,y", *(f"{d},{i}" for i, d in enumerate(dates))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    read = fp.data.read_table(str(tmp_path / "*.csv"), "y", model="linear")
    expected = np.array(["2020-02-01", "2020-04-03", "2020-06-05", "2020-06-25"], "datetime64[D]").astype(int)
    np.testing.assert_allclose(unscaled(read), expected)


def test_an_open_order_is_refused():
    ambiguous = ["01/02/2020", "03/04/2020"] * 4
    with pytest.raises(fp.FedpointError, match="may have its day or its month first: write them as YYYY-MM-DD"):
        table(ambiguous)
    assert table(ambiguous, categorical=["opened"]).features == ["opened_03/04/2020"]


@pytest.mark.parametrize("odd", ["2020-13-45", "unknown", "2020-01-01T00:00Z"])
def test_a_cell_that_is_no_date_among_dates_is_refused(odd):
    with pytest.raises(fp.FedpointError, match=f"such as '1969-12-31', but row 3 is '{odd}': correct it"):
        table([*DATES[:2], odd, *DATES[3:]])


def test_words_stay_words():
    words = ["2020-01-01", "never", "once", "2020-01-01", "often", "never", "once", "once"]
    read = table(words)
    assert read.recipe[0].dates is None and read.recipe[0].categories == ["2020-01-01", "never", "often", "once"]
    assert table(DATES, categorical=["opened"]).recipe[0].categories == sorted(DATES)
    assert table(["2020", "2021"] * 4).recipe[0].dates is None  # a number


def test_new_rows_have_the_same_reference(tmp_path):
    read = table(DATES)
    run = fp.run(fp.GradientExchange(step=0.3), read.problem(), rounds=100)
    slope, constant = run.model[0]
    feature = read.recipe[0]
    later = (np.datetime64("2031-05-05") - np.datetime64("1970-01-01")).astype(int)
    expected = slope * (later - feature.mean) / feature.scale + constant
    run.export(tmp_path / "model.npz")
    for model in (run, fp.load(tmp_path / "model.npz")):
        assert model.predict({"opened": ["2031-05-05"]})[0] == pytest.approx(expected)
        assert model.predict({"opened": np.array(["2031-05-05"], "datetime64[ns]")})[0] == pytest.approx(expected)
    for wrong in ("soon", "05/05/2031", "2031-05-05T00:00Z", 3.0):
        with pytest.raises(fp.FedpointError, match=r"row 1, column 'opened' is .*, not a date such as 2020-12-31"):
            run.predict({"opened": [wrong]})
