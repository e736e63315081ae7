"""`make mutants`: a mistake is what it says, and is made only when it is asked for; shares have Wilson's interval."""

import ast
import sys
import types

import package_mutants as mutants
import pytest
from statsmodels.stats.proportion import proportion_confint


@pytest.mark.parametrize(
    ("stands", "mistake"),
    [
        ("a < b", "a <= b"),
        ("a is None", "a is not None"),
        ("a in b", "a not in b"),
        ("a + b", "a - b"),
        ("a / b", "a * b"),
        ("a and b", "a or b"),
        ("not a", "a"),
        ("-a", "a"),
        ("True", "False"),
        ("2", "3"),
        ("a if b else c", "c if b else a"),
    ],
)
def test_a_mistake_is_another_expression(stands, mistake):
    node = ast.parse(stands, mode="eval").body
    assert ast.unparse(mutants.mistaken(node)) == mistake
    assert ast.unparse(node) == stands


@pytest.mark.parametrize("stands", ["'text' + a", "f(a)", "a < b < c", "'text'", "None"])
def test_no_mistake_is_made_in(stands):
    assert mutants.mistaken(ast.parse(stands, mode="eval").body) is None


MODULE = '''"""What it is for."""
from __future__ import annotations

LIMIT = 3

def size(x: int, times: int = 2) -> int:
    return x + times if x < 10 else x - times
'''


def test_all_mutants_live_in_one_module(tmp_path, monkeypatch):
    """Without any it is as it was; each, switched on, is its own mistake, and all four answers differ somewhere."""
    (tmp_path / "sizes.py").write_text(MODULE)
    found, modules = mutants.sample(tmp_path, 99, 0)
    assert {m.before for m in found} == {"x + times if x < 10 else x - times", "x + times", "x < 10", "10", "x - times"}
    assert mutants.sample(tmp_path, 2, 0)[0] != mutants.sample(tmp_path, 2, 1)[0]
    chosen = types.SimpleNamespace(k=-1)
    stub = types.ModuleType("fedpoint_mutants")
    stub.active = lambda k: k == chosen.k
    monkeypatch.setitem(sys.modules, "fedpoint_mutants", stub)
    names: dict = {}
    exec(modules["sizes.py"], names)

    def answers(k):
        chosen.k = k
        return tuple(names["size"](x) for x in (9, 10, 11))

    right = answers(-1)
    assert right == (11, 8, 9)
    wrong = {m.before: answers(k) for k, m in enumerate(found)}
    assert wrong == {
        "x + times if x < 10 else x - times": (7, 12, 13),
        "x + times": (7, 8, 9),
        "x < 10": (11, 12, 9),
        "10": (11, 12, 9),
        "x - times": (11, 12, 13),
    }


@pytest.mark.parametrize(("hits", "of"), [(0, 10), (3, 10), (57, 300), (300, 300)])
def test_the_interval_is_wilson_s(hits, of):
    assert mutants.interval(hits, of) == pytest.approx(proportion_confint(hits, of, method="wilson"), abs=1e-6)
