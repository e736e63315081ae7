"""What the documentation site makes by itself: the tutorial, a page for every algorithm, the API, the front page.

A hook of mkdocs (`make docs`). Formulas become MathML here, so that pages fetch nothing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SUBMODULES = (
    "problems",
    "theory",
    "metrics",
    "gtv",
    "data",
    "channel",
    "steps",
    "staleness",
    "participation",
    "privacy",
)


def cards() -> list[Any]:
    from fedpoint.core.algorithm import CATALOGUE

    own = [c for c in CATALOGUE.values() if c.cls.__module__.startswith("fedpoint.algorithms")]
    return sorted(own, key=lambda c: c.title.lower())


def algorithm_page(card: Any) -> str:
    """Formula, theory, when it fails, how it is called, references: all from the code."""
    from fedpoint.ui.examples import method

    told = inspect.cleandoc(card.cls.__doc__ or "").split("References:")[0].rstrip()
    text, _, example = told.partition(">>>")
    parts = [f"# {card.title}", f"{card.summary[0].upper()}{card.summary[1:]}.", _lists(text)]
    facts = [("Where it ends", card.limit), ("Not for", card.fails), ("Lecture", card.lecture)]
    facts.append(("Runs", "on a network" if card.network else "with a fusion center"))
    if card.participation:
        facts.append(("Participation", f"{', '.join(card.participation)}: {card.restriction}"))
    parts.append("\n".join(["| | |", "|---|---|", *(f"| **{a}** | {b} |" for a, b in facts if b)]))
    if example:
        parts.append(f"```pycon\n>>>{example.rstrip()}\n```")
    theory = [(name, form.__doc__) for name, form in method(card.name).closed_forms().items() if form.__doc__]
    if theory:
        parts.append("## What theory says, in closed form")
        parts += [f"**`{name}`** {inspect.cleandoc(doc)}" for name, doc in theory]
    parts += ["## A picture", f"![A run beside its forecast]({card.name}.svg)", f"```python\n{picture_code(card)}```"]
    parts.append("## References")
    parts += [f"- {reference.text()}" for reference in card.references] or ["- The lectures."]
    return "\n\n".join(parts) + "\n"


def picture_code(card: Any) -> str:
    """The curve of a run beside its forecast, as a reader would draw it."""
    from fedpoint.ui.examples import code

    return f'{code(card.name, card.network)}f.plot("{card.name}.svg", run=run)\n'


def draw(card: Any, folder: Path) -> Path:
    """Do what the page shows."""
    exec(picture_code(card).replace(f'"{card.name}.svg"', repr(str(folder / f"{card.name}.svg"))), {})
    return folder / f"{card.name}.svg"


def _lists(text: str) -> str:
    """`Args:` of a docstring as a list."""
    head, _, arguments = text.partition("Args:")
    if not arguments:
        return head.strip()
    items = re.sub(r"\n(?=\S)", "\n", inspect.cleandoc(arguments))
    items = re.sub(r"^(\w[\w, ]*):", r"- **\1**:", items, flags=re.M)
    return f"{head.strip()}\n\n{items}"


def algorithm_index() -> str:
    from fedpoint.show.tables import algorithms_markdown

    table = algorithms_markdown()
    for card in cards():
        table = table.replace(f"| `{card.name}` |", f"| [`{card.name}`]({card.name}.md) |")
    return f"# Algorithms\n\n{table}\n"


def api_page() -> str:
    """Every public name with its signature and what it says of itself."""
    fp = importlib.import_module("fedpoint")
    parts = ["# API", "`import fedpoint as fp`. Names load when they are first used."]
    for prefix, names in [("fp", fp._HOME), *((f"fp.{m}", None) for m in SUBMODULES)]:
        module = fp if names is not None else getattr(fp, prefix.removeprefix("fp."))
        parts.append(f"## `{prefix}`")
        public = names if names is not None else getattr(module, "__all__", _own(module))
        parts += [_entry(prefix, name, getattr(module, name)) for name in sorted(public, key=str.lower)]
    return "\n\n".join(parts) + "\n"


def _own(module: Any) -> list[str]:
    """Functions, and classes that are made there."""

    def own(value: Any) -> bool:
        return inspect.isfunction(value) or (inspect.isclass(value) and value.__module__ == module.__name__)

    return [name for name, value in vars(module).items() if not name.startswith("_") and own(value)]


def _entry(prefix: str, name: str, value: Any) -> str:
    try:
        call = str(inspect.signature(value)) if callable(value) else ""
    except (TypeError, ValueError):
        call = ""
    call = re.sub(r" at 0x[0-9a-f]+|<[^>]*>", "...", call)
    first = (inspect.getdoc(value) or "").split("\n\n")[0]
    return f"### `{prefix}.{name}`\n\n`{name}{call}`\n\n{first}"


def front_page() -> str:
    """The README, its links turned for this folder."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\[([^\]]*)\]\((CHANGELOG\.md|LICENSE)\)", r"\1", text)


# The tutorial, which is a notebook


class Shown(NamedTuple):
    """A cell and what came of it: what it printed, and its last value."""

    kind: str
    source: str
    printed: str = ""
    value: Any = None


def played(notebook: Path, names: dict[str, Any]) -> Iterator[Shown]:
    """Run a notebook from top to bottom, in these names, with its files in the current folder."""
    for cell in json.loads(notebook.read_text())["cells"]:
        source, value = "".join(cell["source"]), None
        if cell["cell_type"] != "code":
            yield Shown("text", source)
            continue
        *rest, last = ast.parse(source).body
        shows = isinstance(last, ast.Expr)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module(rest if shows else [*rest, last], []), notebook.name, "exec"), names)
            if shows:
                value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names)
        yield Shown("code", source, printed.getvalue(), value)


def tutorial_page() -> str:
    """The notebook with what it shows, computed now."""
    parts = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for kind, source, printed, value in played(ROOT / "docs" / "tutorial.ipynb", {}):
            parts.append(source if kind == "text" else f"```python\n{source}\n```")
            if printed:
                parts.append(f"```text\n{printed.rstrip()}\n```")
            if hasattr(value, "_repr_html_"):
                parts.append(re.sub(r"\n\s*", " ", value._repr_html_()))
            elif value is not None:
                parts.append(f"```text\n{value!r}\n```")
    parts.insert(1, "This page is a [notebook](tutorial.ipynb), run when the site was built.")
    return "\n\n".join(parts) + "\n"


# mkdocs


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    made = {"index.md": front_page(), "api.md": api_page(), "algorithms/index.md": algorithm_index()}
    print("tutorial", file=sys.stderr)
    made["tutorial.md"] = tutorial_page()
    made |= {f"algorithms/{card.name}.md": algorithm_page(card) for card in cards()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    folder = Path(tempfile.mkdtemp())
    for card in cards():
        print(f"picture of {card.title}", file=sys.stderr)
        files.append(File.generated(config, f"algorithms/{card.name}.svg", content=draw(card, folder).read_bytes()))
    shutil.rmtree(folder)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"`\1`", markdown)  # files of the project, not of the site
    return with_mathml(markdown)


def with_mathml(text: str) -> str:
    """$...$ and $$...$$ outside code as MathML."""
    from fedpoint.ui.mathml import formula

    def displayed(found: re.Match) -> str:
        return "\n\n" + formula(found.group(1).replace("\n", " ")) + "\n\n"

    def inline(found: re.Match) -> str:
        # In a span, because Markdown takes <math> at the beginning of a line for a paragraph of its own.
        return f"<span>{formula(found.group(1).replace(chr(10), ' '), block=False)}</span>"

    pieces = re.split(r"(^```.*?^```|`[^`\n]*`)", text, flags=re.M | re.S)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"\$\$(.+?)\$\$", displayed, pieces[i], flags=re.S)
        pieces[i] = re.sub(r"(?<![\\\w$])\$(?!\s)([^$]+?)(?<!\s)\$", inline, pieces[i])
    return "".join(pieces)


__all__ = ["algorithm_page", "api_page", "front_page", "on_files", "on_page_markdown", "played", "with_mathml"]
