"""The documentation says what the program does: tables are generated, code runs, links lead somewhere."""

import ast
import inspect
import linecache
import re
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import pytest

import fedpoint as fp
from fedpoint.show.tables import algorithms_markdown

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_blank_to_be_filled_in(page):
    assert re.findall(r"@[A-Z]+@", page.read_text()) == []


def test_table_of_algorithms():
    text = (ROOT / "README.md").read_text()
    table = re.search(r"<!-- algorithms:.*?-->\n(.*?)\n?<!-- /algorithms -->", text, re.S)
    assert table, "README.md has lost the marks of its table"
    assert table.group(1).strip() == algorithms_markdown(), "run: fedpoint algorithms --markdown"


def test_peers_are_those_that_were_measured():
    """Every figure of the README's table stands in the row of the same framework in benchmarks/RESULTS.md."""
    table = re.search(r"<!-- peers:.*?-->\n(.*?)<!-- /peers -->", (ROOT / "README.md").read_text(), re.S)[1]
    measured = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    softmax, new, own = (
        measured.split(heading)[1].split("\n## ")[0]
        for heading in ("## Softmax on digits\n", "## Softmax on digits from a new", "## What the peers' own")
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) == 6
    for name, speed, ratio, seconds, prox, scaffold in rows:
        found = [cell.strip() for cell in re.search(rf"^\| {re.escape(name)} \|.*", softmax, re.M)[0].split("|")]
        assert found[2:4] == [speed, ratio]
        assert re.search(rf"^\| {re.escape(name)} \| {seconds} \|", new, re.M)
        for method, verdict in (("fedprox", prox), ("scaffold", scaffold)):
            row = re.search(rf"^\| {re.escape(name)} [\d.]+ \| {method} \|.*", own, re.M)
            assert verdict in row[0] if row else verdict == ("-" if "*" not in name else "as claimed")


# Pages whose blocks take seconds each, and whose statements tests/forecast, gather, plan, prove and networks make in
# the same way; their names are held against the library below.
LONG = ("asynchrony.md", "choose.md", "plan.md", "prove.md", "regions.md", "robust.md")
LIBRARIES = ("flax", "torch")  # of blocks that are run where they are installed


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.name, marks=pytest.mark.slow if p.name in LONG else ()) for p in PAGES]
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i, block in enumerate(PYTHON.findall(page.read_text())):
        if any(re.search(rf"\b(from|import) .*\b{name}\b", block) and not find_spec(name) for name in LIBRARIES):
            continue
        name = f"{page.name}, block {i + 1}"
        linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)  # as for a notebook's cell
        exec(compile(block, name, "exec"), {})


def missing(block):
    """The names of the library in a block that are not there, and keywords that its functions do not know."""
    for node in ast.walk(ast.parse(block)):
        called = node.func if isinstance(node, ast.Call) else node
        name = ast.unparse(called) if isinstance(called, ast.Attribute) else ""
        if not re.fullmatch(r"fp(\.\w+)+", name):
            continue
        try:
            thing = attrgetter(name.removeprefix("fp."))(fp)
        except AttributeError:
            yield name
            continue
        if isinstance(node, ast.Call):
            known = inspect.signature(thing).parameters
            if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
                yield from (f"{name}({k.arg}=)" for k in node.keywords if k.arg and k.arg not in known)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_in_python_blocks_are_there(page):
    assert not [name for block in PYTHON.findall(page.read_text()) for name in missing(block)]


def test_names_that_are_not_there_are_found():
    assert list(missing("fp.run(fp.FedAvg(step=1.0), rounds=3)")) == []
    assert set(missing("fp.gtv.resolve(1)\nfp.FedAvg(stepp=1.0)")) == {"fp.gtv.resolve", "fp.FedAvg(stepp=)"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_exist():
    """Every `fedpoint NAME` and `make NAME` in the pages is one."""
    from fedpoint.cli import COMMANDS

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for block in SHELL.findall(page.read_text()):
            for program, name in re.findall(r"^(fedpoint|make) ([a-z-]+)", block, re.M):
                assert name in (COMMANDS if program == "fedpoint" else targets), f"{page.name}: {program} {name}"


def test_design_names_every_folder():
    text = (ROOT / "docs" / "design.md").read_text()
    for folder in (ROOT / "src" / "fedpoint").iterdir():
        if (folder / "__init__.py").exists():
            assert f"`{folder.name}/`" in text, f"docs/design.md does not say what {folder.name}/ is for"
