"""A forecast can always be read: print, text, HTML and plain types never fail, and never say nan, whatever was put
together; what was not computed is said in words."""

import itertools
import json
import re
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.results import forecast_text

K = 4
_rng = np.random.default_rng(0)
_H = np.stack([np.diag(_rng.uniform(0.5, 2, 2)) for _ in range(K)])
_A, _b = [_rng.normal(size=(n, 2)) for n in (2, 3, 4, 5)], [_rng.normal(size=n) for n in (2, 3, 4, 5)]
_X, _groups = _rng.normal(size=(24, 2)), np.repeat(np.arange(K), 6)
_y = np.where(_X[:, 0] + _rng.normal(size=24) > 0, 1, -1)


class Dyn(NamedTuple):
    w: object
    h: object


class FedDyn(fp.Algorithm):
    """As a user writes it: v_k = argmin f_k(v) - h_k'v + (a/2)|v - w|^2, and a hub that remembers too."""

    a: float = 1.0

    def init(self, w):
        return Dyn(w, 0 * w), 0 * w

    def local(self, hub, h, agent):
        v = agent.prox(hub.w + h / self.a, self.a / 2)
        return v - hub.w, h - self.a * (v - hub.w)

    def combine(self, hub, inbox):
        h = hub.h - self.a * inbox.total
        return Dyn(hub.w + inbox.mean / inbox.weight - h / self.a, h)

    def read(self, hub, memory):
        return hub.w


class TopOne(fp.Channel):
    """The largest number is sent, the others are kept for later."""

    lossless = False

    def init(self, message):
        return jax.tree.map(jnp.zeros_like, message)

    def encode(self, message, memory, agent):
        whole = jax.tree.map(jnp.add, message, memory)
        sent = jax.tree.map(lambda a: jnp.where(jnp.abs(a) >= jnp.abs(a).max(), a, 0.0), whole)
        return sent, jax.tree.map(jnp.subtract, whole, sent)

    def owed(self, memory, like):
        return memory


class Expects(TopOne):
    """The same, whose expected message is a jump: the expected round settles nowhere."""

    def expected(self, message):
        return self.encode(message, self.init(message), None)[0]


class Dropped(fp.Channel):
    lossless = False

    def encode(self, message, memory, agent):
        return jax.tree.map(lambda a: jnp.where(agent.uniform(a) < 0.5, 2 * a, 0.0), message), memory


class Noisy(fp.Channel):
    def release(self, inbox, hub):
        return inbox._replace(mean=jax.tree.map(lambda a: a + 0.1 * hub.luck.normal(a.shape), inbox.mean))


class RoundRobin(fp.Participation):
    size: int

    def slots(self, agents):
        return self.size

    def tick(self, key, p, round):
        agents = (jnp.arange(self.size) + round * self.size) % len(p)
        return fp.Tick.of(agents, weight=p[agents] * len(p) / self.size)


class Halved(fp.Wrapped):
    def combine(self, hub, inbox):
        return self.inner.combine(hub, inbox._replace(mean=jax.tree.map(lambda m: 0.5 * m, inbox.mean)))


class SignDescent(fp.Algorithm):
    step: float

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        return jnp.sign(agent.field(w)), memory

    def combine(self, w, inbox):
        return w - self.step * inbox.mean


PROBLEMS = {
    "quadratic": lambda: fp.problems.Quadratic(_H, np.ones((K, 2)) * np.arange(K)[:, None], weights=[1, 2, 3, 4]),
    "noisy": lambda: fp.problems.Quadratic(_H, np.ones((K, 2)) * np.arange(K)[:, None], noise=0.3),
    "rows": lambda: fp.problems.LeastSquares(_A, _b, batch=1),
    "not unique": lambda: fp.problems.LeastSquares([np.ones((1, 2))] * K, [np.array([float(k)]) for k in range(K)]),
    "logistic": lambda: fp.problems.Logistic(_X, _y, groups=_groups, ridge=0.1, batch=1),
    "separable": lambda: fp.problems.Logistic(np.abs(_X) * _y[:, None], _y, groups=_groups, ridge=0.0),
    "system": lambda: fp.problems.LinearSystem(_H + np.array([[0, 1], [-1, 0]]), np.ones((K, 2)), noise=0.1),
    "loss": lambda: fp.problems.Loss(
        lambda w, x: jnp.mean((x @ w - 1) ** 2), np.zeros(2), _X, groups=_groups, convex=True, batch=2
    ),
    "chain": lambda: fp.problems.garnet(states=4, dim=2, agents=K, sampling="trajectory"),
}
METHODS = {
    "gradients": lambda s: fp.GradientExchange(s),
    "fedavg": lambda s: fp.FedAvg(s, 3),
    "decaying": lambda s: fp.FedAvg(fp.steps.InverseTime(8 * s, 8.0), 2),
    "stragglers": lambda s: fp.FedNova(s, fp.steps.Stragglers(3, 0.5)),
    "prox": lambda s: fp.FedProx(pull=1.0, exact=True),
    "fednova": lambda s: fp.FedNova(s, (1, 2, 3, 4)),
    "rule": lambda s: fp.GeneralRule(s, (1, 2, 3, 4), momentum=0.5),
    "scaffold": lambda s: fp.Scaffold(s, 2),
    "scaffnew": lambda s: fp.Scaffnew(s, probability=0.5),
    "qfedavg": lambda s: fp.QFedAvg(1.5, s, 2),
    "fedavgm": lambda s: fp.FedAvgM(s, 2),
    "fedadam": lambda s: fp.FedAdam(s, 2),
    "averaged": lambda s: fp.Averaged(fp.Scaffold(s, 2), burn_in=5),
    "extrapolated": lambda s: fp.Extrapolated(fp.Scaffold(s, 2)),
    "both": lambda s: fp.Extrapolated(fp.Averaged(fp.FedAvg(s, 2), burn_in=2)),
    "wrapped": lambda s: Halved(fp.Scaffold(s, 2)),
    "feddyn": lambda s: FedDyn(0.1 / s),
    "signs": lambda s: SignDescent(s),
}
WHO = {
    "everyone": None,
    "one": 1,
    "two": 2,
    "by weight": fp.ByWeight(2),
    "answering": fp.Answering(fp.Everyone(), probability=0.5),
    "plain": fp.Uniform(2, plain=True),
    "round robin": RoundRobin(size=2),
}
CHANNELS = {
    "none": fp.Channel(),
    "half": fp.channel.Cast("float16"),
    "dropped": Dropped(),
    "feedback": TopOne(),
    "jumps": Expects(),
    "noisy": Noisy(),
}
STEPS = {"good": 0.1, "long": 30.0, "tiny": 1e-7}
NETWORK = fp.Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], [1.0, 2.0, 0.5, 1.0])
ON_NETWORKS = {
    "fedgd": lambda s: fp.FedGD(s, 1.0),
    "fedsgd": lambda s: fp.FedSGD(s, 1.0),
    "fedrelax": lambda s: fp.FedRelax(1.0),
    "fedavg": lambda s: fp.FedAvg(s, 2),
    "feddyn": lambda s: FedDyn(0.1 / s),
    "averaged": lambda s: fp.Averaged(fp.FedSGD(s, 1.0)),
    "extrapolated": lambda s: fp.Extrapolated(fp.FedSGD(s, 1.0)),
}
TURNS = {"in step": None, "random": fp.RandomActivation(2), "late": fp.PartiallyAsynchronous(3)}

STARS = list(itertools.product(METHODS, PROBLEMS, WHO, CHANNELS, STEPS))
NODES = list(itertools.product(ON_NETWORKS, PROBLEMS, TURNS, ("none", "half"), STEPS))


def readable(f):
    """All ways to read a forecast."""
    texts = [str(f), repr(f), f.text(), f._repr_html_(), json.dumps(f.to_dict(), allow_nan=False)]
    for text in texts:
        assert not re.search(r"\bnan\b", text, re.IGNORECASE), text
    assert (
        f.diverges
        or f.limit is None
        or np.isfinite(np.concatenate(list(map(np.ravel, jax.tree.leaves(f.limit))))).all()
    )
    return texts[0]


def made(case):
    """The forecast of a case; None where fp.forecast refuses it with a reason."""
    method, problem, when, channel, step = case
    options = {"channel": CHANNELS[channel]}
    try:
        if when in TURNS:
            schedule = {} if TURNS[when] is None else {"schedule": TURNS[when]}
            return fp.forecast(
                ON_NETWORKS[method](STEPS[step]), PROBLEMS[problem](), network=NETWORK, **schedule, **options
            )
        return fp.forecast(METHODS[method](STEPS[step]), PROBLEMS[problem](), participation=WHO[when], **options)
    except fp.FedpointError:
        return None


def some(cases, count, seed):
    return [cases[i] for i in np.random.default_rng(seed).choice(len(cases), count, replace=False)]


@pytest.mark.parametrize(
    "case",
    [
        ("feddyn", "quadratic", "two", "none", "good"),
        pytest.param(("feddyn", "logistic", "everyone", "none", "good"), marks=pytest.mark.slow),
        ("fedavg", "quadratic", "everyone", "feedback", "good"),
        pytest.param(("scaffold", "noisy", "two", "feedback", "good"), marks=pytest.mark.slow),
        ("fedavg", "quadratic", "everyone", "jumps", "good"),
        ("fedadam", "noisy", "two", "none", "long"),
        pytest.param(("signs", "noisy", "two", "none", "good"), marks=pytest.mark.slow),
        ("gradients", "noisy", "answering", "dropped", "long"),
        pytest.param(("fednova", "rows", "by weight", "none", "tiny"), marks=pytest.mark.slow),
        pytest.param(("qfedavg", "separable", "one", "none", "good"), marks=pytest.mark.slow),
        ("gradients", "not unique", "plain", "noisy", "good"),
        ("averaged", "noisy", "round robin", "none", "good"),
        ("fedsgd", "system", "random", "none", "long"),
        ("fedsgd", "chain", "in step", "none", "good"),
        ("feddyn", "loss", "late", "half", "good"),
    ],
)
def test_a_forecast_can_be_read(case):
    f = made(case)
    assert f is None or readable(f)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*some(STARS, 150, 1), *some(NODES, 40, 2)])
def test_any_forecast_can_be_read(case):
    f = made(case)
    assert f is None or readable(f)


def test_what_a_user_writes_about_memory_is_forecast_in_seconds_and_right():
    """FedDyn ends at w* with few participants; what it conserves does not hide that its mean square settles."""
    rng = np.random.default_rng(0)
    problem = fp.problems.Quadratic(rng.uniform(0.5, 2, 8), rng.normal(size=(8, 3)))
    f = fp.forecast(FedDyn(1.0), problem, participation=3)
    begun = time.perf_counter()
    text = readable(f)
    assert time.perf_counter() - begun < 60  # it took minutes
    assert not f.diverges and f.bias == 0 and f.floor == 0 and f.rate_ms < 1 and "w* itself" in text
    run = fp.run(FedDyn(1.0), problem, participation=3, rounds=400)
    assert run.error[0, -1] < 1e-20


def test_rounds_that_settle_nowhere_are_not_said_to_diverge():
    """Jumps of what arrives keep the expected round moving within bounds."""
    f = made(("fedavg", "quadratic", "everyone", "jumps", "good"))
    assert not f.diverges and f.limit is None and f.floor is None
    assert "no limit: no fixed point was found" in readable(f)
    assert "has no limit" in f.rounds_to(1e-9).reason
    wild = made(("fedavg", "quadratic", "everyone", "none", "long"))
    assert wild.diverges and "diverges" in readable(wild)


def test_a_run_that_would_take_too_long_is_not_drawn():
    """Drawn rounds replace some runs until they settle: where these would be too long, the reason is told."""
    f = fp.forecast(SlowOwn(1e-6), PROBLEMS["noisy"](), floor="sampled")
    begun = time.perf_counter()
    text = readable(f)
    assert time.perf_counter() - begun < 30 and f.floor is None
    assert "no floor: it settles slowly" in text and "drawn rounds would be needed" in text


class SlowOwn(fp.FedAvg):
    """One's own, by its words alone."""

    def local(self, w, memory, agent):
        return -self.step * agent.field(w), memory


def test_a_conserved_sum_that_walks_has_no_floor():
    """Noise at the hub moves SCAFFOLD's conserved sum: the spread grows, though the mean settles."""

    class Walks(fp.Channel):
        def release(self, inbox, hub):
            luck = hub.luck.normal((2,))
            return inbox._replace(total=jax.tree.map(lambda a: a + 0.1 * luck, inbox.total))

    f = fp.forecast(fp.Scaffold(0.1, 2), PROBLEMS["noisy"](), channel=Walks())
    assert f.floor is None and "have not settled" in readable(f)


@pytest.mark.parametrize("part", [0.5, 2.0])
def test_a_floor_with_a_large_standard_error_says_so_first(monkeypatch, part):
    """Larger than what two theories may differ by: in the line below the title."""
    problem = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    f = fp.forecast(fp.FedAvg(step=0.3, local_steps=2), problem, floor="sampled")
    off = f.standard_error / f.floor
    monkeypatch.setattr(forecast_text, "GOOD", part * off)
    said = f"  accuracy    rough: the standard error of the floor is {off:.0%} of it"
    assert (str(f).splitlines()[1] == said) == (part < 1)
    assert (said in str(f)) == (part < 1) == f.to_dict()["rough"]
