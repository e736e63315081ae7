"""What the documentation site makes by itself: front page, tutorial, a page for every algorithm, the references.

A hook of mkdocs (`make docs`). Formulas become MathML here, so that pages fetch nothing.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # where its parts lie, for whoever loads it by its path
import site_api
from site_reference import commands_page, files_page

from fedpoint.core.lectures import LECTURES

ROOT = Path(__file__).resolve().parent.parent


def cards() -> list[Any]:
    from fedpoint.core.algorithm import CATALOGUE

    own = [c for c in CATALOGUE.values() if c.cls.__module__.startswith("fedpoint.algorithms")]
    return sorted(own, key=lambda c: c.title.lower())


def pictured() -> list[Any]:
    """Those that have a forecast to be drawn beside a run."""
    from fedpoint.ui.examples import CALLS

    return [card for card in cards() if card.name in CALLS]


def algorithm_page(card: Any) -> str:
    """Formula, theory, when it fails, how it is called, references: all from the code."""
    from fedpoint.core.docstrings import parsed
    from fedpoint.ui.examples import method

    told = parsed(card.cls.__doc__)
    parts = [f"# {card.title}", f"{card.summary[0].upper()}{card.summary[1:]}.", told.words]
    parts.append("\n".join(f"- **`{name}`**: {meaning}" for name, meaning in told.arguments.items()))
    facts = [
        ("Where it ends", card.limit),
        ("Not for", card.fails),
        ("Lecture", card.taught and f"{card.taught} ([map](../lectures.md))"),
    ]
    facts.append(("Runs", "on a network" if card.network else "with a fusion center"))
    if card.participation:
        facts.append(("Participation", f"{', '.join(card.participation)}: {card.restriction}"))
    parts.append("\n".join(["| | |", "|---|---|", *(f"| **{a}** | {b} |" for a, b in facts if b)]))
    if told.example:
        parts.append(f"```pycon\n{told.example}\n```")
    forms = method(card.name).closed_forms() if card in pictured() else {}
    theory = [(name, form.__doc__) for name, form in forms.items() if form.__doc__]
    if theory:
        parts.append("## What theory says, in closed form")
        parts += [f"**`{name}`** {inspect.cleandoc(doc)}" for name, doc in theory]
    if card in pictured():
        parts += [
            "## A picture",
            f'<div class="drawn">{drawn(card)}</div>',
            f"```python\n{picture_code(card)}```",
        ]
    parts.append("## References")
    parts += [f"- {reference.text()}" for reference in card.references] or ["- The lectures."]
    return "\n\n".join(parts) + "\n"


def picture_code(card: Any) -> str:
    """The curve of a run beside its forecast, as a reader would draw it."""
    from fedpoint.ui.examples import code

    return f'{code(card.name, card.network)}f.plot("{card.name}.svg", run=run)\n'


def drawn(card: Any) -> str:
    """What the page's code draws, from the curves that are kept with the package and computed again by its tests."""
    from fedpoint.show import svg
    from fedpoint.show.drawing import Side, panel
    from fedpoint.ui.examples import REPEATS, kept

    curves = kept()[card.name]
    x = [float(t) for t in range(len(curves["run"]))]
    lines = [
        {"name": "run", "colour": 0, "width": "thick", "x": x, "y": curves["run"].tolist()},
        {"name": "forecast", "colour": "ink", "dash": "dashed", "x": x, "y": curves["forecast"].tolist()},
        {"name": "floor", "colour": 1, "level": float(curves["floor"][0])},
    ]
    across, up = Side("communication rounds", whole=True), Side("squared distance to the solution", log=True)
    return svg.picture(panel(lines, across, up, f"{card.title}, mean of {REPEATS} runs"))


def algorithm_index() -> str:
    from fedpoint.show.tables import algorithms_markdown

    table = algorithms_markdown()
    for card in cards():
        table = table.replace(f"| `{card.name}` |", f"| [`{card.name}`]({card.name}.md) |")
    return f"# Algorithms\n\n{table}\n"


def front_page() -> str:
    """The README, its links turned for this folder."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\[([^\]]*)\]\([A-Z]+(?:\.md|\.cff)?\)", r"\1", text)


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

    made = {"index.md": front_page(), "algorithms/index.md": algorithm_index(), **site_api.pages()}
    made |= {"reference/commands.md": commands_page(), "reference/files.md": files_page()}
    print("tutorial", file=sys.stderr)
    made["tutorial.md"] = tutorial_page()
    made |= {f"algorithms/{card.name}.md": algorithm_page(card) for card in cards()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


# Words of the glossary, and where it explains them.
TERMS = {
    "hubs?": "hub",
    "fields?": "field",
    "participation": "participation",
    r"w\\?\*": "w",
    "fixed points?": "fixed-point-and-limit",
    "bias": "bias",
    "drift": "drift",
    "floor": "floor",
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    if "/" not in here:  # pages that are files of the project lead to others of them, which the site has not
        markdown = re.sub(r"\[([^\]]*)\]\(\.\./(?!experiment)[^)]*\)", r"`\1`", markdown)
    return with_mathml(explained(linked(markdown, here), here))


def linked(text: str, here: str) -> str:
    """Public names in code lead to where they are explained, from the page at this path."""
    up = "../" * here.count("/")

    def link(found: re.Match) -> str:
        target = names().get(found[2])
        return f"[{found[1]}]({up}{target})" if target else found[0]

    pieces = re.split(r"(^```.*?^```|^#.*?$|\[[^\]]*\]\([^)]*\))", text, flags=re.M | re.S)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"(`(fp(?:\.\w+)+)(?:\([^`\n]*\))?`)", link, pieces[i])
    return "".join(pieces)


def explained(text: str, here: str) -> str:
    """The first use of each word of the glossary on a page leads there; every lecture leads to the map of lectures."""
    up = "../" * here.count("/")
    if here != "lectures.md":
        text = _outside_code(text, lambda part: LECTURE.sub(partial(_lecture_link, up), part))
    if here == "glossary.md" or here.startswith("reference/"):
        return text
    for word, anchor in TERMS.items():
        text = _first_outside_code(text, rf"(?<![\w*`-]){word}(?![\w*`-])", f"]({up}glossary.md#{anchor})")
    return text


LECTURE = re.compile(r"\b[Ll]ecture (00\d)\b")
# What stays as it is: code, formulas, links, headings, tables, HTML, and lines of blocks.
KEPT = re.compile(
    r"(^```.*?^```|`[^`\n]*`|\$\$.+?\$\$|(?<![\\\w$])\$(?!\s)[^$]+?(?<!\s)\$|"
    r"!?\[[^\]]*\]\([^)]*\)|^(?:#|\||<|!!!|    ).*?$)",
    re.M | re.S,
)


def _lecture_link(up: str, found: re.Match) -> str:
    lecture = LECTURES[found[1]]
    return f'[{found[0]}]({up}lectures.md "{lecture}")'


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    pieces = KEPT.split(text)
    pieces[::2] = [change(piece) for piece in pieces[::2]]
    return "".join(pieces)


def _first_outside_code(text: str, word: str, target: str) -> str:
    pieces = KEPT.split(text)
    for i in range(0, len(pieces), 2):
        pieces[i], found = re.subn(word, lambda found: f"[{found[0]}{target}", pieces[i], count=1)
        if found:
            break
    return "".join(pieces)


@cache
def names() -> dict[str, str]:
    return site_api.links()


def with_mathml(text: str) -> str:
    """$...$ and $$...$$ outside code as MathML."""
    from fedpoint.ui.mathml import formula

    def displayed(found: re.Match) -> str:
        return '\n\n<div class="formula">' + formula(found.group(1).replace("\n", " ")) + "</div>\n\n"

    def inline(found: re.Match) -> str:
        # In a span, because Markdown takes <math> at the beginning of a line for a paragraph of its own.
        return f"<span>{formula(found.group(1).replace(chr(10), ' '), block=False)}</span>"

    pieces = re.split(r"(^```.*?^```|`[^`\n]*`)", text, flags=re.M | re.S)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"\$\$(.+?)\$\$", displayed, pieces[i], flags=re.S)
        pieces[i] = re.sub(r"(?<![\\\w$])\$(?!\s)([^$]+?)(?<!\s)\$", inline, pieces[i])
    return "".join(pieces)


__all__ = ["algorithm_page", "front_page", "on_files", "on_page_markdown", "played", "with_mathml"]
