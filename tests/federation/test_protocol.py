"""Parties of one protocol work together, whatever their releases; others are told what to install, and where."""

import json

import numpy as np
import pytest
from studies import BOWLS, CONTROL, SITES, content

from fedpoint.core.errors import FedpointError
from fedpoint.federation import protocol
from fedpoint.federation.hub.hub import StudyHub
from fedpoint.federation.hub.ledger import Ledger
from fedpoint.federation.inprocess import InProcess
from fedpoint.federation.protocol import OWN, Mismatch, Release, check
from fedpoint.federation.result import StudyResult
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import parse

STUDY = content(CONTROL, BOWLS, rounds=4)
BEHIND = Release(OWN.protocol, "0.0.9")
OLDER = Release(OWN.protocol - 1, "0.0.1")
NEWER = Release(OWN.protocol + 1, "9.9.9")


def federated(root, release=OWN):
    """A study whose site b runs another release."""
    study = parse(STUDY)
    sites = {name: Site(study, name, root / name) for name in SITES}
    sites["b"].release = release
    ledger = Ledger(root / "hub", study)
    try:
        StudyHub(study, InProcess({name: site.answer for name, site in sites.items()}), ledger).run()
    finally:
        ledger.close()
    return StudyResult(root / "hub")


def test_a_site_of_another_release_takes_part(tmp_path):
    whole, made = federated(tmp_path / "same"), federated(tmp_path / "behind", BEHIND)
    assert not made.refused
    assert np.array_equal(made.history, whole.history)


@pytest.mark.parametrize(
    ("release", "at_the_hub", "at_the_site"),
    [
        (OLDER, f"at b, install fedpoint {OWN.fedpoint}", f"at this site, install fedpoint {OWN.fedpoint}"),
        (NEWER, "at the hub, install fedpoint 9.9.9", "at the hub, install fedpoint 9.9.9"),
    ],
)
def test_another_protocol_is_refused_and_both_sides_are_told(release, at_the_hub, at_the_site, tmp_path, caplog):
    with pytest.raises(FedpointError, match=rf"b cannot take part \(version\): .*{at_the_hub}"):
        federated(tmp_path, release)
    assert at_the_site in caplog.text


@pytest.mark.parametrize("there", [OLDER, NEWER])
def test_both_sides_name_the_same_remedy(there):
    """Whoever is asked: the party of the older protocol installs what the other has."""
    with pytest.raises(Mismatch) as ours:
        check("north", OWN, "south", there)
    with pytest.raises(Mismatch) as theirs:
        check("south", there, "north", OWN)
    assert ours.value.where == theirs.value.where == ("south" if there is OLDER else "north")
    remedy = f"at {ours.value.where}, install fedpoint {max(OWN, there).fedpoint}"
    assert str(ours.value).endswith(remedy)
    assert str(theirs.value).endswith(remedy)


@pytest.mark.parametrize("said", [{}, {"protocol": "1"}, {"protocol": True}, {"protocol": 1.0}, {"protocol": [1]}])
def test_who_names_no_protocol_speaks_none(said):
    assert Release.named_in(said) == (0, "of an unknown version")


@pytest.mark.parametrize("version", ["", "\x1b[2J", "0.1\n", "9" * 41, "0.1é", 7, None])
def test_a_version_that_is_none_is_not_shown(version):
    assert Release.named_in({"protocol": 1, "fedpoint": version}) == (1, "of an unknown version")


def kit(folder, **said):
    from fedpoint.federation.flare.kits import Kit

    folder.mkdir(exist_ok=True)
    about = {"party": "a", "project": "trial", "server": "localhost:8102", **OWN.plain(), **said}
    (folder / "kit.json").write_text(json.dumps(about))
    return Kit(folder, "site")


def test_kits_of_another_release_and_of_another_protocol(tmp_path):
    assert kit(tmp_path, **BEHIND.plain()).party == "a"
    with pytest.raises(FedpointError, match=r"at a, install fedpoint 9\.9\.9$"):
        kit(tmp_path, **NEWER.plain())
    with pytest.raises(
        FedpointError, match=rf"at the leader, install fedpoint {OWN.fedpoint}, and begin a new project$"
    ):
        kit(tmp_path, **OLDER.plain())


@pytest.mark.parametrize("text", ["[]", "{}", '{"party": "a"}', "7", "", "[" * 100_000, "\xff"])
def test_what_is_not_a_kit(text, tmp_path):
    from fedpoint.federation.flare.kits import Kit

    (tmp_path / "kit.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FedpointError, match="is not a kit"):
        Kit(tmp_path)


def test_jobs_name_the_protocol_of_whoever_leads(tmp_path):
    from fedpoint.federation.flare.lead import job_folder

    made = job_folder("trial.1", ["a"], "", tmp_path) / "app" / "config" / "config_fed_server.json"
    assert Release.named_in(json.loads(made.read_text())["workflows"][0]["args"]) == protocol.OWN
