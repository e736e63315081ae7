"""Which names of the engine does fedpoint use, and where is each now? Read from the sources' syntax trees.

Imports and the keywords with which what was imported is called; attributes of imported names; methods that our classes
override or inherit; components and modules that are named in text; functions of the administrator's session.
"""

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path
from typing import NamedTuple

import nvflare

ROOT = Path(nvflare.__file__).parent
DOTTED = re.compile(r"nvflare(\.\w+)+\.?")
SESSION = "nvflare.fuel.flare_api.flare_api.Session"


class Use(NamedTuple):
    """A dotted name of the engine's, the keywords it is called with, and where."""

    name: str
    where: str
    keywords: tuple[str, ...] = ()


def module_of(name):
    """The module in front of a dotted name, and the rest of it. By the files: some modules need what is not there."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[1:end])
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            return ".".join(parts[:end]), parts[end:]
    return "", parts


def found(name):
    """What a name stands for; None where it does not resolve. A module is not imported for itself."""
    module, rest = module_of(name)
    if not rest:
        return module or None
    thing = importlib.import_module(module) if module else None
    for part in rest:
        thing = getattr(thing, part, None)
    return thing


def places(name):
    """Modules of the engine that define a class or a function of this name today."""
    defines = re.compile(rf"^(?:class|def) {re.escape(name)}\b|^{re.escape(name)} = ", re.MULTILINE)
    paths = (path for path in sorted(ROOT.rglob("*.py")) if defines.search(path.read_text(errors="replace")))
    return [".".join(["nvflare", *path.relative_to(ROOT).with_suffix("").parts]) for path in paths]


def trouble(use):
    """What is wrong with a use, for whoever must mend it; None where nothing is."""
    thing, last = found(use.name), use.name.rpartition(".")[2]
    said = f"{use.where} uses {use.name}"
    if thing is None:
        now = places(last)
        moved = f"it is in {' and in '.join(now)} now" if now else f"nothing there is called {last} any more"
        return f"{said}, which nvflare {nvflare.__version__} does not have: {moved}"
    if use.keywords and callable(thing):
        parameters = inspect.signature(thing).parameters.values()
        known = {one.name for one in parameters}
        if not any(one.kind is one.VAR_KEYWORD for one in parameters) and not set(use.keywords) <= known:
            unknown = ", ".join(sorted(set(use.keywords) - known))
            return f"{said} with {unknown}, which it does not take in nvflare {nvflare.__version__}: {sorted(known)}"
    return None


class Uses(ast.NodeVisitor):
    """The uses in one file."""

    def __init__(self, text, where):
        self.where, self.found, self.names, self.texts = where, [], {}, {}
        self.tree = ast.parse(text)
        for node in self.tree.body:  # text that a dotted name may be made of
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                self.texts |= {target.id: str(node.value.value) for target in node.targets}
        for node in ast.walk(self.tree):  # first, as functions import what they use
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nvflare":
                self.names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        self.visit(self.tree)

    def add(self, name, node, keywords=()):
        self.found.append(Use(name, f"{self.where}, line {node.lineno},", tuple(keywords)))

    def visit_Import(self, node):
        for one in node.names:
            if one.name.split(".")[0] == "nvflare":
                self.add(one.name, node)

    def visit_ImportFrom(self, node):
        for one in node.names:
            if (node.module or "").split(".")[0] == "nvflare":
                self.add(f"{node.module}.{one.name}", node)

    def visit_Attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id in self.names:
            self.add(f"{self.names[node.value.id]}.{node.attr}", node)
        self.generic_visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id in self.names:
            self.add(self.names[node.func.id], node, [one.arg for one in node.keywords if one.arg])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "ask" and node.args:
            for name in self.said(node.args[0]):
                self.add(f"{SESSION}.{name}", node)
        self.generic_visit(node)

    def visit_ClassDef(self, node):
        """What a subclass overrides or takes from its base must be there; what begins with _ is its own."""
        bases = [self.names[one.id] for one in node.bases if isinstance(one, ast.Name) and one.id in self.names]
        methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
        own = {one.name for one in methods} | {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
        own |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}
        for base in bases:
            for one in methods:
                if not one.name.startswith("_"):
                    self.add(f"{base}.{one.name}", one)
            for one in ast.walk(node):
                inherited = (
                    isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self"
                )
                if inherited and one.attr not in own:
                    self.add(f"{base}.{one.attr}", one)
        self.generic_visit(node)

    def said(self, node):
        """The texts that an expression may be: of constants, f-strings of them, and choices."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Name(id=name) if name in self.texts:
                return [self.texts[name]]
            case ast.IfExp():
                return [*self.said(node.body), *self.said(node.orelse)]
            case ast.FormattedValue():
                return self.said(node.value)
            case ast.JoinedStr():
                return ["".join(parts) for parts in itertools.product(*map(self.said, node.values))]
        return []

    def visit_JoinedStr(self, node):
        self.text(node)

    def visit_Constant(self, node):
        self.text(node)

    def text(self, node):
        for one in self.said(node):
            if DOTTED.fullmatch(one):
                self.add(one.rstrip("."), node)


def uses(folder):
    """All uses in the sources below a folder."""
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        if "nvflare" in text or "flare" in path.parts:
            yield from Uses(text, str(path.relative_to(folder.parent))).found
