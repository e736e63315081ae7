"""All tests, the slow ones included, file by file: what `make test-all` runs. Ended files are not run again.

python tests/every_test.py                    # goes on where it was interrupted; another commit begins anew
python tests/every_test.py --part 2/4         # a quarter of the files: several machines share them out
python tests/every_test.py tests/chaos        # files whose path begins so

Each file is a row of benchmarks/SLOW.md: date, commit, duration, outcome. Two files at a time; status 1 if any failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "SLOW.md"
HEAD = """# Every test

`make test-all` runs every test file, the slow tests included, and writes this table (`tests/every_test.py`). Seconds
are those of the clock, two files at a time.

| file | date | commit | seconds | outcome |
|---|---|---|---|---|
"""
Row = tuple[str, str, str, str]  # date, commit, seconds, outcome


def commit() -> str:
    """The last one, + where files differ from it."""
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src", "tests"], check=False).returncode
    return name.strip() + ("+" if changed else "")


def read() -> dict[str, Row]:
    """What the table says so far."""
    if not PAGE.exists():
        return {}
    cells = ([c.strip() for c in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()[HEAD.count("\n") :])
    return {name: (date, commit, seconds, outcome) for name, date, commit, seconds, outcome in cells}


def write(rows: dict[str, Row]) -> None:
    PAGE.write_text(HEAD + "".join(f"| {' | '.join((name, *rows[name]))} |\n" for name in sorted(rows)))


def run(file: str, at: str, more: list[str]) -> Row:
    """One file in a process of its own."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", file, *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": ""})
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    outcome = re.sub(r" in [\d.]+s.*", "", last.strip("= "))
    if done.returncode not in (0, 5):  # 5: nothing was collected
        outcome = f"FAILED: {outcome or f'status {done.returncode}'}"
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr, flush=True)
    return datetime.date.today().isoformat(), at, f"{time.monotonic() - began:.0f}", outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="beginnings of paths; all files without any")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N shares of the files")
    parser.add_argument("--again", action="store_true", help="run files too that ended well at this commit")
    parser.add_argument("--soak", type=float, default=3600.0, help="seconds of the long soak")
    given = parser.parse_args()
    share = re.fullmatch(r"(\d+)/(\d+)", given.part)
    if not share or not 1 <= int(share[1]) <= int(share[2]):
        parser.error(f"--part says I/N with I from 1 to N, as in 2/4, and not {given.part}")
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py"))
    files.append("src/fedpoint")  # doctests
    files = [f for f in files if not given.only or f.startswith(tuple(given.only))]
    files = files[int(share[1]) - 1 :: int(share[2])]
    if not files:
        parser.error(f"no test file begins with {' or '.join(given.only)}")
    rows, at, lock = read(), commit(), Lock()
    rows = {name: row for name, row in rows.items() if (ROOT / name).exists()}
    left = [f for f in files if given.again or f not in rows or rows[f][1] != at or rows[f][3].startswith("FAILED")]
    print(f"{len(left)} of {len(files)} files to run at {at}; rows go to {PAGE.relative_to(ROOT)}", flush=True)

    def one(file: str) -> None:
        row = run(file, at, ["--soak", str(given.soak)])
        with lock:
            rows[file] = row
            write(rows)
            print(f"{row[2]:>6} s  {file}: {row[3]}", flush=True)

    with ThreadPoolExecutor(2) as two:
        list(two.map(one, left))
    return any(rows[f][3].startswith("FAILED") for f in files)


if __name__ == "__main__":
    sys.exit(main())
