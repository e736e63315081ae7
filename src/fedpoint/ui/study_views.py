"""What does somebody see of a federated study while it runs? The leader of all sites, a site of its own record.

A view is plain types: words and tables of words, which the page shows as text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypedDict

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.federation.result import StudyResult
from fedpoint.federation.site import audit_report, stop
from fedpoint.federation.site.chain import HEAD
from fedpoint.federation.site.engagement import Engagement
from fedpoint.federation.site.site import MODEL
from fedpoint.federation.study import Study
from fedpoint.federation.transport import Event, Status
from fedpoint.show.markup import number, size

LATELY = 12  # rounds that are listed


class Section(TypedDict):
    """A heading, lines, and a table whose first row is its head."""

    heading: str
    lines: list[str]
    table: list[list[str]]


class View(TypedDict):
    """A page at one moment. state: "running", "waiting", "stopped" or "ended"."""

    title: str
    lead: str
    state: str
    round: int
    rounds: int
    sections: list[Section]


class Source(Protocol):
    """Where views come from; `look` may take a second."""

    def look(self) -> View: ...

    def close(self) -> None: ...


def section(heading: str, lines: Sequence[str] = (), table: Sequence[Sequence[str]] = ()) -> Section:
    return Section(heading=heading, lines=[*lines], table=[[*row] for row in table])


def measures_table(study: Study, measured: dict[int, dict[str, dict[str, float]]]) -> list[list[str]]:
    """What sites said, one row for each measurement and site."""
    names = [name for name in ("loss", "accuracy", "auc", "rows") if _said(measured, name)]
    rows = [
        [f"round {after}", site, *(number(one.get(name)) for name in names)]
        for after, said in sorted(measured.items())
        for site, one in said.items()
    ]
    return [["after", "site", *names], *rows] if rows else []


def _said(measured: dict[int, dict[str, dict[str, float]]], name: str) -> bool:
    return any(name in one for said in measured.values() for one in said.values())


# The leader's.


class Reports(Protocol):
    """What is asked how far a study is: `Lead`."""

    study: Study

    def status(self, since: int = 0) -> Status: ...

    def close(self) -> None: ...


class LeaderSource:
    """The study as the server tells it, and what was fetched of its result."""

    def __init__(self, lead: Reports, folder: Path):
        self.lead, self.study, self.folder = lead, lead.study, folder

    def look(self) -> View:
        try:
            return leader_view(self.study, self.lead.status(), self._result())
        except FedpointError as error:
            return leader_view(self.study, None, self._result(), str(error))

    def _result(self) -> StudyResult | None:
        """None where it was not begun, is being fetched, or is that of another version."""
        with contextlib.suppress(FedpointError):
            made = StudyResult(self.folder)
            return made if made.study.fingerprint == self.study.fingerprint else None
        return None

    def close(self) -> None:
        self.lead.close()


def leader_view(study: Study, status: Status | None, made: StudyResult | None, trouble: str = "") -> View:
    """What whoever leads a study sees. status: None where the server does not answer."""
    jobs = bool(status and status["jobs"])
    done = made is not None and made.round >= study.rounds
    at = status.get("round", 0) if status and jobs else made.round if made is not None else 0
    state = "running" if jobs else "ended" if done else "waiting"
    waiting = status.get("waiting") if status else None
    said = f"Waiting for {', '.join(waiting['for'])} ({waiting['waiting']})." if waiting else ""
    lead = trouble or said or {"running": "", "ended": "The study has ended.", "waiting": "Nothing runs."}[state]
    sections = [section("Sites", table=_sites(study, status, made))]
    alarms = status.get("alarms", []) if jobs and status else [] if made is None else made.alarms
    if alarms:
        sections.append(section("Alarms", [alarm["text"] for alarm in alarms]))
    events = status.get("events", []) if jobs and status else [] if made is None else made.events
    sections.append(section("Last rounds", table=_rounds(events[-LATELY:])))
    if made is not None:
        sections.append(section("Measurements", table=measures_table(study, made.measured)))
        sections.append(section("Notes", [*made.setup["notes"]]))
    return View(title=study.name, lead=lead, state=state, round=at, rounds=study.rounds, sections=_told(sections))


def _told(sections: list[Section]) -> list[Section]:
    return [one for one in sections if one["lines"] or len(one["table"]) > 1]


def _sites(study: Study, status: Status | None, made: StudyResult | None) -> list[list[str]]:
    shares = {} if made is None else dict(zip(study.sites, made.setup["weights"], strict=True))
    counts = (
        {} if made is None or made.setup["rows"] is None else dict(zip(study.sites, made.setup["rows"], strict=True))
    )
    if status and status.get("shares"):
        shares, counts = status["shares"]["shares"], status["shares"]["rows"]
    rows = []
    for site in study.sites:
        refused = {} if made is None else {key: n for key, n in made.refused.items() if key.split(" ")[0] == site}
        said = ", ".join(f"{key.partition(' ')[2]} {n}" for key, n in refused.items())
        share = f"{100 * shares[site]:.3g} %" if site in shares else "–"
        heard = "–" if made is None else "yes" if site in made.ended else "no"
        rows.append([site, _presence(site, status), share, number(counts.get(site)), said or "–", heard])
    return [["site", "connection", "share", "rows", "refused", "heard of the end"], *rows]


def _presence(site: str, status: Status | None) -> str:
    if status is None:
        return "unknown"
    if site not in status.get("approved", [site]):
        return "has not approved it"
    if site in status["unheard"]:
        return f"silent for {status['unheard'][site]:.0f} s"
    return "connected" if site in status["sites"] else "not connected"


def _rounds(events: Sequence[Event]) -> list[list[str]]:
    rows = []
    for event in reversed(events):
        bad = ", ".join(f"{site}: {why}" for site, why in event["refused"].items())
        merged = "merged" if event["merged"] else event.get("abandoned", "abandoned")
        took = event["seconds"].get("all")
        rows.append(
            [str(event["round"]), merged, ", ".join(event["answered"]), bad or "–", number(took), size(event["up"])]
        )
    return [["round", "outcome", "answered", "refused", "seconds", "bytes back"], *rows]


# A site's.


class SiteSource:
    """A site's own record, read again when it has changed."""

    def __init__(self, part: Engagement):
        self.part, self.records = part, part.records
        self._seen: tuple[object, View] | None = None

    def look(self) -> View:
        watched = [self.records / name for name in (HEAD, stop.STOPPED, stop.REFUSALS, MODEL)]
        mark = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in watched)
        if self._seen is None or self._seen[0] != mark:
            self._seen = mark, self._made()
        return self._seen[1]

    def _made(self) -> View:
        begun = (self.records / HEAD).exists()
        found = audit_report.report(self.part.folder) if begun else None
        why = stop.why_stopped(self.records)
        return site_view(self.part.study, self.part.party, found, why, self.records / MODEL)

    def close(self) -> None:
        """Nothing is held open."""


def site_view(study: Study, site: str, found: audit_report.Report | None, why: str | None, model: Path) -> View:
    """What the person at a site sees. found: its record; None before the first order. why: it has stopped itself."""
    title = f"{site} in {study.name}"
    if found is None:
        lead = "No order has reached this site yet."
        return View(title=title, lead=lead, state="waiting", round=0, rounds=study.rounds, sections=[])
    by_kind = {one["kind"]: one for one in found["left"]}
    worked = next((one["rounds"][1] + 1 for one in found["asked"] if one["kind"] == "work" and one["rounds"]), 0)
    ended = "end" in by_kind
    state = "stopped" if why else "ended" if ended else "running" if worked else "waiting"
    lead = f"This site has stopped itself: {why}" if why else "The study has ended." if ended else ""
    sections = [
        section("What left this site", table=_left(found), lines=[f"In all {size(found['bytes'])}."]),
        section("Measurements that this site gave", table=_given(found)),
        section("What was refused", table=_refused(found)),
        section("The record", audit_report.verdict_lines(found)),
    ]
    if model.exists():
        said = f"It is in {model}." if study.table is None else f"Use it: fedpoint predict {model} TABLE.csv"
        sections.insert(0, section("The model", [said]))
    return View(title=title, lead=lead, state=state, round=worked, rounds=study.rounds, sections=_told(sections))


def _left(found: audit_report.Report) -> list[list[str]]:
    rows = []
    for one in found["left"]:
        name = audit_report.left_words(one["kind"], found["kept"]["secure"], one["times"] > 1)
        rows.append([name, str(one["times"]), size(one["total"]), "; ".join(one["told"]) or "–"])
    return [["message", "times", "bytes", "what it said in words"], *rows]


def _given(found: audit_report.Report) -> list[list[str]]:
    rows = []
    for after, said in found["measured"].items():
        measures = said.get("measures")
        told = measures.items() if isinstance(measures, dict) else ()
        rows.append([f"round {after}", ", ".join(f"{name} {value}" for name, value in told)])
    return [["after", "what it said"], *rows]


def _refused(found: audit_report.Report) -> list[list[str]]:
    rows = [
        [audit_report.WHY.get(one["reason"], one["reason"]), counted(one["times"], "time"), one["detail"] or "–"]
        for one in found["refused"]
    ]
    return [["reason", "how often", "detail, which stays here"], *rows]
