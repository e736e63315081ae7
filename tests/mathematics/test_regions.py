"""Hubs of hubs: the method without regions where these do nothing, regional rounds in NumPy, and what is refused."""

import dataclasses

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.algorithm import CATALOGUE
from fedpoint.experiment import bound
from fedpoint.graphs.regions import HubOfHubs

K, D, STEP, E, ROUNDS = 6, 2, 0.1, 3, 4
RNG = np.random.default_rng(0)
H, C, P = np.linspace(0.5, 2.0, K), RNG.normal(size=(K, D)), np.array([1.0, 2.0, 3.0, 1.0, 2.0, 1.0]) / 10
OF = ["north", "north", "south", "west", "south", "north"]
QUAD = fp.problems.Quadratic(H, C, noise=0.1, weights=P)
BEST = (P * H) @ C / (P @ H)
REGIONS = fp.Regions(OF, rounds=ROUNDS)
METHODS = [
    fp.FedAvg(STEP, E),
    fp.FedProx(STEP, E, pull=0.5),
    fp.GradientExchange(STEP),
    fp.Scaffold(STEP, E),
    fp.FedDyn(STEP, E),
    fp.FedAvgM(STEP, E, momentum=0.5),
]


def regional_rounds(w, rounds=ROUNDS):
    """A round of FedAvg: every region by itself, from w, and the mean of where they are."""
    ends = np.zeros(D)
    for region in sorted(set(OF)):
        inside = np.array([name == region for name in OF])
        y, p = w, P[inside] / P[inside].sum()
        for _ in range(rounds):
            y = sum(q * (c + (1 - STEP * h) ** E * (y - c)) for q, h, c in zip(p, H[inside], C[inside], strict=True))
        ends = ends + P[inside].sum() * y
    return ends


def path(rounds):
    ws = [np.zeros(D)]
    for _ in range(rounds):
        ws.append(regional_rounds(ws[-1]))
    return np.array(ws)


def equal_to_flat(method, **options):
    """One regional round is none: with noise and few participants too: their weights are those without regions."""
    runs = [fp.run(method, QUAD, rounds=12, regions=r, **options) for r in (None, fp.Regions(OF))]
    np.testing.assert_allclose(*(np.asarray(run.history) for run in runs), rtol=0, atol=1e-14)


def follows_the_recursion():
    run = fp.run(fp.FedAvg(STEP, E), QUAD, regions=REGIONS, rounds=12, exact=True)
    np.testing.assert_allclose(run.history[0], path(12), rtol=0, atol=1e-14)


def draws_anew():
    """Noise of a round: of R regional rounds, each with samples of its own, by the same recursion of variances."""
    run = fp.run(fp.FedAvg(STEP, E), QUAD, regions=REGIONS, rounds=1, repeats=2000)
    models, variance = np.asarray(run.history)[:, 1], 0.0
    for region in sorted(set(OF)):
        inside = np.array([name == region for name in OF])
        share, p = P[inside].sum(), P[inside] / P[inside].sum()
        shrink = p @ (1 - STEP * H[inside]) ** E
        each = STEP**2 * 0.1 * ((1 - STEP * H[inside])[:, None] ** (2 * np.arange(E))).sum(1)
        variance += share**2 * (p**2 @ each) * (shrink ** (2 * np.arange(ROUNDS))).sum()
    # A sample variance of n normal numbers has a relative standard error of sqrt(2 / n).
    assert models.var(axis=0).mean() == pytest.approx(variance, rel=5 * np.sqrt(2 / models.size))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.card.title)
def test_one_regional_round_is_the_method_without_regions(method):
    equal_to_flat(method, participation=3)


def test_every_method_whose_hubs_merge_is_among_them():
    """A mean of hubs is the hub of all, or it is refused."""
    told = {type(method) for method in METHODS}
    merging = {card.cls for card in CATALOGUE.values() if card.cls.merges is True}
    assert {cls for cls in merging if not cls.personal} <= told
    for method in (fp.Ditto(STEP), fp.FineTuned(STEP), fp.APFL(STEP)):
        with pytest.raises(fp.FedpointError, match="agents with models of their own have one hub"):
            fp.run(method, QUAD, regions=REGIONS, rounds=1)
    for method in (fp.Scaffnew(STEP, 0.5), fp.FedAdam(STEP), fp.Averaged(fp.FedAvg(STEP))):
        with pytest.raises(fp.FedpointError, match="whose hub only adds what it hears"):
            fp.run(method, QUAD, regions=REGIONS, rounds=1)


def test_regional_rounds_are_those_of_the_recursion():
    follows_the_recursion()
    draws_anew()


MISTAKES = {
    "regions weigh the same": lambda: {"round": forgets("share")},
    "weights of agents are those of all": lambda: {"inbox": whole_weights},
    "luck is that of the first regional round": lambda: {"round": same_luck},
    "regions never meet": lambda: {"round": forgets("mean")},
    "regions have one round": lambda: {"round": one_round},
}


def forgets(what):
    def round(self, branches, hub, rest, number, exchange):
        share = np.ones(self.regions) / self.regions if what == "share" else np.eye(self.regions)[0]
        branches = branches._replace(share=branches.share * 0 + share)
        return HubOfHubs.round(self, branches, hub, rest, number, exchange)

    return round


def whole_weights(self, at, messages, tick):
    branches = at.inputs.branches
    blind = at._replace(inputs=at.inputs._replace(branches=branches._replace(share=branches.share * 0 + 1)))
    return HubOfHubs.inbox(self, blind, messages, tick)


def same_luck(self, branches, hub, rest, number, exchange):
    def first(n, hubs, rest):
        return exchange(n - n % self.exchanges, hubs, rest)

    return HubOfHubs.round(self, branches, hub, rest, number, first)


def one_round(self, branches, hub, rest, number, exchange):
    return HubOfHubs.round(dataclasses.replace(self, exchanges=1), branches, hub, rest, number, exchange)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_round_is_convicted(name, monkeypatch):
    monkeypatch.setattr(bound, "HubOfHubs", type("Wrong", (HubOfHubs,), MISTAKES[name]()))
    with pytest.raises(AssertionError):
        equal_to_flat(METHODS[0], exact=True)
        follows_the_recursion()
        draws_anew()


def test_forecasts_follow_whole_rounds():
    f = fp.forecast(fp.FedAvg(STEP, E), QUAD, regions=REGIONS, exact=True)
    limit = path(200)[-1]
    np.testing.assert_allclose(f.limit, limit, rtol=0, atol=1e-12)
    assert f.bias == pytest.approx(np.linalg.norm(limit - BEST), rel=1e-9)
    slope = regional_rounds(np.ones(D)) - regional_rounds(np.zeros(D))
    assert f.rate == pytest.approx(slope[0], rel=1e-9)
    assert "3 regions with 4 rounds each" in str(f) and not f.closed and not f.bounds
    for method in (fp.Scaffold(STEP, E), fp.FedDyn(STEP, E)):  # controls of regions begin as the hub's
        assert fp.forecast(method, QUAD, regions=REGIONS, exact=True).bias == pytest.approx(0.0, abs=1e-10)


@pytest.mark.slow
def test_floors_are_those_of_runs():
    e = fp.Experiment(fp.FedAvg(STEP, E), QUAD, regions=REGIONS, participation=3, repeats=40)
    assert fp.check(fp.run(e, rounds=200)).passed
    weaker = e.replace(regions=fp.Regions(OF, rounds=1))
    assert fp.forecast(weaker).floor != pytest.approx(fp.forecast(e).floor, rel=0.2)


def test_costs_of_both_levels():
    run = fp.run(fp.FedDyn(STEP, E), QUAD, regions=REGIONS, participation=3, rounds=10)
    below, above = run.levels
    assert (below.messages_down, below.messages_up, run.cost.evaluations) == (120, 120, 360)
    assert below.bytes_up == 120 * D * 8 == run.cost.bytes_up
    assert (above.messages_down, above.messages_up, above.bytes_up) == (30, 30, 30 * 2 * D * 8)  # w and h
    (flat,) = fp.run(fp.FedAvg(STEP, E), QUAD, rounds=10).levels
    assert (flat.between, flat.messages_up) == ("agents and hub", 60)


OWN = """
regions = {of = 2, rounds = 3}
algorithm = {name = "fedavg", step = 0.1}
problem = {kind = "quadratic", agents = 4, dim = 2}
"""


def test_regions_are_stored_and_written(tmp_path):
    e = fp.Experiment(fp.Scaffold(STEP, E), QUAD, regions=REGIONS, participation=3)
    whole = fp.run(e, rounds=9)
    fp.run(e, rounds=5, folder=tmp_path / "run")
    fp.load(tmp_path / "run", problem=QUAD).extend(9)
    stored = fp.load(tmp_path / "run")
    np.testing.assert_array_equal(stored.history, whole.history)
    assert stored.levels == whole.levels
    fp.write(tmp_path / "e.toml", e, rounds=9)
    assert fp.read(tmp_path / "e.toml")[0].experiment.regions == REGIONS
    (tmp_path / "own.toml").write_text(OWN)
    assert fp.read(tmp_path / "own.toml")[0].experiment.regions == fp.Regions(2, rounds=3)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"regions": fp.Regions(9)}, "9 regions, but there are 6 agents"),
        ({"regions": fp.Regions([0, 1])}, "a region is given for 2 agents, but there are 6"),
        ({"network": fp.Network.ring(K).mixing()}, "a network has none: give one of the two"),
        ({"schedule": fp.Arrivals(fp.Clock())}, "Arrivals by a clock: use participation="),
        ({"gather": fp.gather.Median()}, "Median knows of one hub"),
        ({"channel": [fp.channel.Clip(1.0), fp.channel.Gaussian(1.0)]}, "leave out regions= or the channel"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.run(fp.FedAvg(STEP), QUAD, rounds=1, **{"regions": REGIONS, **options})


def test_regions_say_what_is_wrong_with_them():
    for make, message in (
        (lambda: fp.Regions(0), "the number of regions must be at least 1"),
        (lambda: fp.Regions(2, rounds=0), "rounds must be at least 1"),
        (lambda: fp.Regions(2.5), "of must be a whole number"),
    ):
        with pytest.raises(fp.FedpointError, match=message):
            make()
    with pytest.raises(fp.FedpointError, match="run it without processes="):
        fp.run(fp.FedAvg(STEP), QUAD, regions=REGIONS, rounds=1, processes=2)
