import contextlib
import errno
import itertools
import json
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from fedpoint.core.errors import FedpointError
from fedpoint.store import disk, folder
from fedpoint.store.folder import RunFolder, config_hash, export_model, load_model

CONFIG = {"name": "toy", "lr": 0.1, "seed": None, "nested": {"sizes": (3, 4), "none": None}}
DTYPES = [*"?bBhHiIqQefdFD", ">f8", ">i4", ">c16"]  # not long double: a copy may change its padding


def bits(array):
    return (array.dtype.str, array.shape, array.tobytes())


def segment(first, last):
    """What rounds first..last record, and the state after them; a function of the rounds alone."""
    rounds = np.arange(first, last + 1)
    models = np.sin(rounds[:, None] * np.arange(1.0, 6.0))
    return {"x": models[-1], "file": np.int64(last)}, {"models": models, "round": rounds}


def commit(run, first, last):
    run.commit(last, *segment(first, last))


def check(point, last):
    state, records = segment(0, last)
    assert point.round == last
    assert {k: bits(v) for k, v in point.state.items()} == {k: bits(np.asarray(v)) for k, v in state.items()}
    assert {k: bits(v) for k, v in point.records.items()} == {k: bits(v) for k, v in records.items()}


def names(run, sub):
    return sorted(path.name for path in (run.path / sub).iterdir())


@pytest.fixture
def run(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG, meta={"who": "test"}) as made:
        yield made


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_bit_for_bit(tmp_path, dtype):
    kind = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 256, (2, 5, 3, kind.itemsize), dtype=np.uint8)
    if kind.kind == "b":
        raw &= 1
    wild = raw.view(kind)[..., 0]  # NaNs with payloads, infinities, subnormals
    state = {"a": wild[0], "a/b": wild[0].T, "allow_pickle": wild[0, 0, 0], "empty": wild[0][:0]}
    with RunFolder.create(tmp_path / "run", {}, meta={}) as run:
        run.commit(3, state, {"w": wild[0]})
        run.commit(4, state, {"w": wild[1]})
        run.commit(5, state, {})
    point = RunFolder.open(tmp_path / "run").latest()
    assert {k: bits(v) for k, v in point.state.items()} == {k: bits(np.asarray(v)) for k, v in state.items()}
    assert bits(point.records["w"]) == (kind.str, (10, 3), wild.tobytes())


def test_config_meta_events_and_summary_come_back(run):
    assert RunFolder.open(run.path).latest() is None
    events = [{"round": 1, "loss": np.float64(0.1)}, {"note": "a\nb\r\u2028é", "list": [1, None, True]}]
    for event in events:
        run.append_event(event)
    assert RunFolder.open(run.path).standing().summary is None
    commit(run, 0, 2)
    run.finish({"loss": 0.25})
    seen = RunFolder.open(run.path)
    assert seen.config == {"name": "toy", "lr": 0.1, "nested": {"sizes": [3, 4]}} == run.config
    assert seen.config_hash == config_hash(CONFIG) == config_hash(dict(reversed(CONFIG.items())))
    assert (seen.meta, seen.standing().summary, seen.events()) == ({"who": "test"}, {"loss": 0.25}, events)
    with pytest.raises(FedpointError, match="is finished"):
        commit(run, 3, 5)
    with pytest.raises(FedpointError, match="reading only"):
        seen.append_event({})


@pytest.mark.parametrize("bad", [{"a": [1, None]}, {"a": {"b": object()}}, {1: 2}, {"a": 1j}, {"a": "\ud800"}])
def test_a_config_that_toml_cannot_hold_is_refused(tmp_path, bad):
    with pytest.raises(FedpointError, match="config"):
        RunFolder.create(tmp_path / "run", bad, meta={})
    assert not any(tmp_path.iterdir())


def test_create_refuses_what_exists(run, tmp_path):
    with pytest.raises(FedpointError, match="resume it or choose another name"):
        RunFolder.create(run.path, CONFIG, meta={})
    (tmp_path / "other").mkdir()
    RunFolder.create(tmp_path / "other", {}, meta={}).close()  # an empty folder will do
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FedpointError, match="not an empty folder"):
        RunFolder.create(tmp_path / "file", CONFIG, meta={})
    with pytest.raises(FedpointError, match="cannot create"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG, meta={})
    assert names(run, "..") == ["file", "other", "run"]


def test_open_says_what_is_wrong(run, tmp_path):
    with pytest.raises(FedpointError, match="there is no run folder"):
        RunFolder.open(tmp_path / "typo")
    with pytest.raises(FedpointError, match="not a run folder"):
        RunFolder.open(tmp_path)
    config, about = run.path / "config.toml", run.path / "run.json"
    config.write_text("# a remark\n" + config.read_text())
    RunFolder.open(run.path)
    config.write_text(config.read_text().replace("0.1", "0.2"))
    with pytest.raises(FedpointError, match="was changed"):
        RunFolder.open(run.path)
    about.write_text(about.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(FedpointError, match="version 99"):
        RunFolder.open(run.path)
    about.write_bytes(b"{\xff")
    with pytest.raises(FedpointError, match="damaged"):
        RunFolder.open(run.path)


def test_only_the_last_two_checkpoints_are_kept(run):
    for last in (4, 9, 14):
        commit(run, last - 4, last)
    assert names(run, "checkpoints") == ["000000000009.npz", "000000000014.npz"]
    check(run.latest(), 14)
    with pytest.raises(FedpointError, match="already at round 14"):
        commit(run, 10, 14)


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "remove its records", "foreign"])
def test_a_damaged_newest_checkpoint_falls_back(run, how):
    for last in (4, 9, 14):
        commit(run, last - 4, last)
    newest = run.path / "checkpoints" / "000000000014.npz"
    if how == "flip":
        damage(newest)
    elif how == "cut":
        newest.write_bytes(newest.read_bytes()[:-30])
    elif how == "empty":
        newest.write_bytes(b"")
    elif how == "foreign":
        newest.write_bytes((run.path / "checkpoints" / "000000000009.npz").read_bytes())
    else:
        (run.path / "records" / "000000000010-000000000014.npz").unlink()
    run.close()
    with RunFolder.open(run.path, write=True) as again:
        point = again.latest()
        check(point, 9)
        assert len(point.skipped) == 1 and "0000000014.npz" in point.skipped[0]
        commit(again, 10, 12)  # sorts before the damaged one, and must win over it
        assert names(again, "checkpoints") == ["000000000009.npz", "000000000012.npz"]
    check(RunFolder.open(run.path).latest(), 12)


@pytest.mark.parametrize("more", [1, 5])
def test_the_last_record_is_not_all_that_every_checkpoint_hangs_on(run, more):
    """Commits without a record name the last record file too: one that does without it is kept as well."""
    for last in (4, 9, 14):
        commit(run, last - 4, last)
    for last in range(15, 15 + more):
        run.commit(last, segment(10, last)[0], {})
    assert len(names(run, "checkpoints")) == 3
    damage(run.path / "records" / "000000000010-000000000014.npz")
    run.close()
    with RunFolder.open(run.path, write=True) as again:
        check(again.latest(), 9)
        commit(again, 10, 14)
        check(again.latest(), 14)


def test_a_run_is_finished_where_its_summary_names_the_newest_checkpoint(run):
    commit(run, 0, 4)
    commit(run, 5, 9)
    run.finish({"loss": 0.5})
    standing = RunFolder.open(run.path).standing()
    assert standing.summary == {"loss": 0.5} and not standing.wrong and RunFolder.open(run.path).finished()
    summary = (run.path / "summary.json").read_bytes()
    run.reopen()
    assert RunFolder.open(run.path).standing().summary is None and not RunFolder.open(run.path).finished()
    commit(run, 10, 14)
    (run.path / "summary.json").write_bytes(summary)  # of an end that the run has left behind
    standing = RunFolder.open(run.path).standing()
    assert standing.summary is None and standing.point.round == 14 and len(standing.wrong) == 1
    with pytest.raises(disk.Damaged, match="not about the newest checkpoint"):
        RunFolder.open(run.path).finished()


def test_a_reader_follows_a_writer_that_finishes_and_goes_on(run, monkeypatch):
    """Between the look at the summary and the look at the checkpoints the run may end, or go on."""
    commit(run, 0, 4)
    run.finish({})
    reader, real = RunFolder.open(run.path), RunFolder.latest
    todo = iter([lambda: (run.reopen(), commit(run, 5, 9)), lambda: run.finish({"loss": 1.0})])

    def slow(self):
        for step in todo:
            step()
            break
        return real(self)

    monkeypatch.setattr(RunFolder, "latest", slow)
    standing = reader.standing()
    assert (standing.point.round, standing.summary, standing.wrong) == (9, {"loss": 1.0}, ())


def link_in_place_of(path, target):
    """What somebody who watches may put there between two steps."""
    if path.is_dir():
        path.rename(path.with_name(f"{path.name}-before"))
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["records", "checkpoints"])
def test_a_folder_that_becomes_a_link_while_a_run_is_written(run, tmp_path, name):
    """Nothing is written or removed there: what was checked when the run was opened may have changed since."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "000000000000.npz").write_bytes(b"mine")
    for last in (4, 9):
        commit(run, last - 4, last)
    link_in_place_of(run.path / name, mine)
    with pytest.raises(FedpointError, match=name):
        commit(run, 10, 14)
    run._prune()
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == {"000000000000.npz": b"mine"}


@pytest.mark.parametrize("name", ["events.jsonl", "summary.json", "model.npz", "lock"])
def test_a_file_that_becomes_a_link_while_a_run_is_written(run, tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    commit(run, 0, 4)
    link_in_place_of(run.path / name, mine)
    writes = {
        "events.jsonl": lambda: run.append_event({"n": 1}),
        "summary.json": lambda: run.finish({}),
        "model.npz": lambda: export_model(run.path / "model.npz", {"w": np.zeros(2)}, {}),
        "lock": lambda: (run.close(), RunFolder.open(run.path, write=True)),
    }
    with contextlib.suppress(FedpointError):  # refused, or the link is replaced
        writes[name]()
    assert mine.read_bytes() == b"mine"
    assert name in ("events.jsonl", "lock") or not (run.path / name).is_symlink()


def test_a_damaged_record_file_is_named(run):
    for last in (4, 9, 14):
        commit(run, last - 4, last)
    shared = run.path / "records" / "000000000000-000000000004.npz"
    good = shared.read_bytes()
    damage(shared)
    with pytest.raises(FedpointError, match=r"000000000000-000000000004\.npz is damaged.*restore it"):
        run.latest()
    disk.write_npz(shared, "records", {"models": np.zeros((5, 5))}, {})  # well formed, but another file
    with pytest.raises(FedpointError, match=r"000000000004\.npz is not the file of this run"):
        run.latest()
    shared.write_bytes(good)
    check(run.latest(), 14)


def test_records_must_go_on_as_they_began(run):
    commit(run, 0, 4)
    state, records = segment(5, 9)
    for bad in (
        {"models": records["models"]},
        {**records, "models": records["models"][:, :2]},
        {**records, "models": records["models"].astype("f4")},
        {**records, "round": 3},
    ):
        with pytest.raises(FedpointError, match="names, dtypes and shapes"):
            run.commit(9, state, bad)
    commit(run, 5, 9)
    check(run.latest(), 9)


def test_no_pickle_goes_in_or_out(run, tmp_path):
    for bad in (
        np.array([{}], object),
        np.array(["text"]),
        np.zeros(2, "i4,f8"),
        np.array(["2020"], "M8[D]"),
    ):
        with pytest.raises(FedpointError, match="convert it"):
            run.commit(1, {"a": bad}, {})
    with pytest.raises(FedpointError, match="choose another name"):
        run.commit(1, {"__manifest__": np.zeros(1)}, {})
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(trap),))

    bad = np.empty(1, object)
    bad[0] = Trap()
    np.savez(tmp_path / "a.npz", w=bad)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap()))
    np.save(tmp_path / "c.npy", np.zeros(3))
    for name in ("a.npz", "b.npz", "c.npy"):
        with pytest.raises(FedpointError, match="damaged or not a fedpoint model"):
            load_model(tmp_path / name)
    assert not trap.exists()


def test_compaction_keeps_content(run, monkeypatch):
    monkeypatch.setattr(folder, "MAX_RECORD_FILES", 4)
    written = []
    write = RunFolder._write_records
    monkeypatch.setattr(RunFolder, "_write_records", lambda *args: written.append(write(*args)) or written[-1])
    for last in range(60):
        commit(run, last, last)
        assert len(run._head.files) <= 4
        if last % 17 == 0:
            check(run.latest(), last)
    check(run.latest(), 59)
    assert len(names(run, "records")) <= 8
    row = written[0]["nbytes"]
    assert sum(entry["nbytes"] for entry in written) < 6 * 60 * row  # 8 if all were merged each time


def test_a_torn_last_event_is_skipped_and_then_removed(run):
    run.append_event({"n": 1})
    run.close()
    path = run.path / "events.jsonl"
    for tail in (b'{"n": 2', b'{"n": 2}', b"\0\0\0", b"\0\0\n", b'{"n": "\xc3'):
        whole = path.read_bytes()
        path.write_bytes(whole + tail)
        before = RunFolder.open(run.path).events()
        assert path.read_bytes() == whole + tail  # a reader changes nothing
        with RunFolder.open(run.path, write=True) as again:
            again.append_event({"n": 3})
            assert again.events() == [*before, {"n": 3}]
    path.write_bytes(b'{"n": 1}\n{"n"\n{"n": 3}\n')
    with pytest.raises(FedpointError, match=r"line 2 of .*events\.jsonl is damaged"):
        RunFolder.open(run.path).events()


def test_two_writers_are_refused(run):
    with pytest.raises(FedpointError, match=f"process {os.getpid()} is writing"):
        RunFolder.open(run.path, write=True)
    temp = run.path / "checkpoints" / ".x.tmp"
    temp.touch()
    RunFolder.open(run.path)  # readers are welcome
    assert temp.exists()
    run.close()
    with RunFolder.open(run.path, write=True):
        assert not temp.exists()


def failing(real, countdown, code):
    def call(first, *args, **kwargs):
        nonlocal countdown
        if real is not open or str(first).endswith(".tmp"):
            countdown -= 1
            if countdown < 0:
                raise OSError(code, os.strerror(code))
        return real(first, *args, **kwargs)

    return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["replace", "fsync", "open"])
def test_a_disk_that_fails_leaves_the_last_commit(run, monkeypatch, code, call):
    commit(run, 0, 4)
    before = {path: path.read_bytes() for path in run.path.rglob("*.*") if path.is_file()}
    for countdown in range(2):  # fails at the records, then at the checkpoint
        with monkeypatch.context() as patch:
            if call == "open":
                patch.setattr(disk, "open", failing(open, countdown, code), raising=False)
            else:
                skip = 2 * countdown if call == "fsync" else countdown  # of the file and of its folder
                patch.setattr(os, call, failing(getattr(os, call), skip, code))
            with pytest.raises(FedpointError, match=f"cannot write .*untouched.*{os.strerror(code)}; "):
                commit(run, 5, 9)
        assert not list(run.path.rglob("*.tmp"))
        assert all(path.read_bytes() == data for path, data in before.items())
        check(run.latest(), 4)
    commit(run, 5, 9)  # the same handle goes on once there is room
    check(run.latest(), 9)


def test_an_event_that_does_not_fit_leaves_no_half_line(run, monkeypatch):
    run.append_event({"n": 1})
    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync", lambda file: (file.flush(), os.truncate(file.fileno(), 12), os.link("", "")))
        with pytest.raises(FedpointError, match=r"cannot write .*events\.jsonl"):
            run.append_event({"n": 2})
    run.append_event({"n": 3})
    assert run.events() == [{"n": 1}, {"n": 3}]


class Crash(BaseException):
    pass


def dying(real, calls, step):
    def call(*args, **kwargs):
        if next(calls) >= step:
            raise Crash
        return real(*args, **kwargs)

    return call


def test_a_crash_at_any_step_of_a_commit_loses_only_that_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "MAX_RECORD_FILES", 3)
    for step in range(100):
        run = RunFolder.create(tmp_path / str(step), CONFIG, meta={})
        for last in range(3):
            commit(run, last, last)
        with monkeypatch.context() as patch:
            calls = itertools.count()
            for name in ("replace", "fsync", "unlink"):  # once dead, none of them works any more
                patch.setattr(os, name, dying(getattr(os, name), calls, step))
            try:
                commit(run, 3, 3)  # merges as well
            except Crash:
                pass
            else:
                break
        run.close()
        with RunFolder.open(run.path, write=True) as again:
            point = again.latest()
            check(point, point.round)
            assert point.round in (2, 3) and not point.skipped
            for last in range(point.round + 1, 6):
                commit(again, last, last)
            check(again.latest(), 5)
            assert not list(run.path.rglob("*.tmp"))
    assert step > 10
    run.close()


def test_a_reader_follows_a_living_writer(run, monkeypatch):
    for last in range(3):
        commit(run, last, last)
    reader, real = RunFolder.open(run.path), disk.read_npz
    todo = iter((3, 4, 5))

    def slow(*arguments, **options):
        for last in todo:  # the writer commits, and prunes, while the reader is about to open the file
            commit(run, last, last)
        return real(*arguments, **options)

    monkeypatch.setattr(disk, "read_npz", slow)
    point = reader.latest()
    check(point, 5)
    assert not point.skipped


def test_a_model_comes_back_with_its_manifest(tmp_path):
    path = tmp_path / "model.npz"
    arrays = {"w": np.arange(6.0).reshape(2, 3).T, "b": np.float32(np.nan)}
    export_model(path, arrays, {"algorithm": "fedavg", "round": np.int64(3), "loss": float("inf")})
    loaded, manifest = load_model(path)
    assert {k: bits(v) for k, v in loaded.items()} == {k: bits(np.asarray(v)) for k, v in arrays.items()}
    assert manifest == {"algorithm": "fedavg", "round": 3, "loss": float("inf")}
    first = path.read_bytes()
    export_model(path, arrays, manifest)
    assert path.read_bytes() == first
    with np.load(path, allow_pickle=False) as plain:  # nothing but numpy is needed to read it
        assert json.loads(plain["__manifest__"].tobytes())["format"] == "fedpoint-model"
    with pytest.raises(FedpointError, match="is not a fedpoint checkpoint"):
        disk.read_npz(path, "checkpoint")
    damage(path)
    with pytest.raises(FedpointError, match="damaged"):
        load_model(path)
    with pytest.raises(FedpointError, match="missing"):
        load_model(tmp_path / "typo.npz")


def test_a_changed_array_is_found_even_if_the_archive_is_sound(tmp_path):
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    export_model(old, {"w": np.zeros(3)}, {"round": 1})
    for find, put in ((b"\0" * 8, b"\0" * 7 + b"@"), (b'"round":1', b'"round":2'), (b"'<f8'", b"'<i8'")):
        with zipfile.ZipFile(old) as source, zipfile.ZipFile(new, "w") as target:
            for name in source.namelist():
                target.writestr(name, source.read(name).replace(find, put))
        with pytest.raises(FedpointError, match="SHA-256 differs"):
            load_model(new)


HOLD = """
import sys, time
from pathlib import Path
from fedpoint.store.disk import take_lock
lock = take_lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_is_refused_with_its_holder_and_ends_with_it(tmp_path):
    """Also by kill -9; whoever was refused has not spoilt the note of who holds it."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        for _ in range(2):
            with pytest.raises(FedpointError, match=f"process {holder.pid} is writing .*wait for it"):
                disk.take_lock(tmp_path)
    finally:
        holder.kill()  # SIGKILL
        holder.wait()
        holder.stdout.close()
    with disk.take_lock(tmp_path), pytest.raises(FedpointError, match=f"process {os.getpid()} is writing"):
        disk.take_lock(tmp_path)
    disk.take_lock(tmp_path).close()
