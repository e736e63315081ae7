"""The command line as its users call it."""

import textwrap

import click.testing
import pytest

from fedpoint.cli import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every test in a folder of its own: runs go to ./runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def cli():
    """cli("run", "a.toml") -> the result, of an exit status that is expected."""

    def call(*arguments, status=0):
        result = click.testing.CliRunner().invoke(main, [str(a) for a in arguments], prog_name="fedpoint")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    return call


@pytest.fixture
def toml(tmp_path):
    """toml(text) -> the path of a file with that text."""

    def write(text, name="file.toml"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write
