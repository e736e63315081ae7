"""`fedpoint certify`: which method is this, and which mistake was made in it?"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import sys
import tomllib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import click

from fedpoint.cli import options
from fedpoint.cli.status import Status
from fedpoint.core.errors import FedpointError, nearest

if TYPE_CHECKING:
    from fedpoint.core.algorithm import Algorithm
    from fedpoint.results.certificate import Setting
    from fedpoint.verbs.certify.methods import Settings
    from fedpoint.verbs.certify.world import Rounds

Subject: TypeAlias = "Algorithm | type[Algorithm] | Rounds"
STATUS = {"passed": Status.FINE, "convicted": Status.CONTRADICTED, "unknown": Status.UNDECIDED}


@click.command()
@click.argument("subject", metavar="FILE.py:NAME")
@click.option("--claims", metavar="NAME", help="Method that it claims to be; default: the method it derives from.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting, such as step=0.05; repeatable."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the test problems and their noise.")
@options.as_json
@click.pass_context
def certify(
    ctx: click.Context, subject: str, claims: str | None, settings: tuple[str, ...], seed: int, as_json: bool
) -> None:
    """Find out which method a Python file implements, and which mistake it makes.

    NAME is a function round(w, agents) -> w, a class of fp.Algorithm, or an object of one. The file is executed. Exit
    status: 0 if it passed, 1 if it was convicted of a mistake, 3 if the verdict is unknown.
    """
    from fedpoint.verbs.certify import certify as examine

    given = dict(map(setting, settings))
    # What the file prints must not come between the braces of a JSON document.
    printing = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with printing, opened(subject) as found:
        if isinstance(found, type):
            found, given = make(found, given)
        certificate = examine(found, claims, seed, **given)
    click.echo(json.dumps(certificate.to_dict(), indent=2) if as_json else certificate.text())
    ctx.exit(STATUS[certificate.verdict])


@contextlib.contextmanager
def opened(subject: str) -> Iterator[Subject]:
    """What FILE.py:NAME names; meanwhile, as for `python FILE.py`, what lies beside the file can be imported."""
    file, colon, name = subject.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        raise FedpointError(f"give FILE:NAME, such as my_method.py:round; got {subject!r}")
    path = Path(file).resolve()
    if not path.is_file():
        raise FedpointError(f"there is no file {file}")
    with _importing_from(path.parent):
        found = vars(_executed(file, path))
        if name not in found:
            own = [n for n, value in found.items() if callable(value) and not n.startswith("_")]
            raise FedpointError(f"{file} has no {name}: {nearest(name, own) if own else 'it defines nothing to call'}")
        yield found[name]


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Modules of this folder may be imported meanwhile; afterwards `sys.path` and `sys.modules` know nothing of it."""
    path, modules = list(sys.path), dict(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        # Others stay: what was loaded from elsewhere may be in use, and not everything can be loaded twice.
        for name, module in list(sys.modules.items()):
            if module is not modules.get(name) and _lies_in(folder, sys.modules.get(name.partition(".")[0])):
                del sys.modules[name]
                sys.modules.update({name: modules[name]} if name in modules else {})


def _lies_in(folder: Path, module: ModuleType | None) -> bool:
    """Whether a top-level module is a file of the folder, or a package in it."""
    file = None if module is None else vars(module).get("__file__")
    return file is not None and folder in list(Path(file).resolve().parents)[:2]


def _executed(file: str, path: Path) -> ModuleType:
    """The file as a module; whatever goes wrong in it is one message with the line."""
    from fedpoint.core.own_code import line_of

    loader = SourceFileLoader(f"certified_{path.stem}", str(path))  # a name that hides no other module
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    try:
        exec(loader.source_to_code(loader.get_data(str(path)), str(path)), vars(module))
    except SyntaxError as error:
        said = f"{error.msg}{_place(error, path)}"
    except SystemExit as error:
        advice = 'put code that only runs the file as a script under if __name__ == "__main__":'
        said = f"it exits the program{line_of(error)}; {advice}"
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        said = f"{first if isinstance(error, FedpointError) else f'{type(error).__name__}: {first}'}{line_of(error)}"
    else:
        return module
    raise FedpointError(f"{file} cannot be imported: {said}")


def _place(error: SyntaxError, path: Path) -> str:
    """Where a file, or one that it imports, is not Python."""
    name = Path(error.filename or path).name
    if not error.lineno:
        return f" ({name})"
    return f" ({name}, line {error.lineno}{f': {error.text.strip()}' if error.text else ''})"


def make(cls: type[Algorithm], given: Settings) -> tuple[Algorithm, Settings]:
    """An object of a class with the settings that are fields of it, and the other settings.

    The battery puts in its own step: any will do here.
    """
    from fedpoint.core.algorithm import Algorithm
    from fedpoint.core.own_code import calling

    if not issubclass(cls, Algorithm):
        raise FedpointError(f"{cls.__name__} is not an fp.Algorithm: give such a class, an object or a function")
    wanted = inspect.signature(cls).parameters
    fields = {name: value for name, value in given.items() if name in wanted}
    if "step" in wanted:
        fields.setdefault("step", 0.1)
    missing = [n for n, p in wanted.items() if p.default is p.empty and n not in fields]
    if missing:
        raise FedpointError(f"{cls.__name__} needs {', '.join(missing)}: --set {missing[0]}=...")
    with calling(cls.__name__):
        return cls(**fields), {name: value for name, value in given.items() if name not in wanted}


def setting(text: str) -> tuple[str, Setting]:
    """NAME=VALUE, the value as in TOML; what is none, as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise FedpointError(f"--set expects NAME=VALUE, such as step=0.05; got {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()
