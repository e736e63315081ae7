"""Whose code is it, and which of its lines only refuse something?"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import site
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Literal, TypeAlias

from fedpoint.results.certificate import Unexercised

Owner: TypeAlias = Literal["user", "plumbing", "others"]  # plumbing: what lies between a line and an operation


@cache
def owner_of(file: str) -> Owner:
    """Whose a file of source is."""
    path, plumbing, others, python = Path(file).resolve(), *_folders()
    if not linecache.getline(file, 1) or any(map(path.is_relative_to, plumbing)):
        return "plumbing"
    if any(map(path.is_relative_to, others)):
        return "others"
    return "plumbing" if path.is_relative_to(python) else "user"


@cache
def _folders() -> tuple[list[Path], list[Path], Path]:
    """Of NumPy and JAX, of fedpoint and whatever is installed, and of Python itself."""
    found = [importlib.util.find_spec(name) for name in ("numpy", "jax", "jaxlib", "fedpoint")]
    *plumbing, fedpoint = [Path(spec.origin or "").resolve().parent for spec in found if spec is not None]
    installed = [Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())]
    return plumbing, [fedpoint, *installed], Path(sysconfig.get_path("stdlib")).resolve()


def not_watched(name: str, functions: Iterable[object]) -> list[Unexercised]:
    """What to say of a subject that cannot be watched: one that was typed into an interpreter, or is installed."""
    linecache.checkcache()  # a file may have changed since it was read
    files = {function.__code__.co_filename for function in functions if isinstance(function, FunctionType)}
    if all(owner_of(file) == "user" for file in files):
        return []
    available = all(linecache.getline(file, 1) for file in files)
    why = "it belongs to an installed package" if available else "its source is not available"
    return [Unexercised("", 0, name, why)]


def refusals(file: str) -> set[int]:
    """Lines that raise an error, or decide whether one is raised: they are there to do nothing."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a notebook's cell may hold more than Python
        return set()
    return {line for node in ast.walk(tree) for part in _refusing(node) for line in _lines(part)}


def _refusing(node: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    if isinstance(node, ast.Raise | ast.Assert):
        yield node
    if isinstance(node, ast.If) and all(isinstance(statement, ast.Raise) for statement in node.body):
        yield node.test


def _lines(part: ast.stmt | ast.expr) -> range:
    return range(part.lineno, (part.end_lineno or part.lineno) + 1)
