"""How many megabytes do fedpoint's dependencies take, and those of its extras? python release/sizes.py

Run it with the Python of an environment in which they are installed. What counts are the files that packages brought,
without bytecode; packages of the plain install are counted once, and not again with an extra.
"""

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def with_what_they_need(requirements):
    """The distributions of these requirements and of all that they need, and the names of those that are missing."""
    found, missing, asked = {}, [], [Requirement(text) for text in requirements]
    for wanted in asked:
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in found or name in missing:
            continue
        try:
            found[name] = importlib.metadata.distribution(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        more = map(Requirement, found[name].requires or [])
        extras = wanted.extras or {""}
        asked += [r for r in more if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]
    return found, missing


def megabytes(distributions):
    files = {Path(d.locate_file(f)) for d in distributions for f in d.files or [] if f.suffix != ".pyc"}
    return sum(path.stat().st_size for path in files if path.exists()) / 1e6


def main():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plain, _ = with_what_they_need(project["dependencies"])
    print(f"plain install: {megabytes(plain.values()):.0f} MB")
    for extra, requirements in project["optional-dependencies"].items():
        found, missing = with_what_they_need(requirements)
        more = megabytes(d for name, d in found.items() if name not in plain)
        print(f"{extra}: {f'not here: {missing}' if missing else f'{more:.1f} MB more'}")


if __name__ == "__main__":
    main()
