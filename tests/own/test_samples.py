"""Methods of one's own that take more samples than steps."""

from __future__ import annotations

import pytest

import fedpoint as fp

QUAD = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)


class Pairs(fp.Algorithm):
    """Two samples a step, which it does not tell."""

    step: float
    local_steps: int = 1

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        def advance(y, e):
            return y - self.step * (agent.field(y, 2 * e) + agent.field(y, 2 * e + 1)) / 2

        return fp.descend(agent, w, self.local_steps, advance) - w, memory

    def combine(self, w, inbox):
        return w + inbox.mean


class ToldPairs(Pairs):
    def samples(self, steps):
        return 2 * steps


@pytest.mark.parametrize(
    ("steps", "last", "drawn"), [(1, 1, "1 step draws 1 sample"), (4, 7, "4 steps draws 4 samples")]
)
def test_samples_beyond_those_drawn_are_refused(steps: int, last: int, drawn: str):
    with pytest.raises(fp.FedpointError) as error:
        fp.Experiment(Pairs(0.1, steps), QUAD)
    assert f"Pairs.local asks for sample {last} (agent.field(w, {last}))" in str(error.value)
    assert f"a round of {drawn}, numbered from 0" in str(error.value)
    assert "def samples(self, steps): return 2 * steps" in str(error.value)


def test_samples_before_the_first_are_refused():
    """Drawn ahead, -1 would be the last sample; drawn on the spot, one that no other step has."""

    class Last(Pairs):
        def local(self, w, memory, agent):
            return -self.step * agent.field(w, -1), memory

    with pytest.raises(fp.FedpointError, match=r"Last\.local asks for sample -1 .*: samples are numbered from 0"):
        fp.Experiment(Last(0.1, 4), QUAD)


def test_a_wrapper_does_not_hide_them():
    with pytest.raises(fp.FedpointError, match=r"Pairs\.local asks for sample 7"):
        fp.Experiment(fp.Extrapolated(Pairs(0.1, 4)), QUAD)


def test_samples_that_are_told_are_drawn_afresh():
    """Near the fixed point w of f with slope a: the variance of a step of two samples is half that of one."""
    one, two = (fp.run(m(0.5, 4), QUAD, 1, repeats=4000).model.var() for m in (fp.FedAvg, ToldPairs))
    assert two == pytest.approx(one / 2, rel=0.12)  # each is known to (2 / 4000)^(1/2) = 2.2 %


def test_gaps_within_what_is_drawn_are_the_methods_own_affair():
    class Second(Pairs):
        def local(self, w, memory, agent):
            return -self.step * agent.field(w, 1), memory

    fp.Experiment(Second(0.1, 4), QUAD)
