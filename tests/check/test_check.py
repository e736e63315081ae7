"""Does `fp.check` pass right runs and convict wrong ones, with the right words? Fixed seeds."""

import json

import numpy as np
import pytest

import fedpoint as fp

P = np.array([0.5, 0.2, 0.3])
H = np.array([[[1.5, 0.3], [0.3, 0.6]], [[0.7, -0.2], [-0.2, 1.8]], [[1.0, 0.0], [0.0, 0.5]]])
CENTERS = np.array([[1.0, 0.0], [-1.5, 1.0], [0.5, -2.0]])
ROUNDS, REPEATS = 240, 16


def quadratic(noise=0.1):
    return fp.problems.Quadratic(H, CENTERS, noise=noise, weights=P)


def stream():
    return fp.problems.LinearStream(CENTERS, noise=[0.1, 0.3, 0.2], covariance=H, weights=P)


def by_name(verdict):
    return {c.name: c for c in verdict.checks}


RIGHT = {
    "fedavg": (fp.FedAvg(0.2, 3, normalise=False), None),
    "fedavg, two": (fp.FedAvg(0.2, 3, normalise=False), fp.Uniform(2)),
    "fedavg, by weight": (fp.FedAvg(0.2, 3, normalise=False), fp.ByWeight(2)),
    "fedavg, answering": (fp.FedAvg(0.2, 3, normalise=False), fp.Answering(fp.Everyone(), probability=0.6)),
    "fedprox": (fp.FedProx(0.2, 3, pull=0.5), fp.Uniform(2)),
    "fednova": (fp.FedNova(0.1, 3, momentum=0.3), fp.Uniform(2)),
    "fedavgm": (fp.FedAvgM(0.1, 3, server_step=0.5, momentum=0.5), fp.Uniform(2)),
    "scaffold": (fp.Scaffold(0.1, 3), None),
    "scaffold, two": (fp.Scaffold(0.1, 3), fp.Uniform(2)),
    "scaffold, importance": (fp.Scaffold(0.1, 3), fp.Importance(2)),
    "scaffnew": (fp.Scaffnew(0.2, probability=0.4), None),
    "q-fedavg": (fp.QFedAvg(0.0, 0.2, 3), None),
    "gradient exchange": (fp.GradientExchange(0.3), 1),
    "decaying": (fp.FedAvg(fp.steps.InverseTime(3.0, 8.0), 2, normalise=True), fp.Uniform(2)),
}
QUICK = ("fedavg, two", "scaffold, two")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RIGHT])
def test_right_runs_pass(name):
    algorithm, who = RIGHT[name]
    verdict = fp.check(fp.run(algorithm, stream(), ROUNDS, participation=who, seed=5, repeats=REPEATS))
    assert verdict and verdict.passed, verdict
    found = by_name(verdict)
    assert found["path"].ok and all(c.ok is not False for c in verdict.checks)
    if name != "decaying":
        assert found["limit"].ok and found["floor"].ok
        assert "as forecast" in verdict.words
    if "scaffold" in name:
        assert found["c = sum p_k c_k"].ok and "ends at w*" in verdict.words
    json.dumps(verdict.to_dict(), allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_other_seeds_pass(name):
    """20 seeds: a chance of 1e-5 for each test leaves none to be expected; one is allowed."""
    algorithm, who = RIGHT[name]
    wrong = []
    for seed in range(100, 120):
        verdict = fp.check(fp.run(algorithm, stream(), ROUNDS, participation=who, seed=seed, repeats=REPEATS))
        if not verdict:
            wrong.append((seed, str(verdict)))
    assert len(wrong) <= 1, wrong


def test_one_repeat_is_enough_for_limit_and_floor():
    verdict = fp.check(fp.run(**_of("fedavg, two"), seed=5, repeats=1))
    assert verdict and by_name(verdict)["limit"].ok and by_name(verdict)["path"].ok is None


def _of(name, rounds=ROUNDS, problem=None):
    algorithm, who = RIGHT[name]
    made = fp.Experiment(algorithm, stream() if problem is None else problem, participation=who)
    return {"algorithm": made, "rounds": rounds}


# Without noise.


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_runs_without_noise(name, exact):
    """Quadratics without noise are as exact as exact fields; path, limit and rate are compared to rounding."""
    algorithm, who = RIGHT[name]
    verdict = fp.check(fp.run(algorithm, quadratic(0.0), 400, participation=who, exact=exact))
    found = by_name(verdict)
    assert verdict and found["path"].ok and found["limit"].ok and found["rate"].ok, verdict
    assert "floor" not in found
    wrong = fp.check(
        fp.run(algorithm, quadratic(0.0), 400, participation=who, exact=exact), claims=fp.FedAvg(0.25, 3, False)
    )
    assert not wrong, wrong


def test_a_short_run_does_not_claim_its_end():
    verdict = fp.check(fp.run(fp.FedAvg(0.2, 3, normalise=False), quadratic(0.0), 2, exact=True))
    assert verdict and "so far" in verdict.words and "ends at" not in verdict.words


def test_divergence_is_compared_too():
    problem = quadratic(0.0)
    far = fp.check(fp.run(fp.GradientExchange(3.0), problem, 20, exact=True))
    assert far and "was to diverge" in far.words and far.words.endswith("and did")
    soon = fp.check(fp.run(fp.GradientExchange(3.0), problem, 1, exact=True))
    assert soon and "has not yet" in soon.words
    calm = fp.check(fp.run(fp.GradientExchange(0.3), problem, 40, exact=True), claims=fp.GradientExchange(3.0))
    assert not calm and "was to diverge" in calm.words and "but its error is" in calm.words


# Wrong ones. Each is SCAFFOLD or FedAvg with one line changed.


class NeverStored(fp.Scaffold):
    """The agents' control variates are sent but never kept, and the hub's is never used."""

    def local(self, heard, c_k, agent):
        (change, _), _ = fp.Scaffold.local(self, heard, c_k, agent)
        return type(heard)(change, 0.0 * change), c_k


class FromNonzero(fp.Scaffold):
    def init(self, w):
        hub, c = fp.Scaffold.init(self, w)
        return hub, c + 0.5


class Reuses(fp.FedAvg):
    """One sample for all local steps."""

    def local(self, w, memory, agent):
        y = fp.descend(agent, w, self.local_steps, lambda y, e: y - self.step * agent.field(y, 0))
        return y - w, memory


class DropsWeights(fp.FedAvg):
    """Agents undo their shares: the hub's mean is the plain one."""

    def local(self, w, memory, agent):
        change, memory = fp.FedAvg.local(self, w, memory, agent)
        return change / (3 * agent.share), memory


def test_controls_that_are_never_stored():
    problem = quadratic()
    run = fp.run(NeverStored(0.2, 6), problem, ROUNDS, seed=1, repeats=REPEATS)
    verdict = fp.check(run, claims="scaffold")
    assert not verdict
    assert "FedAvg's biased point" in verdict.words and "the control variates have no effect" in verdict.words
    fedavg = fp.forecast(fp.FedAvg(0.2, 6, normalise=False), problem)
    assert f"{fedavg.bias:.1g}" in verdict.words or f"{fedavg.bias:.2g}" in verdict.words, (fedavg.bias, verdict.words)
    assert fp.check(run, claims=fp.FedAvg(0.2, 6, normalise=False))  # what it is


def test_controls_from_a_wrong_start():
    run = fp.run(FromNonzero(0.1, 3), quadratic(), ROUNDS, seed=1, repeats=REPEATS)
    verdict = fp.check(run, claims="scaffold")
    assert not verdict and "c = sum p_k c_k is violated by 0.5" in verdict.words
    assert not by_name(verdict)["limit"].ok


def test_a_sample_used_again_in_all_local_steps():
    run = fp.run(Reuses(0.2, 6, False), quadratic(1.0), ROUNDS, seed=1, repeats=REPEATS)
    verdict = fp.check(run, claims="fedavg")
    assert not verdict and by_name(verdict)["floor"].ok is False and by_name(verdict)["limit"].ok
    assert "noisier than its samples allow" in verdict.words
    assert fp.check(run), fp.check(run)  # what its own code says


@pytest.mark.slow
def test_a_server_that_drops_the_weights():
    verdict = fp.check(
        fp.run(DropsWeights(0.2, 1, False), quadratic(), ROUNDS, seed=1, repeats=REPEATS), claims="fedavg"
    )
    assert not verdict and not by_name(verdict)["limit"].ok
    assert "equal weights" in verdict.words


def test_less_noise_than_forecast_is_wrong_too():
    """A claim of fewer participants than took part."""
    run = fp.run(fp.FedAvg(0.2, 3, normalise=False), quadratic(), ROUNDS, seed=1, repeats=REPEATS)
    run.session.experiment = run.session.experiment.replace(participation=1)
    verdict = fp.check(run)
    assert not verdict and "quieter" in verdict.words


# Calls.


def test_claims():
    run = fp.run(fp.FedAvg(0.2, 3, normalise=False), quadratic(), ROUNDS, seed=1, repeats=REPEATS)
    assert fp.check(run, claims="FedAvg")
    assert not fp.check(run, claims="scaffold")
    with pytest.raises(fp.FedpointError, match="did you mean"):
        fp.check(run, claims="scafold")
    with pytest.raises(fp.FedpointError, match="probability"):
        fp.check(fp.run(fp.GradientExchange(0.1), quadratic(), 2), claims="scaffnew")
    with pytest.raises(fp.FedpointError, match=r"does not say .*q"):
        fp.check(fp.run(fp.GradientExchange(0.1), quadratic(), 2), claims="qfedavg")


def test_what_is_no_run():
    with pytest.raises(fp.FedpointError, match="run must be a Run; got 3"):
        fp.check(3)
    with pytest.raises(fp.FedpointError, match="no rounds"):
        fp.check(fp.run(fp.GradientExchange(0.1), quadratic(), 0))


def test_a_run_from_its_folder(tmp_path):
    run = fp.run(**_of("fedavg, two"), seed=5, repeats=REPEATS, folder=tmp_path / "run")
    one, two = fp.check(run), fp.check(fp.load(tmp_path / "run", problem=stream()))
    assert one and two
    assert [(c.name, c.ok) for c in one.checks] == [(c.name, c.ok) for c in two.checks]
    assert [c.measured for c in two.checks] == pytest.approx([c.measured for c in one.checks], rel=1e-9)


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_a_short_run_is_not_blamed_for_its_transient(rounds):
    """Over few rounds fast modes still count: the slope is beside that of the expected path, not the last rate."""
    bowls = fp.problems.Quadratic([0.2, 1.0, 5.0], [[0.0], [1.0], [4.0]])
    wide = fp.problems.Quadratic(np.array([np.diag([0.2, 3.0])] * 3), np.arange(6.0).reshape(3, 2))
    for problem in (bowls, wide):
        run = fp.run(fp.FedAvg(step=0.1, local_steps=3, normalise=True), problem, rounds=rounds)
        assert fp.check(run), fp.check(run)
    wrong = fp.run(fp.FedAvg(step=0.06, local_steps=3, normalise=True), wide, rounds=rounds)
    assert not fp.check(wrong, claims=fp.FedAvg(step=0.1, local_steps=3, normalise=True))
