"""How small a mistake does `fp.check` find, and how often is a right run convicted? Fixed seeds."""

import pytest
from affine_grid import SETTINGS, verdict
from test_check import RIGHT, by_name, quadratic, stream

import fedpoint as fp


@pytest.mark.parametrize("name", ["quadratic, fedavg, three", pytest.param("stream, fedavg", marks=pytest.mark.slow)])
def test_a_step_two_per_cent_short_is_found(name):
    """Of 3 runs with 200 repeats each; the estimate is right within five standard errors."""
    for seed in range(3):
        short = by_name(verdict(name, seed, factor=0.98))["step"]
        assert short.ok is False, short
        error = short.resolution / 5.84
        assert abs(short.measured + 0.02) <= 5 * error and short.resolution < 0.02
        assert by_name(verdict(name, seed))["step"].ok


@pytest.mark.slow
def test_of_100_runs_with_a_step_two_per_cent_short_80_are_found():
    found = {name: sum(not verdict(name, seed, factor=0.98) for seed in range(10)) for name in SETTINGS}
    assert sum(found.values()) >= 80, found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RIGHT if name != "decaying"])
def test_right_runs_are_convicted_once_in_a_thousand_at_most(name):
    """80 seeds for each of 13 methods: of 1,040 runs one might be convicted by chance; of these none is."""
    method, who = RIGHT[name]
    wrong = []
    for seed in range(80):
        problem = stream() if seed % 2 else quadratic()
        found = fp.check(fp.run(method, problem, 120, participation=who, seed=1000 + seed, repeats=16))
        if not found:
            wrong.append((seed, str(found)))
    assert not wrong, wrong


def test_the_verdict_says_which_error_would_have_shown():
    found = verdict("quadratic, fedavg, three", 0)
    step = by_name(found)["step"]
    assert f"a step {100 * step.resolution:.2g} % off would have shown" in str(found)
    less = by_name(verdict("quadratic, fedavg, three", 0, repeats=20))["step"]
    assert less.resolution > 2 * step.resolution  # a tenth of the runs: about sqrt 10 times
