"""How many small mistakes in the package would its tests notice? What `make mutants` runs.

python tests/package_mutants.py                      # 300 mutants, drawn by a seed; goes on where it was interrupted
python tests/package_mutants.py --count 50 --seed 1

One copy of the package holds all sampled mutants, each as `(mistake if active(k) else original)`. The suite runs once
without any, which says which tests reach which mutant; then each mutant is switched on and its tests run, the quick
ones first, until one fails. Survivors are rows of benchmarks/MUTANTS.md.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "mutants"
PAGE = ROOT / "benchmarks" / "MUTANTS.md"
TESTS_OF_ONE = 40  # at the most, the quick ones first
SECONDS_OF_ONE = 180.0

COMPARES = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SUMS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}

# What is written to the top of each module of the copy: which test reached which mutant, also from other processes.
PROBE = """
import os as _os
_seen = set()
_chosen = int(_os.environ.get("FEDPOINT_MUTANT", "-1"))
def active(k):
    test = _os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if _chosen < 0 and (k, test) not in _seen:
        _seen.add((k, test))
        if test and "FEDPOINT_REACHED" in _os.environ:
            with open(_os.environ["FEDPOINT_REACHED"], "a") as file:
                file.write(f"{k}\\t{test}\\n")
    return k == _chosen
"""


@dataclass(frozen=True)
class Mutant:
    """One small mistake: what stands at a place, and what is written instead."""

    file: str
    line: int
    column: int
    before: str
    after: str


def mistaken(node: ast.expr) -> ast.expr | None:
    """The expression with one mistake in it, if there is one to make."""
    wrong = copy.copy(node)
    match wrong:
        case ast.Compare(ops=[op]) if type(op) in COMPARES:
            wrong.ops = [COMPARES[type(op)]()]
        case ast.BinOp(left, op, right) if type(op) in SUMS and not _text(left) and not _text(right):
            wrong.op = SUMS[type(op)]()
        case ast.BoolOp(op=op):
            wrong.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            wrong.value = not value
        case ast.Constant(value=int(value) | float(value)):
            wrong.value = value + 1
        case ast.IfExp(body=body, orelse=orelse):
            wrong.body, wrong.orelse = orelse, body
        case _:
            return None
    return wrong


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def places(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions within functions that a mistake can be made in: no annotations, defaults or patterns."""

    def within(node: ast.AST, inside: bool) -> Iterator[ast.expr]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                yield from within(statement, True)
            return
        if isinstance(node, ast.pattern | ast.JoinedStr):
            return
        if inside and isinstance(node, ast.expr) and mistaken(node) is not None:
            yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from within(child, inside)

    return within(tree, False)


class Writer(ast.NodeTransformer):
    """Writes mutants into a module, each with its number, beside what stood there."""

    def __init__(self, chosen: dict[ast.expr, int]) -> None:
        self.chosen = chosen

    def visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, ast.expr) or node not in self.chosen:
            return self.generic_visit(node)
        wrong = mistaken(node)
        assert wrong is not None
        number = ast.Constant(self.chosen[node])
        asked = ast.Call(ast.Name("_active_mutant", ast.Load()), [number], [])
        return ast.copy_location(ast.IfExp(asked, wrong, self.generic_visit(node)), node)


def sample(package: Path, count: int, seed: int) -> tuple[list[Mutant], dict[str, str]]:
    """Mutants drawn with equal chances from all places of the package, and the modules that hold them."""
    trees = {str(p.relative_to(package)): ast.parse(p.read_text()) for p in sorted(package.rglob("*.py"))}
    found = [(file, node) for file, tree in trees.items() for node in places(tree)]
    drawn = sorted(random.Random(seed).sample(range(len(found)), min(count, len(found))))
    mutants, chosen = [], defaultdict(dict)
    for number, index in enumerate(drawn):
        file, node = found[index]
        wrong = mistaken(node)
        assert wrong is not None
        mutants.append(Mutant(file, node.lineno, node.col_offset, ast.unparse(node), ast.unparse(wrong)))
        chosen[file][node] = number
    return mutants, {file: _with_mutants(trees[file], numbers) for file, numbers in chosen.items()}


def _with_mutants(tree: ast.Module, numbers: dict[ast.expr, int]) -> str:
    tree = Writer(numbers).visit(tree)
    docstring = isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant)
    first = 1 if docstring else 0
    while isinstance(tree.body[first], ast.ImportFrom) and tree.body[first].module == "__future__":
        first += 1
    tree.body.insert(first, ast.parse("from fedpoint_mutants import active as _active_mutant").body[0])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def lay_out(count: int, seed: int) -> list[Mutant]:
    """A copy of all that git knows, with the mutants in the package; it is kept while nothing changes."""
    tree, about = PLACE / "tree", PLACE / "about.json"
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    mutants, modules = sample(ROOT / "src" / "fedpoint", count, seed)
    told = {"commit": commit, "count": count, "seed": seed}
    if about.exists() and json.loads(about.read_text()) == told:
        return mutants
    shutil.rmtree(PLACE, ignore_errors=True)
    names = subprocess.run([*git, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for file, text in modules.items():
        (tree / "src" / "fedpoint" / file).write_text(text)
    (tree / "src" / "fedpoint_mutants.py").write_text(PROBE)
    about.write_text(json.dumps(told))
    return mutants


def pytest_of_copy(arguments: list[str], more: dict[str, str], seconds: float | None = None) -> int:
    """The status of the copy's tests: 0 if they pass, 1 if one fails, -1 if they take too long."""
    env = {**os.environ, "PYTHONPATH": str(PLACE / "tree" / "src"), **more}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    log = subprocess.DEVNULL if seconds else None
    with subprocess.Popen(command, cwd=PLACE / "tree", env=env, stdout=log, stderr=log, start_new_session=True) as run:
        try:
            return run.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, 9)
            return -1


def reached(only: list[str]) -> tuple[dict[int, list[str]], dict[str, float]]:
    """The tests that reach each mutant while none is active, and the seconds of the tests that pass."""
    report, hits = PLACE / "durations.json", PLACE / "hits.tsv"
    if not report.exists():
        hits.unlink(missing_ok=True)
        more = {"FEDPOINT_REACHED": str(hits), "FEDPOINT_DURATIONS": str(report)}
        pytest_of_copy(["-p", "package_durations", *only], {**more, "PYTEST_ADDOPTS": "-q"})
    seconds: dict[str, float] = json.loads(report.read_text())
    tests = defaultdict(set)
    for line in hits.read_text().splitlines():
        number, _, test = line.partition("\t")
        if test in seconds:
            tests[int(number)].add(test)
    return {k: sorted(names, key=lambda name: (seconds[name], name)) for k, names in tests.items()}, seconds


def outcome(number: int, tests: list[str]) -> str:
    """What the tests say of one mutant: killed, survived, too slow (which is noticed too) or reached by none."""
    if not tests:
        return "not reached"
    status = pytest_of_copy(
        ["-x", "-n", "0", "-m", "", *tests[:TESTS_OF_ONE]], {"FEDPOINT_MUTANT": str(number)}, SECONDS_OF_ONE
    )
    return {0: "survived", -1: "too slow"}.get(status, "killed")


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's interval of a share, 95 %."""
    z, share = 1.959964, hits / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * (share * (1 - share) / of + z * z / (4 * of * of)) ** 0.5 / (1 + z * z / of)
    return middle - half, middle + half


def page(mutants: list[Mutant], outcomes: dict[int, str], commit: str, seed: int) -> str:
    """The table of survivors, with their share."""
    missed = {k: what for k, what in sorted(outcomes.items()) if what in ("survived", "not reached")}
    low, high = interval(len(missed), len(outcomes))
    lines = [
        "# Mutants",
        "",
        "`make mutants` makes one small mistake at a time in the package (another comparison, sign, constant or",
        "branch, at places drawn with equal chances) and runs the tests of `make test` that reach it",
        f"(the {TESTS_OF_ONE} quickest of them). Some survivors change nothing that could be seen.",
        "",
        f"{datetime.date.today().isoformat()}, commit {commit[:7]}, seed {seed}: {len(outcomes)} of {len(mutants)}"
        f" drawn mutants were tried, in random order; {len(missed)} were not noticed: {len(missed) / len(outcomes):.0%}"
        f" (95 % interval {low:.0%} to {high:.0%}); "
        f"{sum(what == 'not reached' for what in missed.values())} of them are reached by no test.",
        "",
        "| place | stands there | mistake | outcome |",
        "|---|---|---|---|",
    ]
    for k, what in missed.items():
        m = mutants[k]
        before, after = (" ".join(text.split()).replace("|", "\\|") for text in (m.before, m.after))
        lines.append(f"| {m.file}:{m.line} | `{_short(before)}` | `{_short(after)}` | {what} |")
    return "\n".join(lines) + "\n"


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="how many mutants are drawn (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--tests", nargs="*", default=[], help="tests to run instead of all")
    given = parser.parse_args()
    mutants = lay_out(given.count, given.seed)
    durations = PLACE / "tree" / "src" / "package_durations.py"
    shutil.copy(Path(__file__).with_name("package_durations.py"), durations)
    tests, seconds = reached(given.tests)
    print(f"{len(mutants)} mutants; {len(seconds)} tests pass, {len(tests)} mutants are reached", flush=True)
    kept = PLACE / "outcomes.jsonl"
    lines = kept.read_text().splitlines() if kept.exists() else []
    outcomes: dict[int, str] = dict(map(json.loads, lines))
    lock = Lock()

    def one(number: int) -> None:
        began = time.monotonic()
        what = outcome(number, tests.get(number, []))
        with lock, kept.open("a") as file:
            outcomes[number] = what
            file.write(json.dumps([number, what]) + "\n")
            m = mutants[number]
            print(f"{len(outcomes):>4} {what:<11} {time.monotonic() - began:4.0f} s  {m.file}:{m.line}  "
                  f"{_short(m.before)}  ->  {_short(m.after)}", flush=True)  # fmt: skip

    left = [k for k in range(len(mutants)) if k not in outcomes]
    random.Random(given.seed).shuffle(left)  # what is interrupted is still a fair sample
    commit = json.loads((PLACE / "about.json").read_text())["commit"]

    def write() -> None:
        PAGE.write_text(page(mutants, dict(outcomes), commit, given.seed))

    with ThreadPoolExecutor(2) as two:
        for _ in two.map(one, left):
            write()
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
