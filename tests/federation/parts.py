"""Projects, kits and parts of studies for tests; keys are made once, they are slow."""

import functools
import itertools
import shutil
import tempfile
from pathlib import Path

from fedpoint.federation.flare.kits import Kit
from fedpoint.federation.flare.project import Project
from fedpoint.federation.flare.trial import begin, signed_for
from fedpoint.federation.identity import certificates
from fedpoint.federation.identity.signed import SignedStudy
from fedpoint.federation.protocol import OWN
from fedpoint.federation.site.engagement import open_folder

NEW_KEY = certificates.new_key


@functools.cache
def key(number):
    return NEW_KEY()


def few_keys(monkeypatch, first=0):
    """Parties get keys of a small store, one after the other."""
    numbers = itertools.count(first)
    monkeypatch.setattr(certificates, "new_key", lambda bits=2048: key(next(numbers)))


def part_of(folder, site, study):
    """A site's folder of a study, as it is once that was fetched."""
    return open_folder(folder, site, SignedStudy(study.content, 1, "", None, OWN, b"{}"))


MADE = {}  # projects by study, from which tests get copies


def trial_of(study, root, monkeypatch):
    """A project with all its kits; the study is signed, and every site has fetched it."""
    few_keys(monkeypatch)
    if study.fingerprint not in MADE:
        MADE[study.fingerprint] = tempfile.TemporaryDirectory(prefix="fedpoint-")
        begin(study, Path(MADE[study.fingerprint].name) / "project")
    shutil.copytree(Path(MADE[study.fingerprint].name) / "project", root)
    few_keys(monkeypatch, 50)  # others than those of the project
    project = Project(root)
    kits = {party: Kit(root / party) for party in ("server", "admin", *study.sites)}
    return signed_for(project, kits, study)
