"""Run folders, arrays and messages of all kinds: what does not fit is said, and nothing hangs or blows up."""

import copy
import io
import json
import shutil
import tomllib
import zipfile

import hypothesis.strategies as st
import numpy as np
import pytest
import tomli_w
from fuzz_targets import arrays, message, run_folder
from hypothesis import HealthCheck, Phase, given, settings

import fedpoint as fp
from fedpoint.federation import wire
from fedpoint.store import disk
from fedpoint.store.folder import config_hash

WILD = [None, True, -1, 0, 3, 10**30, 1e308, float("nan"), "", "x", [], [1, "a"], {}, {"a": []}, [[[]]], {"name": 3}]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # not to shrink, which may take minutes
FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=PHASES)
MANY = settings(FEW, max_examples=5_000, derandomize=False)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A finished run in its folder."""
    path = tmp_path_factory.mktemp("fuzz") / "run"
    problem = fp.problems.Quadratic(1.0, [[0.0, 1.0], [2.0, 4.0]])
    fp.run(fp.Scaffold(step=0.1), problem, rounds=5, record_every=2, repeats=2, folder=path)
    return path


def places(value, path=()):
    """Every place in a value of plain types."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


@st.composite
def changed(draw, value):
    """The value with something else, or nothing, in one or two places."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 2))):
        spots = [path for path in places(value) if path]
        if not spots:
            return value
        *way, last = draw(st.sampled_from(spots))
        inner = value
        for key in way:
            inner = inner[key]
        if draw(st.booleans()) and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = copy.deepcopy(draw(st.sampled_from(WILD)))
    return value


def spoil(folder, data):
    """Change one of the files of a run so that it is well formed, and its hash is right."""
    what = data.draw(
        st.sampled_from(["run.json", "summary.json", "config.toml", "events.jsonl", "checkpoint", "records"])
    )
    if what in ("checkpoint", "records"):
        path = max((folder / f"{what}s".replace("ss", "s")).iterdir())
        found, body = disk.read_npz(path, what)
        body = data.draw(changed({k: v for k, v in body.items() if k not in ("sha256", "format", "version")}))
        name = data.draw(st.sampled_from(sorted(found)))
        shape = data.draw(st.sampled_from([(), (0,), (1,), (2, 2), found[name].shape, (*found[name].shape, 1)]))
        found[name] = np.zeros(shape, data.draw(st.sampled_from(["f8", "f4", "i8", "?", "c16"])))
        sha = disk.write_npz(path, what, found, body)
        if what == "records":  # the checkpoint that names it names the new one
            owner = max((folder / "checkpoints").iterdir())
            state, named = disk.read_npz(owner, "checkpoint")
            named = {k: v for k, v in named.items() if k not in ("sha256", "format", "version")}
            named["files"][-1]["sha256"] = sha
            sha = disk.write_npz(owner, "checkpoint", state, named)
        summary = json.loads((folder / "summary.json").read_text())
        summary["ends"]["checkpoint"] = sha
        write_sealed(folder / "summary.json", summary)
        return
    path = folder / what
    if what == "events.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in data.draw(changed(lines))))
    elif what == "config.toml":
        config = data.draw(changed(tomllib.loads(path.read_text())))
        try:
            path.write_text(tomli_w.dumps(config))
            about = json.loads((folder / "run.json").read_text())
            about["config_sha256"] = config_hash(tomllib.loads(path.read_text()))
        except (TypeError, ValueError):  # what TOML cannot say
            return
        write_sealed(folder / "run.json", about)
    else:
        write_sealed(path, data.draw(changed(json.loads(path.read_text()))))


def write_sealed(path, content):
    """With the right hash of the rest."""
    path.write_text(json.dumps(disk.seal({key: value for key, value in content.items() if key != disk.SEAL})))


def check_folder(sound, data):
    folder = sound.with_name("spoilt")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    spoil(folder, data)
    run_folder(folder)


@FEW
@given(data=st.data())
def test_run_folders(sound, data):
    check_folder(sound, data)


@pytest.mark.slow
@MANY
@given(data=st.data())
def test_many_run_folders(sound, data):
    check_folder(sound, data)


def npz(**given):
    out = io.BytesIO()
    np.savez(out, **given)
    return out.getvalue()


def test_any_bit_of_an_archive(sound):
    """Each is either of no account, or found out."""
    path = max((sound / "checkpoints").iterdir())
    good, found = path.read_bytes(), 0
    want = disk.read_npz(path, "checkpoint")
    for at in range(0, len(good), 17):
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        got = arrays(bytes(data))
        found += got is None
        if got is not None:
            assert got[1] == want[1]
            assert {k: (a.dtype, a.tobytes()) for k, a in got[0].items()} == {
                k: (a.dtype, a.tobytes()) for k, a in want[0].items()
            }
    assert found > 50


@FEW
@given(st.binary(max_size=80))
def test_bytes(data):
    arrays(data)
    arrays(b"PK\x03\x04" + data)


def claiming(shape, dtype="<f8", packed=False):
    """An archive whose array says it is of that shape, and has no bytes."""
    header = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    body = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        archive.writestr("__manifest__.npy", body + (bytes(1 << 26) if packed else b""))
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        claiming((10**12,)),
        claiming((10**30,)),
        claiming((-1,)),
        claiming((2**40, 0, 2**40)),
        claiming((3,), "|O"),
        claiming((1 << 26,), "|u1", packed=True),  # 64 MB in 64 kB
        npz(__manifest__=np.frombuffer(b"[" * 100_000, np.uint8)),
        npz(__manifest__=np.frombuffer(b"5", np.uint8)),
        npz(__manifest__=np.zeros(3)),
        npz(__manifest__=np.frombuffer(b'{"format": [], "version": {}, "sha256": 1}', np.uint8)),
        npz(a=np.zeros(2)),
    ],
    ids=range(11),
)
def test_archives_that_are_meant_to_hurt(data):
    assert arrays(data) is None


# Messages between sites.

LETTER = wire.encode({"round": 3, "note": "a"}, {"w": np.arange(6.0).reshape(2, 3), "n": np.int64(4)})


@FEW
@given(st.data())
def test_messages(data):
    """Bytes that are changed, cut or made up."""
    letter = bytearray(LETTER)
    for _ in range(data.draw(st.integers(0, 4))):
        letter[data.draw(st.integers(0, len(letter) - 1))] = data.draw(st.integers(0, 255))
    letter = letter[: data.draw(st.integers(0, len(letter)))] + data.draw(st.binary(max_size=4))
    message(bytes(letter))


@FEW
@given(st.data())
def test_headers(data):
    header = {"round": 3, "arrays": [["w", "<f8", [2, 3]], ["n", "<i8", []]]}
    head = json.dumps(data.draw(changed(header))).encode()
    message(b"FEDP" + len(head).to_bytes(4, "little") + head + data.draw(st.binary(max_size=64)))


@pytest.mark.parametrize("shape", [[10**12], [2**39, 2**39], [0, 2**39], [-1], [1.0], [True], [10**30]])
def test_shapes_that_are_meant_to_hurt(shape):
    head = json.dumps({"arrays": [["w", "<f8", shape]]}).encode()
    got = message(b"FEDP" + len(head).to_bytes(4, "little") + head)
    assert got is None or got.arrays["w"].size == 0
