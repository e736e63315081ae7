"""What `fedpoint glm` and `fedpoint cox` share: results as text, JSON, a picture and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.cli import options
from fedpoint.core.errors import FedpointError

if TYPE_CHECKING:
    from fedpoint.statistics.cox import CoxFit
    from fedpoint.statistics.glm_fit import GLMFit

file = click.argument("file", type=click.Path(path_type=Path))
html = click.option("--html", type=click.Path(path_type=Path), help="Write a page with the coefficient plot here.")
figure = options.figure("Draw the coefficients; the suffix chooses png, svg or pdf.")


def tell(fit: GLMFit | CoxFit, summary: str, title: str, as_json: bool, figure: Path | None, html: Path | None) -> None:
    """Print a fit, and write what was asked for."""
    click.echo(json.dumps(fit.to_dict(), indent=2) if as_json else summary)
    if figure is not None:
        fit.plot(figure)
    if html is not None:
        from fedpoint.show.regression_page import page
        from fedpoint.store import disk

        if not html.parent.is_dir():
            raise FedpointError(f"the folder {html.parent} does not exist: create it, or write {html.name} elsewhere")
        with disk.atomic(html) as out:
            out.write(page(title, summary, fit.plot()).encode())
