"""What a site consented to, the site enforces: whoever asks for anything else gets nothing, at the first attempt."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest
from attacks import ATTACKS, COLUMNS, DONE, MOMENTS, READY, ROUND
from malicious import STUDY, Server, answered, failure, refusals, state, write_table
from studies import BOWLS, CONTROL, SITES, content, every_method

import fedpoint as fp
from fedpoint.federation import wire
from fedpoint.federation.hub.hub import StudyHub
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.protocol import OWN
from fedpoint.federation.site import answers, chain, consent, derivation, memory, stop
from fedpoint.federation.site.consent import Consent
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import parse


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("data") / "north.csv")


@pytest.fixture(scope="module")
def server(data):
    return Server(data)


@pytest.fixture(scope="module")
def stages(data, server, tmp_path_factory):
    """Records of a site after so many orders of an honest run, and after two runs that leave something out."""
    root, made = tmp_path_factory.mktemp("stages"), {}
    site = Site(STUDY, "north", root / "whole", data)
    made[0] = shutil.copytree(site.folder, root / "0")
    for count, one in enumerate(server.honest(), 1):
        assert failure(site, one) is None
        made[count] = shutil.copytree(site.folder, root / str(count))
    orders = {
        "skip": [*server.honest()[:4], server.measure(3, merged=0)],
        "no columns": server.honest()[:2],
        "no moments": server.honest()[:3],
    }
    for name, some in orders.items():
        site = Site(STUDY, "north", root / f"{name} live", data)
        assert [failure(site, one) for one in some] == [None] * len(some)
        if name.startswith("no "):  # as if what came first had been left out
            path = site.folder / "orders.json"
            content = json.loads(path.read_text())
            del content["studies"][STUDY.fingerprint][server.run]["answered"][name.removeprefix("no ")]
            path.write_text(json.dumps(content))
        made[name] = site.folder
    return made


def site_at(stages, stage, data, tmp_path, study=STUDY):
    return Site(study, "north", shutil.copytree(stages[stage], tmp_path / "records"), data)


def test_there_are_enough_kinds_of_attacks():
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize("name", ATTACKS)
def test_a_wrong_order_is_refused_at_its_first_occurrence(name, stages, server, data, tmp_path):
    """Nothing leaves, the term is named at the site, and an honest run goes on as if nothing had been asked."""
    stage, attack, reason, said = ATTACKS[name]
    site = site_at(stages, stage, data, tmp_path)
    before = state(site.folder)
    answer = answered(site, attack(server))
    assert answer.header["failure"] == reason, refusals(site.folder)
    assert not answer.arrays
    assert not answer.header.keys() & {"rows", "columns", "classes", "count", "weight", "seconds", "measures"}
    (text,) = refusals(site.folder)
    assert re.search(said, text), text
    assert state(site.folder) == before
    if isinstance(stage, int):
        assert [failure(site, one) for one in server.honest()[stage:]] == [None] * (DONE - stage)


def let_pass(*_, **__):
    return None


# The check that stands against each kind: without it the server gets an answer.
MUTANTS = {
    "a round beyond the study": (Consent, "_check_work"),
    "a negative round": (Consent, "_check_work"),
    "an earlier round": (Consent, "_check_work"),
    "merged, though never sent": (Consent, "_check_merged"),
    "merged goes back": (Consent, "_check_merged"),
    "a measurement before the end": (Consent, "_check_measurement"),
    "a second measurement": (Consent, "_check_measurement"),
    "columns after moments": (Consent, "_check_columns"),
    "moments by another recipe": (Consent, "_check_moments"),
    "the target as a feature": (derivation, "check_recipe"),
    "a column twice": (derivation, "check_recipe"),
    "moments of scaled columns": (derivation, "check_recipe"),
    "gaps not filled": (derivation, "_check_fill"),
    "categories without some": (derivation, "_check_categories"),
    "a negative scale": (derivation, "check_setup"),
    "gaps filled otherwise": (derivation, "check_setup"),
    "a share above 1": (derivation, "check_share"),
    "another scale in a later round": (Consent, "_check_setup"),
    "an infinite model": (Consent, "check_arrays"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_its_check_the_order_would_be_answered(name, stages, server, data, tmp_path, monkeypatch):
    monkeypatch.setattr(*MUTANTS[name], let_pass)
    site = site_at(stages, ATTACKS[name][0], data, tmp_path)
    assert failure(site, ATTACKS[name][1](server)) is None


def test_more_runs_than_the_study_has(data, tmp_path, monkeypatch):
    site = Site(STUDY, "north", tmp_path / "records", data)
    runs = [Server(data, run) for run in ("aa", "bb", "cc", "dd")]
    assert [failure(site, one.order("columns")) for one in runs] == [None, None, None, "terms"]
    assert refusals(site.folder) == ["run 4 was begun, but the study has 3 runs (runs = 3)"]
    assert failure(site, runs[0].order("moments")) is None
    monkeypatch.setattr(Consent, "_record", lambda self, order: self.answers.of(order.run))
    assert failure(site, runs[3].order("columns")) is None


def test_a_setup_that_fails_is_fixed_all_the_same(stages, server, data, tmp_path):
    """Or failures would tell of the rows, as often as the server likes: here that one of them overflows."""
    site = site_at(stages, MOMENTS, data, tmp_path)
    first, *rest = server.setup["recipe"]
    tiny = {**server.setup, "recipe": [{**first, "scale": 5e-324}, *rest]}
    answered(site, server.order("ready", setup=tiny))
    assert failure(site, server.order("ready")) == "terms"
    assert "not those with which this run began" in refusals(site.folder)[-1]


def test_a_loss_that_overflows_is_a_measurement_and_no_failure(stages, server, data, tmp_path):
    site = site_at(stages, DONE - 1, data, tmp_path)
    said = answered(site, server.measure(3, {"model": np.full(server.width, 1e308)})).header
    assert list(said["measures"]) == ["accuracy"]
    assert failure(site, server.measure(3, {"model": np.full(server.width, 1e307)})) == "terms"


def test_moments_of_generated_data(tmp_path):
    study = parse(content(CONTROL, BOWLS))
    head = {**wire.Header(study=study.fingerprint, run="ab", kind="moments", round=0, merged=-1), "recipe": []}
    site = Site(study, "a", tmp_path)
    assert failure(site, wire.encode({**OWN.plain(), **head})) == "terms"
    assert "generated" in refusals(tmp_path)[0]


def test_a_run_that_the_site_knows_nothing_of_is_no_attack(data, tmp_path):
    """Its records were lost, perhaps: it says so, and is not stopped by it."""
    server, site = Server(data), Site(STUDY, "north", tmp_path / "records", data)
    assert [failure(site, server.work(2, merged=1)) for _ in range(5)] == ["memory"] * 5
    assert failure(site, server.order("columns")) is None


def test_another_file_than_when_the_run_began(stages, server, tmp_path):
    other = write_table(tmp_path / "other.csv", seed=2, rows=41)
    site = site_at(stages, COLUMNS, other, tmp_path)
    assert failure(site, server.order("moments")) == "data"
    assert refusals(site.folder) == []


# Repeats.


def content_of(packet):
    labels = ("order", "chain")
    return {key: value for key, value in packet.header.items() if key not in labels}, {
        name: array.tobytes() for name, array in packet.arrays.items()
    }


def test_the_same_order_gets_the_same_answer_from_the_store(stages, server, data, tmp_path, monkeypatch):
    """Of every kind, after a restart too; nothing is computed again."""
    honest = server.honest()
    site = Site(STUDY, "north", tmp_path / "first", data)
    first = {count: content_of(answered(site, one)) for count, one in enumerate(honest)}
    monkeypatch.setattr(Site, "_carry_out", lambda *_: pytest.fail("it was carried out again"))
    again = Site(STUDY, "north", site.folder, data)
    for count in (0, 1, 5, 6):  # columns, moments, the last round, the measurement
        packet = answered(again, honest[count])
        assert content_of(packet) == first[count]
        assert packet.header["order"] == "w"
    assert refusals(site.folder) == []


def test_repeats_have_an_end(stages, server, data, tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "REPEATS", 3)
    site = site_at(stages, ROUND, data, tmp_path)
    found = [failure(site, server.work(0)) for _ in range(5)]
    assert found == [None] * 3 + ["terms"] * 2
    assert "more than 3 times" in refusals(site.folder)[0]
    assert failure(site, server.work(1)) is None


def test_what_does_not_matter_does_not_make_another_order(stages, server, data, tmp_path):
    """Another release of fedpoint, another word, a field of tomorrow."""
    site = site_at(stages, ROUND, data, tmp_path)
    assert failure(site, server.work(0, fedpoint="9.9.9", order="other", colour="red")) is None


def test_an_answer_that_is_lost_on_disk_is_not_made_again(stages, server, data, tmp_path):
    site = site_at(stages, ROUND, data, tmp_path)
    for path in (site.folder / "answers").iterdir():
        path.write_bytes(b"x")
    assert failure(site, server.work(0)) == "memory"


# Three in a row.


def test_three_refusals_in_a_row_stop_a_site_for_good(stages, server, data, tmp_path):
    site = site_at(stages, READY, data, tmp_path)
    assert [failure(site, server.work(999)) for _ in range(3)] == ["terms"] * 3
    assert json.loads((site.folder / "stopped.json").read_text())["text"].startswith("3 orders in a row were refused")
    for _ in range(2):
        assert failure(site, server.work(0)) == failure(site, b"garbage") == "stopped"
        assert len(refusals(site.folder)) == 3
        site = Site(STUDY, "north", site.folder, data)  # started again
    assert stop.lift_stop(site.folder)
    site = Site(STUDY, "north", site.folder, data)
    assert failure(site, server.work(0)) is None
    assert not stop.lift_stop(site.folder)


def test_a_stop_whose_file_a_kill_left_unwritten_is_one(stages, server, data, tmp_path, monkeypatch):
    site = site_at(stages, READY, data, tmp_path)
    monkeypatch.setattr(stop, "note_stop", let_pass)
    assert [failure(site, server.work(999)) for _ in range(4)] == ["terms"] * 3 + ["stopped"]


def test_only_a_new_answer_forgives(stages, server, data, tmp_path):
    """Neither a repeat, which costs the server nothing, nor being ready."""
    site = site_at(stages, ROUND, data, tmp_path)
    wrong, new, again, ready = server.work(999), server.work(1), server.work(1), server.order("ready", merged=1)
    found = [failure(site, one) for one in (wrong, wrong, new, wrong, again, wrong, ready, wrong)]
    assert found == ["terms", "terms", None, "terms", None, "terms", None, "terms"]
    assert failure(site, server.work(2)) == "stopped"


def test_orders_of_another_study_or_release_do_not_count(stages, server, data, tmp_path):
    site = site_at(stages, READY, data, tmp_path)
    assert [failure(site, server.work(0, study="0" * 64)) for _ in range(4)] == ["study"] * 4
    assert [failure(site, server.work(0, protocol=99)) for _ in range(4)] == ["version"] * 4
    assert failure(site, server.work(0)) is None


# Killed.


class Killed(BaseException):
    pass


WRITERS = [
    *((answers, name) for name in ("write_bytes", "write_new")),
    *((chain, name) for name in ("append_line", "overwrite", "write_bytes")),
    (memory, "write_npz"),
]


def die_at(moment, patched):
    """Instead of the write of this number, whatever writes it."""
    counter = itertools.count()
    for module, name in WRITERS:
        real = vars(module)[name]

        def write(*arguments, real=real):
            if next(counter) == moment:
                raise Killed
            return real(*arguments)

        patched.setattr(module, name, write)


def without_time(packet):
    header, arrays = content_of(packet)
    return {key: value for key, value in header.items() if key != "seconds"}, arrays


@pytest.mark.parametrize("stage", [0, COLUMNS, READY, ROUND, DONE - 1])
def test_killed_at_any_write_a_site_answers_as_if_nothing_had_been(stage, stages, server, data, tmp_path):
    """Either the answer has not left and is made again, or it is in the store: the same content."""
    wanted, rest = server.honest()[stage], server.honest()[stage + 1 :]
    expected = without_time(answered(site_at(stages, stage, data, tmp_path / "whole"), wanted))
    for moment in itertools.count():
        site, died = site_at(stages, stage, data, tmp_path / str(moment)), False
        with pytest.MonkeyPatch.context() as patched:
            die_at(moment, patched)
            try:
                site.answer(wanted)
            except Killed:
                died = True
        again = Site(STUDY, "north", site.folder, data)
        assert without_time(answered(again, wanted)) == expected
        assert [failure(again, one) for one in rest] == [None] * len(rest)
        assert refusals(site.folder) == []
        if not died:
            break
    assert moment >= 4  # a line of the record, its head, the answer, what was answered


# Honest hubs.


def no_refusals(root):
    return [text for path in root.glob("*/refusals.jsonl") for text in path.read_text().splitlines()]


HONEST = every_method()
QUICK = ("fedavg", "fedgd, late", "scaffold, late")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in HONEST]
)
def test_honest_runs_of_every_method_are_never_refused(name, tmp_path):
    """With answers lost, unheard, late and twice, and a hub that is run again."""
    faults = [Fault("a", 2, "unheard"), Fault("b", 3, "lost"), Fault("c", 3, "late", 11.0), Fault("a", 4, "twice")]
    needs_all = not name.endswith("late") and f"{name}, late" not in HONEST
    study = HONEST[name] if needs_all or "asynchronous" in HONEST[name] else {**HONEST[name], "quorum": 1}
    made = fp.federate(study, folder=tmp_path, faults=faults)
    assert fp.federate(study, folder=tmp_path).round == made.round
    assert no_refusals(tmp_path) == []
    assert {"terms", "order", "stopped"}.isdisjoint(reason.split()[1] for reason in made.refused)
    assert sorted(made.measured) == [study["rounds"]]
    assert set(made.measures) == set(SITES)


def kill_in(round, study, folder):
    """A hub that is gone when the answers of a round are there, and nothing is written down of it."""
    real = StudyHub.end

    def end(self, *arguments):
        if self.round == round:
            raise Killed
        return real(self, *arguments)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(StudyHub, "end", end)
        fp.federate(study, folder=folder)


def test_a_hub_that_is_killed_in_every_round_asks_nothing_new(tmp_path):
    """Every round is asked for again from the ledger, and answered from the sites' stores to the same bits."""
    study = content(CONTROL, BOWLS, rounds=5, measurements=2)
    whole = fp.federate(study, folder=tmp_path / "whole")
    for round in range(5):
        kill_in(round, study, tmp_path / "killed")
    made = fp.federate(study, folder=tmp_path / "killed")
    assert no_refusals(tmp_path / "killed") == []
    assert np.array_equal(made.history, whole.history)
    assert made.measured == whole.measured
    assert sorted(made.measured) == [3, 5]


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_a_killed_hub_of_any_method_is_never_refused(name, tmp_path):
    for round in (0, 2, 3):
        kill_in(round, HONEST[name], tmp_path)
    assert fp.federate(HONEST[name], folder=tmp_path).round == HONEST[name]["rounds"]
    assert no_refusals(tmp_path) == []


# The rules once more, from their description.


def allowed(study, history, asked):
    """Whether an order may be answered, from all orders that were: the rules, not the site's records of them."""
    run, kind, round, merged, _ = asked
    mine = [one for one in history if one[0] == run]
    works, measures = [one for one in mine if one[1] == "work"], [one for one in mine if one[1] == "measure"]
    if not mine and (merged != -1 or len({one[0] for one in history}) >= study.terms.runs):
        return False
    if kind == "columns":
        return asked[:2] in [one[:2] for one in mine] or all(one[1] == "columns" for one in mine)
    if kind == "work" and works and asked == works[-1]:
        return True
    if kind == "measure" and asked in measures:
        return True
    last = works[-1][2] if works else -1
    told = [one for one in mine if one[1] in ("work", "measure")]
    said = told[-1][3] if told else -1
    if merged not in ((said, last) if told and told[-1][1] == "work" else (said,)):
        return False
    if kind == "ready":
        return True
    if kind == "work":
        ended = max((one[2] for one in measures), default=0)
        return 0 <= round < study.rounds and round > last and round >= ended and merged < round
    taken = {one[2] for one in measures}
    return (
        round in study.measured_after and round not in taken and round > last and round > max(taken, default=0)
        and merged < round
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))])
def test_random_orders_are_answered_exactly_when_the_rules_allow_it(seed, tmp_path):
    study = parse(content(CONTROL, BOWLS, rounds=4, measurements=2, runs=2))
    rng, site, history = np.random.default_rng(seed), Site(study, "b", tmp_path), []
    models = {"work": {".w": np.zeros(2), ".c": np.zeros(2)}, "measure": {"model": np.zeros(2)}}
    setup = {"index": 1, "share": 0.3, "heaviest": 0.3, "recipe": [], "classes": None}
    answers = 0
    for step in range(400):
        if history and rng.random() < 0.2:
            asked = history[rng.integers(len(history))]
        else:
            kind = ("columns", "ready", "work", "work", "work", "measure")[rng.integers(6)]
            # mostly forward, or nothing would ever be allowed
            asked = (
                "abc"[rng.integers(3)],
                kind,
                int(rng.integers(-1, 6)),
                int(rng.integers(-1, 4)),
                int(rng.integers(2)),
            )
        run, kind, round, merged, model = asked
        head = {**order_head(study), "run": run, "kind": kind, "round": round, "merged": merged}
        head |= {} if kind == "columns" else {"setup": setup}
        arrays = {name: a + model for name, a in models.get(kind, {}).items()}
        found = failure(site, wire.encode(head, arrays))
        assert (found is None) == allowed(study, history, asked), (step, asked, history, refusals(tmp_path)[-1:])
        if found is None:
            answers += 1
            history += [] if asked in history else [asked]
        site.answers.all["refused"] = 0  # the rules of stopping are tested elsewhere
        (tmp_path / "stopped.json").unlink(missing_ok=True)
    assert answers > 20


def order_head(study):
    return {**OWN.plain(), "study": study.fingerprint, "order": "w"}
