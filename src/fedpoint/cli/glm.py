"""`fedpoint glm`: a generalised linear model over the sites of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from fedpoint.cli import options, regression

if TYPE_CHECKING:
    from fedpoint.statistics.glm_fit import Kind


@click.command()
@regression.file
@click.option(
    "--errors",
    type=click.Choice(["model", "sandwich", "cluster"]),
    default="model",
    show_default=True,
    help="Kind of standard errors to print.",
)
@regression.figure
@regression.html
@options.as_json
def glm(file: Path, errors: str, figure: Path | None, html: Path | None, as_json: bool) -> None:
    """Fit a generalised linear model over sites.

    The result is that of the pooled rows, which never meet. FILE names the model and the table:

    \b
    formula = "died ~ age80 + los + C(type)"
    data = "medpar.csv"
    groups = "provnum"
    family = "binomial"

    Further keys: link, offset, weights, ridge, dispersion, floor, small.
    """
    from fedpoint.statistics.files import glm_of

    fit = glm_of(file)
    summary = fit.summary(cast("Kind", errors))
    regression.tell(fit, summary, fit.formula, as_json, figure, html)
