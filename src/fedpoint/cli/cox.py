"""`fedpoint cox`: proportional hazards over the sites of a table."""

from __future__ import annotations

from pathlib import Path

import click

from fedpoint.cli import options, regression


@click.command()
@regression.file
@regression.figure
@regression.html
@options.as_json
def cox(file: Path, figure: Path | None, html: Path | None, as_json: bool) -> None:
    """Fit a Cox model over sites, stratified by site.

    FILE names the model and the table:

    \b
    formula = "age + C(sex)"
    data = "patients.csv"
    groups = "centre"
    time = "days"
    event = "died"

    Further keys: ties, floor, small.
    """
    from fedpoint.statistics.files import cox_of

    fit = cox_of(file)
    regression.tell(fit, fit.summary(), fit.formula, as_json, figure, html)
