"""Which controls applied to a study, with which parameters, and which risks are left? By its terms and result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from fedpoint.core.numbers import counted
from fedpoint.federation import measurement
from fedpoint.federation.preparation import features
from fedpoint.federation.protection import PrivacyTerms
from fedpoint.federation.result import StudyResult
from fedpoint.federation.site.consent import REPEATS
from fedpoint.federation.site.stop import STRIKES


class Control(NamedTuple):
    """One measure, whether it applied, and with which parameter."""

    name: str
    applied: bool
    parameter: str


class Risk(NamedTuple):
    """What could go wrong, and how it stands with it in this study."""

    name: str
    words: str


def controls(made: StudyResult) -> list[Control]:
    """Everything that a study can put between rows and whoever wants them."""
    terms, study = made.study.terms, made.study
    table, after = study.table, study.measured_after
    bits = measurement.bits(table is None or table.of_classes, measures=terms.measures, count=_classes(made))
    bounds = {site: f"{low:,} to {high:,}" for site, (low, high) in (terms.rows or {}).items()}
    gather, channel = study.content.get("gather"), study.content.get("channel")
    return [
        Control("mutual TLS", True, "certificates of an authority of the study's own"),
        Control("consent of each site", True, f"to study {study.fingerprint[:12]} and no other"),
        Control("rounds and runs", True, f"at most {counted(terms.runs, 'run')} of {counted(study.rounds, 'round')}"),
        Control("refusals stop a site", True, f"{STRIKES} in a row; answers repeated at most {REPEATS} times"),
        Control("floor of rows", study.of_files, "chosen by each site; see the floors below, or its record"),
        Control(
            "rows held out", table is not None and table.held_out is not None, f"{table.held_out if table else '–'}"
        ),
        Control(
            "measurements",
            True,
            f"{', '.join(terms.measures)}, after round {', '.join(map(str, after))}; at most {bits} bits each"
            if after
            else "none",
        ),
        Control("bounds of rows", bool(bounds), ", ".join(f"{site} {said}" for site, said in bounds.items()) or "–"),
        Control("secure sums", terms.secure, f"of {study.least} sites or more" if terms.secure else "–"),
        Control("noise at sites", terms.privacy is not None, _noise(terms.privacy)),
        Control("longest message", terms.norm_cap is not None, f"{terms.norm_cap or '–'}"),
        Control("robust gathering", gather is not None, f"{gather or '–'}"),
        Control("channel", channel is not None, f"{channel or '–'}"),
        Control("alarm about a site", made.watched, f"on_alarm = {terms.on_alarm}"),
        Control("sealed records", True, f"{counted(len(made.chains), 'seal')} held by the leader"),
    ]


def _noise(privacy: PrivacyTerms | None) -> str:
    if privacy is None:
        return "–"
    return (
        f"{privacy.noise}, behind a clip to {privacy.clip:g}: epsilon {privacy.epsilon:g} at delta {privacy.delta:g} "
        "of a site, over all rounds; not of row counts, moments and measurements"
    )


def _classes(made: StudyResult) -> int:
    return max(len(made.setup["classes"] or ()), 2)


def risks(made: StudyResult) -> Iterator[Risk]:
    """What is left, in the study's own numbers."""
    table, rows = made.study.table, made.setup["rows"]
    if not made.study.of_files:
        yield Risk("none to people", "the data are generated")
        return
    if made.study.terms.secure:
        yield Risk(
            "the hub sees sums of messages",
            f"of {made.study.least} sites or more; that many sites together with the hub could open a single one",
        )
    else:
        yield Risk(
            "the hub sees each site's messages",
            "a message is a change of a model, made of rows; the server must be run by somebody whom all sites trust",
        )
    width = sum(len(feature.names) for feature in features(made.setup["recipe"]))
    for site, count in zip(made.study.sites, rows or (), strict=bool(rows)) if table is not None else ():
        area = 0.5 * (1 + math.erf(math.sqrt(width / (2 * count)) / math.sqrt(2)))
        yield Risk(
            f"who is in the table of {site}",
            f"{counted(width, 'mean')} of {counted(count, 'row')} leave: the best test of a known row against them has "
            f"an area under the curve of {area:.2f} (0.5 is chance), for normal features",
        )
    batch = made.study.problem.get("batch")
    yield Risk(
        "a server that chooses the models",
        f"{counted(made.study.rounds, 'round')} on {'all rows' if batch is None else f'batches of {batch} rows'}: "
        "full batches, few rows and many rounds let a malicious server read rows",
    )
    yield Risk("a site that lies", "its answers count with its share; see refusals and alarms")
