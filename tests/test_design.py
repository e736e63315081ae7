"""docs/design.md speaks of the house that stands: its files exist, and its table of folders is the order of imports."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "design.md").read_text()


def test_files_that_the_page_names_exist():
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", TEXT))
    missing = {name for name in named if not (ROOT / name).exists() and not (ROOT / "src" / "fedpoint" / name).exists()}
    assert len(named) > 30
    assert not missing


def test_the_table_of_folders_is_the_order_of_imports():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [layer for layer in reversed(contract["layers"]) if not layer.startswith("(")]
    table = TEXT.split("## Where things are")[1].split("## Rules")[0]
    rows = [re.findall(r"`([a-z_]+)/`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]
    assert [name for row in rows for name in row] == layers
    folders = {path.parent.name for path in (ROOT / "src" / "fedpoint").glob("*/__init__.py")}
    assert set(layers) == folders
