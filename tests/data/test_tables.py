"""Tables: the same however they are stored, encoded as if pooled; what is wrong is said with row and column."""

import csv
import io
import sys
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedpoint as fp
from fedpoint.data import columns, read_table
from fedpoint.data.columns import read_columns

pandas = pytest.importorskip("pandas")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def loans(rng):
    """600 loans of three banks, with numbers far from zero and of different widths, and categories."""
    n = 600
    return pandas.DataFrame(
        {
            "bank": rng.choice(["north", "south", "east"], n, p=[0.6, 0.3, 0.1]),
            "income": 5e4 + 1e4 * rng.standard_normal(n),
            "age": rng.integers(18, 90, n),
            "home": rng.choice(["rent", "own", "other"], n),
            "rate": 1e-3 * rng.standard_normal(n),
            "default": rng.choice(["yes", "no"], n),
        }
    )


def same(a, b, order=slice(None)):
    for name in ("X", "y", "groups"):
        assert getattr(a, name).tolist() == getattr(b, name)[order].tolist()
    assert a.features == b.features and a.recipe == b.recipe


# The same table, however it is stored.


def test_csv_parquet_files_and_columns_are_the_same(loans):
    pytest.importorskip("pyarrow")
    loans.to_csv("loans.csv", index=False)
    loans.to_parquet("loans.parquet")
    Path("banks").mkdir()
    for bank, rows in loans.groupby("bank"):
        rows.drop(columns="bank").iloc[:, ::-1].to_csv(f"banks/{bank}.csv", index=False)
    read = {"target": "default", "held_out": 0.25, "features": ["income", "age", "home", "rate"]}
    table = read_table("loans.csv", agent="bank", **read)
    for source in ("loans.parquet", loans, dict(loans)):
        other = read_table(source, agent="bank", **read)
        same(table, other)
        assert other.held_out.X.tolist() == table.held_out.X.tolist()
    order = np.argsort(table.groups, kind="stable")
    for source in ("banks/*.csv", ["banks/south.csv", Path("banks/north.csv"), "banks/east.csv"]):
        other = read_table(source, **read)
        same(other, table, order)
        assert sorted(other.held_out.X.tolist()) == sorted(table.held_out.X.tolist())
    # And from arrays: the problem is laid out by agent, whatever the order of rows was.
    by_hand = fp.problems.Logistic(table.X, table.y, groups=table.groups, ridge=0.1, intercept=True)
    for problem in (table.problem(ridge=0.1), other.problem(ridge=0.1)):
        assert problem.names == by_hand.names == ["east", "north", "south"]
        jax.tree.map(np.testing.assert_array_equal, problem.common.rows, by_hand.common.rows)
        np.testing.assert_array_equal(problem.weights, by_hand.weights)


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    st.lists(
        st.tuples(
            st.one_of(st.just(""), st.floats(allow_nan=False, allow_infinity=False).map(repr)),
            st.sampled_from(["", "a", "b b", 'q"q', "c,d", "é", "two\nlines", " padded "]),
            st.integers(-(10**6), 10**6).map(str),
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([5, 40, 1 << 22]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_what_is_written_is_read(tmp_path_factory, rows, piece, end):
    """By every parser, in pieces of any size: numbers to the bit, words stripped."""
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator=end).writerows([("x", "word", "i"), *rows])
    before, columns.PIECE = columns.PIECE, piece
    try:
        for parser in ("csv", "pandas"):
            made, wrong = read_columns(path, words=["word"], parser=parser)
            assert not wrong
            x, word = made["x"], made["word"]
            expected = [float(cell) if cell else np.nan for cell, _, _ in rows]
            np.testing.assert_array_equal(x.values, expected)
            texts = ["" if code < 0 else word.words[code] for code in word.values]
            assert texts == [cell.strip() for _, cell, _ in rows]
            assert made["i"].values.tolist() == [float(i) for _, _, i in rows]
    finally:
        columns.PIECE = before


def test_the_parser_in_c_does_the_work(rng, monkeypatch):
    """Plain rows below the first hundred never reach Python's csv, also where cells are missing."""
    cells = rng.standard_normal((400, 2)).astype(str)
    Path("plain.csv").write_text("x,y\n" + "\n".join(map(",".join, cells)) + "\n")
    cells[300, 1] = "NA"
    Path("gap.csv").write_text("x,y\n" + "\n".join(map(",".join, cells)) + "\n")
    seen = []
    honest = columns._by_csv
    monkeypatch.setattr(columns, "_by_csv", lambda text, *rest: seen.append(text.count("\n")) or honest(text, *rest))
    for path in ("plain.csv", "gap.csv"):
        seen.clear()
        made, _ = read_columns(Path(path), parser="pandas")
        assert seen == [100] and len(made["x"].values) == 400
        np.testing.assert_array_equal(made["x"].values, cells[:, 0].astype(float))


def test_names_that_look_like_numbers_or_gaps():
    """Agents are names: NA is Namibia; whole numbers are sorted as numbers."""
    Path("t.csv").write_text("k,x,y\nNA,1,2\nZA,2,1.5\nNA,3,4\n")
    assert read_table("t.csv", "y", "k").groups.tolist() == ["NA", "ZA", "NA"]
    Path("t.csv").write_text("k,x,y\n10,1,2\n9,2,1.5\n10,3,4\n")
    table = read_table("t.csv", "y", "k")
    assert table.groups.tolist() == [10, 9, 10] and table.problem().names == ["9", "10"]
    frame = pandas.DataFrame({"k": [10.0, 9.0, 10.0], "x": [1, 2, 3], "y": [2, 1.5, 4]})
    assert read_table(frame, "y", "k").groups.tolist() == [10, 9, 10]


# Encoding and scaling.


def test_encoding_equals_that_of_the_pooled_rows(loans):
    """From training rows only; the first category is what the intercept stands for."""
    loans.loc[5, "home"] = "castle"  # a category of one agent only; its row is held out below
    table = read_table(loans, "default", "bank", held_out=0.2)
    assert table.features == ["income", "age", "home_own", "home_rent", "rate"]
    assert table.notes == ["1 held-out cell of categories that no training row has: counted as the first"]
    raw = read_table(loans, "default", "bank", held_out=0.2, scale=False)
    numbers = [0, 1, 4]
    scaler = StandardScaler().fit(raw.X[:, numbers])
    for mine, plain in ((table.X, raw.X), (table.held_out.X, raw.held_out.X)):
        np.testing.assert_allclose(mine[:, numbers], scaler.transform(plain[:, numbers]), rtol=1e-12, atol=1e-12)
    whole = read_table(loans, "default", "bank", scale=False)
    assert whole.features == ["income", "age", "home_other", "home_own", "home_rent", "rate"]
    hot = OneHotEncoder(drop="first", sparse_output=False).fit_transform(loans[["home"]])
    np.testing.assert_array_equal(whole.X[:, 2:5], hot)
    np.testing.assert_array_equal(whole.X[:, 0], loans["income"])


def test_gaps_are_filled_with_the_mean_of_all_agents(loans):
    gaps = loans.copy()
    gaps.loc[[3, 50, 70], "income"] = np.nan
    gaps.loc[[8, 9], "home"] = None
    table = read_table(gaps, "default", "bank", missing="mean", scale=False)
    np.testing.assert_allclose(table.X[[3, 50, 70], 0], gaps["income"].mean(), rtol=1e-12)
    most = gaps["home"].mode()[0]
    assert (table.X[8, 2:4] == [most == "own", most == "rent"]).all()
    assert table.notes == ["3 missing cells of 'income' filled in", "2 missing cells of 'home' filled in"]
    scaled = read_table(gaps, "default", "bank", missing="mean")
    np.testing.assert_allclose(scaled.X[[3, 50, 70], 0], 0.0, atol=1e-9)
    dropped = read_table(gaps, "default", "bank", missing="drop")
    assert dropped.notes == ["5 rows with missing values dropped"]
    same(dropped, read_table(gaps.dropna(), "default", "bank"))
    gaps.loc[gaps["bank"] == "east", "age"] = np.nan
    dropped = read_table(gaps, "default", "bank", missing="drop")
    assert dropped.notes[1] == "agents without any row left: east" and set(dropped.groups) == {"north", "south"}


def test_constant_columns_are_left_out(loans):
    loans["one"], loans["land"], loans["far"] = 1.0, "here", 1e9
    table = read_table(loans, "default", "bank")
    same(table, read_table(loans.drop(columns=["one", "land", "far"]), "default", "bank"))
    assert table.notes == ["constant, and left out: land", "constant, and left out: one, far"]


def test_held_out(loans):
    """A share of each agent's rows, rounded down, by seed; no class loses its only rows."""
    loans["default"] = "no"
    loans.loc[7, "default"] = "yes"
    table = read_table(loans, "default", "bank", held_out=0.3)
    for seed in range(4):
        other = read_table(loans, "default", "bank", held_out=0.3, seed=seed)
        counts = loans["bank"].value_counts()
        for bank, count in counts.items():
            missed = int(0.3 * count) - (other.held_out.groups == bank).sum()
            assert missed in (0, int(bank == loans["bank"][7]))
        assert "yes" in other.y and len(other.y) + len(other.held_out.y) == 600
    assert other.held_out.X.tolist() != table.held_out.X.tolist()
    assert read_table(loans, "default", "bank").held_out is None


# Problems.


def test_linear_models(rng):
    n = 300
    x, site = rng.standard_normal(n), rng.choice(["a", "b"], n)
    frame = pandas.DataFrame({"x": 7 + 3 * x, "y": 2.0 + 1.5 * x, "site": site})
    table = read_table(frame, "y", "site", held_out=0.2)
    assert table.classes is None and "a number" in repr(table)
    problem = table.problem()
    w = problem.solution()
    assert problem.evaluate(w, *table.evaluation(problem)[:2])["mse"] < 1e-20
    assert w[0] == pytest.approx(1.5 * table.recipe[0].scale / 3) and w[1] == pytest.approx(table.y.mean())
    # A ridge leaves the intercept alone: y's mean, however large.
    strong = table.problem(ridge=1e6).solution()
    assert abs(strong[0]) < 1e-5 and strong[1] == pytest.approx(table.y.mean())
    with pytest.raises(fp.FedpointError, match="read it with model='logistic'"):
        table.problem("logistic")


def test_classes(rng):
    """An agent with one class, and a class that one agent has: nothing special."""
    frame = {"x": rng.standard_normal(90), "k": np.repeat(["p", "q", "r"], 30), "y": rng.integers(0, 2, 90)}
    frame["y"][:30] = 0
    table = read_table(frame, "y", "k", held_out=0.2)
    assert table.classes.tolist() == [0, 1]
    assert table.notes == ["'y' holds two numbers, 0 and 1: taken as classes"]
    frame["y"][45] = 2
    with pytest.raises(fp.FedpointError, match="a number: read it with model='softmax'"):
        read_table(frame, "y", "k").problem("softmax")
    table = read_table(frame, "y", "k", model="softmax", held_out=0.2)
    problem = table.problem(batch=4)
    assert problem.start().shape == (3, 2) and set(table.y) == {0, 1, 2}
    found = problem.evaluate(problem.start(), *table.evaluation(problem)[:2])
    assert found["log_loss"] == pytest.approx(np.log(3))


def test_partitions_instead_of_agents(loans):
    loans = loans.drop(columns="bank")
    asked = {"kind": "dirichlet", "agents": 12, "alpha": 0.3, "seed": 4}
    table = read_table(loans, "default", partition=asked)
    expected = fp.data.partition(loans["default"], "dirichlet", 12, alpha=0.3, seed=4)
    assert table.groups.tolist() == expected.tolist() and table.problem().agents == 12


# What is wrong.

HEAD = "k,x,z,y\n"
GOOD = HEAD + "a,1,2,3\nb,2,1,4.5\nb,3,4,5\n"


@pytest.mark.parametrize(
    "text, options, messages",
    [
        (
            HEAD + "a,1,2,3\nb,2,x,4.5\nb,3,w,5\nb,,5,1\nb,1,7,NA\n,1,2,2\n",
            {},
            [
                "t.csv: row 2, column 'z' is 'x', not a number (and 1 more cell)",
                't.csv: row 4, column \'x\' is empty: fill it in, or set missing = "mean" or "drop"',
                "t.csv: row 5, column 'y' is NA: fill it in, or set missing = \"drop\"",
                "t.csv: row 6, column 'k' is empty: fill it in, or set missing = \"drop\"",
            ],
        ),
        (
            HEAD + "a,1,2,3\nb,,2,\n",
            {"missing": "mean"},
            ["row 2, column 'y' is empty: fill it in, or set missing = \"drop\""],
        ),
        (HEAD + "a,,2,3\nb,,2,\n", {"missing": "drop"}, ["every row has a missing value"]),
        (HEAD + "a,1,2,3\nb,17,c,4\nb,3,d,5\n", {}, ["row 1, column 'z' is 2, a number among words: name it in categ"]),
        (HEAD + "a,1_0,2,3\nb,2,2,4\n", {}, ["row 1, column 'x' is '1_0', not a number"]),
        (
            HEAD + "a,1,2,3\nb,2,1,4.5,6\nb,3,5\n",
            {},
            ["t.csv: row 2 has 5 cells, but the header names 4 columns", "t.csv: row 3 has 3 cells"],
        ),
        (
            HEAD + "a,1,inf,3\nb,2,1e200,4.5\nb,1e999,2,5\n",
            {},
            ["row 3, column 'x' is 1e999: only finite numbers", "row 1, column 'z' is inf (and 1 more cell): only"],
        ),
        ("k,x,x,y,y\na,1,2,3,4\n", {}, ["t.csv: the columns 'x', 'y' occur twice in the header"]),
        ("", {}, ["t.csv is empty"]),
        ("\n\n", {}, ["t.csv is empty"]),
        (HEAD, {}, ["t.csv has no rows"]),
        ("k,x,,y\n1,2,3,4\n", {}, ["column 3 has no name in the header"]),
        (b"k,x,y\na,1,\xe9\n", {}, ["t.csv is not UTF-8 text (byte 10)"]),
        (
            GOOD,
            {"target": "Y", "agent": "q", "features": ["xx"], "leave_out": ["zz"]},
            ["no column 'Y': did you mean 'y'?", "no column 'q': Known:", "no column 'xx': did you", "no column 'zz':"],
        ),
        (
            "k;x;y\na;1;2\nb;2;3.5\n",
            {},
            ["no column 'y': its header is a single word, 'k;x;y': set separator = ';'", "'k'"],
        ),
        (GOOD, {"agent": None}, ["which agent does a row belong to? Give agent="]),
        (GOOD, {"agent": "y"}, ["cannot be both the target and the agent"]),
        (GOOD, {"leave_out": ["x", "z"]}, ["no column besides 'y' and 'k' to learn from"]),
        (GOOD, {"missing": "median"}, ["unknown missing 'median': did you mean 'mean'?"]),
        (GOOD, {"model": "linar"}, ["did you mean 'linear'?"]),
        (GOOD, {"held_out": 1.0}, ["held_out must be a share"]),
        (GOOD, {"model": "logistic"}, ["'y' has 3 distinct values: too many for classes"]),
        (
            GOOD,
            {"partition": {"kind": "iid", "agents": 2}},
            ["a partition assigns rows to agents: leave out either agent"],
        ),
        (GOOD, {"agent": None, "partition": {"kind": "iid", "agents": 4}}, ["4 agents for 3 rows"]),
        (GOOD, {"agent": None, "partition": {"kind": "iid"}}, ["needs a kind and a number of agents"]),
        (
            HEAD + "a,1,c,yes\nb,2,d,no\n",
            {"model": "linear"},
            ["'y' holds words ('yes'): a linear model needs numbers"],
        ),
        (HEAD + "a,1,c,yes\nb,2,d,yes\n", {}, ["'y' is always yes: a classifier needs at least two classes"]),
        (HEAD + "a,1,1,0\nb,1,1,1\nb,1,1,1\n", {}, ["every feature is constant"]),
    ],
)
def test_one_clear_message(text, options, messages):
    Path("t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(fp.FedpointError) as caught:
        read_table("t.csv", **({"target": "y", "agent": "k"} | options))
    said = str(caught.value).split("\n")
    assert len(said) == len(messages)
    for line, message in zip(said, messages, strict=True):
        assert message in line


def test_many_mistakes_are_not_all_listed():
    Path("t.csv").write_text("k,x,y\n" + "a,1\n" * 100)
    with pytest.raises(fp.FedpointError) as caught:
        read_table("t.csv", "y", "k")
    lines = str(caught.value).split("\n")
    assert len(lines) == 7 and lines[-1] == "and 94 more mistakes"


def test_mistakes_far_down_are_found_at_their_row(monkeypatch):
    """Also by parsers that do not say where, and in later pieces."""
    monkeypatch.setattr(columns, "PIECE", 500)
    rows = [f"k{i % 3},{i}.5,{i}" for i in range(400)]
    rows[350] = "k1,oops,3"
    Path("t.csv").write_text("k,x,y\n" + "\n".join(rows) + "\n")
    for parser in ("csv", "pandas"):
        assert read_columns(Path("t.csv"), names=["k"], parser=parser)[1] == [
            "row 351, column 'x' is 'oops', not a number"
        ]
    rows[350], rows[390] = "k1,1,3", "k1,2"
    Path("t.csv").write_text("k,x,y\n" + "\n".join(rows) + "\n")
    for parser in ("csv", "pandas"):
        with pytest.raises(fp.FedpointError, match="row 391 has 2 cells"):
            read_columns(Path("t.csv"), names=["k"], parser=parser)


def test_one_file_per_agent():
    Path("s").mkdir()
    Path("s/a.csv").write_text("x,y\n1,2\n2,3.5\n")
    Path("s/b.csv").write_text("x,yy\n1,2\n")
    with pytest.raises(fp.FedpointError, match=r"s/b.csv has other columns than s/a.csv: no 'y', also 'yy'"):
        read_table("s/*.csv", "y")
    Path("s/b.csv").write_text("x,y\nq,\n2,1\n")
    Path("s/c.csv").write_text("x,y\n")
    Path("s/d.csv").write_text("")
    with pytest.raises(fp.FedpointError, match=r"s/d.csv is empty"):
        read_table("s/*.csv", "y")
    Path("s/d.csv").unlink()
    with pytest.raises(fp.FedpointError) as caught:
        read_table("s/*.csv", "y")
    assert str(caught.value).split("\n") == [
        "s/b.csv: row 1, column 'x' is 'q', not a number",
        "s/b.csv: row 1, column 'y' is empty: fill it in, or set missing = \"drop\"",
        "s/c.csv has no rows: give at least one below the header",
    ]
    Path("s/c.csv").unlink()
    Path("s/b.csv").write_text("x,y\nq,1\nr,1\n")
    with pytest.raises(fp.FedpointError, match=r"column 'x' holds numbers in s/a.csv, but words in s/b.csv"):
        read_table("s/*.csv", "y")
    with pytest.raises(fp.FedpointError, match=r"there is no file s/e.csv"):
        read_table(["s/a.csv", "s/e.csv"], "y")
    with pytest.raises(fp.FedpointError, match="no file is called"):
        read_table("s/*.parquet", "y")
    with pytest.raises(fp.FedpointError, match="would be the same agent, a"):
        read_table(["s/a.csv", "s/../s/a.csv"], "y")
    # With an agent column, files are one table in pieces, whatever they are called.
    Path("t").mkdir()
    Path("s/a.csv").write_text("k,x,y\nu,1,2\nv,2,3.5\n")
    Path("t/a.csv").write_text("k,x,y\nv,3,1\n")
    assert read_table(["t/a.csv", "s/a.csv"], "y", "k").groups.tolist() == ["u", "v", "v"]


def test_parquet(monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    Path("junk.parquet").write_bytes(b"junk")
    with pytest.raises(fp.FedpointError, match=r"junk.parquet is not a Parquet file"):
        read_table("junk.parquet", "y", "k")
    made = {
        "k": [1, 2, 2],
        "flag": [True, False, None],
        "x": pyarrow.array([1, None, 3], pyarrow.int8()),
        "when": pyarrow.array([0, 1, 2], pyarrow.duration("ms")),
        "y": ["1", "2", "2.5"],
    }
    parquet.write_table(pyarrow.table(made), "t.parquet")
    with pytest.raises(fp.FedpointError) as caught:
        read_table("t.parquet", "y", "k")
    assert [line.split(": ", 1)[1] for line in str(caught.value).split("\n")] == [
        "column 'when' holds duration[ms]: numbers, words, dates and truth values can be read",
        'row 3, column \'flag\' is empty: fill it in, or set missing = "mean" or "drop"',
        'row 2, column \'x\' is empty: fill it in, or set missing = "mean" or "drop"',
    ]
    table = read_table("t.parquet", "y", "k", leave_out=["when"], missing="mean", scale=False)
    assert table.y.tolist() == [1.0, 2.0, 2.5] and table.groups.tolist() == [1, 2, 2]
    assert table.features == ["flag_True", "x"] and table.X[:, 1].tolist() == [1.0, 2.0, 3.0]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(fp.FedpointError, match=r"Parquet needs the package pyarrow: pip install 'fedpoint\[data\]'"):
        read_table("t.parquet", "y", "k")


def test_both_parsers_read_the_same_table(loans, monkeypatch):
    loans.to_csv("loans.csv", index=False)
    table = read_table("loans.csv", "default", "bank")
    monkeypatch.setattr(columns, "SMALL", 0)
    same(table, read_table("loans.csv", "default", "bank"))


@pytest.mark.filterwarnings("ignore:The 'float_precision' argument")  # of new ones, which this one is
@pytest.mark.parametrize("version", ["2.2.2", "3.1.1"])
def test_numbers_are_right_to_the_bit_with_older_pandas_too(monkeypatch, version):
    """Which rounds some in the last place, unless it is told not to."""
    written = [repr(x) for x in (np.random.default_rng(0).standard_normal(2000) * 1e-7).tolist()]
    Path("t.csv").write_text("x\n" + "\n".join(written) + "\n")
    monkeypatch.setattr(pandas, "__version__", version)
    made, _ = read_columns(Path("t.csv"), parser="pandas")
    assert made["x"].values.tolist() == [float(x) for x in written]


def test_a_byte_order_mark_is_no_name():
    text = io.StringIO("k,x,y\r\na,1,2\r\nb,2,3.5\r\n").getvalue()
    Path("t.csv").write_bytes(text.encode("utf-8-sig"))
    assert read_table("t.csv", "y", "k").features == ["x"]
