"""Every odd call of the public interface returns, or raises one `FedpointError`; the generator would notice others."""

import itertools

import generator
import good_calls
import interface
import matplotlib.pyplot as plt
import pytest

from fedpoint.core.arguments import checked

AREAS = good_calls.AREAS
pytestmark = pytest.mark.filterwarnings(  # fits of two rounds, some of them without groups
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore:no groups are given"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Some odd calls write files: not here."""
    monkeypatch.chdir(tmp_path)
    yield
    plt.close("all")


def unlawful(cases):
    found = []
    for case in cases:
        if wrong := generator.verdict(case):
            found.append(f"{case} -> {wrong}")
        plt.close("all")
    return found


def test_everything_public_is_called():
    """What is not is left out for a reason."""
    public = interface.interface()
    called = {interface.definition(good()[0]) for good in good_calls.everything().values()}
    left_out = {name for names in interface.LEFT_OUT.values() for name in names}
    assert sorted(public[name] for name in public.keys() - called - left_out) == []
    assert sorted(called & left_out) == [] and sorted(left_out - public.keys()) == []


@pytest.mark.parametrize("area", AREAS)
def test_good_calls_are_good(area):
    """Otherwise odd ones would be refused for another reason than the one they are made for."""
    for good in area().values():
        function, given = good()
        function(**given)


@pytest.mark.parametrize("area", AREAS)
def test_odd_calls(area):
    assert unlawful(generator.sample(generator.cases(area()), each=2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("area", AREAS)
def test_many_odd_calls(area):
    assert unlawful(generator.sample(generator.cases(area()), each=40, seed=1)) == []


# The generator notices what is against the law, and nothing else.


def raw(number: float) -> float:
    return 2.0 + number


def silent(number: float) -> float:
    return float("nan") if number == "x" else 0.0


def endless(number: float) -> None:
    for _ in itertools.count() if number is None else ():
        pass


def brief(number: float) -> None:
    if number != 1.0:
        raise generator.FedpointError("no")


def verdicts(function):
    found = generator.cases({"one": lambda: (function, {"number": 1.0})})
    return {case.wrong: generator.verdict(case, seconds=0.2) for case in found}


def test_the_generator_notices_what_is_against_the_law():
    assert "TypeError: unsupported operand" in verdicts(raw)["number='x'"]
    assert "missing 1 required" in verdicts(raw)["without number"]
    assert "unexpected keyword" in verdicts(raw)["lr=0.1 too"]
    assert "positional argument" in verdicts(raw)["one argument too many"]
    assert verdicts(silent)["number='x'"] == "a silent NaN"
    assert verdicts(endless)["number=None"] == "no answer within 0.2 s"
    assert "says nothing" in verdicts(brief)["number='x'"]


def test_the_generator_is_content_with_a_checked_function():
    assert set(verdicts(checked(raw)).values()) == {""}


def test_samples_are_the_same_every_time_and_of_every_call():
    found = generator.cases(good_calls.networks())
    once, again = (list(map(str, generator.sample(found, each=3))) for _ in range(2))
    assert once == again and len(once) == len(set(once)) == 3 * len(good_calls.networks())
