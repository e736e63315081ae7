"""One server of the live page for all tests of a process."""

import pytest
from click.testing import CliRunner
from on_loopback import FIRST, serving


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """One server for all tests of a process, with one finished run from a file."""
    from fedpoint.cli import main

    runs = tmp_path_factory.mktemp("runs")
    (runs / "first.toml").write_text(FIRST)
    done = CliRunner().invoke(main, ["run", str(runs / "first.toml"), "--folder", str(runs / "first"), "-q"])
    assert done.exit_code == 0, done.output
    with serving(runs) as client:
        client.runs = runs
        yield client
