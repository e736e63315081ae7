"""What a site notes of every order and answer, and what `fedpoint federate audit` says of it."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import BOWLS, CONTROL, content

import fedpoint as fp
from fedpoint.cli import main
from fedpoint.federation import wire
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.protocol import OWN
from fedpoint.federation.site.audit_report import lines as page_of
from fedpoint.federation.site.audit_report import report
from fedpoint.federation.site.chain import HEAD, LOG, Chain, Head, examine, origin
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import parse
from fedpoint.federation.transport import NoAnswerYet
from fedpoint.store.disk import array_digest, canonical

STUDY = content(CONTROL, BOWLS, rounds=4, quorum=2)
TABLE = {
    "kind": "table",
    "model": "logistic",
    "target": "died",
    "features": ["age", "sex"],
    "missing": "mean",
}
ROUNDS = 3


def lines_of(folder):
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def heads(folder, study, site):
    """The hashes of the lines of a record that is as it was written."""
    found = []
    examine(folder, origin(study.fingerprint, site), lambda entry, sha256: found.append(sha256))
    return found


def order(study, **words):
    head = {**OWN.plain(), "study": study.fingerprint, "run": "ab", "order": "cd", "round": 0, "merged": -1}
    return {**head, "kind": "columns", **words}


# What is noted.


def test_every_answer_carries_the_seal_of_its_own_line(tmp_path):
    sent = []

    def seen(data):
        sent.append(data)
        return data

    made = fp.federate(STUDY, folder=tmp_path, faults=[Fault("a", number, seen) for number in range(99)])
    seals, lines = heads(tmp_path / "a", made.study, "a"), lines_of(tmp_path / "a")
    assert len(sent) == len(seals) == len(lines)
    for data, seal, line in zip(sent, seals, lines, strict=True):
        packet = wire.decode(data)
        assert packet.header["chain"] == seal
        plain = wire.encode({**packet.header, "chain": "0" * 64}, packet.arrays)
        assert line["left"]["sha256"] == hashlib.sha256(plain).hexdigest()
        assert line["left"]["bytes"] == len(data)
        assert line["left"]["arrays"] == {name: list(a.shape) for name, a in packet.arrays.items()}


def test_the_hub_keeps_the_last_seal_of_each_site(tmp_path):
    made = fp.federate(STUDY, folder=tmp_path)
    assert made.chains == {site: heads(tmp_path / site, made.study, site)[-1] for site in made.study.sites}
    longer = fp.federate(STUDY, folder=tmp_path)  # sites are asked whether they are ready
    assert longer.chains["a"] == heads(tmp_path / "a", made.study, "a")[-1]


def test_a_refusal_is_sealed_too(tmp_path):
    """The hub hears the seal of a failure as of any answer."""
    with pytest.raises(fp.FedpointError, match="b cannot take part"):
        fp.federate(
            {**STUDY, "problem": TABLE, "algorithm": CONTROL, "sites": ["a", "b"]},
            {"a": table(tmp_path / "a.csv"), "b": table(tmp_path / "b.csv", "old,sex,died")},
            folder=tmp_path,
        )
    (line,) = lines_of(tmp_path / "b")
    assert line["left"]["says"] == {"failure": "data"}
    assert line["left"]["bytes"] > 0


def test_what_was_asked_is_noted(tmp_path):
    study = parse(STUDY)
    site = Site(study, "a", tmp_path)
    model = {".w": np.arange(2.0), ".c": np.zeros(2)}
    recipe = [{"column": "age", "mean": 71.25}, {"column": "sex"}]
    setup = {"index": 0, "share": 0.25, "heaviest": 0.25, "recipe": [], "classes": None}
    site.answer(wire.encode(order(study, kind="work", setup=setup), model))
    site.answer(wire.encode(order(study, kind="work", setup=setup, round=7), model))
    site.answer(wire.encode(order(study, kind="moments", recipe=recipe)))
    site.answer(b"no message at all")
    first, again, moments, garbage = lines_of(tmp_path)
    assert (first["asked"]["kind"], first["asked"]["run"]) == ("work", "ab")
    assert (first["asked"]["round"], first["asked"]["merged"], again["asked"]["round"]) == (0, -1, 7)
    assert first["asked"]["model"] == again["asked"]["model"] == array_digest(model, {})
    assert moments["asked"]["columns"] == ["age", "sex"]
    assert moments["asked"]["recipe"] == hashlib.sha256(canonical(recipe)).hexdigest()
    assert "71.25" not in json.dumps(moments)
    bad = b"no message at all"
    assert garbage["asked"] == {"bytes": len(bad), "sha256": hashlib.sha256(bad).hexdigest()}
    assert (garbage["left"]["says"], garbage["detail"]) == ({"failure": "order"}, "not a message")


LONG = "x" * 10_000
HOSTILE = {
    "a long word": {"kind": LONG},
    "a nest": {"kind": json.loads("[" * 400 + "]" * 400)},
    "no words": {"kind": {"a": None}, "run": [1], "round": 7.5, "merged": True, "order": {}},
    "a huge number": {"round": 10**400},
    "a recipe that is none": {"recipe": 7, "setup": "x"},
    "a long recipe": {"kind": "moments", "recipe": [{"column": LONG}, 3, None] * 1000},
    "escapes": {"kind": "\x1b[2J\ud800"},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_whatever_is_asked_is_noted_briefly(what, tmp_path):
    study = parse(STUDY)
    site = Site(study, "a", tmp_path)
    answer = wire.decode(site.answer(wire.encode(order(study, **HOSTILE[what])))).header
    assert (tmp_path / LOG).stat().st_size < 30_000
    assert heads(tmp_path, study, "a") == [answer["chain"]]


def test_a_number_that_no_answer_can_repeat_is_noted_too(tmp_path):
    """JSON reads 1e999 as infinity, which no header may hold."""
    study = parse(STUDY)
    site, data = Site(study, "a", tmp_path), wire.encode(order(study, round=12345))
    infinite = data.replace(b'"round":12345', b'"round":1e999')
    assert infinite != data
    assert wire.decode(site.answer(infinite)).header["failure"] == "order"
    assert len(lines_of(tmp_path)) == 1


def table(path, header="age,sex,died", rows=40, cell=None):
    rng = np.random.default_rng(3)
    cells = zip(rng.normal(60, 9, rows), rng.choice(["f", "m"], rows), np.arange(rows) % 2, strict=True)
    text = [f"{age:.9f},{sex},{died}" for age, sex, died in cells]
    text += [] if cell is None else [f"{cell},f,0"]
    path.write_text("\n".join([header, *text]) + "\n")
    return path


def floats(value, name=""):
    """The names under which a JSON value holds numbers that are not whole."""
    if isinstance(value, float):
        yield name
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from floats(item, key)
    for item in value if isinstance(value, list) else ():
        yield from floats(item, name)


def test_no_number_of_a_row_is_noted(tmp_path):
    """Neither of the rows, nor of what is made of them; nor a cell that an error message quotes."""
    study = {**STUDY, "problem": TABLE, "sites": ["a", "b"]}
    files = {"a": table(tmp_path / "a.csv"), "b": table(tmp_path / "b.csv")}
    fp.federate(study, files, folder=tmp_path / "made")
    text = (tmp_path / "made" / "a" / LOG).read_text()
    ages = [row.split(",")[0] for row in files["a"].read_text().splitlines()[1:]]
    assert len(ages) == 40
    assert not [age for age in ages if age[:6] in text]
    named = {name for line in lines_of(tmp_path / "made" / "a") for name in floats(line)}
    assert named == {"weight", "seconds", "loss", "accuracy"}  # agreed upon, taken, and what `measure` is for
    files["a"] = table(tmp_path / "odd.csv", cell="secret-777")
    with pytest.raises(fp.FedpointError, match="a cannot take part"):
        fp.federate({**study, "problem": {**TABLE, "missing": "refuse"}}, files, folder=tmp_path / "odd")
    assert "secret" not in (tmp_path / "odd" / "a" / LOG).read_text()


# The command.


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study that was run, and the folder of the leader; `kit` makes a kit of a site's record."""
    root = tmp_path_factory.mktemp("audit")
    files = {site: table(root / f"{site}.csv") for site in ("north", "south")}
    study = {**STUDY, "problem": TABLE, "sites": [*files], "rounds": ROUNDS}
    found = fp.federate(study, files, folder=root / "made")
    site = Site(found.study, "south", root / "made" / "south", files["south"])
    for _ in range(2):
        site.answer(wire.encode(order(found.study, kind="work", round=999)))
    site.answer(b"hello")
    return root, found


@pytest.fixture
def kit(made, tmp_path):
    """North's kit, to do anything with."""
    return kit_of(made, "north", tmp_path / "kit")


def kit_of(made, site, folder):
    root, found = made
    (folder / "records").mkdir(parents=True)
    for name in (LOG, HEAD):
        (folder / "records" / name).write_bytes((root / "made" / site / name).read_bytes())
    about = {"party": site, "study": "trial", "fingerprint": found.study.fingerprint, **OWN.plain()}
    (folder / "part.json").write_text(json.dumps(about))
    return folder


def audit(*arguments):
    done = CliRunner().invoke(main, ["federate", "audit", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    return done.exit_code, done.output


def test_the_page_says_what_left_in_words(made, kit):
    status, page = audit(kit)
    assert status == 0
    size = {line["asked"]["kind"]: line["left"]["bytes"] for line in lines_of(kit / "records")}
    assert "The record is complete: 8 lines" in page  # columns, moments, ready, three rounds, measure, end
    assert "The study was run once." in page
    assert (
        f"1 description of the columns, {size['columns']} bytes: the number of rows (40); the 2 categories of sex"
        in page
    )
    assert f"{ROUNDS} changes of the model, " in page
    assert f"1 measurement of the model, {size['measure']} bytes: loss and accuracy" in page
    assert "rounds 0 to 2; 3 different models" in page
    assert page.rstrip().endswith("What was refused\n  nothing")
    total = sum(line["left"]["bytes"] for line in lines_of(kit / "records"))
    assert f"in all {total:,} bytes" in page


def test_every_reason_has_words():
    from fedpoint.federation.hub import validate
    from fedpoint.federation.site.audit_report import WHY

    assert set(WHY) == set(validate.OWN)


def test_the_page_says_what_was_refused(made, tmp_path):
    status, page = audit(kit_of(made, "south", tmp_path / "kit"))
    assert status == 0
    assert "not a valid order, twice: " in page
    assert "5 times     rounds 0 to 2; 3 different models; 2 refused" in page
    assert "not a valid order, once: not a message" in page
    assert "The study was run once." in page  # an order that was refused is no run


def test_the_same_as_json(kit):
    status, text = audit(kit, "--json")
    found = json.loads(text)
    assert (status, found["verified"], found["lines"], found["runs"]) == (0, True, 8, 1)
    assert {one["kind"]: one["times"] for one in found["left"]}["work"] == ROUNDS


def test_a_changed_record_is_broken(kit):
    log = kit / "records" / LOG
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3] + lines[4:]))
    status, page = audit(kit)
    assert status == 1
    assert "BROKEN: line 4 does not follow line 3" in page
    assert "from the 3 lines before that" in page
    log.write_bytes(b"".join(lines[:-2]))
    status, page = audit(kit)
    assert status == 1
    assert "BROKEN: the last 2 lines of 8 were removed" in page
    found = json.loads(audit(kit, "--json")[1])
    assert (found["verified"], found["line"]) == (False, 7)


def test_the_leader_holds_a_witness(made, kit):
    root, found = made
    hub = root / "made" / "hub"
    status, page = audit(kit, "--against", hub)
    assert status == 0
    assert f"holds {ROUNDS + 1} seals of this very record, the last of line 8." in page  # each round's, and the last
    chain = Chain(kit / "records", origin(found.study.fingerprint, "north"))
    chain.append({"asked": {"kind": "ready"}, "left": {"says": {}, "bytes": 1}})
    assert "the last of line 8; 1 line came after it." in audit(kit, "--against", hub)[1]


def test_a_record_that_was_written_anew_is_found_with_the_leader_s_only(made, kit):
    """Whoever can write all of it leaves no trace in it; the seal at the hub is out of reach."""
    root, found = made
    entries = lines_of(kit / "records")
    for name in (LOG, HEAD):
        (kit / "records" / name).unlink()
    forged = Chain(kit / "records", origin(found.study.fingerprint, "north"))
    for entry in entries[:3] + entries[4:]:  # a round is left out
        forged.append({key: value for key, value in entry.items() if key not in ("before", "time")})
    status, page = audit(kit)
    assert (status, "could have written it all anew" in page) == (0, True)
    status, page = audit(kit, "--against", root / "made" / "hub")
    assert (status, "BROKEN: the leader's result folder holds a seal" in page) == (1, True)
    for name in (LOG, HEAD):
        (kit / "records" / name).unlink()
    assert audit(kit)[0] == 2
    assert audit(kit, "--against", root / "made" / "hub")[0] == 1


def test_a_record_that_was_written_anew_in_the_middle_of_a_study_is_found(tmp_path):
    """Its last seal is right then; those of the rounds before are not."""
    lost = [Fault(site, number, "lost") for site in ("a", "b") for number in range(4, 99)]
    with pytest.raises(NoAnswerYet):
        fp.federate({**STUDY, "rounds": 9}, folder=tmp_path, faults=lost)
    study = parse({**STUDY, "rounds": 9})
    entries = lines_of(tmp_path / "c")
    for name in (LOG, HEAD):
        (tmp_path / "c" / name).unlink()
    forged = Chain(tmp_path / "c", origin(study.fingerprint, "c"))
    for entry in entries[1:]:
        forged.append({key: value for key, value in entry.items() if key not in ("before", "time")})
    found = fp.federate(study, folder=tmp_path)
    assert found.chains["c"] == heads(tmp_path / "c", study, "c")[-1]
    (tmp_path / "made").mkdir()
    (tmp_path / "c").rename(tmp_path / "made" / "c")
    kit = kit_of((tmp_path, found), "c", tmp_path / "kit")
    assert audit(kit)[0] == 0
    status, page = audit(kit, "--against", found.folder)
    assert (status, "BROKEN: the leader's result folder holds a seal" in page) == (1, True)


def test_of_another_study_or_no_result(made, kit, tmp_path):
    status, page = audit(kit, "--against", tmp_path)
    assert (status, "hub.npz is missing" in page) == (2, True)
    other = fp.federate({**STUDY, "rounds": 1}, folder=tmp_path / "other")
    status, page = audit(kit, "--against", other.folder)
    assert (status, "is the result of another study" in page) == (2, True)


def test_a_crash_is_told_and_is_no_break(made, kit):
    with (kit / "records" / LOG).open("ab") as log:
        log.write(b'{"asked":{"ki')
    assert audit(kit)[0] == 0
    Chain(kit / "records", origin(made[1].study.fingerprint, "north"))
    status, page = audit(kit)
    assert (status, "The site was interrupted once while it wrote" in page) == (0, True)


# Odd kits.


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "7", '{"party": "a"}', '{"party": 7, "study": [], "fingerprint": {}}']
)
def test_what_is_not_a_kit(text, kit):
    (kit / "part.json").write_text(text)
    status, page = audit(kit)
    assert (status, "is not the folder of a study" in page or "is not what was written" in page) == (2, True)


def test_kits_without_a_record(kit, tmp_path):
    assert audit(tmp_path / "nowhere")[0] == 2
    assert audit(kit / "part.json")[0] == 2
    (kit / "part.json").unlink()
    status, page = audit(kit)
    assert (status, "does not know a study" in page) == (2, True)


def odd(path, kind):
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes({"noise": os.urandom(5000), "empty": b"", "nest": b"[" * 99_999 + b"\n"}[kind])


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "noise", "empty", "nest"])
@pytest.mark.parametrize("name", [f"records/{LOG}", f"records/{HEAD}", "part.json"])
def test_odd_files_are_one_message(name, kind, kit):
    odd(kit / name, kind)
    status, page = audit(kit)
    assert status in (1, 2)
    assert page.strip()


STRANGE = [
    {},
    {"asked": 7, "left": []},
    {"asked": {"kind": [], "round": "x", "columns": 7, "model": {}, "run": None}, "left": {"bytes": "x", "says": 7}},
    {"asked": {"kind": "\x1b[2J"}, "left": {"says": {"failure": ["\x1b"]}}, "detail": {"a": "\x1b[2J"}},
    {
        "asked": {"kind": "columns"},
        "left": {"says": {"columns": {"a": 7, "b": {"words": 3}}, "classes": 1, "rows": []}},
    },
    {"asked": {"kind": "measure"}, "left": {"says": {"measures": [1]}, "arrays": {"\x1b": "\n"}, "bytes": -1}},
    {"found": {}},
]


def test_lines_that_no_site_writes(kit, made):
    """The chain holds, but their words are anything: no traceback, and nothing that a terminal obeys."""
    for name in (LOG, HEAD):
        (kit / "records" / name).unlink()
    chain = Chain(kit / "records", origin(made[1].study.fingerprint, "north"))
    for entry in STRANGE:
        chain.append(entry)
    status, page = audit(kit)
    assert status == 0
    assert "\x1b" not in page
    assert json.loads(audit(kit, "--json")[1])["lines"] == len(STRANGE)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = "asked left says kind run round columns model bytes arrays detail found failure measures words rows classes"
NAMED = st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=5))


@given(st.lists(NAMED, max_size=4))
@settings(max_examples=30)
def test_any_line_whose_chain_holds_is_read(entries):
    """A page, or one clear message; never a traceback."""
    with tempfile.TemporaryDirectory() as folder:
        kit = Path(folder)
        (kit / "records").mkdir()
        (kit / "part.json").write_text(json.dumps({"party": "north", "study": "s", "fingerprint": "f"}))
        before = origin("f", "north")
        lines = []
        for entry in entries:
            line = canonical({**(entry if isinstance(entry, dict) else {"asked": entry}), "before": before.sha256})
            before = Head(before.lines + 1, hashlib.sha256(line).hexdigest())
            lines.append(line + b"\n")
        (kit / "records" / LOG).write_bytes(b"".join(lines))
        (kit / "records" / HEAD).write_bytes(canonical(before._asdict()))
        found = report(kit)
        assert (found["verified"], found["lines"]) == (True, len(entries))
        assert all(line.isprintable() for line in page_of(found))
        json.dumps(found)


def test_a_line_nested_as_deep_as_json_is_read(kit):
    """Which Python cannot print."""
    deep = b"[" * 900 + b"]" * 900
    for name in (LOG, HEAD):
        (kit / "records" / name).unlink()
    first = origin(json.loads((kit / "part.json").read_text())["fingerprint"], "north")
    line = b'{"asked":{"kind":%s,"round":%s},"before":"%s","detail":%s}' % (deep, deep, first.sha256.encode(), deep)
    (kit / "records" / LOG).write_bytes(line + b"\n")
    head = Head(1, hashlib.sha256(line).hexdigest())
    (kit / "records" / HEAD).write_bytes(canonical(head._asdict()))
    assert audit(kit)[0] in (0, 1)


def test_it_loads_no_jax(kit):
    code = (
        "import sys\nfrom fedpoint.cli import main\n"
        f"try:\n    main(['federate', 'audit', {str(kit)!r}])\nexcept SystemExit as end:\n"
        "    print(end.code, 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
