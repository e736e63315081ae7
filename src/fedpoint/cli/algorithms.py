"""`fedpoint algorithms`: the catalogue."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import TYPE_CHECKING

import click

from fedpoint.cli import options

if TYPE_CHECKING:
    from fedpoint.core.algorithm import Card
    from fedpoint.core.types import Plain


@click.command()
@click.argument("name", required=False)
@options.as_json
@click.option("--markdown", is_flag=True, help="Print the README's table.")
def algorithms(name: str | None, as_json: bool, markdown: bool) -> None:
    """List the algorithms, or describe one.

    With NAME: what it does, its parameters, where it converges, and what to cite.
    """
    from fedpoint.algorithms.catalogue import card_of
    from fedpoint.core.algorithm import CATALOGUE

    cards = [card_of(name)] if name else [card for _, card in sorted(CATALOGUE.items())]
    if markdown:
        from fedpoint.show.tables import algorithms_markdown

        click.echo(algorithms_markdown())
    elif as_json:
        click.echo(json.dumps([_row(card) for card in cards], indent=2, ensure_ascii=False, default=str))
    elif name:
        _one(cards[0])
    else:
        _table(cards)


def _parameters(card: Card) -> dict[str, Plain]:
    """Defaults by name; "required" where there is none."""
    fields = dataclasses.fields(card.cls) if card.cls is not None else ()
    return {f.name: "required" if f.default is dataclasses.MISSING else f.default for f in fields}


def _row(card: Card) -> dict[str, Plain]:
    return {
        "name": card.name,
        "title": card.title,
        "summary": card.summary,
        "limit": card.limit,
        "fails": card.fails,
        "lecture": card.taught,
        "parameters": _parameters(card),
        "participation": [*card.participation] if card.participation else "any",
        "references": [reference.text() for reference in card.references],
    }


def _table(cards: list[Card]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it does", ratio=4)
    table.add_column("where it ends", ratio=3)
    console = Console(highlight=False)
    wide = console.width >= 120
    if wide:
        table.add_column("parameters", ratio=3)
    for card in cards:
        table.add_row(card.name, card.summary, card.limit, *([", ".join(_parameters(card))] if wide else []))
    console.print(table)
    click.echo("fedpoint algorithms NAME describes one; fedpoint cite NAME prints its references.")


def _one(card: Card) -> None:
    from fedpoint.algorithms.catalogue import find_maker
    from fedpoint.core.docstrings import parsed

    click.echo(f"{card.title}: {card.summary}\n")
    click.echo(f"Where it ends: {card.limit}")
    if card.fails:
        click.echo(f"Not for: {card.fails}")
    if card.participation:
        reason = f" ({card.restriction})" if card.restriction else ""
        click.echo(f"Participation: {', '.join(card.participation)}{reason}")
    if card.taught:
        click.echo(f"Lecture: {card.taught}")
    click.echo("\nIn a TOML file:\n\n  [algorithm]")
    click.echo(f'  name = "{card.name}"')
    for key, default in _parameters(card).items():
        shown = f"= {json.dumps(default)}" if default not in ("required", None) else f"({default or 'optional'})"
        click.echo(f"  {key} {shown}")
    meanings = parsed(find_maker(card.name)[1].__doc__).arguments
    if meanings:
        click.echo("\nParameters:")
    for name, meaning in meanings.items():
        click.echo(textwrap.fill(f"{name}: {meaning}", 100, initial_indent="  ", subsequent_indent="      "))
    for reference in card.references:
        click.echo(f"\n{reference.text()}")
