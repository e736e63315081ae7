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
    help="The folder whose runs are shown; it need not be there yet.",
)
@click.option("--port", default=8642, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Elsewhere than here, a token is asked for.")
def ui(runs: Path, port: int, host: str) -> None:
    """Show runs, live while they go on, and a playground: sliders that rerun the lectures' labs, beside the forecast.

    The page is for this machine alone, unless --host says otherwise: it then has a random token in its address, which
    is printed. Ctrl-C ends it. Needs the extra `ui`.
    """
    from fedpoint.core.errors import FedpointError

    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise FedpointError("fedpoint ui needs starlette and uvicorn: pip install 'fedpoint[ui]'") from None
    from fedpoint.ui.server import serve

    if not serve(runs, host, port, tell=lambda text: click.echo(text, err=True)):
        os._exit(0)  # a compilation is under way, which Python would wait for; there is nothing to lose
