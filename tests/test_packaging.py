"""What the repository promises to somebody who clones it."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import fedpoint

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Written so that the patterns do not match this file.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|opt|Users)/")
REGISTRY_HOST = re.compile(r"\b(?:pypi|pythonhosted|anaconda|download\.pytorch)\.(?:org|com|python\.org)\b")
TORCH_PIN = re.compile(r"\btorch\s*(?:[=~!<>]=|[<>])\s*([\w.+]+)")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"].values()
    return PROJECT["dependencies"] + [requirement for extra in extras for requirement in extra]


def tracked_files() -> list[Path]:
    # safe.directory: the clone may belong to another user, as in containers.
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    try:
        listing = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        names = [name for name in listing.split("\0") if name]
    except (FileNotFoundError, subprocess.CalledProcessError):
        # An unpacked archive: take the top-level files and the source folders.
        folders = [ROOT / name for name in (".ci", "benchmarks", "docs", "examples", "src", "tests")]
        names = [path.name for path in ROOT.iterdir()]
        names += [str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*")]
    # A tracked file may be deleted in the working tree.
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def tracked_texts() -> dict[str, str]:
    contents = {str(path.relative_to(ROOT)): path.read_bytes() for path in tracked_files()}
    return {
        name: data.decode("utf-8", errors="replace")
        for name, data in contents.items()
        if b"\0" not in data and not name.endswith(".pyc") and ".egg-info/" not in name
    }


def test_constraints_are_plain_pins() -> None:
    # The pattern leaves no room for addresses, paths, options or local versions.
    wrong = [line for line in constraints() if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][a-z0-9.]*", line)]
    assert wrong == []
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text and "/" not in text


def test_every_dependency_is_pinned() -> None:
    pinned = {normal(line.partition("==")[0]) for line in constraints()}
    wanted = {normal(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in requirements()}
    assert wanted - pinned == set()


def test_ci_runs_the_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^(?:exec )?make test$", script.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", ["make run", "make test"])
def test_readme_names(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY_HOST], ids=["machine-path", "registry-host"])
def test_no_tracked_file_names_a(pattern: re.Pattern[str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_patterns_find_what_they_are_for() -> None:
    assert MACHINE_PATH.search("/".join(["", "work", "main"]))
    assert MACHINE_PATH.search("file:" + "/".join(["", "", "", "opt", "x"]))
    assert not MACHINE_PATH.search("frame/work/x") and not MACHINE_PATH.search("/usr/bin/env")
    assert REGISTRY_HOST.search(".".join(["files", "pythonhosted", "org"]))
    assert REGISTRY_HOST.search(".".join(["pypi", "python", "org"]))


def test_only_one_torch_is_named() -> None:
    named = {version for text in tracked_texts().values() for version in TORCH_PIN.findall(text)}
    assert named == {"2.13.0"}
    assert all("torch==2.13.0" in PROJECT["optional-dependencies"][extra] for extra in ("bench", "torch"))


def test_every_dependency_has_a_lowest_version() -> None:
    assert all(re.match(r"[\w.-]+>=\d", requirement) for requirement in PROJECT["dependencies"])


def test_the_version_is_said_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert f"\nversion: {fedpoint.__version__}\n" in (ROOT / "CITATION.cff").read_text()  # which cannot ask
    assert f"## {fedpoint.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_makefile_names_tests_that_are_there() -> None:
    (named,) = re.findall(r"^LOWEST := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.M | re.S)
    assert [name for name in named.replace("\\", "").split() if not (ROOT / name).exists()] == []
