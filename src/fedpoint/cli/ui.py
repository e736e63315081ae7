"""`fedpoint ui`: runs, a playground and the algorithms, in the browser."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.option(
    "--runs",
    default="runs",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the runs to show; it may not exist yet.",
)
@click.option(
    "--port", default=8642, show_default=True, type=click.IntRange(0, 65535), help="Port to bind; 0 takes any free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to bind; anything but loopback requires an access token.",
)
def ui(runs: Path, port: int, host: str) -> None:
    """Serve a page with live runs and a playground.

    The sliders of the playground run the lectures' labs. The page is for this machine alone unless --host says
    otherwise; its address then carries a random token. Ctrl-C stops the server. Needs the extra `ui`.
    """
    from fedpoint.core.errors import FedpointError

    try:
        import latex2mathml  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise FedpointError(
            "fedpoint ui needs latex2mathml, starlette and uvicorn: pip install 'fedpoint[ui]'"
        ) from None
    from fedpoint.ui.server import serve

    if not serve(runs, host, port, tell=lambda text: click.echo(text, err=True)):
        os._exit(0)  # a compilation is under way, which Python would wait for; there is nothing to lose
