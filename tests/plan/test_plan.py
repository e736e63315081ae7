"""`fp.plan`: its promise is kept when its plans are run, its ranking makes sense, its reasons are said."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.results.plan import Measured
from fedpoint.theory.planning import EARLY, Trial, best_step, passage

CHEAP = {"methods": ["gradient_exchange", "fedavg"], "local_steps": [1, 4], "participation": [None, 2]}


def stream(agents=6, dim=3, seed=0, spread=0.1):
    """Regressors whose covariances differ between agents: local steps are biased."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(agents, dim, dim)) / math.sqrt(dim)
    R = roots @ np.swapaxes(roots, 1, 2) + 0.5 * np.eye(dim)
    return fp.problems.LinearStream(1 + math.sqrt(spread) * rng.normal(size=(agents, dim)), 0.01, R)


def regression(agents=5, seed=0):
    rng = np.random.default_rng(seed)
    A = [rng.normal(size=(12, 2)) for _ in range(agents)]
    b = [a @ (1 + 0.3 * rng.normal(size=2)) + 0.1 * rng.normal(size=12) for a in A]
    return fp.problems.LeastSquares(A, b, mean=True, batch=3)


def classes(agents=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(15 * agents, 2))
    y = (X @ [1.0, -1.0] + 0.5 * rng.normal(size=len(X)) > 0).astype(int)
    return fp.problems.Logistic(X, y, groups=np.arange(len(X)) % agents, ridge=0.1, batch=5)


def homogeneous():
    return fp.problems.LinearStream(np.ones((6, 3)), noise=0.1)


def kept(made, repeats=400, top=5):
    """Run the plans; the mean meets the target, and the forecast, within three standard errors."""
    for m in made.verify(top=top, repeats=repeats, seed=7):
        assert m.met, m
        assert m.choice.error <= made.target
    return made.measured


@pytest.fixture(scope="module")
def streamed():
    return fp.plan(stream(), target=0.05, **CHEAP)


def test_the_promise_on_a_stream(streamed):
    assert {c.title for c in streamed.choices} == {"Gradient exchange", "FedAvg"}
    for m in kept(streamed):
        assert abs(m.z) < 4  # the forecast is exact


@pytest.mark.slow
def test_the_promise_on_batches():
    made = fp.plan(regression(), target=0.01, methods=["fedavg", "scaffold"], local_steps=[1, 4], participation=[None])
    assert len(made.choices) == 2
    for m in kept(made):
        assert abs(m.z) < 4


def test_the_promise_on_a_logistic_regression():
    """To second order: the forecast is within a tenth, and 5 % of the target are kept in hand."""
    made = fp.plan(classes(), target=0.05, methods=["fedavg"], local_steps=[2], participation=[None])
    (m,) = kept(made)
    assert abs(m.mean - m.choice.error) < 0.1 * m.choice.error + 3 * m.standard_error
    assert any("second order" in note for note in made.notes), made.notes


@pytest.mark.slow
def test_the_promise_for_the_loss():
    made = fp.plan(regression(), target=0.005, measure="loss", **CHEAP)
    assert len(made.choices) == 2
    kept(made)


def test_costs_are_those_of_the_run(streamed):
    for m in streamed.measured or kept(streamed):
        c, cost = m.choice, m.cost
        assert c.floats_up == pytest.approx(cost.floats_up)
        assert c.floats_down == pytest.approx(cost.floats_down)
        assert c.bytes == pytest.approx(cost.bytes_up + cost.bytes_down)
        assert c.messages == pytest.approx(cost.messages_up + cost.messages_down)
        assert c.evaluations == pytest.approx(cost.evaluations)
        assert c.cost == c.floats


def test_rounds_and_error_are_those_of_the_forecast(streamed):
    """The search looks at single rounds; the forecast draws the whole curve."""
    for c in streamed.choices:
        f = fp.forecast(c.algorithm, streamed.problem, participation=c.participation)
        curve = f.curve(c.rounds)
        assert curve[-1] == pytest.approx(c.error, rel=1e-3)
        assert curve[-1] <= streamed.target < curve[-2]
        assert f.rounds_to(streamed.target) == c.rounds


def test_the_step_is_near_the_best():
    """No step of a fine grid needs 5 % fewer rounds."""
    problem, target = stream(), 0.02
    made = fp.plan(problem, target, methods=["gradient_exchange"], participation=[2])
    rounds = [
        fp.forecast(fp.GradientExchange(step=s), problem, participation=2).rounds_to(target)
        for s in made.best.step * np.geomspace(0.5, 2, 13)
    ]
    assert made.best.rounds <= 1.05 * min(rounds) + 1


def test_local_steps_save_communication_where_agents_agree():
    made = fp.plan(homogeneous(), 0.01, methods=["gradient_exchange", "fedavg"], local_steps=[1, 8], participation=[6])
    assert made.best.title == "FedAvg" and made.best.local_steps == 8
    assert made.choices[1].cost > 3 * made.best.cost
    assert not made.excluded


def test_local_steps_are_no_use_to_fedavg_where_agents_differ():
    """Tight target, no noise, strong heterogeneity: FedAvg has to go back to E = 1, corrected methods have not."""
    rng = np.random.default_rng(1)
    H = np.array([np.diag(h) for h in rng.uniform(0.3, 3.0, size=(4, 2))])
    quad = fp.problems.Quadratic(H, 3 * rng.normal(size=(4, 2)))
    grid = {"local_steps": [1, 8], "participation": [None]}
    made = fp.plan(quad, 1e-8, methods=["fedavg", "scaffnew"], **grid)
    chosen = {c.title: c for c in made.choices}
    assert chosen["FedAvg"].local_steps == 1
    assert chosen["Scaffnew"].local_steps == 8
    only = fp.plan(quad, 1e-8, methods=["fedavg"], local_steps=[8], participation=[None])
    if only.choices:  # possible with tiny steps, and then dear
        assert only.best.cost > 20 * chosen["FedAvg"].cost
    else:
        assert "step" in only.excluded[0].reason


def test_computation_and_time_choose_otherwise():
    options = {"methods": ["fedavg"], "local_steps": [1, 8], "participation": [None]}
    assert fp.plan(homogeneous(), 0.01, minimise="computation", **options).best.local_steps == 1
    slow_links = fp.Prices(per_message=1.0, per_gradient=1e-6)
    made = fp.plan(homogeneous(), 0.01, minimise="time", prices=slow_links, **options)
    assert made.best.local_steps == 8
    assert made.best.cost == made.best.seconds == pytest.approx(made.best.messages + 1e-6 * made.best.evaluations)
    use = made.best.use
    assert fp.Prices(per_message=1.0, parallel=True).of(use) == pytest.approx(2.0)  # one down, one up


def test_budget(streamed):
    costs = sorted(c.cost for c in streamed.choices)
    some = fp.plan(stream(), target=0.05, budget=(costs[0] + costs[1]) / 2, **CHEAP)
    assert len(some.choices) == 1 and "over the budget" in some.excluded[0].reason
    none = fp.plan(stream(), target=0.05, budget=0.5 * costs[0], **CHEAP)
    assert none.best is None and none.affordable.cost <= 0.5 * costs[0] and none.affordable.error > 0.05
    assert "The budget buys" in str(none)


def test_reasons():
    grid = {"local_steps": [1], "participation": [2]}
    made = fp.plan(stream(), 0.05, methods=["fedavg", "fednova", "scaffnew", "fedadam"], **grid)
    reasons = {e.method: e.reason for e in made.excluded}
    assert reasons["FedNova"].endswith("it is FedAvg")
    assert "everyone answers" in reasons["Scaffnew"]
    assert "adaptive" in reasons["FedAdam"]


def numbers(pattern, text):
    found = re.search(pattern.replace("#", r"([\d.,e+-]*\d)"), text)
    assert found, text
    return [float(group.replace(",", "")) for group in found.groups()]


def why(problem, target, method, participation=None):
    made = fp.plan(problem, target, methods=[method], local_steps=[1], participation=[participation])
    assert made.best is None and "Nothing reaches it." in str(made)
    return made.excluded[0].reason


def quadratic(noise=0.1):
    return fp.problems.Quadratic([1.0, 2.0, 1.5], [[0.0], [1.0], [-2.0]], noise=noise)


def test_a_floor_that_no_step_lowers():
    """Wrong weights: the limit of short steps is off. Said are step, floor and its parts, as a forecast has them."""
    rule = {"local_steps": 1, "weights": [0.1, 0.6, 0.3]}
    reason = why(quadratic(), 0.01, fp.GeneralRule(1.0, **rule))
    level, step, bias2, variance = numbers(r"at # with step # \(E = 1\): bias\^2 # \+ variance #", reason)
    assert reason.startswith("it settles above the target") and level > 0.01
    f = fp.forecast(fp.GeneralRule(step, **rule), quadratic())
    assert [level, bias2, variance] == pytest.approx([f.floor, f.bias**2, f.variance], rel=0.06)  # two digits are said
    short = fp.forecast(fp.GeneralRule(1e-4 * step, **rule), quadratic())
    assert short.floor > 0.01


def test_a_floor_that_takes_too_many_rounds_to_lower():
    """One of three: the floor is about proportional to the step. Said are a step on either side."""
    target = 1e-9
    reason = why(quadratic(), target, "gradient_exchange", 1)
    slow, ahead, high, level = numbers(r"with step # \(E = 1\) .* within # rounds, with # it settles at #", reason)
    assert reason.startswith("steps short enough for its floor need too many rounds")
    assert level > target and slow < high
    assert fp.forecast(fp.GradientExchange(high), quadratic(), participation=1).floor == pytest.approx(level, rel=0.06)
    late = fp.forecast(fp.GradientExchange(slow), quadratic(), participation=1)
    assert late.rate**ahead > 1e-8  # the mean alone is not there


def test_stable_steps_that_are_too_short():
    """Ill-conditioned, without noise: no floor is in the way."""
    flat = fp.problems.Quadratic([np.diag([1.0, 1e-6])] * 2, [[0.0, 0.0], [1.0, 1.0]])
    reason = why(flat, 1e-6, "gradient_exchange")
    slow, ahead, wild = numbers(r"with step # \(E = 1\) .* within # rounds, with # it diverges", reason)
    assert reason.startswith("it needs too many rounds")
    assert slow < 2 < wild and fp.forecast(fp.GradientExchange(slow), flat).rounds_to(1e-6) > ahead


def test_no_step_is_stable():
    """An aggregate field with a negative eigenvalue."""
    A = np.array([np.diag([1.0, -0.5]), np.diag([0.5, -0.2])])
    system = fp.problems.LinearSystem(A, [[1.0, 1.0], [0.5, 1.0]], noise=0.1)
    reason = why(system, 0.01, "gradient_exchange")
    (step,) = numbers(r"no step that was tried is stable: # \(E = 1\) still diverges", reason)
    assert fp.forecast(fp.GradientExchange(step), system).diverges


def test_schemes_and_objects_as_methods():
    schemes = [fp.Importance(2), fp.ByWeight(2)]
    made = fp.plan(stream(), 0.05, methods=[fp.FedProx(step=1.0, pull=2.0)], local_steps=[2], participation=schemes)
    assert made.best.algorithm.pull == 2.0
    assert 1 < made.best.use.agents < 2  # some are drawn twice, and answer once
    assert len(made.tried) >= 1


def test_large_states_without_noise_are_followed():
    """The path is the curve: the promised round is the first at the target, as a loop in NumPy has it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3, 100, 64))
    y = np.einsum("kid,kd->ki", X, rng.normal(size=64) + rng.normal(size=(3, 64)))
    task = fp.problems.LeastSquares(list(X), list(y), mean=True)
    solution = task.solution()
    target = 1e-3 * float((solution**2).sum())
    method = fp.FedAvg(step=1.0, normalise=True)
    options = {"methods": [method], "local_steps": [4], "participation": [fp.Everyone()]}
    best = fp.plan(task, target=target, **options).best
    w, errors = np.zeros(64), []
    while len(errors) < best.rounds:
        models = np.repeat(w[None], 3, axis=0)
        for _ in range(4):
            gaps = np.einsum("kid,kd->ki", X, models) - y
            models = models - best.step * np.einsum("kid,ki->kd", X, gaps) / 100
        w = models.mean(0)
        errors.append(((w - solution) ** 2).sum())
    assert errors[-1] <= target < errors[-2] and best.error == pytest.approx(errors[-1], rel=1e-9)
    short = fp.plan(task, target=target, rounds=2, **options)
    assert not short.choices and "within 2 rounds" in short.excluded[0].reason


def test_it_can_be_read(streamed, tmp_path):
    text = str(streamed)
    assert "in expectation" in text and "FedAvg" in text and "floats" in text
    document = json.loads(json.dumps(streamed.to_dict()))
    assert document["choices"][0]["rounds"] == streamed.best.rounds
    assert document["promise"] == "mean over runs"
    streamed.plot(tmp_path / "plan.svg")
    assert "numbers sent" in (tmp_path / "plan.svg").read_text()
    for costs, errors in streamed.frontiers.values():
        assert (np.diff(costs) >= 0).all() and (np.diff(errors) < 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 0.0}, "target must be a number above 0"),
        ({"target": 0.1, "budget": -1}, "budget must be a number above 0"),
        ({"target": 0.1, "methods": ["fedavgg"]}, "did you mean 'fedavg'"),
        ({"target": 0.1, "methods": []}, "methods is empty"),
        ({"target": 0.1, "methods": [3]}, "methods must be a list whose elements are"),
        ({"target": 0.1, "minimise": "time"}, "needs prices"),
        ({"target": 0.1, "minimise": "money"}, "unknown minimise"),
        ({"target": 0.1, "measure": "los"}, "did you mean 'loss'"),
        ({"target": 0.1, "local_steps": []}, "local_steps is empty"),
        ({"target": 0.1, "local_steps": [0]}, "local_steps must be"),
        ({"target": 0.1, "participation": []}, "participation is empty"),
        ({"target": 0.1, "participation": [99]}, "99 participants of 6"),
        ({"target": 1e9}, "nothing to plan"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.plan(stream(), **options)


def test_an_experiment_fixes_all_but_method_and_participants():
    """Seed, start and exactness are the experiment's; its own method and participants do not matter."""
    grid = {"methods": ["fedavg"], "local_steps": [2], "participation": [2]}
    start = np.full(3, 4.0)
    e = fp.Experiment(fp.Scaffold(step=0.1), stream(), participation=1, start=start, exact=True, seed=3)
    made = fp.plan(e, target=0.02, **grid)
    parts = fp.plan(stream(), target=0.02, start=start, exact=True, seed=3, **grid)
    assert made.to_dict()["choices"] == parts.to_dict()["choices"]
    assert made.experiment.seed == 3 and made.experiment.exact
    assert fp.plan(e, target=0.02, exact=False, **grid).best.cost > made.best.cost


def test_bytes_are_those_of_the_channel():
    half = fp.channel.Cast("float16")
    made = fp.plan(homogeneous(), 0.01, methods=["gradient_exchange"], participation=[None], channel=half)
    (m,) = made.verify(top=1, repeats=2)
    assert m.choice.bytes == pytest.approx(m.cost.bytes_up + m.cost.bytes_down)
    assert m.choice.bytes < 8 * m.choice.floats


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": fp.Network.ring(6).mixing()}, "a plan is for a fusion center"),
        ({"schedule": fp.Waiting(fp.Clock(1.0), count=2)}, "Waiting is worked out on a clock"),
    ],
)
def test_experiments_that_are_not_planned(options, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.plan(fp.Experiment(fp.FedAvg(step=0.1), stream(), **options), target=0.1)


def test_an_unknown_argument_is_told():
    with pytest.raises(fp.FedpointError, match="did you mean 'minimise'"):
        fp.plan(stream(), target=0.1, minimize="time")


def test_prices_are_checked():
    with pytest.raises(fp.FedpointError, match="at least one"):
        fp.Prices()
    with pytest.raises(fp.FedpointError, match="per_float"):
        fp.Prices(per_float=-1.0)


def test_passage_finds_the_first_round_below():
    assert passage(lambda t: 0.9**t, 0.5, 1000) == 7
    assert passage(lambda t: 0.9**t, 0.5, 5) == math.inf
    assert passage(lambda t: 0.0, 0.5, 5) == 1


def test_the_search_over_steps_on_a_known_trade():
    """Floor 0.1 step, rate 1 - step, target 0.01: the best of a fine grid is nearly found."""

    def rounds(step):
        floor = 0.1 * step
        if step >= 2:
            return Trial(step, math.inf, "diverges")
        if floor >= 0.01:
            return Trial(step, math.inf, "floor", floor)
        return Trial(step, math.ceil(math.log(0.01 - floor) / math.log(1 - step)), "", floor)

    fine = min(rounds(s).rounds for s in np.geomspace(1e-3, 0.0999, 400))
    for guess in (1e-4, 0.01, 1.0, 50.0):
        best, trials = best_step(rounds, guess, 0.01)
        assert best.rounds <= 1.1 * fine
        assert len(trials) <= 12


def test_the_search_sees_another_dip_where_nothing_is_random():
    """An error falls by a factor a round that is low around two steps: 1.5, for three rounds, and 5, for four."""
    target, calls = 1e-6, []

    def fall(step):
        calls.append(step)
        factor = min(0.03 + math.log(step / 5) ** 2, 0.0095 + 3 * math.log(step / 1.5) ** 2, 0.9)
        early = factor ** np.arange(1, EARLY + 1)
        rounds = math.ceil(math.log(target) / math.log(factor))
        return Trial(step, rounds, "", 0.0, factor**rounds, factor ** (rounds - 1), target=target, early=early)

    assert best_step(fall, 4.8, target)[0].rounds == 4
    seen = len(calls)
    best, trials = best_step(fall, 4.8, target, dips=True)
    assert best.rounds == 3 and math.isclose(best.step, 1.5, rel_tol=0.015)
    assert len(calls) - seen == len(trials) <= 12 + 16


def test_the_search_gives_up_where_floors_lead_above_the_target():
    """Level 0.02 + 0.1 step, target 0.01: seen from two floors, but not from levels that may still fall."""

    def high(step, settled):
        return Trial(step, math.inf, "floor", 0.02 + 0.1 * step, settled=settled)

    best, trials = best_step(lambda step: high(step, True), 1.0, 0.01)
    assert best.why == "floor" and len(trials) == 2
    assert len(best_step(lambda step: high(step, False), 1.0, 0.01)[1]) == 12


@pytest.mark.slow
@pytest.mark.parametrize("problem", [stream(), regression(), homogeneous()], ids=["stream", "batches", "homogeneous"])
def test_every_plan_keeps_its_promise(problem):
    made = fp.plan(problem, 0.02)
    assert len(made.choices) >= 4
    kept(made, repeats=300, top=7)


# The step whose curve passes the target first.


def bowls(noise=0.0):
    """Agents whose curvatures differ, w* = 1.89: FedAvg's limit is below it, so that from 4 the mean passes w*."""
    return fp.problems.Quadratic([0.5, 1.0, 3.0], [[0.0], [1.0], [2.5]], noise=noise)


CROSSING = {
    "without noise": (bowls(), 4, None, 0.02, [0.0]),
    "past w*": (bowls(), 8, None, 1e-3, [4.0]),
    "noisy, past w*": (bowls(0.02), 4, None, 0.03, [4.0]),
    "few": (stream(), 4, 3, 0.05, [0.0, 0.0, 0.0]),
}


QUICK = ("without noise", "few")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CROSSING])
def test_no_step_of_a_fine_grid_needs_fewer_rounds(name):
    """Brute force: where any step passes the target, also one that settles above it afterwards, plan finds as good."""
    problem, E, who, target, start = CROSSING[name]
    start = np.array(start)
    made = fp.plan(problem, target, methods=["fedavg"], local_steps=[E], participation=[who], start=start)

    def rounds(step):
        return float(fp.forecast(fp.FedAvg(step, E), problem, participation=who, start=start).rounds_to(target))

    grid = {step: rounds(step) for step in np.geomspace(0.01, 2, 60)}
    assert made.best.rounds <= min(grid.values()), (made.best, min(grid.items(), key=lambda pair: pair[1]))
    assert rounds(made.best.step) == made.best.rounds


def test_a_curve_that_passes_below_the_target_before_it_settles_above_it():
    target = 1e-3
    options = {"methods": ["fedavg"], "local_steps": [8], "participation": [None]}
    made = fp.plan(bowls(), target, start=np.array([4.0]), **options)
    assert made.best.floor > target >= made.best.error
    assert passage(lambda t: abs(t - 5) + 0.1, 0.5, 1000) == 5


# What is not exact is run before it is called the best.


def test_exact_forecasts_are_promises_by_themselves(streamed):
    assert {c.promise for c in streamed.choices} == {"exact"} and not streamed.missed
    assert streamed.to_dict()["choices"][0]["promise"] == "exact"


def test_a_linearised_forecast_is_verified_by_a_run():
    made = fp.plan(classes(), target=0.05, methods=["fedavg"], local_steps=[2], participation=[None])
    assert made.best.promise == "verified" and not made.missed
    assert "verified" in str(made) and any("met the target" in note for note in made.notes)
    runs = fp.run(made.best.algorithm, made.problem, made.best.rounds, repeats=400, seed=9)
    assert runs.error[:, -1].mean() <= 0.05 + 3 * runs.error[:, -1].std() / 20


def misled(made, means):
    """The same plan, whose runs end at these means, one after the other."""
    found = iter(means)
    made._measure = lambda choice, repeats, seed, callbacks: Measured(choice, repeats, next(found), 1e-4, made.target)
    made.choices = [dataclasses.replace(c, promise="not verified") for c in made.choices]
    made.tried = [dataclasses.replace(c, promise="not verified") for c in made.tried]
    made.confirm()
    return made


def test_a_choice_that_misses_gives_way():
    made = misled(fp.plan(stream(), target=0.05, **CHEAP), [0.2, 0.01])
    assert made.best.promise == "verified" and len(made.missed) == 1
    assert made.best.cost > made.missed[0].choice.cost
    text = str(made)
    assert "Run, and above the target" in text and made.missed[0].choice.label in text and "0.2000 ± 0.0001" in text
    assert made.to_dict()["missed"][0]["met"] is False


def test_what_nothing_verifies_is_marked():
    made = misled(fp.plan(stream(), target=0.05, **CHEAP), [0.2] * 20)
    assert len(made.missed) <= 5 and all(c.promise == "not verified" for c in made.choices)
    assert not made.choices or any("no choice was verified" in note for note in made.notes)


def test_a_run_that_would_take_long_is_not_made(monkeypatch):
    made = fp.plan(stream(), target=0.05, **CHEAP)
    monkeypatch.setattr("fedpoint.results.plan.WORK", 10.0)
    made = misled(made, [])
    assert made.best.promise == "not verified" and not made.missed


def test_the_table_has_one_meaning_of_step():
    """The length of one local step: also for a method whose own `step` is that of a round."""
    options = {"target": 0.05, "local_steps": [4], "participation": [None]}
    plain = fp.plan(stream(), methods=[fp.FedAvg(1.0, normalise=False)], **options).best
    shared = fp.plan(stream(), methods=[fp.FedAvg(1.0, normalise=True)], **options)
    assert shared.best.algorithm.step == pytest.approx(4 * shared.best.step)
    assert shared.best.step == pytest.approx(plain.step) and shared.best.rounds == plain.rounds
    assert "local step" in str(shared) and f"{plain.step:.3g}" in str(shared)
