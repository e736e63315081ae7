"""Numbers at the edge: the right ones, by a closed form, or one clear message."""

import re
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core import memory_limits as room
from fedpoint.core.errors import FedpointError
from fedpoint.estimators import FederatedRegressor

STEP, ROUNDS = 0.1, 20
LEFT = (1 - STEP) ** ROUNDS  # of the way to w*, after so many rounds of gradient descent on curvature 1
AVERAGING = fp.FedAvg(step=STEP)


def bowls(scale=1.0):
    """Two agents of curvature 1 whose mean is (1, 2.5) at that scale."""
    return fp.problems.Quadratic(1.0, [[0.0, scale], [2 * scale, 4 * scale]])


# None, one, many.


@pytest.mark.parametrize(
    "make",
    [
        lambda: fp.problems.Quadratic(1.0, np.zeros((0, 3))),
        lambda: fp.problems.LeastSquares([], []),
        lambda: fp.problems.LinearStream.sample(agents=0, dim=2),
        lambda: fp.problems.Logistic(np.zeros((0, 2)), np.zeros(0), groups=np.zeros(0)),
    ],
)
def test_no_agent(make):
    with pytest.raises(FedpointError, match=r"there are no agents|agents must be a whole number, at least 1"):
        make()


def test_no_rows_no_coordinates_no_nodes():
    with pytest.raises(FedpointError, match="agent 0 is empty"):
        fp.problems.LeastSquares([np.zeros((0, 2)), np.ones((1, 2))], [np.zeros(0), np.ones(1)])
    with pytest.raises(FedpointError, match="no coordinates"):
        fp.problems.Quadratic(1.0, [[], []])
    with pytest.raises(FedpointError, match="at least 1"):
        fp.Network.ring(0)


def test_one_agent_one_sample_one_dimension():
    """w_t = (1 - (1 - step a^2)^t) b / a; nobody to differ from, so no bias and no noise."""
    problem = fp.problems.LeastSquares([[[2.0]]], [[4.0]])
    run = fp.run(AVERAGING, problem, rounds=ROUNDS)
    np.testing.assert_allclose(run.model, [[2.0 * (1 - 0.6**ROUNDS)]], rtol=1e-13)
    f = fp.forecast(AVERAGING, problem)
    np.testing.assert_allclose([f.limit[0], f.bias, f.rate, f.floor], [2.0, 0.0, 0.6, 0.0], rtol=1e-12, atol=1e-15)
    assert fp.check(run).passed
    alone = fp.run(fp.FedGD(step=STEP, coupling=1.0), problem, rounds=ROUNDS, network=fp.Network.ring(1))
    np.testing.assert_allclose(alone.last, [[[2.0 * (1 - 0.6**ROUNDS)]]], rtol=1e-13)
    model = FederatedRegressor(rounds=200, fit_intercept=False, alpha=0.0).fit(
        [[2.0], [4.0]], [4.0, 8.0], groups=[0, 0]
    )
    np.testing.assert_allclose(model.predict([[3.0]]), [6.0], rtol=1e-6)


def test_no_rounds():
    run = fp.run(AVERAGING, bowls(), rounds=0)
    assert run.error.tolist() == [[1.0 + 2.5**2]] and run.rounds.tolist() == [0]
    assert fp.forecast(AVERAGING, bowls()).curve(0).tolist() == [7.25]
    with pytest.raises(FedpointError, match="no rounds yet"):
        fp.check(run)


def test_a_hundred_thousand_agents():
    """Gradient descent on the mean; the floor of sampling 100 of them is that of a plain simulation's recursion."""
    centers = np.random.default_rng(0).normal(1.0, 1.0, (100_000, 1))
    problem = fp.problems.Quadratic(1.0, centers)
    run = fp.run(AVERAGING, problem, rounds=ROUNDS)
    np.testing.assert_allclose(run.model, [(1 - LEFT) * centers.mean(0)], rtol=1e-12)
    f = fp.forecast(AVERAGING, problem, participation=100)
    spread = centers.var(ddof=1) * (1 / 100 - 1 / 100_000)  # of the mean of 100, without replacement
    np.testing.assert_allclose(f.floor, STEP**2 * spread / (1 - (1 - STEP) ** 2), rtol=1e-9)
    ring = fp.run(fp.FedGD(step=STEP, coupling=0.5), problem, rounds=1, network=fp.Network.ring(100_000))
    np.testing.assert_allclose(ring.last[0], STEP * centers, rtol=1e-12)  # from zero nobody pulls yet


# Scales, precision.


@pytest.mark.parametrize("scale", [1e150, 1e-150])
def test_huge_and_tiny(scale):
    """Units do not matter: the same numbers as at scale 1, times it."""
    problem, want = bowls(scale), np.array([1.0, 2.5])
    run = fp.run(AVERAGING, problem, rounds=ROUNDS)
    np.testing.assert_allclose(run.model[0] / scale, (1 - LEFT) * want, rtol=1e-12)
    np.testing.assert_allclose(run.error[0, -1] / scale / scale, 7.25 * LEFT**2, rtol=1e-3 if scale < 1 else 1e-12)
    f = fp.forecast(AVERAGING, problem)
    np.testing.assert_allclose(f.limit / scale, want, rtol=1e-12)
    np.testing.assert_allclose([f.rate, f.bias / scale], [1 - STEP, 0.0], rtol=1e-9, atol=1e-12)
    assert fp.check(run).passed
    noisy = fp.problems.Quadratic(1.0, [[0.0, scale], [2 * scale, 4 * scale]], noise=scale * scale)
    with pytest.raises(FedpointError, match="their variance is beyond the floats: run it in other units"):
        fp.check(fp.run(AVERAGING, noisy, rounds=20, repeats=8, seed=1))
    coupled = fp.run(fp.FedGD(step=STEP, coupling=1.0), problem, rounds=ROUNDS, network=fp.Network.ring(2))
    same = fp.run(fp.FedGD(step=STEP, coupling=1.0), bowls(), rounds=ROUNDS, network=fp.Network.ring(2))
    np.testing.assert_allclose(coupled.last / scale, same.last, rtol=1e-12)
    steep = fp.run(fp.FedAvg(step=STEP / scale), fp.problems.Quadratic(scale, [[0.0, 1.0], [2.0, 4.0]]), rounds=ROUNDS)
    np.testing.assert_allclose(steep.model, [(1 - LEFT) * want], rtol=1e-12)


def test_a_step_that_is_far_too_large_is_said():
    with pytest.raises(FedpointError, match="largest stable step here is 2"):
        fp.run(fp.FedAvg(step=1e150), bowls(), rounds=5)


def test_single_precision():
    """Half a squared distance from 1 and from 3, over rows of one agent each."""

    def loss(w, batch):
        return 0.5 * ((w - batch[0]) ** 2).mean()

    problem = fp.problems.Loss(loss, np.zeros(1, "f4"), (np.array([[1.0], [3.0]], "f4"),), groups=[0, 1])
    run = fp.run(AVERAGING, problem, rounds=ROUNDS, exact=True)
    assert run.model.dtype == np.float32
    np.testing.assert_allclose(run.model, [[2.0 * (1 - LEFT)]], rtol=ROUNDS * np.finfo("f4").eps)


# What is no number.


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None, "x", True, 1j, []])
@pytest.mark.parametrize(
    "use",
    [
        lambda bad: fp.FedAvg(step=bad),
        lambda bad: fp.FedAvg(step=0.1, local_steps=bad, normalise=True),
        lambda bad: fp.Scaffold(step=0.1, server_step=bad),
        lambda bad: fp.Scaffnew(step=0.1, probability=bad),
        lambda bad: fp.QFedAvg(step=0.1, q=bad),
        lambda bad: fp.FedGD(step=0.1, coupling=bad),
        lambda bad: fp.problems.Quadratic(1.0, [[1.0]], noise=bad),
        lambda bad: fp.run(AVERAGING, bowls(), rounds=bad),
        lambda bad: fp.run(AVERAGING, bowls(), rounds=1, repeats=bad),
        lambda bad: fp.run(AVERAGING, bowls(), rounds=1, seed=bad),
        lambda bad: fp.forecast(AVERAGING, bowls()).rounds_to(bad),
        lambda bad: fp.forecast(AVERAGING, bowls()).curve(bad),
        lambda bad: fp.plan(bowls(), target=bad),
        lambda bad: FederatedRegressor(rounds=bad).fit([[1.0], [2.0]], [1.0, 2.0], groups=[0, 1]),
    ],
)
def test_what_is_no_number_is_refused(use, bad):
    with pytest.raises(FedpointError):
        use(bad)


@pytest.mark.parametrize("bad", [["x", 1.0], "x", [[1.0, 2.0], [3.0]], {}, [float("nan"), 1.0], [1j, 1.0]])
@pytest.mark.parametrize(
    "use",
    [
        lambda bad: fp.GeneralRule(0.1, 2, coefficients=bad),
        lambda bad: fp.GeneralRule(0.1, 2, weights=bad),
        lambda bad: fp.Importance(2, bad),
        lambda bad: fp.Answering(fp.Uniform(2), probability=bad),
        lambda bad: fp.Clock(bad),
    ],
)
def test_lists_that_hold_no_numbers_are_refused(use, bad):
    with pytest.raises(FedpointError):
        use(bad)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1j, "x", []])
def test_weights_of_edges(bad):
    with pytest.raises(FedpointError, match="network"):
        fp.Network.from_edges([[0, 1]], [bad])


# Memory.


@pytest.mark.parametrize(
    "use",
    [
        lambda: fp.run(AVERAGING, bowls(), rounds=1, repeats=1_000_000),
        lambda: fp.sweep(AVERAGING, bowls(), over={"step": [0.1, 0.2]}, rounds=1, repeats=500_000),
        lambda: fp.run(fp.FedGD(0.1, 0.5), bowls(), network=fp.Network.complete(2), rounds=1, repeats=1_000_000),
    ],
)
def test_repeats_that_do_not_fit(monkeypatch, use):
    monkeypatch.setattr(room, "LIMIT", 50_000_000)
    with pytest.raises(
        FedpointError,
        match=r"1,000,000 repeats at once need about .* of memory, and only 50 MB are available: about [1-9]",
    ):
        use()


def flat(agents, numbers, dtype):
    """Of which an agent's data are one number, and the model has so many."""
    rows = np.ones(agents, dtype)
    return fp.problems.Loss(
        lambda w, batch: jnp.mean((w.sum() - batch) ** 2), np.zeros(numbers, dtype), rows, groups=np.arange(agents)
    )


def test_the_room_is_checked_for_one_repeat_too(monkeypatch):
    """3,400 corrections of 1.66 million numbers are 22.6 GB: refused before anything is made, with what would fit."""
    monkeypatch.setattr(room, "LIMIT", 24 * 10**9)
    problem = flat(3_400, 1_660_000, np.float32)
    tracemalloc.start()
    try:
        with pytest.raises(FedpointError) as said:
            fp.run(fp.Scaffold(step=0.1), problem, rounds=1)
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()
    assert "SCAFFOLD with 3,400 agents and a model of 1,660,000 numbers needs about 45 GB of memory" in str(said.value)
    assert "and only 24 GB are available: every agent keeps 6 MB. What would fit: about" in str(said.value)
    fits = int(re.search(r"about ([\d,]+) agents", str(said.value))[1].replace(",", ""))
    numbers = int(re.search(r"a model of about ([\d,]+) numbers", str(said.value))[1].replace(",", ""))
    for agents, size in ((fits, 1_660_000), (3_400, numbers)):  # as it says, within what is counted
        state = 2 * agents * size * 4
        assert 0.95 * room.LIMIT < state <= room.LIMIT


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_fits_is_run_and_what_does_not_is_refused(monkeypatch, dtype):
    """On both sides of the limit, by the bytes of the numbers; single precision is offered where it is not taken."""
    problem, width = flat(200, 20_000, dtype), np.dtype(dtype).itemsize
    state = 2 * 200 * 20_000 * width
    monkeypatch.setattr(room, "LIMIT", int(1.2 * state))
    assert fp.run(fp.Scaffold(step=1e-6), problem, rounds=1, start=np.zeros(20_000, dtype)).rounds[-1] == 1
    monkeypatch.setattr(room, "LIMIT", int(0.9 * state))
    with pytest.raises(FedpointError, match="every agent keeps") as said:
        fp.run(fp.Scaffold(step=1e-6), problem, rounds=1)
    assert ("float32" in str(said.value)) is (width == 8)
    assert fp.run(fp.FedAvg(step=1e-6), problem, rounds=1).rounds[-1] == 1  # which remembers nothing
    assert fp.run(fp.Scaffold(step=1e-6), flat(140, 20_000, dtype), rounds=1).rounds[-1] == 1


@pytest.mark.parametrize(
    "method, options",
    [
        (fp.FedGD(1e-6, 0.1), {"network": fp.Network.ring(50)}),
        (fp.FedGD(1e-6, 0.1), {"network": fp.Network.ring(50), "schedule": fp.PartiallyAsynchronous(16)}),
        (fp.Scaffold(1e-6), {"channel": fp.channel.Cast("float16")}),
        (fp.Scaffold(1e-6), {"schedule": fp.Arrivals(fp.Clock(np.linspace(1.0, 2.0, 50)), 4)}),
    ],
    ids=["a network", "mail", "a channel", "late answers"],
)
def test_nodes_mail_and_channels_take_room_too(monkeypatch, method, options):
    """What a run of each holds, by the arrays of its state."""
    problem = flat(50, 2_000, np.float64)
    session = fp.run(method, problem, rounds=1, **options).session
    held = sum(a.nbytes for a in jax.tree.leaves(session.state))
    monkeypatch.setattr(room, "LIMIT", held)
    with pytest.raises(FedpointError, match="of memory, and only"):
        fp.run(method, problem, rounds=1, **options)
    monkeypatch.setattr(room, "LIMIT", 6 * held + 2 * 50 * 2_000 * 8 * 3)
    fp.run(method, problem, rounds=1, **options)


def test_records_that_do_not_fit(monkeypatch):
    """Only where they are asked for: otherwise they are thinned."""
    monkeypatch.setattr(room, "LIMIT", 10_000_000)
    problem = flat(2, 1_000, np.float64)
    with pytest.raises(FedpointError, match=r"a record every 1 round of 100,000 needs about 1 GB.*record_every=160 or"):
        fp.run(fp.FedAvg(step=1e-6), problem, rounds=100_000, record_every=1)
    assert len(fp.run(fp.FedAvg(step=1e-6), problem, rounds=400, record_every=160).rounds) == 4


def test_memory_that_runs_out_all_the_same_is_a_memory_error(monkeypatch):
    def used_up(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 22569200000 bytes.\nDetails")

    monkeypatch.setattr("fedpoint.engine.session.go_on", used_up)
    with pytest.raises(MemoryError, match=r"^RESOURCE_EXHAUSTED: Out of memory allocating 22569200000 bytes\.$"):
        fp.run(AVERAGING, bowls(), rounds=1)


def test_what_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(room, "LIMIT", 1 << 20)
    with pytest.raises(
        FedpointError, match="needs about 2 MB of memory, and only 1 MB are available: take one with fewer edges"
    ):
        fp.Network.complete(300)
    with pytest.raises(FedpointError, match="take fewer neighbours"):
        fp.Network.random(1000, 999)
    fp.Network.ring(1000)


def test_the_machine_has_memory():
    assert room.memory() > 1 << 28
