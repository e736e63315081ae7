"""What a user writes with public names only: a method, a wrapper, a scheme, a channel, a gather, a metric."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.algorithms import CATALOGUE


def bowls(agents=20, noise=0.0, weights=None):
    rng = np.random.default_rng(3)
    return fp.problems.Quadratic(rng.uniform(1, 2, agents), rng.normal(size=(agents, 3)), noise=noise, weights=weights)


# A subclass is an algorithm, a record and a pytree without further words.


class Dithered(fp.FedAvg):
    """FedAvg whose agents add noise to what they send."""

    sigma: float = 0.1

    def local(self, w, memory, agent):
        change, memory = super().local(w, memory, agent)
        return change + self.sigma * agent.normal(change), memory


class Unchanged(fp.FedAvg):
    """FedAvg by another name."""

    note: str = "mine"


def test_a_subclass_is_a_record_and_a_pytree():
    method = Dithered(step=0.5, local_steps=2, sigma=0.3)
    assert method.sigma == 0.3 and method.local_steps == 2 and method == method.replace(sigma=0.3)
    assert sorted(jax.tree.leaves(method)) == [0.3, 0.5]
    assert hash(method) == hash(method.replace(sigma=0.1)) != hash(method.replace(local_steps=3))
    swept = fp.sweep(method, bowls(), over={"sigma": [0.0, 0.1]}, rounds=3, seed=2)
    for i, sigma in enumerate((0.0, 0.1)):
        one = fp.run(method.replace(sigma=sigma), bowls(), rounds=3, seed=2)
        np.testing.assert_array_equal(swept.run.history[i], one.history[0])


def test_an_agents_own_noise_has_the_variance_it_should():
    """w+ - w* = (1 - mu)(w - w*) + sigma sum_k p_k n_k, so that E|w - w*|^2 = 3 sigma^2 sum p^2 / (1 - (1 - mu)^2)."""
    problem = fp.problems.Quadratic(1.0, np.zeros((20, 3)))
    run = fp.run(Dithered(step=0.5, sigma=0.1), problem, rounds=30, repeats=4000, seed=1)
    end = run.error[:, -1]
    exact = 3 * 0.1**2 / 20 / (1 - 0.5**2)
    assert abs(end.mean() - exact) < 4 * end.std() / np.sqrt(len(end)) < 0.1 * exact


def test_draws_differ_between_agents_rounds_steps_and_calls_and_repeat_with_the_seed():
    class Tells(fp.Algorithm):
        def init(self, w):
            return w, jnp.zeros((2, 4))

        def local(self, w, memory, agent):
            steps = fp.descend(agent, jnp.zeros(3), 3, lambda y, e: y.at[e].set(agent.normal(y[0])))
            return 0.0 * w, jnp.stack([jnp.append(steps, agent.normal(w[0])), jnp.append(steps, agent.uniform(w[0]))])

        def combine(self, w, inbox):
            return w

    seen = [fp.run(Tells(), bowls(5), rounds=r, seed=s).memories[0] for r, s in ((1, 0), (2, 0), (1, 1))]
    normals = np.concatenate([memory[:, 0].ravel() for memory in seen])
    assert len(set(normals)) == len(normals) == 3 * 5 * 4
    again = fp.run(Tells(), bowls(5), rounds=1, seed=0).memories[0]
    np.testing.assert_array_equal(again, seen[0])


def test_a_key_of_an_agent_serves_jax_random():
    class Signs(fp.FedAvg):
        def local(self, w, memory, agent):
            change, memory = super().local(w, memory, agent)
            return change * jax.random.rademacher(agent.key(), change.shape, change.dtype), memory

    run = fp.run(Signs(step=0.5), bowls(), rounds=4, seed=1)
    assert np.isfinite(run.history).all()
    np.testing.assert_array_equal(run.history, fp.run(Signs(step=0.5), bowls(), rounds=4, seed=1).history)


def test_a_subclass_that_leaves_the_update_alone_keeps_what_is_known():
    own, known = Unchanged(step=0.1, local_steps=3), fp.FedAvg(step=0.1, local_steps=3)
    assert own.closed_forms() == known.closed_forms() != {}
    assert own.card == known.card and not own.own_kind()
    assert Dithered(step=0.1).closed_forms() == {} and Dithered(step=0.1).own_kind()
    assert Dithered.card.title == "Dithered" and "dithered" not in CATALOGUE


# Wrappers.


class Ahead(NamedTuple):
    hub: Any
    last: Any


class Further(fp.Wrapped):
    """What is read lies a little further along the last change."""

    length: float = 0.5

    def init(self, w):
        hub, memory = self.inner.init(w)
        return Ahead(hub, w), memory

    def say(self, hub, row):
        return self.inner.say(hub.hub, row)

    def combine(self, hub, inbox):
        return Ahead(self.inner.combine(hub.hub, inbox), self.inner.read(hub.hub, ()))

    def settle(self, hub, memory):
        return self.inner.settle(hub.hub, memory)

    def read(self, hub, memory):
        w = self.inner.read(hub.hub, memory)
        return w + self.length * (w - hub.last)


@pytest.mark.parametrize(
    "method",
    [
        fp.Scaffold(step=np.linspace(0.05, 0.3, 20), local_steps=np.arange(1, 21) % 4 + 1),
        fp.Scaffold(step=np.linspace(0.05, 0.3, 20), local_steps=2, option=1),
    ],
    ids=["steps", "option"],
)
def test_wrappers_at_any_depth_forward_numbers_per_agent(method):
    problem = bowls()
    for wrapped in (method, fp.Averaged(method, burn_in=2000), Further(fp.Averaged(method, burn_in=2000))):
        run = fp.run(wrapped, problem, rounds=2500, participation=5, seed=4, record_every=2500)
        assert run.error[0, -1] < 1e-20


def test_an_average_is_the_mean_of_the_models_after_the_burn_in():
    problem = bowls(noise=0.5)
    inner = fp.run(fp.Scaffold(step=0.1), problem, rounds=80, participation=10, seed=5)
    run = fp.run(fp.Averaged(fp.Scaffold(step=0.1), burn_in=50), problem, rounds=80, participation=10, seed=5)
    np.testing.assert_array_equal(run.history[:, :51], inner.history[:, :51])
    np.testing.assert_allclose(run.model, inner.history[:, 51:].mean(1), rtol=1e-12)


@pytest.mark.parametrize("wrap", [fp.Averaged, fp.Wrapped, lambda m: Further(fp.Averaged(m))])
def test_a_wrapper_does_not_escape_the_rules_of_its_method(wrap):
    with pytest.raises(fp.FedpointError, match=r"Scaffnew cannot run with participation Uniform: its corrections stay"):
        fp.run(wrap(fp.Scaffnew(step=0.1, probability=0.5)), bowls(), participation=5)


def test_a_wrapper_counts_the_epochs_of_its_method():
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(40, 2)), rng.normal(size=40), np.repeat([0, 1], [10, 30])
    problem = fp.problems.LeastSquares(X, y, groups=groups, batch=5)
    method = fp.FedAvg(step=0.01, local_steps=fp.steps.Epochs(2))
    plain, wrapped = (fp.run(m, problem, rounds=4, seed=1) for m in (method, fp.Wrapped(method)))
    np.testing.assert_array_equal(plain.history, wrapped.history)
    assert plain.cost == wrapped.cost


# Schemes.


class RoundRobin(fp.Participation):
    """`size` agents at a time, one group after the other."""

    size: int

    def slots(self, agents):
        return self.size

    def tick(self, key, p, round):
        agents = (jnp.arange(self.size) + round * self.size) % len(p)
        return fp.Tick.of(agents, weight=p[agents] * len(p) / self.size)


class Equal(RoundRobin):
    """The same with the weights of a plain mean: wrong where the p_k differ."""

    def tick(self, key, p, round):
        tick = super().tick(key, p, round)
        return tick._replace(weight=jnp.full(self.size, 1 / self.size))


class Unscaled(RoundRobin):
    """The same without K/L: every round takes too short a step."""

    def tick(self, key, p, round):
        tick = super().tick(key, p, round)
        return tick._replace(weight=p[tick.agents])


def test_a_round_robin_asks_one_group_after_the_other():
    problem = fp.problems.Quadratic(1.0, np.arange(6.0)[:, None])
    run = fp.run(fp.FedAvg(step=1.0), problem, rounds=4, participation=RoundRobin(size=2))
    np.testing.assert_allclose(run.history[0, 1:, 0], [0.5, 2.5, 4.5, 0.5])
    assert run.cost.messages_up == 8


WEIGHTS = np.linspace(1, 3, 20) / np.linspace(1, 3, 20).sum()


def mean_weights(scheme, p, rounds=400):
    """The mean of v over rounds, and its standard error."""

    def weights(round):
        tick = scheme.at(fp.Key.of(7), jnp.asarray(p), round)
        return jnp.zeros(len(p)).at[tick.agents].add(jnp.where(tick.heard, tick.weight, 0.0))

    with jax.enable_x64(True):
        v = np.asarray(jax.jit(jax.vmap(weights))(jnp.arange(rounds)))
    return v.mean(0), v.std(0) / np.sqrt(rounds)


def biased(scheme, p):
    """Whether E v = p is off by more than four standard errors for some agent (of 20: one in a thousand by chance)."""
    mean, error = mean_weights(scheme, p)
    return bool((np.abs(mean - p) > 4 * error + 1e-12).any())


def test_a_schemes_weights_are_convicted_where_they_are_wrong():
    assert not biased(RoundRobin(size=5), WEIGHTS) and not biased(fp.Uniform(5), WEIGHTS)
    assert biased(Unscaled(size=5), WEIGHTS) and biased(Equal(size=20), WEIGHTS)


def test_a_round_robin_ends_near_the_solution_and_with_wrong_weights_elsewhere():
    """With a small step a cycle of rounds is a step of gradient descent: it ends O(step) from w*."""
    problem = bowls(weights=WEIGHTS)
    ends = {
        scheme: fp.run(fp.FedAvg(step=0.002), problem, 12000, participation=scheme(size=5), record_every=4).history[0]
        for scheme in (RoundRobin, Equal)
    }
    far = {scheme: np.sum((end[-1] - problem.solution()) ** 2) for scheme, end in ends.items()}
    assert far[RoundRobin] < 1e-4 < 1e-3 < far[Equal]


def test_rounds_that_depend_on_each_other_have_no_floor_and_the_forecast_says_so():
    """A cycle is much quieter than draws with its moments: a floor of independent rounds would be far too high."""
    problem = bowls(noise=0.1, weights=WEIGHTS)
    right, wrong = (fp.forecast(fp.FedAvg(step=0.1), problem, participation=s(size=5)) for s in (RoundRobin, Equal))
    assert right.floor is None and right.noise_by == "who works in a round of RoundRobin depends on who did before"
    assert right.bias < 1e-12 and wrong.bias > 0.05  # its weights are known, and so is where they lead
    run = fp.run(fp.FedAvg(step=0.1), problem, rounds=50, repeats=10, participation=RoundRobin(size=5))
    assert fp.check(run).outcome == "undecided"  # not passed: nothing of such a forecast is of this run
    p = np.full(8, 1 / 8)
    assert not RoundRobin(size=2).moments(p).independent
    assert fp.Answering(fp.Uniform(4), probability=np.linspace(0.3, 0.9, 8)).moments(p).independent


def test_a_subclass_with_other_draws_does_not_inherit_known_moments():
    class Favourites(fp.Uniform):
        def tick(self, key, p, round):
            return super().tick(key, p, round)._replace(weight=jnp.full(self.count, 2 / self.count))

    class Renamed(fp.Uniform):
        note: str = "mine"

    p = np.full(8, 1 / 8)
    assert not fp.Uniform(2).moments(p).sampled and not Renamed(2).moments(p).sampled
    found = Favourites(2).moments(p)
    assert found.sampled and np.allclose(found.mean, 2 / 8, atol=0.02)


# Channels and gathers.


class Half(fp.Channel):
    """Messages in half precision."""

    def encode(self, message, memory, agent):
        return jax.tree.map(lambda a: a.astype(jnp.float16), message), memory

    def decode(self, code, like):
        return jax.tree.map(lambda c, a: c.astype(a.dtype), code, like)

    def bits(self, message):
        return 16.0 * sum(a.size for a in jax.tree.leaves(message))


METHODS = {
    "FedAvg": fp.FedAvg(step=0.2, local_steps=2),
    "Scaffold": fp.Scaffold(step=0.1),
    "Scaffnew": fp.Scaffnew(step=0.2, probability=0.5),
    "FedAdam": fp.FedAdam(step=0.1),
    "FedNova": fp.FedNova(step=0.1),
    "Averaged": fp.Averaged(fp.Scaffold(step=0.1), burn_in=50),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_own_channel_runs_with_every_method(name):
    who = None if name == "Scaffnew" else 10
    plain, half = (
        fp.run(METHODS[name], bowls(), rounds=60, participation=who, seed=2, channel=channel)
        for channel in (None, Half())
    )
    assert half.cost.bytes_up == plain.cost.bytes_up / 4
    assert 0 < np.abs(half.model - plain.model).max() < 2e-2 * np.abs(plain.model).max()
    library = fp.run(METHODS[name], bowls(), rounds=60, participation=who, seed=2, channel=fp.channel.Cast("float16"))
    np.testing.assert_array_equal(half.history, library.history)


@pytest.mark.parametrize("method", [fp.FedGD(step=0.1, coupling=1.0), fp.FedAvg(step=0.1, local_steps=2)])
def test_an_own_channel_runs_on_networks(method):
    network = fp.Network.ring(20).mixing()
    plain, half = (
        fp.run(method, bowls(), rounds=60, network=network, seed=2, channel=channel) for channel in (None, Half())
    )
    assert half.cost.bytes_up == plain.cost.bytes_up / 4
    assert 0 < np.abs(half.model - plain.model).max() < 2e-2


class Later(fp.Channel):
    """Half of the numbers are sent; what is not sent is kept for later."""

    lossless = False

    def init(self, message):
        return jax.tree.map(jnp.zeros_like, message)

    def encode(self, message, memory, agent):
        owed = jax.tree.map(jnp.add, message, memory)
        code = jax.tree.map(lambda a, u: jnp.where(u < 0.5, a, 0.0), owed, agent.uniform(owed))
        return code, jax.tree.map(jnp.subtract, owed, code)

    def owed(self, memory, like):
        return memory

    def omega(self, message):
        return 1.0


class Sparse(fp.Channel):
    """Every number is sent with probability 1/2, doubled: unbiased, and nothing is made up for later."""

    lossless = False

    def encode(self, message, memory, agent):
        return jax.tree.map(lambda a, u: jnp.where(u < 0.5, 2 * a, 0.0), message, agent.uniform(message)), memory

    def omega(self, message):
        return 1.0


class Deaf(fp.Scaffold):
    """It does not listen to what arrived of its control variates."""

    def acknowledge(self, c_k, sent, credited):
        return c_k


def test_a_channel_may_use_an_agents_randomness_and_keep_a_memory():
    """A method whose memories know what arrived still ends at w*; one that does not listen is convicted."""

    def end(method, channel):
        run = fp.run(method, bowls(), 3000, participation=10, seed=3, channel=channel, record_every=3000)
        return run.error[0, -1]

    settings = {"step": 0.05, "local_steps": 4}
    assert end(fp.Scaffold(**settings), Later()) < 1e-20
    assert end(fp.Scaffold(**settings), Sparse()) < 1e-20
    assert end(Deaf(**settings), Sparse()) > 1e-2


class Trimmed(fp.Gather):
    """The mean without the smallest and the largest of each coordinate."""

    def location(self, messages, weights):
        rest = messages.sum(0) - messages.min(0) - messages.max(0)
        return rest / (len(messages) - 2)


def test_an_own_gather_is_not_moved_by_a_liar():
    problem = fp.problems.Quadratic(1.0, [[0.0], [1.0], [2.0], [1e6]])
    run = fp.run(fp.FedAvg(step=0.5), problem, rounds=60, gather=Trimmed())
    assert run.model[0, 0] == pytest.approx(1.5)
    with pytest.warns(UserWarning, match=r"SCAFFOLD conserves a sum over all agents, which Trimmed does not"):
        fp.run(fp.Scaffold(step=0.5), problem, rounds=2, gather=Trimmed())


# Metrics.


def test_metrics_are_recorded_beside_the_model_in_memory_and_folder(tmp_path):
    def drift(state):
        return jnp.abs(state.memory - state.hub.c).max()

    metrics = {"drift": drift, "size": lambda state: jnp.sum(state.model**2)}
    run = fp.run(fp.Scaffold(step=0.1), bowls(), rounds=20, participation=10, metrics=metrics, folder=tmp_path / "run")
    assert run.metrics["drift"].shape == (1, 21)
    np.testing.assert_allclose(run.metrics["size"], (run.history**2).sum(-1), rtol=1e-12)
    loaded = fp.load(tmp_path / "run")
    for name in metrics:
        np.testing.assert_array_equal(loaded.metrics[name], run.metrics[name])
