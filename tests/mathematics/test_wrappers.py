"""Methods around methods: chains that share samples and participants (Extrapolated), running means (Averaged)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.algorithms.extrapolated import Both

# Two chains in one run are two runs with the same seed: the same samples, participants and luck. Both programs compute
# the same sums; where XLA fuses them otherwise a rounding is left.
ROUNDING = 1e-13


def bowls(noise=0.3, agents=4):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(agents, 3, 3))
    H = root @ np.swapaxes(root, 1, 2) / 3 + 0.5 * np.eye(3)
    return fp.problems.Quadratic(H, rng.normal(size=(agents, 3)), noise=noise, weights=rng.uniform(1, 4, agents))


def rows(**options):
    rng = np.random.default_rng(1)
    counts = (5, 8, 6, 7)
    A, b = [rng.normal(size=(n, 3)) + 0.2 * n for n in counts], [rng.normal(size=n) for n in counts]
    return fp.problems.LeastSquares(A, b, mean=True, batch=2, **options)


def classes():
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(4), (5, 8, 6, 7))
    return fp.problems.Logistic(rng.normal(size=(26, 3)), rng.integers(0, 3, 26), groups=groups, batch=2)


def trajectories():
    return fp.problems.garnet(states=6, dim=3, agents=4, heterogeneity=0.3, seed=3, sampling="trajectory")


class Dithered(fp.Scaffold):
    """SCAFFOLD whose agents add noise of their own to their local steps' end, and a coin's to what they remember."""

    def local(self, heard, c_k, agent):
        message, new = super().local(heard, c_k, agent)
        return message._replace(w=message.w + 0.1 * agent.normal(message.w)), new + 0.0 * agent.uniform(new)


STEPS = np.array([0.1, 0.05, 0.15, 0.08])
RING = fp.Network.ring(4).mixing()
SETTINGS = {
    "per agent, stragglers": (
        fp.FedAvg(STEPS, fp.steps.Stragglers(4, 0.5)),
        bowls(),
        {"participation": fp.ByWeight(3)},
    ),
    "epochs, controls": (fp.Scaffold(0.02, fp.steps.Epochs(2)), rows(), {"participation": 2}),
    "luck of its own": (Dithered(0.1, 3, option=1), bowls(), {"participation": 3}),
    "trajectories": (fp.FedAvg(0.1, 2), trajectories(), {"participation": 3}),
    "FedSGD on a network": (fp.FedSGD(STEPS, 0.2, 2), bowls(), {"network": RING, "schedule": fp.RandomActivation(2)}),
}
MORE = {
    "q-FedAvg": (fp.QFedAvg(1.0, 0.1, 2), bowls(), {"participation": fp.Answering(fp.Uniform(3), 0.7)}),
    "Scaffnew": (fp.Scaffnew(0.1, probability=0.4), bowls(), {}),
    "a schedule": (fp.FedAdam(fp.steps.InverseTime(1.0, 8.0), 2), bowls(), {"participation": 3}),
    "FedNova": (fp.FedNova(0.1, [1, 2, 3, 4], momentum=0.5), bowls(), {"participation": 3}),
    "FedProx": (fp.FedProx(0.1, 3), classes(), {"participation": fp.Importance(2, [0.1, 0.4, 0.3, 0.2])}),
    "server momentum": (fp.FedAvgM(STEPS, 2), rows(sampling="shuffle"), {"participation": 3}),
    "gradients": (fp.GradientExchange(fp.steps.Exponential(0.2, 0.9)), classes(), {"participation": 1}),
    "the general rule": (fp.GeneralRule(0.1, 3, weights=[0.4, 0.3, 0.2, 0.1]), bowls(), {}),
    "running means": (fp.Averaged(fp.Scaffold(0.1, 3), burn_in=4), bowls(), {"participation": 2}),
    "twice": (fp.Extrapolated(fp.FedAvg(0.1, 3)), bowls(), {"participation": 2}),
    "half precision": (fp.Scaffold(0.1, 3), bowls(), {"participation": 2, "channel": fp.channel.Cast("float16")}),
    "a median": (fp.FedAvg(0.1, 3), bowls(), {"gather": fp.gather.Median()}),
    "late answers": (fp.FedAvg(0.1, 3), bowls(), {"schedule": fp.Arrivals(fp.Clock(np.arange(1.0, 5.0)), models=True)}),
    "FedAvg on a network": (fp.FedAvg(0.1, 3), bowls(), {"network": RING, "schedule": fp.PartiallyAsynchronous(2)}),
    "FedGD on a network": (fp.FedGD(0.1, 0.3), bowls(), {"network": RING}),
    "tree of arrays": (fp.Scaffold(0.1, 2), None, {"participation": 2}),
}


def tree_of_arrays():
    rng = np.random.default_rng(5)
    X, y, groups = rng.normal(size=(26, 3)), rng.normal(size=26), np.repeat(np.arange(4), (5, 8, 6, 7))

    def loss(w, row):
        return (jnp.tanh(row[0] @ w["V"]) @ w["u"] - row[1]) ** 2

    start = {"V": rng.normal(size=(3, 2)), "u": rng.normal(size=2)}
    return fp.problems.Loss(loss, start, (X, y), groups=groups, batch=3)


def chains_are_two_runs(wrapper, method, problem, rounds=12, **options):
    """2 w(s/2) - w(s), run by run; evaluations and numbers sent are those of both."""
    problem = tree_of_arrays() if problem is None else problem
    runs = [fp.run(m, problem, rounds=rounds, seed=2, **options) for m in (wrapper(method), method, method.longer(0.5))]
    both, whole, half = (np.concatenate([a.reshape(-1) for a in leaves(run.history)]) for run in runs)
    np.testing.assert_allclose(both, 2 * half - whole, rtol=ROUNDING, atol=ROUNDING)
    assert np.abs(half - whole).max() > 1e-3 * np.abs(whole).max()  # they are two
    cost, *each = (run.cost for run in runs)
    assert cost.evaluations == sum(one.evaluations for one in each)
    assert cost.floats_up == sum(one.floats_up for one in each)


def leaves(tree):
    return list(tree.values()) if isinstance(tree, dict) else [tree]


@pytest.mark.parametrize("name", [*SETTINGS, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_both_chains_are_runs_with_the_same_samples_and_participants(name):
    method, problem, options = {**SETTINGS, **MORE}[name]
    chains_are_two_runs(fp.Extrapolated, method, problem, **options)


class OwnSamples(fp.Extrapolated):
    """The half step's chain draws samples of its own."""

    def samples(self, steps):
        return 2 * steps

    def local(self, heard, memory, agent):
        first = self.inner.local(heard.whole, memory.whole, agent)
        second = self.inner.longer(0.5).local(heard.half, memory.half, Later(agent))
        return Both(first[0], second[0]), Both(first[1], second[1])


class Later:
    def __init__(self, agent):
        self.agent, self.steps, self.loop, self.round, self.evaluations = agent, agent.steps, agent.loop, agent.round, 0

    def field(self, w, e=0):
        return self.agent.field(w, e + 3)


class Thirds(fp.Extrapolated):
    """Weights of another order."""

    def read(self, hub, memory):
        whole, half = hub.whole, hub.half
        return (4 * half - whole) / 3


class Swapped(fp.Extrapolated):
    def combine(self, hub, inbox):
        return super().combine(hub, inbox._replace(mean=Both(*inbox.mean[::-1])))


@pytest.mark.parametrize("wrong", [OwnSamples, Thirds, Swapped])
def test_broken_chains_are_convicted(wrong):
    chains_are_two_runs(fp.Extrapolated, fp.FedAvg(0.1, 3), bowls())
    with pytest.raises(AssertionError):
        chains_are_two_runs(wrong, fp.FedAvg(0.1, 3), bowls())


def test_what_is_drawn_after_the_chains_is_drawn_afresh():
    """A channel's luck is neither the method's nor the same for both messages: its coins would follow their noise."""

    class Coins(fp.Channel):
        def encode(self, message, memory, agent):
            return Both(*(a * 0 + agent.normal(a) for a in message)), memory

    class Noise(fp.Algorithm):
        step: float = 1.0

        def init(self, w):
            return w, w

        def local(self, w, memory, agent):
            noise = agent.normal(w)
            return noise, noise

        def combine(self, w, inbox):
            return inbox.mean

    run = fp.run(fp.Extrapolated(Noise()), bowls(agents=1), rounds=1, seed=1, channel=Coins())
    own, arrived = run.memories, run.session.state.hub
    np.testing.assert_array_equal(own.whole, own.half)
    assert len({float(a[0, 0]) for a in (np.asarray(own.whole)[:, 0], *map(np.asarray, arrived))}) == 3


# What it is for: a bias proportional to the step goes.


def fixed_point(problem, step, E):
    """FedAvg's, in plain NumPy: sum p_k (I - (I - s H_k)^E)(c_k - w) = 0."""
    H, c = problem.own
    M = np.stack([np.eye(3) - np.linalg.matrix_power(np.eye(3) - step * h, E) for h in H])
    return np.linalg.solve(np.tensordot(problem.weights, M, 1), np.einsum("k,kij,kj->i", problem.weights, M, c))


def test_the_first_order_of_the_drift_goes_and_half_of_the_second_stays():
    """bias(s) = a s + b s^2 + ...: 2 bias(s/2) - bias(s) = -b s^2 / 2 + O(s^3), also in a run."""
    problem, E = bowls(noise=0.0), 4
    star = problem.solution()

    def bias(step):
        return fixed_point(problem, step, E) - star

    def extrapolated(step):
        return 2 * bias(step / 2) - bias(step)

    run = fp.run(fp.Extrapolated(fp.FedAvg(0.1, E)), problem, rounds=1500, exact=True, record_every=1500)
    np.testing.assert_allclose(run.model[0] - star, extrapolated(0.1), rtol=0, atol=1e-12)
    second = (bias(1e-3) / 1e-3 - bias(5e-4) / 5e-4) / 5e-4  # b, up to O(1e-3)
    np.testing.assert_allclose(extrapolated(0.01) / 1e-4, -second / 2, rtol=0.1)
    assert np.linalg.norm(bias(0.01)) > 18 * np.linalg.norm(extrapolated(0.01))


# Running means, wherever the model is.


NODES = {
    "FedSGD": fp.FedSGD(0.1, 0.2, 2),
    "FedRelax": fp.FedRelax(0.5),
    "FedAvg": fp.FedAvg(0.1, 3),
    "Extrapolated": fp.Extrapolated(fp.FedSGD(0.1, 0.2)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("FedRelax", "FedAvg") else n for n in NODES]
)
def test_a_nodes_mean_is_that_of_its_own_models(name):
    method, options = NODES[name], {"network": RING, "rounds": 20, "seed": 3}
    plain = fp.run(method, bowls(), **options).history
    mean = fp.run(fp.Averaged(method, burn_in=5), bowls(), **options).history
    np.testing.assert_allclose(mean[:, :6], plain[:, :6], rtol=0, atol=1e-13)
    np.testing.assert_allclose(mean[:, -1], plain[:, 6:].mean(1), rtol=0, atol=1e-13)


def test_a_node_counts_its_own_turns():
    options = {"network": RING, "rounds": 30, "seed": 3, "schedule": fp.RandomActivation(2)}
    plain, mean = (fp.run(m, bowls(), **options).history[0] for m in (NODES["FedSGD"], fp.Averaged(NODES["FedSGD"])))
    for node in range(4):
        turns = 1 + np.flatnonzero(np.abs(np.diff(plain[:, node], axis=0)).max(1) > 0)
        assert 8 < len(turns) < 25
        np.testing.assert_allclose(mean[-1, node], plain[turns, node].mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("method", "options"),
    [(fp.Scaffold(0.1, 3), {"participation": 3}), (fp.FedSGD(0.1, 0.2), {"network": RING})],
    ids=["star", "network"],
)
def test_means_and_extrapolation_commute(method, options):
    """Both are linear in the models of all rounds."""
    around = (lambda m: fp.Averaged(fp.Extrapolated(m), 3), lambda m: fp.Extrapolated(fp.Averaged(m, 3)))
    one, two = (fp.run(wrap(method), bowls(), rounds=12, seed=1, **options).history for wrap in around)
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-13)


def test_running_means_of_shared_parts():
    """share=: the mean of the parts that are sent; the others stay at their agents."""
    problem, options = tree_of_arrays(), {"rounds": 12, "seed": 2, "share": ["V"]}
    plain, mean = (fp.run(m, problem, **options) for m in (fp.FedAvg(0.05, 2), fp.Averaged(fp.FedAvg(0.05, 2))))
    np.testing.assert_allclose(mean.model["V"], plain.history["V"][:, 1:, 0].mean(1), rtol=0, atol=1e-13)


# Refusals, and what is conserved.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fp.Extrapolated(fp.FedRelax(1.0)), "FedRelax has no step that could be halved"),
        (lambda: fp.Extrapolated(fp.FedProx(0.1, exact=True)), "FedProx has no step that could be halved"),
        (
            lambda: fp.run(fp.Extrapolated(fp.Scaffnew(0.1, probability=0.5)), bowls(), participation=2),
            "Scaffnew cannot run with participation Uniform",
        ),
        (
            lambda: fp.run(fp.Extrapolated(fp.FedAvg(0.1)), tree_of_arrays(), share=["V"]),
            "its messages are not changes of one model",
        ),
    ],
    ids=["FedRelax", "FedProx", "Scaffnew", "share"],
)
def test_what_cannot_be_extrapolated_is_refused(make, message):
    with pytest.raises(fp.FedpointError, match=message):
        make()


class Sparse(fp.Channel):
    """Every number is sent with probability 1/2, doubled."""

    lossless = False

    def encode(self, message, memory, agent):
        return jax.tree.map(lambda a: jnp.where(agent.uniform(a) < 0.5, 2 * a, 0.0), message), memory


def test_both_chains_conserve_their_sums_over_a_lossy_channel():
    problem = bowls()
    experiment = fp.Experiment(
        fp.Extrapolated(fp.Scaffold(0.1, 3)), problem, participation=2, channel=Sparse(), repeats=3
    )
    run = fp.run(experiment, rounds=20)
    with jax.enable_x64(True):
        left = experiment.algorithm.invariants(run.session.state.hub, run.memories, problem.weights)
    assert list(left) == ["c = sum p_k c_k", "c = sum p_k c_k, half step"]
    assert all(np.abs(value).max() < 1e-12 for value in left.values())
    assert all(np.abs(np.asarray(hub.c)).max() > 0.1 for hub in run.session.state.hub)
