"""How does a study go on? A bar on a terminal, lines elsewhere; and what came out."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

import click

from fedpoint.cli.progress import watch
from fedpoint.core.numbers import counted
from fedpoint.engine.base import Callback, Progress
from fedpoint.federation.result import StudyResult
from fedpoint.federation.study import Study
from fedpoint.federation.transport import Alarm, Event, Status


class Show:
    """Hears of rounds and of what is waited for."""

    def __init__(self, study: Study, quiet: bool):
        self.study, self.quiet, self.said = study, quiet, ""
        self.before: tuple[list[str], bool] = ([], True)  # what went wrong in the last round, and if it counted
        self.stack = contextlib.ExitStack()
        self.callbacks: list[Callback] = []

    def __enter__(self) -> Show:
        self.callbacks = self.stack.enter_context(watch(self.quiet).following(self.study.name, self.study.rounds))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def __call__(self, event: Event) -> None:
        if "round" in event:
            progress = Progress(event["round"] + 1, self.study.rounds, 0.0, 0.0, None, None)
            for callback in self.callbacks:
                callback(progress)
            bad = {site: why for site, why in event["refused"].items() if why not in ("late", "twice")}
            said = [event["abandoned"]] if "abandoned" in event else []
            said += [f"{site}: {why}" for site, why in bad.items()]
            if (said, event["merged"]) != self.before:
                rest = "" if event["merged"] else "; abandoned, the model is kept"
                self.say(f"round {event['round']}: {'; '.join(said) or 'everybody answered'}{rest}")
            self.before = said, event["merged"]
            for site, why in event.get("marks", {}).items():
                self.say(f"round {event['round']}: {site} stands out: {why}")
            for alarm in event.get("alarms", []):
                self.say(f"ALARM: {alarm['text']}")
        elif "shares" in event:
            self.say(in_shares(event))
        elif "waiting" in event:
            self.say(f"waiting for {', '.join(event['for'])} ({event['waiting']})")
        elif "note" in event:
            self.say(event["note"])
        elif "segment" in event:
            self.say(f"{event['segment']}; a new job continues from there")

    def say(self, text: str) -> None:
        if text != self.said and not self.quiet:
            click.echo(text, err=True)
        self.said = text


def status_lines(study: Study, found: Status) -> list[str]:
    """Where a study is, for people."""
    here, unheard = found["sites"], found["unheard"]
    lines = [
        f"{study.name} at {study.server}: {len(here)} of {counted(len(study.sites), 'site')} approved and connected"
    ]
    for site in study.sites:
        if site in unheard:
            lines.append(f"{site}: silent for {unheard[site]:.0f} s")
        elif site not in found.get("approved", study.sites):
            lines.append(f"{site}: has not approved the study yet")
        elif site not in here:
            lines.append(f"{site}: not connected")
    if not found["jobs"]:
        return [*lines, "nothing runs"]
    lines.append(f"round {found.get('round', 0)} of {study.rounds}")
    if found.get("shares"):
        lines.append(in_shares(found["shares"]))
    lines += standing_out(found.get("events", []))
    lines += [f"ALARM: {alarm['text']}" for alarm in found.get("alarms", [])]
    for event in found.get("events", [])[-1:]:
        refused = ", ".join(f"{name}: {why}" for name, why in event["refused"].items()) or "nobody"
        lines.append(f"last round: {', '.join(event['answered']) or 'nobody'} answered; refused: {refused}")
        if "abandoned" in event:
            lines.append(f"it was abandoned: {event['abandoned']}")
    waiting = found.get("waiting")
    if waiting:
        lines.append(f"waiting for {', '.join(waiting['for'])} ({waiting['waiting']})")
    return lines + found.get("notes", [])


def in_shares(event: Event) -> str:
    """How much each site counts, in a line."""
    rows = {site: f" ({counted(count, 'row')})" for site, count in event["rows"].items()}
    parts = [f"{site} {100 * share:.3g} %{rows.get(site, '')}" for site, share in event["shares"].items()]
    return f"shares: {', '.join(parts)}"


def standing_out(events: Sequence[Event]) -> list[str]:
    """Whose answers stood out in these rounds: how often, and the last time in words."""
    marks = {site: (event["round"], why) for event in events for site, why in event.get("marks", {}).items()}
    times = Counter(site for event in events for site in event.get("marks", {}))
    return [
        f"{site} stands out, {counted(times[site], 'time')} in {counted(len(events), 'round')}; in round {at} {why}"
        for site, (at, why) in marks.items()
    ]


class Summary(TypedDict):
    """A result in plain types."""

    study: str
    folder: str
    rounds: int
    merged: int
    loss: float | None
    measures: dict[str, dict[str, float]]
    refused: dict[str, int]
    shares: dict[str, float]
    notes: list[str]
    marks: list[str]
    abandoned: list[str]
    alarms: list[Alarm]
    bytes: dict[str, int]


def summary(made: StudyResult) -> Summary:
    return Summary(
        study=made.study.name,
        folder=str(made.folder),
        rounds=made.round,
        merged=sum(event["merged"] for event in made.events),
        loss=made.loss,
        measures=made.measures,
        refused=dict(made.refused),
        shares=dict(zip(made.study.sites, made.setup["weights"], strict=True)),
        notes=made.setup["notes"],
        marks=standing_out(made.events),
        abandoned=[f"round {event['round']}: {event['abandoned']}" for event in made.events if "abandoned" in event],
        alarms=made.alarms,
        bytes={"down": sum(event["down"] for event in made.events), "up": sum(event["up"] for event in made.events)},
    )


def show_result(made: StudyResult, as_json: bool) -> None:
    found = summary(made)
    if as_json:
        click.echo(json.dumps({**found, "fit": made.fit.to_dict()} if made.is_regression else found))
        return
    click.echo(f"{found['study']}: {counted(found['rounds'], 'round')}, {found['merged']} merged, in {found['folder']}")
    if found["loss"] is not None:
        click.echo(f"loss {found['loss']:.6g}")
    for site, one in found["measures"].items():
        click.echo(f"  {site}: " + ", ".join(f"{name} {value:.4g}" for name, value in one.items()))
    for what, count in found["refused"].items():
        site, _, why = what.partition(" ")
        click.echo(f"  {site}: {why}, {counted(count, 'time')}")
    for said in (*found["notes"], *found["marks"]):
        click.echo(f"  {said}")
    for said in found["abandoned"]:
        click.echo(f"  abandoned: {said}")
    for alarm in found["alarms"]:
        click.echo(f"  ALARM: {alarm['text']}")
    click.echo(f"{found['bytes']['down']:,} bytes to sites, {found['bytes']['up']:,} back")
    if made.is_regression:
        click.echo(f"\n{made.fit.summary()}")
