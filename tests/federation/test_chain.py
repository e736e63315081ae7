"""A site's record: whatever is changed in it later is found, and what a crash leaves is not called a change."""

import copy
import hashlib
import itertools
import json

import pytest

from fedpoint.core.errors import FedpointError
from fedpoint.federation.site import chain
from fedpoint.federation.site.chain import HEAD, LOG, Broken, Chain, examine, origin

FIRST = origin("study", "north")
ORDERS = 4


def entry(number):
    asked = {"kind": "work", "round": number, "model": hashlib.sha256(b"%d" % number).hexdigest()}
    left = {"says": {"weight": 0.5, "note": None}, "arrays": {".w": [2]}, "bytes": 300 + number, "good": True}
    return {"asked": asked, "left": left}


@pytest.fixture
def record(tmp_path):
    """A record of a few orders: its folder, its lines and its head."""
    made = Chain(tmp_path, FIRST)
    for number in range(ORDERS):
        made.append(entry(number))
    return tmp_path, (tmp_path / LOG).read_bytes().splitlines(keepends=True), (tmp_path / HEAD).read_bytes()


def test_every_line_holds_the_hash_of_the_one_before(record):
    _, lines, head = record
    before = hashlib.sha256(b'{"site":"north","study":"study"}').hexdigest()
    for number, line in enumerate(lines):
        said = json.loads(line)
        assert said["before"] == before
        assert {**entry(number), "before": before, "time": said["time"]} == said
        before = hashlib.sha256(line.rstrip(b"\n")).hexdigest()
    assert json.loads(head) == {"lines": ORDERS, "sha256": before}


# What somebody may do to it.


def edits(value):
    """A JSON value with one thing in it changed, in every place and every way."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            yield {(f"{k}x" if k == key else k): v for k, v in value.items()}
            for changed in edits(value[key]):
                yield {**value, key: changed}
        yield {**value, "more": 1}
    elif isinstance(value, list):
        yield [*value, 1]
        for i, item in enumerate(value):
            for changed in edits(item):
                yield [*value[:i], changed, *value[i + 1 :]]
    elif isinstance(value, bool):
        yield not value
    elif value is None:
        yield 0
    else:
        yield f"{value[:-1]}-" if isinstance(value, str) else value + 1


def tamperings(lines, head):
    """Every change of a small record by one hand's movement: (what, the log, the head)."""
    whole, count = b"".join(lines), len(lines)
    for i in range(count):
        yield f"line {i} deleted", b"".join(lines[:i] + lines[i + 1 :]), head
        yield f"line {i} twice", b"".join(lines[: i + 1] + lines[i:]), head
        yield f"line {i} emptied", b"".join([*lines[:i], b"\n", *lines[i + 1 :]]), head
        for j, changed in enumerate(edits(json.loads(lines[i]))):
            line = chain.canonical(changed) + b"\n"
            yield f"line {i} edited ({j})", b"".join([*lines[:i], line, *lines[i + 1 :]]), head
        spaced = json.dumps(json.loads(lines[i]), sort_keys=True).encode() + b"\n"
        yield f"line {i} written otherwise", b"".join([*lines[:i], spaced, *lines[i + 1 :]]), head
    for i, j in itertools.combinations(range(count), 2):
        swapped = copy.copy(lines)
        swapped[i], swapped[j] = lines[j], lines[i]
        yield f"lines {i} and {j} swapped", b"".join(swapped), head
    for size in range(len(whole)):
        yield f"cut after {size} bytes", whole[:size], head
        yield f"byte {size} flipped", whole[:size] + bytes([whole[size] ^ 1]) + whole[size + 1 :], head
    yield "the log removed", None, head
    yield "the head removed", whole, None
    for size in range(len(head)):
        yield f"head cut after {size} bytes", whole, head[:size]
    for j, changed in enumerate(edits(json.loads(head))):
        if set(changed) <= set(json.loads(head)):  # what is beside count and hash is not looked at
            yield f"head edited ({j})", whole, chain.canonical(changed)
    yield "lines added", whole + lines[-1] * 2, head


def survivors(folder, lines, head):
    """The changes that go unnoticed."""
    found = []
    for what, log, small in tamperings(lines, head):
        for name, data in ((LOG, log), (HEAD, small)):
            (folder / name).unlink(missing_ok=True)
            if data is not None:
                (folder / name).write_bytes(data)
        try:
            examine(folder, FIRST)
        except Broken as error:
            assert 0 <= error.line <= len(lines) + 2
            continue
        found.append(what)
    return found


def test_every_change_is_found(record):
    folder, lines, head = record
    assert examine(folder, FIRST).head.lines == ORDERS
    assert len(list(tamperings(lines, head))) > 2000
    assert survivors(folder, lines, head) == []


def test_the_test_convicts_a_record_whose_chain_is_not_checked(record, monkeypatch):
    """Edits and swaps before the last line then go unnoticed."""
    folder, lines, head = record

    def follow(last, line, hear):
        return chain.Head(last.lines + 1, hashlib.sha256(line).hexdigest())

    monkeypatch.setattr(chain, "_follow", follow)
    assert {"line 0 edited (0)", "lines 0 and 1 swapped"} <= set(survivors(folder, lines, head))


def test_the_test_convicts_a_record_whose_head_is_not_checked(record, monkeypatch):
    """A cut tail then goes unnoticed."""
    folder, lines, head = record
    whole = chain.Examined(FIRST, False, 0, 0)
    monkeypatch.setattr(chain, "_against", lambda *a: whole)
    assert f"line {ORDERS - 1} deleted" in survivors(folder, lines, head)


@pytest.mark.parametrize("first", [origin("another", "north"), origin("study", "south")])
def test_the_record_of_another_is_not_this_one(record, first):
    folder, *_ = record
    with pytest.raises(Broken, match="line 1 is not how this site's record of this study begins"):
        examine(folder, first)
    with pytest.raises(FedpointError, match="was changed after it was written"):
        Chain(folder, first)


def test_the_first_wrong_line_is_named(record):
    folder, lines, _ = record
    (folder / LOG).write_bytes(b"".join([lines[0], lines[1].replace(b'"bytes":301', b'"bytes":7'), *lines[2:]]))
    with pytest.raises(Broken, match="line 3 does not follow line 2: line 2 was changed") as found:
        examine(folder, FIRST)
    assert found.value.line == 3
    (folder / LOG).write_bytes(b"".join(lines[:2]))
    with pytest.raises(Broken, match="the last 2 lines of 4 were removed") as found:
        examine(folder, FIRST)
    assert found.value.line == 3


def test_nothing_is_written_to_a_record_that_was_changed(record):
    folder, lines, _ = record
    (folder / LOG).write_bytes(b"".join(lines[1:]))
    with pytest.raises(FedpointError, match="nothing more is written to it"):
        Chain(folder, FIRST)
    assert (folder / LOG).read_bytes() == b"".join(lines[1:])


# What a crash leaves.


def test_a_crash_at_every_byte_of_a_line_is_no_change(record):
    """The line may be torn anywhere, or whole and not counted yet. It is noted, and the record goes on."""
    folder, lines, head = record
    whole = b"".join(lines)
    Chain(folder, FIRST).append(entry(9))
    line = (folder / LOG).read_bytes()[len(whole) :]
    for size in range(len(line) + 1):
        (folder / LOG).write_bytes(whole + line[:size])
        (folder / HEAD).write_bytes(head)
        found = examine(folder, FIRST)
        assert (found.ahead, found.torn) == (size == len(line), size if size < len(line) else 0)
        Chain(folder, FIRST).append(entry(10))
        heard = []
        examine(folder, FIRST, lambda said, _: heard.append(said))  # noqa: B023
        expected = ["ahead"] if found.ahead else ["torn"] if size else []
        assert [said["found"] for said in heard if "found" in said] == expected
        assert len(heard) == ORDERS + found.ahead + len(expected) + 1


def test_a_line_that_could_not_be_written_leaves_no_gap(record, monkeypatch):
    """A full disk: the answer does not leave, and the next line follows what is on disk."""
    folder, *_ = record
    made = Chain(folder, FIRST)
    for name in ("append_line", "overwrite"):
        with monkeypatch.context() as full:
            full.setattr(chain, name, lambda *_: (_ for _ in ()).throw(FedpointError("no space")))
            with pytest.raises(FedpointError, match="no space"):
                made.append(entry(7))
        made.append(entry(8))
        assert examine(folder, FIRST).head == made._last


# Odd files.


@pytest.mark.parametrize("name", [LOG, HEAD])
@pytest.mark.parametrize("kind", ["folder", "link", "nothing", "bytes", "deep"])
def test_odd_files(name, kind, record, tmp_path):
    folder, lines, _ = record
    path = folder / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        (folder / "elsewhere").write_bytes(b"".join(lines))
        path.symlink_to(folder / "elsewhere")
    else:
        path.write_bytes({"nothing": b"", "bytes": b"\xff\x00\n" * 9, "deep": b"[" * 100_000 + b"\n"}[kind])
    with pytest.raises(FedpointError):
        examine(folder, FIRST)


def test_a_line_without_end(record, monkeypatch):
    folder, lines, _ = record
    monkeypatch.setattr(chain, "LONGEST", 1000)
    assert examine(folder, FIRST).head.lines == ORDERS
    (folder / LOG).write_bytes(b"".join(lines) + b"x" * 5000 + b"\n")
    with pytest.raises(Broken, match="its end is missing"):
        examine(folder, FIRST)
