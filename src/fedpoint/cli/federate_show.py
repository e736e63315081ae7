"""How does a study go on? A bar on a terminal, lines elsewhere; and what came out."""

from __future__ import annotations

import contextlib
import json
from typing import TypedDict

import click

from fedpoint.cli.progress import watch
from fedpoint.core.numbers import counted
from fedpoint.engine.base import Callback, Progress
from fedpoint.federation.result import StudyResult
from fedpoint.federation.study import Study
from fedpoint.federation.transport import Event


class Show:
    """Hears of rounds and of what is waited for."""

    def __init__(self, study: Study, quiet: bool):
        self.study, self.quiet, self.said = study, quiet, ""
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
            if bad:
                rest = "" if event["merged"] else "; abandoned, the model is kept"
                self.say(f"round {event['round']}: {', '.join(f'{s}: {w}' for s, w in bad.items())}{rest}")
        elif "waiting" in event:
            self.say(f"waiting for {', '.join(event['for'])} ({event['waiting']})")
        elif "segment" in event:
            self.say(f"{event['segment']}; a new job goes on from there")

    def say(self, text: str) -> None:
        if text != self.said and not self.quiet:
            click.echo(text, err=True)
        self.said = text


class Summary(TypedDict):
    """A result in plain types."""

    study: str
    folder: str
    rounds: int
    merged: int
    loss: float | None
    measures: dict[str, dict[str, float]]
    refused: dict[str, int]
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
        bytes={"down": sum(event["down"] for event in made.events), "up": sum(event["up"] for event in made.events)},
    )


def show_result(made: StudyResult, as_json: bool) -> None:
    found = summary(made)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"{found['study']}: {counted(found['rounds'], 'round')}, {found['merged']} merged, in {found['folder']}")
    if found["loss"] is not None:
        click.echo(f"loss {found['loss']:.6g}")
    for site, one in found["measures"].items():
        click.echo(f"  {site}: " + ", ".join(f"{name} {value:.4g}" for name, value in one.items()))
    for what, count in found["refused"].items():
        click.echo(f"  refused {count} times: {what}")
    click.echo(f"{found['bytes']['down']:,} bytes to sites, {found['bytes']['up']:,} back")
