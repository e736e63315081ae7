"""An answer counts for the order that it answers, and for no other, however it is labelled."""

import numpy as np
import pytest
from studies import BOWLS, CONTROL, content

import fedpoint as fp
from fedpoint.federation import wire
from fedpoint.federation.hub import validate
from fedpoint.federation.inprocess import Fault

ROUNDS = 8
STUDY = content(CONTROL, BOWLS, rounds=ROUNDS, quorum=2)
SPEEDS = {"in step": 1.0, "slow": {"a": 2.0}, "slower": {"a": 3.0, "b": 1.3}, "quick": {"a": 0.2}}


def labelled(change):
    """Every answer of a site to "work", under another label."""

    def edit(data):
        packet = wire.decode(data)
        if packet.header["kind"] != "work":
            return data
        return wire.encode({**packet.header, **change(packet.header)}, packet.arrays)

    return [Fault("a", number, edit) for number in range(50)]


def other_round(offset):
    return labelled(lambda header: {"round": header["round"] + offset})


FIRST_LOST = Fault("a", 2, "lost")  # the hub goes on without whoever was silent, and hears it a round later


@pytest.fixture(scope="module")
def without():
    """The study in which site a takes no part."""
    return fp.federate(STUDY, faults=[Fault("a", number, "lost") for number in range(2, 50)])


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("offset", [1, -1, 2])
def test_another_round_is_refused_every_time(offset, speed, without):
    """Also when it arrives in the very round that it names, which the hub has reached without this site."""
    made = fp.federate(STUDY, seconds=SPEEDS[speed], faults=[*other_round(offset), FIRST_LOST])
    assert all(event["answered"] == ["b", "c"] for event in made.events)
    assert np.array_equal(made.history, without.history)
    assert set(made.refused) <= {"a round", "a late", "a deadline"}
    assert made.refused["a round"] + made.refused["a late"] >= ROUNDS - 3


@pytest.mark.parametrize("offset", [1, -1])
def test_also_where_nobody_is_waited_for(offset):
    made = fp.federate(content(CONTROL, BOWLS, rounds=12, asynchronous={}), faults=other_round(offset))
    assert all("a" not in event["answered"] for event in made.events)
    assert made.refused["a round"] >= 2


@pytest.mark.parametrize("order", ["", "0" * 16, None, 7, ["0"]])
def test_an_answer_to_no_order(order, without):
    made = fp.federate(STUDY, faults=labelled(lambda header: {"order": order}))
    assert all(event["answered"] == ["b", "c"] for event in made.events)
    assert np.array_equal(made.history, without.history)


def test_an_old_order_s_word_does_not_serve_again(without):
    """The answer to an order that nobody waits for any more, with the next round's label."""
    words = []

    def change(header):
        words.append(header["order"])
        return {"order": words[0], "round": header["round"]}

    made = fp.federate(STUDY, faults=labelled(change))
    assert [event["answered"] for event in made.events] == [["a", "b", "c"], *[["b", "c"]] * (ROUNDS - 1)]
    assert len(set(words)) == len(words)


def test_without_the_word_such_answers_are_merged(monkeypatch):
    """The tests above can fail: by label alone a slow site's answers to old orders pass for those to new ones."""
    whole = validate.opened

    def by_label_alone(data, site, expected):
        header = wire.decode(data).header
        return whole(data, site, {**expected, "order": header["order"]})

    monkeypatch.setattr(validate, "opened", by_label_alone)
    made = fp.federate(STUDY, seconds=SPEEDS["slow"], faults=[*other_round(1), FIRST_LOST])
    assert not all(event["answered"] == ["b", "c"] for event in made.events)
