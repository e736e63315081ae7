"""The documentation says what the program does: tables are generated, code runs, links lead somewhere."""

import linecache
import re
from pathlib import Path

import pytest

from fedpoint.show.tables import algorithms_markdown

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


def test_table_of_algorithms():
    text = (ROOT / "README.md").read_text()
    table = re.search(r"<!-- algorithms:.*?-->\n(.*?)\n?<!-- /algorithms -->", text, re.S)
    assert table, "README.md has lost the marks of its table"
    assert table.group(1).strip() == algorithms_markdown(), "run: fedpoint algorithms --markdown"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i, block in enumerate(PYTHON.findall(page.read_text())):
        name = f"{page.name}, block {i + 1}"
        linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)  # as for a notebook's cell
        exec(compile(block, name, "exec"), {})


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
