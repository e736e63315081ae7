"""What does an ethics board or a data-protection officer want to know of a study? One offline page, `dossier.html`.

Its headings are those of a data-protection impact assessment (GDPR, article 35(7)): the processing, its necessity, the
risks, the measures against them; then what came of it, and how to check all of that. The page is made of the leader's
result folder, and of sites' kits where they are given: their records are verified against it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import as_text, read_file
from fedpoint.core.numbers import counted
from fedpoint.federation import dossier_controls, measurement
from fedpoint.federation.receipts import receipts
from fedpoint.federation.result import StudyResult
from fedpoint.federation.site.answers import Answers
from fedpoint.federation.site.audit_report import LEFT, Report, left_words, report
from fedpoint.federation.site.engagement import CONSENT, find
from fedpoint.metrics import fairness
from fedpoint.show.markup import Cell, Html, join, number, scrolling, size, table, tag
from fedpoint.show.page import document
from fedpoint.store.disk import read_object, write_bytes
from fedpoint.store.statement import versions
from fedpoint.verbs.forecast import forecast

Z = 1.959963984540054  # of a two-sided interval of 95 %


class SiteRecord(NamedTuple):
    """What a site's own kit says: its record, verified, its consent, and the rounds that it answered in all runs."""

    audit: Report
    consent: Mapping[str, object]
    worked: int


@dataclass
class Dossier:
    """What the page is made of. records: by site, where its kit was given; files: expected rows, for a forecast."""

    made: StudyResult
    records: Mapping[str, SiteRecord] = field(default_factory=dict)
    files: Mapping[str, str | Path] = field(default_factory=dict)


def write(
    folder: str | Path,
    out: str | Path,
    kits: Sequence[str | Path] = (),
    expected: Mapping[str, str | Path] | None = None,
) -> Path:
    """Write the dossier of a result folder. kits: of sites; expected: a file of each site's rows, for the forecast."""
    made, path = StudyResult(folder), Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise FedpointError(f"{path}: a dossier is an HTML file: give a name that ends in .html")
    unknown = sorted(set(expected or ()) - set(made.study.sites))
    if unknown:
        raise FedpointError(f"{', '.join(unknown)}: not a site of {made.study.name}")
    records = dict(_record(Path(kit), Path(folder), made) for kit in kits)
    write_bytes(path, compose(Dossier(made, records, expected or {})).encode())
    return path


def _record(kit: Path, folder: Path, made: StudyResult) -> tuple[str, SiteRecord]:
    part = find(kit, made.study.name, made.study.fingerprint)
    found = report(part.folder, folder)
    try:
        consent = read_object(read_file(part.folder / CONSENT))
    except (OSError, ValueError):
        consent = {}
    worked = Answers(part.records, part.fingerprint).worked if part.records.exists() else 0
    return found["kept"]["site"], SiteRecord(found, consent, worked)


def compose(dossier: Dossier) -> str:
    """The page."""
    made = dossier.made
    parts = [
        ("processing", "1. Description of the processing", "Article 35(7)(a)", _processing(dossier)),
        ("necessity", "2. Necessity and proportionality", "Article 35(7)(b)", _necessity(dossier)),
        ("risks", "3. Risks to the people in the data", "Article 35(7)(c)", _risks(dossier)),
        ("measures", "4. Measures against these risks", "Article 35(7)(d)", _measures(dossier)),
        ("outcome", "5. What came of it", "Accuracy and fairness: article 5(1)(a) and (d)", _outcome(dossier)),
        ("checking", "6. How to check this", "Accountability: article 5(2)", _checking(dossier)),
    ]
    main = [
        tag("section", tag("h2", heading), tag("p", reference, class_="note"), *body, id=name)
        for name, heading, reference, body in parts
    ]
    links = [tag("li", tag("a", heading, href=f"#{name}")) for name, heading, _, _ in parts]
    lead = (
        f"Federated study over {counted(len(made.study.sites), 'site')}, {made.round} of "
        f"{counted(made.study.rounds, 'round')} done. Rows stayed at the sites."
    )
    return as_text(document("dossier", made.study.name, lead, main, tag("nav", tag("ul", *links), aria_label="Parts")))


def _words(heading: Sequence[Cell], rows: Sequence[Sequence[Cell]], label: str) -> Html:
    return scrolling(table(heading, rows, class_="words"), label)


# 1


def _processing(dossier: Dossier) -> list[Html]:
    study, made = dossier.made.study, dossier.made
    own = study.table
    purpose = study.terms.purpose or 'Not stated: the study has no purpose = "...".'
    rows: list[Sequence[Cell]] = [
        ("purpose", purpose),
        ("parties", f"server {study.server}; sites {', '.join(study.sites)}"),
        ("method", f"{study.method().card.title}, {counted(study.rounds, 'round')}"),
    ]
    if study.installed is not None:
        rows.append(
            (
                "data and model",
                f"each site's own file, read by the model {study.installed.name} that is installed there",
            )
        )
    elif own is None:
        rows.append(("data", "generated, for a trial: no personal data"))
    else:
        rows += [("target", own.target or "none"), ("features", ", ".join(own.features)), ("model", own.model)]
        rows.append(("held out", "none" if own.held_out is None else _held_out(own.held_out)))
    said = receipts(made.folder, study.fingerprint)
    if said is not None:
        rows += [("signed", said.study), ("authority", tag("code", said.authority))]
    rows.append(("the model goes to", "the leader and every site" if study.terms.share_model else "the leader only"))
    return [
        _words((), rows, "The processing"),
        tag("h3", "Parties"),
        scrolling(
            table(
                ["site", "rows", "share", "fedpoint", "approved (UTC)"],
                _parties(made, {} if said is None else said.sites),
            ),
            "Parties",
        ),
    ]


def _held_out(said: float | str) -> str:
    return f"rows that column {said} marks" if isinstance(said, str) else f"{100 * said:g} % by each site's own luck"


def _parties(made: StudyResult, approved: Mapping[str, str]) -> list[Sequence[Cell]]:
    counts: Sequence[int | None] = made.setup["rows"] or [None] * len(made.study.sites)
    return [
        (site, number(count), f"{100 * share:.3g} %", made.releases.get(site, "–"), approved.get(site, "–"))
        for site, count, share in zip(made.study.sites, counts, made.setup["weights"], strict=True)
    ]


# 2


def _necessity(dossier: Dossier) -> list[Html]:
    made = dossier.made
    secure = made.study.terms.secure
    body = [row for site, kinds in made.sent.items() for row in _sent_by(site, kinds, secure)]
    found = [
        tag(
            "p",
            "What left each site, as the hub received it. A number is one value of an array; words count as bytes.",
        ),
        scrolling(table(["site", "message", "times", "numbers", "bytes"], body), "What left each site"),
    ]
    for site, (audit, *_) in dossier.records.items():
        state = "is whole, and agrees with the seals in the result folder" if audit["verified"] else "is BROKEN"
        found.append(
            tag(
                "p",
                f"The record of {site} ({counted(audit['lines'], 'line')}) {state}. By it {size(audit['bytes'])} left, "
                f"answers that were refused or lost included; {counted(audit['refusals'], 'order')} refused.",
                class_="verdict good" if audit["verified"] else "verdict bad",
            )
        )
    unseen = [site for site in made.study.sites if site not in dossier.records]
    if unseen:
        found.append(
            tag("p", f"No record was given of {', '.join(unseen)}: figures are the hub's word.", class_="note")
        )
    text = read_file(made.folder / "study.toml").decode(errors="replace")
    note = tag("p", "What was left out has its default here.", class_="note")
    return [*found, tag("h3", "Terms as entered"), note, tag("pre", text)]


def _sent_by(site: str, kinds: Mapping[str, list[int]], secure: bool) -> list[Sequence[Cell]]:
    """A row for each kind of message, and their sum."""
    rows: list[Sequence[Cell]] = [
        (site, left_words(kind, secure, several=True), *_amount(*kinds[kind])) for kind in LEFT if kind in kinds
    ]
    return [*rows, (site, "in all", *_amount(*map(sum, zip(*kinds.values(), strict=True))))]


def _amount(times: int, count: int, numbers: int) -> tuple[str, str, str]:
    return number(times), number(numbers), number(count)


# 3 and 4


def _risks(dossier: Dossier) -> list[Html]:
    rows = [(risk.name, risk.words) for risk in dossier_controls.risks(dossier.made)]
    more = "docs/disclosure.md has attacks that were carried out, with figures."
    return [_words(["risk", "in this study"], rows, "Risks"), tag("p", more, class_="note")]


def _measures(dossier: Dossier) -> list[Html]:
    rows = [
        (c.name, "applied" if c.applied else "not applied", c.parameter)
        for c in dossier_controls.controls(dossier.made)
    ]
    found = [_words(["control", "state", "parameter"], rows, "Controls")]
    floors = [
        (site, *(number(cast(float, floor.get(key))) for key in ("rows", "per_category", "per_class")))
        for site, record in dossier.records.items()
        if isinstance(floor := record.consent.get("floor"), dict)
    ]
    if floors:
        found += [
            tag("h3", "Floors that sites chose"),
            scrolling(table(["site", "rows", "per category", "per class"], floors), "Floors"),
        ]
    found += _epsilon(dossier)
    refused = [(*what.split(" ", 1), number(times)) for what, times in sorted(dossier.made.refused.items())]
    found.append(tag("h3", "What the hub refused"))
    if refused:
        found.append(scrolling(table(["site", "reason", "times"], refused), "What the hub refused"))
    else:
        found.append(tag("p", "Nothing."))
    alarms = [tag("li", alarm["text"]) for alarm in dossier.made.alarms]
    return [*found, *([tag("h3", "Alarms"), tag("ul", *alarms)] if alarms else [])]


def _epsilon(dossier: Dossier) -> list[Html]:
    """How much of the agreed epsilon was used up: by a site's own count where its kit was given, else by the hub's."""
    made, privacy = dossier.made, dossier.made.study.terms.privacy
    if privacy is None:
        return []
    rows = []
    for site in made.study.sites:
        record = dossier.records.get(site)
        answers = made.sent.get(site, {}).get("work", [0])[0] if record is None else record.worked
        used = f"{privacy.spent(made.study.rounds, answers):.3g}"
        rows.append((site, number(answers), "the hub" if record is None else "the site", used, f"{privacy.epsilon:g}"))
    return [
        tag("h3", "Epsilon used"),
        scrolling(table(["site", "rounds answered", "counted by", "used", "agreed"], rows), "Epsilon used"),
        tag("p", f"At delta {privacy.delta:g}; the hub counts this run only, a site all runs.", class_="note"),
    ]


# 5


def interval(share: float, rows: int) -> tuple[float, float]:
    """Wilson's interval of 95 % for a share of so many rows, widened by its rounding to whole percents.

    >>> low, high = interval(0.5, 100)
    >>> round(low, 3), round(high, 3)
    (0.399, 0.601)
    """
    half = 0.5 / measurement.PERCENTS
    return _wilson(max(share - half, 0.0), rows, -1), _wilson(min(share + half, 1.0), rows, 1)


def _wilson(share: float, rows: int, side: int) -> float:
    middle = share + Z**2 / (2 * rows)
    spread = Z * math.sqrt(share * (1 - share) / rows + Z**2 / (4 * rows**2))
    return min(max((middle + side * spread) / (1 + Z**2 / rows), 0.0), 1.0)


def difference(first: tuple[float, int], second: tuple[float, int]) -> tuple[float, float]:
    """Newcombe's interval of 95 % for the difference of two shares, each with its rows.

    >>> low, high = difference((0.9, 100), (0.7, 100))
    >>> 0.07 < low < 0.2 < high < 0.32
    True
    """
    (p, n), (q, m) = first, second
    (p_low, p_high), (q_low, q_high) = interval(p, n), interval(q, m)
    low = p - q - math.hypot(p - p_low, q_high - q)
    return low, p - q + math.hypot(p_high - p, q - q_low)


def _outcome(dossier: Dossier) -> list[Html]:
    made = dossier.made
    if not made.measures:
        return [
            tag("p", "No measurement of the last model: nothing is known of how well it serves whom."),
            *_forecast(dossier),
        ]
    found = [scrolling(table(*_by_site(made)), "Measurements by site")]
    where = (
        "held-out rows" if made.study.table is not None and made.study.table.held_out else "rows that were trained on"
    )
    found.append(
        tag(
            "p",
            f"Measured by the sites on {where}; intervals are of 95 % (Wilson), and include the rounding.",
            class_="note",
        )
    )
    losses = [one["loss"] for one in made.measures.values() if "loss" in one]
    if len(losses) > 1:
        jain = fairness(losses).jain
        words = f"Losses of sites: from {number(min(losses))} to {number(max(losses))}"
        found.append(tag("p", f"{words}; Jain's index {number(jain)} (1 is equal)."))
    found += _gap(made)
    return [*found, *_tables(made), *_forecast(dossier)]


def _rows_measured(made: StudyResult, site: str) -> int | None:
    """On how many rows a site measured, as far as is known."""
    said = made.measures[site].get("rows")
    counts = made.setup["rows"]
    if said is not None:
        return int(said)
    return None if counts is None else counts[made.study.sites.index(site)]


def _by_site(made: StudyResult) -> tuple[list[Cell], list[list[Cell]]]:
    names = [name for name in ("loss", "accuracy", "auc") if any(name in one for one in made.measures.values())]
    heading: list[Cell] = ["site", "rows", *names]
    heading += ["accuracy, 95 %"] if "accuracy" in names else []
    rows = []
    for site, one in made.measures.items():
        count = _rows_measured(made, site)
        row: list[Cell] = [site, number(count), *(number(one.get(name)) for name in names)]
        if "accuracy" in names:
            known = "accuracy" in one and count
            row.append("{:.3f} to {:.3f}".format(*interval(one["accuracy"], count)) if known and count else "–")
        rows.append(row)
    return heading, rows


def _gap(made: StudyResult) -> list[Html]:
    known = {
        site: (one["accuracy"], count)
        for site, one in made.measures.items()
        if "accuracy" in one and (count := _rows_measured(made, site))
    }
    if len(known) < 2:
        return []
    best, worst = max(known, key=lambda s: known[s]), min(known, key=lambda s: known[s])
    low, high = difference(known[best], known[worst])
    tells = "more than chance explains" if low > 0 else "which chance may explain"
    gap = known[best][0] - known[worst][0]
    words = f"The model is right {100 * gap:.0f} points more often at {best} than at {worst}"
    return [tag("p", f"{words} (95 %: {100 * low:.0f} to {100 * high:.0f} points; {tells}).")]


def _tables(made: StudyResult) -> list[Html]:
    found, classes = [], [str(name) for name in made.setup["classes"] or []]
    for site, tables in made.tables.items():
        if tables.get("confusion"):
            rows = [
                [f"true {name}", *map(_share, row)] for name, row in zip(classes, tables["confusion"], strict=False)
            ]
            heading = ["", *(f"predicted {name}" for name in classes)]
            found.append(scrolling(table(heading, rows, caption=f"Confusion at {site}"), f"Confusion at {site}"))
        if tables.get("calibration"):
            rows = [[*map(_share, row)] for row in tables["calibration"]]
            heading = ["predicted chance", "came true", "share of the rows"]
            found.append(scrolling(table(heading, rows, caption=f"Calibration at {site}"), f"Calibration at {site}"))
    return found


def _share(value: float) -> str:
    return "below the floor" if value < 0 else f"{100 * value:.0f} %"


def _forecast(dossier: Dossier) -> list[Html]:
    """Where the model must be after so many rounds, and where it is."""
    made, heading = dossier.made, tag("h3", "Forecast and outcome")
    try:
        rows = forecast_rows(dossier)
    except FedpointError as error:
        return [heading, tag("p", f"No forecast: {error}.")]
    return [heading, _words(["squared distance to the solution", ""], rows, "Forecast and outcome"), _of(made)]


def _of(made: StudyResult) -> Html:
    return tag(
        "p", f"After {counted(made.round, 'round')}, by the study's own terms, before anything is run.", class_="note"
    )


def forecast_rows(dossier: Dossier) -> list[tuple[str, str]]:
    """The expected error after the rounds that were done, and that of the model."""
    made = dossier.made
    if made.study.of_files and set(dossier.files) != set(made.study.sites):
        raise FedpointError(
            "it takes rows, which only the sites have; expected rows of every site (--expected) would do"
        )
    experiment = made.replay(made.problem(dossier.files))
    ahead = forecast(experiment)
    if ahead.optimum is None:
        raise FedpointError("the solution is not known, so there is no distance to measure")
    gap = np.ravel(np.asarray(made.model)) - np.ravel(ahead.optimum)
    return [
        ("forecast", number(float(ahead.curve(made.round)[-1]))),
        ("outcome", number(float(gap @ gap))),
        ("forecast of the limit", number(ahead.floor)),
    ]


# 6


def _checking(dossier: Dossier) -> list[Html]:
    made = dossier.made
    here = [(name, version) for name, version in versions().items()]
    names = ["study.toml", "rounds.jsonl", "hub.npz", f"models/{made.rounds[-1]}.npz" if len(made.rounds) else None]
    files = [(name, tag("code", _sha256(made.folder / name))) for name in names if name]
    seals = [(site, tag("code", seal)) for site, seal in made.chains.items()]
    return [
        tag("h3", "Versions that wrote this page"),
        _words((), here, "Versions"),
        tag("h3", "SHA-256"),
        _words((), [("study (fingerprint)", tag("code", made.study.fingerprint)), *files], "Hashes of files"),
        tag("h3", "Last seal of each site's record"),
        _words((), seals, "Seals"),
        tag("h3", "Commands"),
        tag("pre", _commands(made)),
    ]


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()


def _commands(made: StudyResult) -> Html:
    """How to verify records, and how to compute the model again."""
    own = made.study.table
    luck = own is not None and isinstance(own.held_out, float)
    given = f"made.problem({'files, records' if luck else 'files' if made.study.of_files else '{}'})"
    files = [] if not made.study.of_files else ['files = {"SITE": "SITE.csv", ...}  # of each site']
    files += (
        ['records = {"SITE": "KIT/studies/NAME.N/records", ...}  # of each site, which holds its luck'] if luck else []
    )
    lines = [
        "# At a site: was the record changed, and does it agree with this result?",
        f"fedpoint federate audit KIT --against {made.folder.name}",
        "",
        "# The same models again, where the rows of all sites may be brought together: to the bit with the versions",
        "# above on the same kind of machine, elsewhere to rounding.",
        "import numpy as np",
        "import fedpoint as fp",
        "from fedpoint.federation.result import StudyResult",
        f'made = StudyResult("{made.folder.name}")',
        *files,
        f"again = fp.run(made.replay({given}), rounds=made.round)",
        "print(np.abs(np.asarray(again.history)[0] - made.history).max())",
    ]
    return join(["\n".join(lines)])
