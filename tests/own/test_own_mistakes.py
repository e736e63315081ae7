"""A mistake in a user's own code is one FedpointError: the class, the method, what was expected and what came."""

import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp


def bowls():
    return fp.problems.Quadratic([1.0, 2.0, 3.0], [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]], noise=0.1)


class Right(fp.Algorithm):
    """Gradient descent, with everything in its place."""

    step: float = 0.1

    def init(self, w):
        return w, 0.0 * w

    def local(self, w, memory, agent):
        g = agent.field(w)
        return -self.step * g, g

    def combine(self, w, inbox):
        return w + inbox.mean


class OneInit(Right):
    def init(self, w):
        return w


class ThreeInit(Right):
    def init(self, w):
        return w, 0.0 * w, 0


class Words(Right):
    def init(self, w):
        return "w", 0.0 * w


class OneLocal(Right):
    def local(self, w, memory, agent):
        return -self.step * agent.field(w)


class Nothing(Right):
    def local(self, w, memory, agent):
        pass


class LostMemory(Right):
    def local(self, w, memory, agent):
        return -self.step * agent.field(w), ()


class ShortMemory(Right):
    def local(self, w, memory, agent):
        return -self.step * agent.field(w), memory.sum()


class RoughMemory(Right):
    def local(self, w, memory, agent):
        return -self.step * agent.field(w), memory.astype(jnp.float32)


class EmptyMessage(Right):
    def local(self, w, memory, agent):
        return (), memory


class PairOfHub(Right):
    def combine(self, w, inbox):
        return w + inbox.mean, w


class SumOfHub(Right):
    def combine(self, w, inbox):
        return (w + inbox.mean).sum()


class SmallModel(Right):
    def read(self, w, memory):
        return w[0]


class Settled(Right):
    def settle(self, w, memory):
        return w, memory


class Grad(Right):
    def local(self, w, memory, agent):
        return -self.step * agent.grad(w), memory


class Messages(Right):
    def combine(self, w, inbox):
        return w + sum(inbox.messages)


class Order(Right):
    def local(self, w, memory, agent):
        return fp.descend(w, agent, 3, lambda y, e: y - agent.field(y, e)) - w, memory


class If(Right):
    def local(self, w, memory, agent):
        g = agent.field(w)
        if g.sum() > 0:
            g = 2 * g
        return -self.step * g, memory


class Float(Right):
    def local(self, w, memory, agent):
        return -float(agent.field(w)[0]) * w, memory


class WithNumPy(Right):
    def combine(self, w, inbox):
        return w + np.clip(np.asarray(inbox.mean), -1, 1)


class Shapes(Right):
    def local(self, w, memory, agent):
        return agent.field(w) + jnp.ones(5), memory


class Fails(Right):
    def local(self, w, memory, agent):
        return {}["change"], memory


METHODS = [
    (OneInit, r"OneInit\.init must return 2 results, the hub's state and an agent's memory; got float64\[2\]"),
    (ThreeInit, r"ThreeInit\.init must return 2 results, .*; got 3 results: \(float64\[2\], float64\[2\], int64\[\]\)"),
    (Words, r"Words\.init must return the hub's state as a tree of arrays; got str"),
    (OneLocal, r"OneLocal\.local must return 2 results, a message and the agent's memory; got float64\[2\]"),
    (Nothing, r"Nothing\.local must return 2 results, a message and the agent's memory; got None"),
    (LostMemory, r"LostMemory\.local must return the agent's memory as init made it, float64\[2\]; got \(\)"),
    (ShortMemory, r"ShortMemory\.local must return the agent's memory .*, float64\[2\]; got float64\[\]"),
    (RoughMemory, r"RoughMemory\.local must return the agent's memory .*, float64\[2\]; got float32\[2\]"),
    (EmptyMessage, r"EmptyMessage\.local must return a message that holds an array; got \(\)"),
    (PairOfHub, r"PairOfHub\.combine must return the hub's state as it was, float64\[2\]; got \(float64\[2\], float64"),
    (SumOfHub, r"SumOfHub\.combine must return the hub's state as it was, float64\[2\]; got float64\[\]"),
    (SmallModel, r"SmallModel\.read must return a model, float64\[2\]; got float64\[\]"),
    (Settled, r"Settled\.settle must return the agent's memory .*, float64\[2\]; got \(float64\[2\], float64\[2\]\)"),
    (Grad, r"Grad\.local: agent has no 'grad': did you mean 'field'\? .*test_own_mistakes\.py, line \d+: return -self"),
    (Messages, r"Messages\.combine: inbox has no 'messages': did you mean 'mean'\? Known: mass, mean, total, weight"),
    (Order, r"Order\.local: fp\.descend takes \(agent, start, steps, advance\)"),
    (If, r"If\.local uses a Python if.*use jnp\.where.*jax\.lax\.cond \(test_own_mistakes\.py, line \d+: if g\.sum"),
    (
        Float,
        r"Float\.local needs the value of an array, .*: return -float",
    ),
    (WithNumPy, r"WithNumPy\.combine needs the value of an array.*use jax\.numpy.*line \d+: return w \+ np\.clip"),
    (Shapes, r"Shapes\.local raised TypeError: add got incompatible shapes.*line \d+: return agent\.field\(w\) \+"),
    (
        Fails,
        r"Fails\.local raised KeyError: 'change' \(test_own_mistakes\.py, line \d+: return \{\}\[\"change\"\], "
        r"memory\)",
    ),
]


def test_the_right_one_runs():
    assert np.isfinite(fp.run(Right(), bowls(), rounds=2).history).all()


@pytest.mark.parametrize(("method", "message"), METHODS, ids=lambda m: getattr(m, "__name__", ""))
def test_a_mistake_in_a_method(method, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(method(), bowls(), rounds=2)


@pytest.mark.parametrize("verb", [fp.Experiment, fp.run, fp.forecast, fp.sweep, fp.check], ids=lambda v: v.__name__)
def test_every_verb_says_it(verb):
    with pytest.raises(fp.FedpointError, match=r"OneLocal\.local must return 2 results"):
        if verb is fp.check:
            fp.check(fp.run(OneLocal(), bowls(), rounds=2))
        else:
            verb(OneLocal(), bowls(), **({"over": {"step": [0.1, 0.2]}} if verb is fp.sweep else {}))


def test_repeats_and_networks_say_it_too():
    with pytest.raises(fp.FedpointError, match=r"OneInit\.init must return 2 results"):
        fp.run(OneInit(), bowls(), rounds=2, repeats=3)

    class Unlike(fp.FedGD):
        def combine(self, hub, inbox):
            return {"sum": inbox.mean}

        def local(self, heard, w, agent):
            return w, w[:1]

    with pytest.raises(
        fp.FedpointError, match=r"Unlike\.local must return the agent's memory as init made it, float64"
    ):
        fp.run(Unlike(step=0.1, coupling=1.0), bowls(), network=fp.Network.ring(3), rounds=2)


def test_the_cause_is_kept():
    with pytest.raises(fp.FedpointError) as caught:
        fp.run(Fails(), bowls())
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(fp.FedpointError) as caught:
        fp.run(If(), bowls())
    assert isinstance(caught.value.__cause__, jax.errors.TracerBoolConversionError)


@pytest.mark.parametrize("wrapped", [lambda m: fp.Averaged(m, burn_in=1), lambda m: fp.Wrapped(fp.Averaged(m))])
def test_the_inner_method_of_a_wrapper_is_named(wrapped):
    with pytest.raises(fp.FedpointError, match=r"OneLocal\.local must return 2 results"):
        fp.run(wrapped(OneLocal()), bowls())


def test_a_wrapper_is_named_where_it_is_wrong():
    class Doubles(fp.Wrapped):
        def local(self, heard, memory, agent):
            return 2 * self.inner.local(heard, memory, agent)[0]

    with pytest.raises(fp.FedpointError, match=r"Doubles\.local must return 2 results"):
        fp.run(Doubles(fp.FedAvg(step=0.1)), bowls())


def test_a_single_precision_model_stays_one():
    class Doubled(Right):
        def combine(self, w, inbox):
            return w + inbox.mean * jnp.ones(2, jnp.float64)

    def loss(w, row):
        return jnp.sum((w - row) ** 2, axis=-1)

    problem = fp.problems.Loss(loss, np.zeros(2, np.float32), np.eye(2, dtype=np.float32), groups=[0, 1])
    assert fp.run(Right(), problem, rounds=2).model.dtype == np.float32
    with pytest.raises(fp.FedpointError, match=r"Doubled\.combine must return .*, float32\[2\]; got float64\[2\]"):
        fp.run(Doubled(), problem, rounds=2)


# Schemes.


class First(fp.Participation):
    """The first two, always."""

    def slots(self, agents):
        return 2

    def tick(self, key, p, round):
        return fp.Tick.of(jnp.arange(2), weight=p[:2] * len(p) / 2)


class NoSlots(First):
    def slots(self, agents):
        return agents / 2


class OtherSlots(First):
    def slots(self, agents):
        return 3


class Plain(First):
    def tick(self, key, p, round):
        return jnp.arange(2), p[:2]


class OneWeight(First):
    def tick(self, key, p, round):
        return fp.Tick.of(jnp.arange(2), weight=0.5)


class NoWeight(First):
    def tick(self, key, p, round):
        return fp.Tick(jnp.arange(2), jnp.ones(2, bool))


class Odd(First):
    def tick(self, key, p, round):
        return super().tick(key, p, round) if round % 2 else fp.Tick.of(jnp.arange(1, 3), weight=p[1:3])


class Outside(First):
    def tick(self, key, p, round):
        agents = jnp.arange(2) + round
        return fp.Tick.of(agents, weight=jnp.full(2, 0.5))


class Twice(First):
    def tick(self, key, p, round):
        return fp.Tick.of(jnp.zeros(2, int), weight=jnp.full(2, 0.5))


class Silent(fp.Participation):
    def slots(self, agents):
        return 2


SCHEMES = [
    (NoSlots, r"NoSlots\.slots must return a whole number of at least 1, how many work in a round; got 1\.5"),
    (OtherSlots, r"OtherSlots\.tick: agents must be whole numbers for the 3 places that slots.*; got int32\[2\]"),
    (
        Plain,
        r"Plain\.tick must return an fp\.Tick, such as fp\.Tick\.of\(agents, weight\); got \(int64\[2\], float64\[2\]",
    ),
    (OneWeight, r"OneWeight\.tick: weight must be numbers for the 2 places that slots\(\) promises; got float64\[\]"),
    (NoWeight, r"NoWeight\.tick: weight must be numbers for the 2 places that slots\(\) promises; got None"),
    (Odd, r"Odd\.tick uses a Python if.*\(test_own_mistakes\.py, line \d+: return super"),
    (Outside, r"Outside\.tick: agents must be numbers from 0 to 2; got \[2 3\] in round 2"),
    (Twice, r"Twice\.tick: agents that are heard must all be different; got \[0 0\] in round 0"),
    (Silent, r"Silent does not say who works: define tick\(self, key, p, round\)"),
]


@pytest.mark.parametrize(("scheme", "message"), SCHEMES, ids=lambda s: getattr(s, "__name__", ""))
@pytest.mark.parametrize("around", [lambda s: s, lambda s: fp.Answering(s, probability=0.5)], ids=["", "Answering"])
def test_a_mistake_in_a_scheme(scheme, message, around):
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(fp.FedAvg(step=0.1), bowls(), rounds=2, participation=around(scheme()))


class Turns(fp.Schedule):
    """Every other node."""

    def tick(self, key, p, round):
        return fp.Tick(None, jnp.arange(len(p)) % 2 == round % 2)


class Loud(Turns):
    def tick(self, key, p, round):
        return fp.Tick(None, jnp.ones(len(p)))


class Old(Turns):
    def age(self, key, round, arc, says):
        return 1.0


class Deep(Turns):
    def depth(self, rounds):
        return None


SCHEDULES = [
    (Loud, r"Loud\.tick: heard must be truth values for the 3 places that slots\(\) promises; got float64\[3\]"),
    (Old, r"Old\.age must return how many rounds old is what is heard over each arc, int32\[3\]; got float64\[\]"),
    (Deep, r"Deep\.depth must return a whole number of at least 1, how many messages of a sender are kept; got None"),
]


@pytest.mark.parametrize(("schedule", "message"), SCHEDULES, ids=lambda s: getattr(s, "__name__", ""))
def test_a_mistake_in_a_schedule(schedule, message):
    task = fp.FedGD(step=0.1), bowls()
    assert np.isfinite(fp.run(*task, rounds=2, network=fp.Network.ring(3), schedule=Turns()).history).all()
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(*task, rounds=2, network=fp.Network.ring(3), schedule=schedule())


def test_a_scheme_that_fails_on_its_clock():
    class Late(fp.Waiting):
        def rounds(self, luck, p, count):
            return [1 / 0]

    with pytest.raises(fp.FedpointError, match=r"Late\.bind raised ZeroDivisionError: .*line \d+: return \[1 / 0\]"):
        fp.run(fp.FedAvg(step=0.1), bowls(), schedule=Late(fp.Clock()))


# Channels.


class NoPair(fp.Channel):
    def encode(self, message, memory, agent):
        return message


class Counts(fp.Channel):
    def encode(self, message, memory, agent):
        return message, 0


class Narrow(fp.Channel):
    def encode(self, message, memory, agent):
        return message.astype(jnp.float16), memory


class Unsaid(fp.Channel):
    def init(self, message):
        return None if message is None else "nothing"


class Owes(fp.Channel):
    def owed(self, memory, like):
        return 0.0


class Released(fp.Channel):
    def release(self, inbox, hub):
        return inbox.mean


class Bits(fp.Channel):
    def bits(self, message):
        return None


class Noise(fp.Channel):
    def encode(self, message, memory, agent):
        return message + agent.gaussian(message), memory


CHANNELS = [
    (NoPair, r"NoPair\.encode must return 2 results, what is sent and what the channel keeps; got float64\[2\]"),
    (Counts, r"Counts\.encode must return what the channel keeps as init made it, \(\); got int64\[\]"),
    (Narrow, r"Narrow\.decode must return a message, float64\[2\]; got float16\[2\]"),
    (Unsaid, r"Unsaid\.init must return what the channel keeps at an agent as a tree of arrays; got str"),
    (Owes, r"Owes\.owed must return a message, float64\[2\]; got float64\[\]"),
    (Released, r"Released\.release must return an inbox, Inbox\(mean=float64\[2\].*; got float64\[2\]"),
    (Bits, r"Bits\.bits must return a number; got None"),
    (Noise, r"Noise\.encode: agent has no 'gaussian'"),
]


@pytest.mark.parametrize(("channel", "message"), CHANNELS, ids=lambda s: getattr(s, "__name__", ""))
def test_a_mistake_in_a_channel(channel, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(fp.FedAvg(step=0.1), bowls(), rounds=2, channel=channel())


# Gathers.


class Flat(fp.Gather):
    def location(self, messages, weights):
        return messages.mean()


class Whole(fp.Gather):
    def location(self, messages, weights):
        return messages


class Branch(fp.Gather):
    def location(self, messages, weights):
        return messages[0] if weights[0] > 0.5 else messages[1]


class NoInbox(fp.Gather):
    def inbox(self, messages, weights, shares):
        return messages[0]


GATHERS = [
    (Flat, r"Flat\.location must return the middle of messages, float64\[2\]; got float64\[\]"),
    (Whole, r"Whole\.location must return the middle of messages, float64\[2\]; got float64\[\d,2\]"),
    (Branch, r"Branch\.location uses a Python if"),
    (NoInbox, r"NoInbox\.inbox must return an inbox, Inbox\(mean=float64\[2\].*; got float64\[2\]"),
]


@pytest.mark.parametrize(("gather", "message"), GATHERS, ids=lambda s: getattr(s, "__name__", ""))
def test_a_mistake_in_a_gather(gather, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(fp.FedAvg(step=0.1), bowls(), rounds=2, gather=gather())


# Metrics.

METRICS = [
    (lambda s: "large", r"metric 'mine' must return a number or an array of numbers; got str"),
    (lambda s: (s.model, s.round), r"metric 'mine' must return a number .*; got \(float64\[2\], int32\[\]\)"),
    (lambda s: s.weights, r"metric 'mine' raised AttributeError: 'Snapshot' object has no attribute 'weights'"),
    (lambda s: 1.0 if s.round > 2 else 0.0, r"metric 'mine' uses a Python if"),
    (lambda s: np.linalg.norm(s.model), r"metric 'mine' needs the value of an array.* use jax\.numpy"),
]


@pytest.mark.parametrize(("function", "message"), METRICS, ids=range(len(METRICS)))
def test_a_mistake_in_a_metric(function, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.Experiment(fp.FedAvg(step=0.1), bowls(), metrics={"mine": function})


def test_a_mistake_in_a_schedule_of_steps_or_an_optimiser():
    class Halving(fp.steps.StepSchedule):
        def value(self, t):
            return 0.1 if t < 10 else 0.05

    with pytest.raises(fp.FedpointError, match=r"FedAvg\.local uses a Python if.*line \d+: return 0\.1 if t < 10"):
        fp.run(fp.FedAvg(step=Halving()), bowls())


def test_a_message_has_no_notes_of_jax():
    with pytest.raises(fp.FedpointError) as caught:
        fp.run(Grad(), bowls(), rounds=1)
    assert "JAX" not in "".join(traceback.format_exception_only(caught.value))
