"""Rows that stay on disk: the same samples and bits as rows in memory, and a round reads those of its agents only."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.problems.stored import MappedRows, StoredRows, place_of

AGENTS, PIXELS, CLASSES = 12, 6, 3
RNG = np.random.default_rng(0)
WHO = RNG.integers(0, AGENTS, 200)
X = RNG.normal(size=(200, PIXELS)).astype("f")
Y = RNG.integers(0, CLASSES, 200)
START = {"a": RNG.normal(size=(PIXELS, 5)).astype("f"), "b": RNG.normal(size=(5, CLASSES)).astype("f")}


def predict(w, x):
    return jnp.tanh(x @ w["a"]) @ w["b"]


def loss(w, batch):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(predict(w, batch[0])), batch[1][:, None], 1))


def problem(rows, **options):
    options = {"groups": WHO, "batch": 4} | options
    return fp.problems.Loss(loss, START, rows, predict=predict, **options)


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    return tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")


class Watched(StoredRows):
    """Rows in memory, and which of them were asked for."""

    def __init__(self, x, y):
        self.rows, self.count, self.seen = (x, y), len(y), []

    def read(self, at):
        self.seen.append(np.array(at))
        return tuple(a[at] for a in self.rows)


METHOD = fp.Scaffold(step=0.1, local_steps=3)


def same(one, two):
    jax.tree.map(np.testing.assert_array_equal, (one.history, one.memories), (two.history, two.memories))


@pytest.mark.parametrize("sampling", ["iid", "shuffle"])
def test_batches_are_those_of_rows_in_memory_to_the_bit(mapped, sampling):
    made = problem(mapped, sampling=sampling)
    run = fp.run(METHOD, made, rounds=7, participation=4)
    assert "rows read as they are used" in run.engine
    there = fp.run(METHOD, problem((X, Y), sampling=sampling), rounds=7, participation=4)
    same(run, there)
    np.testing.assert_array_equal(run.loss, there.loss)
    one, two = (each.problem.evaluate(run.final(), X, Y)["loss"] for each in (run, there))
    assert one == two


def test_full_fields_are_those_of_rows_in_memory(mapped):
    """Up to rounding: sums over rows are compiled together with where the rows come from."""
    one, two = (fp.run(fp.FedAvg(step=0.1), problem(rows, batch=None), rounds=3) for rows in (mapped, (X, Y)))
    for a, b in zip(jax.tree.leaves(one.model), jax.tree.leaves(two.model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_round_reads_the_batches_of_its_agents_and_nothing_else():
    rows = Watched(X, Y)
    run = fp.run(METHOD, problem(rows), rounds=1, participation=4)
    rows.seen.clear()
    run.extend(9)
    read = np.concatenate(rows.seen)
    rounds, agents, steps, batch = 8, 4, 3, 4
    assert len(read) <= rounds * agents * steps * batch + len(rows.seen)  # a row of each tracing says how rows look
    assert all(len(set(WHO[at])) <= agents for at in rows.seen)


def test_a_resumed_run_has_the_same_bits_and_other_rows_are_refused(mapped, tmp_path):
    whole = fp.run(METHOD, problem(mapped), rounds=6, participation=4, folder=tmp_path / "whole")
    fp.run(METHOD, problem(mapped), rounds=3, participation=4, folder=tmp_path / "run")
    again = fp.load(tmp_path / "run", problem=problem((mapped[0], mapped[1]))).extend(6)
    same(again, whole)
    other = X.copy()
    other[0] += 1
    with pytest.raises(fp.FedpointError, match="data"):
        fp.load(tmp_path / "run", problem=problem(Watched(other, Y))).extend(7)


def parquet(folder):
    pyarrow, to = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    order = np.argsort(WHO, kind="stable")
    columns = {f"p{i}": X[order, i] for i in range(PIXELS)} | {"label": Y[order], "who": WHO[order]}
    to.write_table(pyarrow.table(columns), folder / "rows.parquet", row_group_size=30)
    return fp.data.on_disk(folder / "rows.parquet", [f"p{i}" for i in range(PIXELS)], "label", "who"), order


def lists(folder):
    pyarrow, to = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pixels = pyarrow.array(X.reshape(-1, 2, 3).tolist(), pyarrow.list_(pyarrow.list_(pyarrow.float32())))
    table = pyarrow.table({"image": pixels, "label": Y, "who": [f"w{k}" for k in WHO]})
    for i, part in enumerate((table[:70], table[70:])):
        to.write_table(part, folder / f"rows{i}.parquet")
    return fp.data.on_disk(str(folder / "*.parquet"), "image", "label", "who"), np.arange(len(Y))


def hugging_face(folder):
    """What `datasets.Dataset.save_to_disk(folder, num_shards=2)` writes."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"image": list(X), "label": Y, "who": WHO})
    names = []
    for i, part in enumerate((table[:70], table[70:])):
        names.append({"filename": f"data-{i:05}-of-00002.arrow"})
        with (
            pyarrow.OSFile(str(folder / names[-1]["filename"]), "wb") as file,
            pyarrow.ipc.new_stream(file, part.schema) as to,
        ):
            to.write_table(part, max_chunksize=16)
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    return fp.data.on_disk(folder, "image", "label", "who"), np.arange(len(Y))


class Items:
    """As a map-style data set of torch."""

    def __len__(self):
        return len(Y)

    def __getitem__(self, place):
        return X[place], int(Y[place])


KINDS = {
    "parquet": parquet,
    "parquet of lists": lists,
    "a folder of datasets": hugging_face,
    "items": lambda folder: (fp.data.on_disk(Items()), np.arange(len(Y))),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_source_gives_the_rows_that_were_written(kind, tmp_path):
    rows, order = kind(tmp_path)
    at = np.array([150, 3, 3, 199, 0, 75, 29, 30])
    x, y = rows.checked(at)
    np.testing.assert_array_equal(x.reshape(len(at), -1), X[order][at])
    np.testing.assert_array_equal(y, Y[order][at])
    if rows.groups is not None:
        np.testing.assert_array_equal([int(str(name).removeprefix("w")) for name in rows.groups], WHO[order])
        made = fp.problems.Loss(
            lambda w, b: ((b[0].reshape(len(b[0]), -1) @ w - b[1]) ** 2).mean(), np.zeros(PIXELS), rows
        )
        counts = dict(zip((int(name.removeprefix("w")) for name in made.names), made.counts, strict=True))
        assert [counts[k] for k in range(AGENTS)] == np.bincount(WHO).tolist()


def test_where_a_view_of_a_mapped_array_is_in_its_file(mapped):
    x = mapped[0]
    for view in (x, x[10:50], x[10:50][3:]):
        place = place_of(view)
        np.testing.assert_array_equal(place.take(np.array([2, 0])), view[[2, 0]])
    assert place_of(x[:, ::2]) is place_of(X) is None  # these are copied, or there already
    rows = MappedRows((x[10:50], Y[10:50]))
    np.testing.assert_array_equal(rows.read(np.array([5]))[0][0], X[15])


class Ragged(Items):
    def __getitem__(self, place):
        return X[place][: 5 + (WHO[place] != 5)], Y[place]


class Named(Items):
    def __getitem__(self, place):
        return {"pixels": X[place], "label": Y[place]}


MISTAKES = {
    "a column that is not there": (
        lambda d: (parquet(d), fp.data.on_disk(d / "rows.parquet", "p0", "labe")),
        "no column 'labe': did you mean 'label'",
    ),
    "no inputs": (lambda d: (parquet(d), fp.data.on_disk(d / "rows.parquet")), "say which columns the model sees"),
    "a path that does not exist": (lambda d: fp.data.on_disk(d / "none.parquet", "x"), "none.parquet"),
    "no Parquet": (lambda d: fp.data.on_disk(d / "rows.csv", "x"), "not a Parquet file"),
    "a folder of others": (lambda d: fp.data.on_disk(d, "x"), "not written by save_to_disk"),
    "splits": (
        lambda d: ((d / "dataset_dict.json").write_text('{"splits": ["train"]}'), fp.data.on_disk(d, "x")),
        "holds the splits train: give one",
    ),
    "a number": (lambda d: fp.data.on_disk(7), "give files, a folder, or an object that gives rows"),
    "dicts": (
        lambda d: problem(fp.data.on_disk(Named())),
        "rows are dicts: say inputs= and target=. Known: pixels, label",
    ),
    "a key that is not there": (
        lambda d: problem(fp.data.on_disk(Named(), "pixel", "label")),
        "no 'pixel': did you mean 'pixels'",
    ),
    "rows that differ": (lambda d: fp.data.on_disk(Ragged()).read(np.arange(200)), "they must be alike"),
    "arrays of different lengths": (lambda d: MappedRows((X, Y[1:])), "array 1 has shape .199,., but array 0 has 200"),
    "none": (lambda d: problem(fp.data.on_disk([])), "holds no rows"),
    "groups of another length": (lambda d: problem(fp.data.on_disk(Items()), groups=WHO[1:]), "but there are 200 rows"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message(mistake, tmp_path):
    make, message = MISTAKES[mistake]
    with pytest.raises(fp.FedpointError, match=message) as caught:
        make(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_row_with_nan_is_named_when_it_is_read():
    x = X.copy()
    made = problem(Watched(x, Y))
    x[:] = np.nan  # after the constructor has looked at some
    with pytest.raises(fp.FedpointError, match=r"row \d+ \(array 0\) is nan"):
        fp.run(METHOD, made, rounds=2, participation=4)
