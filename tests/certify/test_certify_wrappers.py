"""Methods around others: certified by the method inside, and by what they make of its rounds."""

import numpy as np
import pytest

import fedpoint as fp


class Between(fp.Extrapolated):
    """Reads a point between both chains, not the line through them at step zero."""

    def read(self, hub, memory):
        whole, half = (method.read(part, ()) for method, part in zip((self.inner, self._halved), hub, strict=True))
        return 0.5 * (half + whole)


class Late(fp.Averaged):
    """Divides by one round too many."""

    def _next(self, before, inner, model):
        new = super()._next(before, inner, model)
        return new._replace(mean=before.mean + (new.mean - before.mean) * 0.9)


class Forgets(fp.Scaffold):
    """SCAFFOLD whose agents forget their control variates."""

    def local(self, heard, memory, agent):
        message, _ = fp.Scaffold.local(self, heard, memory, agent)
        return message, memory


FEDAVG = fp.FedAvg(0.1, 3)


@pytest.mark.parametrize(
    ("method", "claim"), [(fp.Extrapolated(FEDAVG), "Extrapolated"), (fp.Averaged(FEDAVG, burn_in=5), "Averaged")]
)
def test_wrappers_are_certified_by_the_method_inside(method, claim):
    found = fp.certify(method)
    assert found.passed and found.claim == claim and found.title == f"{claim} around FedAvg"
    marks = {f.test: f.ok for f in found.findings}
    assert all(marks.values())
    assert {"rounds, everyone", "rounds, some", "samples", "limit", "inside, limit", "inside, samples"} <= set(marks)
    assert f"{claim} is {claim}, as it claims." in str(found)


@pytest.mark.parametrize("broken", [Between(FEDAVG), Late(FEDAVG)])
def test_wrappers_that_read_something_else_are_convicted(broken):
    found = fp.certify(broken)
    assert found.verdict == "convicted" and found.mistake is None
    wrong = {f.test for f in found.findings if f.ok is False}
    assert {"rounds, everyone", "rounds, some", "samples"} <= wrong
    assert not any(test.startswith("inside") for test in wrong)  # FedAvg itself is right


@pytest.mark.slow
def test_a_mistake_inside_is_named():
    found = fp.certify(fp.Averaged(Forgets(0.1, 3)))
    assert found.verdict == "convicted" and found.mistake == "control_never_stored"
    assert "Averaged has a known mistake: control_never_stored." in str(found)
    assert all(f.ok for f in found.findings if not f.test.startswith("inside"))


def test_what_is_read_of_runs_by_themselves_is_what_wrappers_read():
    """On samples: 2 w(s/2) - w(s), and the mean of the last models, from runs with the same seed."""
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.3)
    for method in (fp.Extrapolated(FEDAVG), fp.Averaged(FEDAVG, burn_in=3)):
        made_of = method.composition()
        parts = [fp.run(part, quad, rounds=12, seed=4).history[0] for part in made_of.methods]
        np.testing.assert_allclose(
            made_of.read(*parts), fp.run(method, quad, rounds=12, seed=4).history[0], rtol=1e-12, atol=1e-13
        )
    assert FEDAVG.composition() is None


@pytest.mark.slow
def test_a_wrapper_is_not_the_method_inside():
    assert not fp.certify(fp.Extrapolated(FEDAVG), claims="fedavg", step=0.15, local_steps=3)
