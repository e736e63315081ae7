"""TOML files of all kinds: a mistake is said, and nothing hangs, blows up or ends in a traceback."""

import hypothesis.strategies as st
import pytest
import tomli_w
from fuzz_targets import toml_file
from hypothesis import HealthCheck, Phase, given, settings

from fedpoint.algorithms import catalogue
from fedpoint.config import networks, problems, schedules, schemes
from fedpoint.core import describe

HUGE = [10**30, 10**12, 2**63, 2**31, -(10**30), 1e308, -1e308, 1e-320, 5e-324, float("nan"), float("inf")]
WORDS = [
    *(
        "quadratic",
        "least_squares",
        "fedavg",
        "ring",
        "everyone",
        "iid",
        "shuffle",
        "importance",
        "models",
        "gradients",
    ),
    *("exponential", "constant", "gaussian", "equal", "trajectory", "random", "same", "trace", "adam", "", "\0", "a"),
]
FORMS = [*describe.FORMS, "steps", "scale", "offset", "initial", "factor", "polynomial", "hinge", "work", "law"]
usual = st.one_of(st.integers(1, 4), st.floats(0.01, 1), st.sampled_from(WORDS), st.booleans())
numbers = st.one_of(st.integers(-1, 6), st.floats(0, 2), st.floats(), st.sampled_from(HUGE))
leaves = st.one_of(usual, usual, numbers, st.text(max_size=3))
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(numbers, max_size=4),
        st.dictionaries(st.sampled_from(FORMS), inner, max_size=2),
    ),
    max_leaves=8,
)


def filled(keys):
    """A table with some of the keys that it may have."""
    return st.dictionaries(st.sampled_from(sorted(keys) or ["nonsense"]), anything, max_size=2)


def named(key, kinds, keys_of):
    """A table of one of the kinds, with keys that this kind has."""
    some = [k for k in kinds if k not in ("digits", "lending_club", "table", "frozen_lake", "replay")]
    return st.sampled_from(some).flatmap(lambda kind: filled(keys_of(kind)).map(lambda table: {**table, key: kind}))


networks_ = named("kind", networks.KINDS, lambda kind: networks.KINDS[kind].model_fields)
schedules_ = named("kind", schedules.KINDS, lambda kind: schedules.FAMILY.table(schedules.KINDS[kind]).model_fields)
schemes_ = named("scheme", schemes.INNER, lambda name: schemes.TABLES[schemes.INNER[name]].model_fields)
problems_ = named("kind", problems.KINDS, lambda kind: problems.KINDS[kind].model_fields)
methods_ = named("name", catalogue.makers(), lambda name: catalogue.parameters(catalogue.makers()[name]))
SMALL = {"agents": 3, "dim": 2, "states": 3}


@st.composite
def files(draw):
    """A file that is right but for some places, so that the mistakes lie deep."""
    problem, method = draw(problems_), draw(methods_)
    known = problems.KINDS[problem["kind"]].model_fields
    problem = {key: value for key, value in SMALL.items() if key in known} | problem
    content = {"rounds": 3, "problem": problem, "algorithm": {"step": 0.1, "local_steps": 2} | method}
    if draw(st.booleans()):
        who = draw(st.sampled_from(["participation", "schedule", "network", "both", "rest"]))
        content |= {"network": draw(networks_)} if who in ("network", "both") else {}
        content |= {"schedule": draw(schedules_)} if who in ("schedule", "both") else {}
        content |= {"participation": draw(st.one_of(anything, schemes_))} if who == "participation" else {}
        content |= draw(filled(["rounds", "seed", "repeats", "record_every", "stop", "exact"])) if who == "rest" else {}
    return content


PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # not to shrink, which may take minutes
FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=PHASES)
MANY = settings(FEW, max_examples=5_000, derandomize=False)


def check_content(content):
    try:
        data = tomli_w.dumps(content).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError):
        return
    toml_file(data)


@FEW
@given(files())
def test_content(content):
    check_content(content)


@FEW
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda t: t.encode("utf-8", "surrogatepass"))))
def test_bytes(data):
    toml_file(data)


@pytest.mark.slow
@MANY
@given(files())
def test_much_content(content):
    check_content(content)


RIGHT = '[problem]\nkind = "quadratic"\nagents = 3\ndim = 2\n[algorithm]\nname = "fedavg"\nstep = 0.1\n'


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5_000 + "]" * 5_000,
        "a = " + "{b = " * 3_000 + "1" + "}" * 3_000,
        "rounds = " + "9" * 10_000,
        "rounds = 0x" + "f" * 10_000,
        ".".join(["a"] * 5_000) + " = 1",
        "[" + ".".join(["a"] * 5_000) + "]",
        'a = "' + "x" * 1_000_000 + '"',
        "\n".join(f"k{i} = {i}" for i in range(5_000)),
        *(f"{key} = {10**30}\n" + RIGHT for key in ("rounds", "seed", "repeats", "record_every", "participation")),
        *(
            RIGHT.replace(old, new)
            for old in ("agents = 3", "dim = 2")
            for new in (f"agents = {10**12}", f"dim = {10**9}")
        ),
    ],
    ids=range(17),
)
def test_files_that_are_meant_to_hurt(text):
    assert toml_file(text.encode()) is None
