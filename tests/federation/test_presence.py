"""Who is there, by what the engine says of sites; what the leader is told of it."""

from types import SimpleNamespace

import numpy as np
import pytest
from studies import content

from fedpoint.cli.federate_show import Show, status_lines
from fedpoint.federation.flare.presence import Presence, ages, look
from fedpoint.federation.study import parse

JOB = "0f3c"


def engine(status, beats):
    """The functions of an engine's session that are asked."""
    said = {
        "get_client_job_status": status,
        "get_connected_client_list": [SimpleNamespace(name=n, last_connect_time=t) for n, t in beats.items()],
    }
    return lambda function, *arguments: said.get(function)


def test_who_answers_is_there_whatever_the_clocks_say():
    """a works on a job, b on none, c has lost its process: its last heartbeat is as old as it was to the server."""
    status = [
        {"client_name": "a", "job_id": JOB, "app_name": "app", "status": "started"},
        {"client_name": "b", "status": "no_jobs"},
        {"client_name": "c", "status": "no_reply"},
    ]
    found = look(engine(status, {"a": 1000.0, "b": 999.0, "c": 994.0}))  # a server's clock of 1970
    assert {site: (one.answers, one.jobs) for site, one in found.items()} == {
        "a": (True, {JOB}),
        "b": (True, frozenset()),
        "c": (False, frozenset()),
    }
    assert found["c"].unheard - found["a"].unheard == 6.0
    assert 6.0 <= found["c"].unheard <= 11.0


def test_all_may_be_gone_at_once():
    import time

    now = time.time()
    status = [{"client_name": site, "status": "no_reply"} for site in "abc"]
    found = look(engine(status, dict.fromkeys("abc", now - 7.0)))
    assert [one.answers for one in found.values()] == [False] * 3
    assert [one.unheard for one in found.values()] == pytest.approx([7.0] * 3, abs=0.5)
    assert look(engine(None, {})) == {}  # nobody was ever there, or the server is away


def test_no_age_is_negative():
    assert min(ages({"a": 50.0, "b": 60.0}, set(), clock=10.0).values()) == 0.0


def test_a_site_outside_the_job_is_noticed_in_the_second_look(monkeypatch):
    """In the first it may be about to begin; a site that does not answer could not take part."""
    from fedpoint.federation.flare import lead

    monkeypatch.setattr(lead, "LOOK", 0.0)
    inside, outside, gone = (
        Presence(True, frozenset([JOB]), 0.0),
        Presence(True, frozenset(["another"]), 0.0),
        Presence(False, frozenset(), 9.0),
    )
    watch = lead.Outside()
    looks = [
        ({"a": inside, "b": outside}, False),
        ({"a": inside, "b": inside}, False),  # it has begun
        ({"a": inside, "b": gone}, False),
        ({"a": outside, "b": gone}, False),
        ({"a": outside, "b": gone}, True),
    ]
    found = [watch.has_come(JOB, lambda present=present: present) for present, _ in looks]
    assert found == [come for _, come in looks]


def test_a_site_that_no_job_gets_in_is_tried_less_and_less_often(monkeypatch):
    """Every arrival has a new job at once; one that fails to begin does not keep the others from working."""
    from fedpoint.federation.flare import lead

    clock = SimpleNamespace(now=0.0)
    # Of this module alone: a server in another thread would wait for ever for a clock that stands still.
    monkeypatch.setattr(lead, "time", SimpleNamespace(monotonic=lambda: clock.now))
    watch, jobs = lead.Outside(), []
    while clock.now < 700:
        clock.now += lead.LOOK
        present = {"a": Presence(True, frozenset(), 0.0)}  # in no job, whichever is begun
        if watch.has_come(f"job {len(jobs)}", lambda present=present: present):
            jobs.append(clock.now)
    pauses = np.diff(jobs)
    assert jobs[0] == 2 * lead.LOOK
    assert pauses == pytest.approx([20, 40, 80, 160, 320], abs=2 * lead.LOOK)
    inside = {"a": Presence(True, frozenset(["at last"]), 0.0)}
    clock.now += 1
    assert not watch.has_come("at last", lambda: inside)
    outside = {"a": Presence(True, frozenset(), 0.0)}
    clock.now += 1
    assert not watch.has_come("next", lambda: outside)
    clock.now += 1
    assert watch.has_come("next", lambda: outside)  # it came back: at once again


def test_status_names_who_is_not_there_and_since_when():
    study = parse(content())
    found = {"sites": ["a"], "unheard": {"b": 7.2}, "jobs": []}
    assert status_lines(study, found) == [
        "trial at localhost:8102: 1 of 3 sites approved and connected",
        "b: silent for 7 s",
        "c: not connected",
        "nothing runs",
    ]
    waiting = {**found, "jobs": [JOB], "waiting": {"waiting": "columns", "for": ["b", "c"]}, "notes": ["c is late"]}
    assert status_lines(study, waiting)[-3:] == ["round 0 of 5", "waiting for b, c (columns)", "c is late"]


def told(events, capsys):
    show = Show(parse(content()), quiet=False)
    for event in events:
        show(event)
    return capsys.readouterr().err.splitlines()


def over(number, refused, merged=True):
    return {"round": number, "merged": merged, "answered": [], "refused": refused}


def test_who_does_not_answer_is_told_once_and_so_is_who_is_back(capsys):
    gone = {"c": "absent"}
    events = [over(0, {}), over(1, gone), over(2, gone), over(3, gone, merged=False), over(4, {}), over(5, {})]
    assert told(events, capsys) == [
        "round 1: c: absent",
        "round 3: c: absent; abandoned, the model is kept",
        "round 4: everybody answered",
    ]


def test_waiting_and_notes_are_told_as_they_change(capsys):
    waiting = [{"waiting": "columns", "for": names} for names in (["b", "c"], ["b", "c"], ["c"])]
    assert told([*waiting, {"note": "c was not there"}], capsys) == [
        "waiting for b, c (columns)",
        "waiting for c (columns)",
        "c was not there",
    ]
