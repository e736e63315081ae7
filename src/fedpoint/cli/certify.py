"""`fedpoint certify`: which method is this, and which mistake was made in it?"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from fedpoint.cli import options
from fedpoint.core.errors import FedpointError, nearest

if TYPE_CHECKING:
    from fedpoint.core.algorithm import Algorithm
    from fedpoint.results.certificate import Setting
    from fedpoint.verbs.certify.methods import Settings
    from fedpoint.verbs.certify.world import Rounds

Subject: TypeAlias = "Algorithm | type[Algorithm] | Rounds"


@click.command()
@click.argument("subject", metavar="FILE.py:NAME")
@click.option("--claims", metavar="NAME", help="Method that it should be; default: the class it derives from.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting that it uses, as step=0.05.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the problems and the noise.")
@options.as_json
@click.pass_context
def certify(
    ctx: click.Context, subject: str, claims: str | None, settings: tuple[str, ...], seed: int, as_json: bool
) -> None:
    """Examine an algorithm in a Python file; the exit status is 1 if it has a mistake.

    NAME is a function round(w, agents) -> w, an algorithm's class, or an object of one. The file is executed.
    """
    from fedpoint.verbs.certify import certify as examine

    given = dict(map(_setting, settings))
    found = load(subject)
    if isinstance(found, type):
        found, given = make(found, given)
    certificate = examine(found, claims, seed, **given)
    click.echo(json.dumps(certificate.to_dict(), indent=2) if as_json else certificate.text())
    if not certificate.passed:
        ctx.exit(1)


def load(subject: str) -> Subject:
    """What FILE.py:NAME names."""
    file, colon, name = subject.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        raise FedpointError(f"name a file and what is in it, as my_method.py:round; got {subject!r}")
    path = Path(file).resolve()
    if not path.is_file():
        raise FedpointError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # as for `python FILE.py`: it may import what lies beside it
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if name not in vars(module):
        own = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise FedpointError(f"{file} has no {name}: {nearest(name, own) if own else 'it defines nothing to call'}")
    return vars(module)[name]


def make(cls: type[Algorithm], given: Settings) -> tuple[Algorithm, Settings]:
    """An object of a class with the settings that are fields of it, and the other settings.

    The battery puts in its own step: any will do here.
    """
    from fedpoint.core.algorithm import Algorithm

    if not issubclass(cls, Algorithm):
        raise FedpointError(f"{cls.__name__} is not an fp.Algorithm: name a class of one, an object or a function")
    wanted = inspect.signature(cls).parameters
    fields = {name: value for name, value in given.items() if name in wanted}
    if "step" in wanted:
        fields.setdefault("step", 0.1)
    missing = [n for n, p in wanted.items() if p.default is p.empty and n not in fields]
    if missing:
        raise FedpointError(f"{cls.__name__} needs {', '.join(missing)}: --set {missing[0]}=...")
    return cls(**fields), {name: value for name, value in given.items() if name not in wanted}


def _setting(text: str) -> tuple[str, Setting]:
    """NAME=VALUE, the value as in TOML; what is none, as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise FedpointError(f"--set takes NAME=VALUE, as step=0.05; got {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()
