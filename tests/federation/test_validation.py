"""What a site sends is looked at before it is merged: after each bad answer the model is the one without it."""

import contextlib
import json
import struct

import numpy as np
import pytest
from attacks_by_sites import MALFORMED
from studies import BOWLS, CONTROL, content

import fedpoint as fp
from fedpoint.federation import wire
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.protocol import OWN
from fedpoint.federation.transport import NoAnswerYet

STUDY = content(CONTROL, BOWLS, rounds=4, quorum=2, norm_cap=100.0)
FIRST = 2  # an order before the rounds: columns, ready
ROUND = 1


NOT_A_NUMBER = MALFORMED["NaN"].change


def test_two_answers_count_once(tmp_path):
    whole = fp.federate(STUDY, folder=tmp_path / "one")
    made = fp.federate(STUDY, folder=tmp_path / "two", faults=[Fault("a", FIRST + ROUND, "twice")], seconds={"b": 2.0})
    assert made.refused == {"a twice": 1}
    assert np.array_equal(made.history, whole.history)


def test_without_validation_one_answer_spoils_the_model(tmp_path, monkeypatch):
    """Merged unseen, a NaN stays; and the state that is examined does not have it."""
    from fedpoint.federation.hub import validate
    from fedpoint.federation.hub.examine import Examiner
    from fedpoint.federation.transport import Event

    monkeypatch.setattr(validate, "message", lambda packet, like, share, cap: packet.arrays)
    fault = Fault("a", FIRST + ROUND, NOT_A_NUMBER)
    made = fp.federate(STUDY, folder=tmp_path / "examined", faults=[fault])
    assert [event["merged"] for event in made.events] == [True, False, True, True]
    assert "the answer of a" in made.events[ROUND]["abandoned"]

    def unseen(self, center, round, norms, answers, how):
        how(answers)
        return Event(merged=True, norms=dict(norms), move=0.0)

    monkeypatch.setattr(Examiner, "merge", unseen)
    made = fp.federate(STUDY, folder=tmp_path / "unseen", faults=[fault])
    assert np.isnan(made.model).any()


def test_below_the_quorum_a_round_is_abandoned(tmp_path):
    faults = [Fault(site, FIRST + ROUND, NOT_A_NUMBER) for site in "ab"]
    made = fp.federate(STUDY, folder=tmp_path, faults=faults)
    assert [event["merged"] for event in made.events] == [True, False, True, True]
    assert np.array_equal(made.history[2], made.history[1])


def test_waiting_has_an_end_and_says_for_what(tmp_path):
    lost = [Fault("a", number, "lost") for number in range(FIRST, 99)]
    with pytest.raises(NoAnswerYet, match=r"3 rounds in a row .* a: deadline"):
        fp.federate({**STUDY, "quorum": 3}, folder=tmp_path, faults=lost)
    made = fp.federate({**STUDY, "quorum": 3}, folder=tmp_path)  # a is back: the study goes on, and it takes part
    assert made.round == 4
    assert made.events[3]["answered"] == ["a", "b", "c"]
    with pytest.raises(NoAnswerYet, match="no answer to 'columns' from c in 360 seconds"):
        lost = [Fault("c", number, "lost") for number in range(9)]
        fp.federate({**STUDY, "quorum": 3}, folder=tmp_path / "none", faults=lost)


def test_a_silent_site_is_not_waited_for_again(tmp_path):
    """It costs one deadline, not one a round; and it takes part again once it is heard."""
    lost = [Fault("a", number, "lost") for number in range(FIRST, FIRST + 3)]
    study = {**STUDY, "rounds": 8}
    made = fp.federate(study, folder=tmp_path, faults=lost, seconds={"a": 2.5})
    assert made.events[0]["refused"] == {"a": "deadline"}
    counts = [len(event["answered"]) for event in made.events]
    assert counts[:4] == [2] * 4  # lost three times, then late, as it was not waited for
    assert counts[-2:] == [3] * 2
    assert made.refused["a late"] >= 1


def test_a_site_that_lost_its_memory_says_so(tmp_path):
    """Rather than going on from another memory, which would break c = sum p_k c_k for ever."""
    study = {**STUDY, "quorum": 3, "rounds": 9}
    with pytest.raises(NoAnswerYet):
        fp.federate(study, folder=tmp_path, faults=[Fault("b", number, "lost") for number in range(FIRST + 2, 99)])
    for file in (tmp_path / "a").glob("memory-*.npz"):
        file.unlink()
    with pytest.raises(fp.FedpointError, match=r"a cannot take part \(memory\): it has lost its memory of this study"):
        fp.federate(study, folder=tmp_path)


def test_orders_of_others_are_refused(tmp_path):
    """A site carries out orders of its own study and protocol only, and says no more than the reason."""
    from fedpoint.federation.site.site import Site
    from fedpoint.federation.study import parse

    study = parse(STUDY)
    site = Site(study, "a", tmp_path)
    good = {
        **OWN.plain(),
        "study": study.fingerprint,
        "run": "ab",
        "kind": "columns",
        "round": 0,
        "merged": -1,
    }

    def failure(**other):
        return wire.decode(site.answer(wire.encode({**good, **other}))).header.get("failure")

    assert failure() is None
    assert failure(fedpoint="9.9.9") is None  # another release of the same protocol
    assert failure(protocol=99) == "version"
    assert failure(study="0" * 64) == "study"
    assert failure(kind="erase") == "order"
    assert failure(run="../../etc") == "order"
    assert failure(run="cd") is None  # a new run: the two before it no longer count
    assert failure(merged="x") == "order"
    assert failure(kind="work") == "order"
    assert failure(run="ef") is None
    assert failure(kind=["work"]) == failure(kind={"a": []}, round=7.5, run=None, order=[1]) == "order"
    assert wire.decode(site.answer(b"garbage")).header["failure"] == "order"
    assert failure() == failure(run="gh") == "stopped"
    audit = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert len(audit) == 15
    assert sum("failure" in line["left"]["says"] for line in audit) == 11


def test_audit_says_what_left(tmp_path):
    made = fp.federate(STUDY, folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "b" / "audit.jsonl").read_text().splitlines()]
    assert [line["asked"]["kind"] for line in lines] == ["columns", "ready", *["work"] * made.round, "measure", "end"]
    work = [line["left"] for line in lines if line["asked"]["kind"] == "work"]
    assert all(left["arrays"] == {".w": [2], ".c": [2]} for left in work)
    assert sum(left["bytes"] for left in work) * 3 == pytest.approx(sum(event["up"] for event in made.events), rel=0.02)


# The wire.


def test_messages_come_back_to_the_bit(rng):
    arrays = {
        "a": rng.normal(size=(3, 2)),
        "b": np.float64(0.1),
        "c": np.zeros((0, 4)),
        "d": np.arange(3),
        "e": np.array([True]),
    }
    packet = wire.decode(wire.encode({"x": 1, "y": [0.1, "ü"], "z": None}, arrays))
    assert packet.header == {"x": 1, "y": [0.1, "ü"], "z": None}
    for name, array in arrays.items():
        assert packet.arrays[name].dtype == array.dtype
        assert np.array_equal(packet.arrays[name], array)
        assert packet.arrays[name].shape == array.shape


def test_no_bytes_do_anything_but_be_refused(rng):
    """Whatever is changed in a message: it is a message still, or it is garbage; never another error."""
    good = wire.encode({"round": 1, "kind": "work"}, {"w": np.arange(4.0)})
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        with contextlib.suppress(wire.Garbage):
            wire.decode(bytes(data[: rng.integers(len(data) + 1)] if rng.random() < 0.3 else data))


@pytest.mark.parametrize(
    "arrays",
    [
        [["w", "<f8", [2**39, 2**39]]],  # more than there is
        [["w", "|O", [1]]],  # objects
        [["w", "<f8", [-1]]],
        [["w", "<f8", 4]],
        [["w", "<f8", [1]], ["w", "<f8", [1]]],
        {"w": 1},
        None,
    ],
)
def test_headers_that_lie(arrays):
    head = json.dumps({"arrays": arrays}).encode()
    with pytest.raises(wire.Garbage):
        wire.decode(wire.MAGIC + struct.pack("<I", len(head)) + head + b"\0" * 16)


def test_objects_do_not_travel():
    with pytest.raises(TypeError, match="does not travel"):
        wire.encode({}, {"w": np.array([object()])})
