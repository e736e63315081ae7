"""Is everything in the packages that were built? python release/contents.py FOLDER"""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def below(folder, *unwanted):
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in paths if not path.name.endswith(unwanted or ".pyc")}


def main(folder):
    (wheel,), (sdist,) = Path(folder).glob("*.whl"), Path(folder).glob("*.tar.gz")
    packed = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    modules = {name.removeprefix("src/") for name in below("src/fedpoint")}
    missing = {
        wheel.name: (modules | {f"fedpoint/{name}" for name in below("examples")}) - packed,
        sdist.name: set().union(*map(below, ("src/fedpoint", "tests", "docs", "examples", "release"))) - source,
    }
    for name, names in missing.items():
        print(f"{name}: {'complete' if not names else 'lacks ' + ', '.join(sorted(names))}")
    return any(missing.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
