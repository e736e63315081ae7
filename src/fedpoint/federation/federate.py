"""How is a study rehearsed? `fp.federate` runs it in this process, message by message."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Plain
from fedpoint.data.floor import DEFAULT, Floor
from fedpoint.federation.hub.alarm import Expected
from fedpoint.federation.hub.hub import StudyHub
from fedpoint.federation.hub.ledger import Ledger
from fedpoint.federation.inprocess import Fault, InProcess, Seconds
from fedpoint.federation.result import StudyResult
from fedpoint.federation.secure.identity import Identity, rehearsed
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import Study, parse, read
from fedpoint.federation.transport import Tell


@checked
def federate(
    study: str | Path | Mapping[str, Plain] | Study,
    data: Mapping[str, str | Path] | None = None,
    folder: str | Path | None = None,
    *,
    seconds: Seconds = 1.0,
    faults: Iterable[Fault] = (),
    floor: Floor = DEFAULT,
    tell: Tell = lambda event: None,
    expected: Expected = False,
) -> StudyResult:
    """Run a study with all its sites in this process: a rehearsal of what `fedpoint federate` does between machines.

    Every message is serialised, validated and audited as between machines; only the network is missing.

    Args:
        study: a study file, its content (`{**experiment.describe(), "name": ..., "sites": ...}`, say), or a `Study`.
        data: each site's file; None where the problem is generated.
        folder: where hub and sites write; a second call continues from there. Default: a temporary one, removed with
            the result.
        seconds: how long sites take on the virtual clock: a number, one by site, or a function of (site, order).
        faults: what goes wrong (`fedpoint.federation.inprocess.Fault`).
        floor: of how few rows sites may speak (`fedpoint.data.floor.Floor`); tables only.
        tell: called after every round.
        expected: the rows that sites should have, for an alarm about a site that does not answer as these say: True
            for a generated problem, or a file for each site.

    >>> made = federate({
    ...     "name": "trial", "sites": ["a", "b"], "server": "localhost:8102", "rounds": 30,
    ...     "problem": {"kind": "quadratic", "H": [1.0, 1.0], "centers": [[0.0], [1.0]]},
    ...     "algorithm": {"name": "fedavg", "step": 0.5},
    ... })
    >>> made.model.round(6)
    array([0.5])
    """
    if not isinstance(study, Study):
        study = parse(dict(study)) if isinstance(study, Mapping) else read(study)
    data = {} if data is None else data
    unknown = sorted(set(data) - set(study.sites))
    if unknown:
        raise FedpointError(
            f"{', '.join(unknown)}: not a site of {study.name}, whose sites are {', '.join(study.sites)}"
        )
    root = Path(tempfile.mkdtemp(prefix="fedpoint-") if folder is None else folder)
    known: dict[str, Identity] = rehearsed(study.sites) if study.terms.secure else {}
    sites = {
        name: Site(study, name, root / name, data.get(name), floor, known.get(name)).answer for name in study.sites
    }
    trust = known[study.sites[0]].trust if known else None
    engine, ledger = InProcess(sites, seconds, faults), Ledger(root / "hub", study)
    try:
        StudyHub(study, engine, ledger, tell, expected=expected, trust=trust).run()
    finally:
        engine.close()
        ledger.close()
    made = StudyResult(root / "hub")
    if folder is None:
        weakref.finalize(made, shutil.rmtree, root, True)
    return made
