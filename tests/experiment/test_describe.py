"""Is an experiment the same after it was written in plain types, and does it say what it cannot write?"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import own_parts
import pytest

import fedpoint as fp
from fedpoint.engine.program import PROGRAMS

sys.path.append(str(Path(__file__).parents[1] / "contract"))
from instances import INSTANCES

CENTERS = [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0], [4.0, -1.0]]
QUADRATIC = fp.problems.Quadratic([1.0, 2.0, 3.0, 1.5], CENTERS, noise=0.1, weights=[4, 1, 3, 2.0])
CLOCK = fp.Clock([1.0, 2.0, 3.0, 4.0])
AVERAGE = fp.FedAvg(step=0.05, local_steps=2)


def through_text(description):
    """As a file would have it."""
    return json.loads(json.dumps(description))


def check(e, allow=(), rounds=4):
    """The same description, the same bits, and nothing compiled again."""
    description = e.describe()
    assert "not_rebuildable" not in description
    again = fp.Experiment.from_dict(through_text(description), allow=allow)
    assert again.describe() == description
    assert again.algorithm == e.algorithm and again.timing == e.timing
    run = fp.run(e, rounds=rounds)
    compiled = [program._cache_size() for program in PROGRAMS.values()]
    other = fp.run(again, rounds=rounds)
    assert [program._cache_size() for program in PROGRAMS.values()] == compiled
    jax.tree.map(np.testing.assert_array_equal, run.history, other.history)
    return again


@pytest.mark.parametrize("name", INSTANCES)
def test_every_method(name):
    instance = INSTANCES[name]
    method = instance.make(0.05, np.arange(4), np.ones(4))
    e = fp.Experiment(method, QUADRATIC, seed=3)
    if "not_rebuildable" in e.describe():  # an optax object, or a method that is defined by the tests
        with pytest.raises(fp.FedpointError, match="algorithm"):
            fp.Experiment.from_dict(e.describe())
        again = fp.Experiment.from_dict(e.describe(), algorithm=method)
        assert again.describe() == e.describe()
    else:
        check(e)


@pytest.mark.parametrize(
    "options",
    [
        {"participation": 2, "repeats": 2},
        {"participation": fp.ByWeight(2)},
        {"participation": fp.Importance(2, [0.1, 0.2, 0.3, 0.4])},
        {"participation": fp.Answering(fp.Uniform(3), probability=0.7, keep=2)},
        {"participation": fp.Answering(fp.Everyone(), trace=np.array([[1, 0, 1, 1], [1, 1, 0, 1]]))},
        {"schedule": fp.Waiting(CLOCK, count=3, deadline=5.0)},
        {"schedule": fp.Arrivals(CLOCK, buffer=2, staleness=fp.staleness.Hinge(1.0, 2.0))},
        {"channel": fp.channel.Cast("float16")},
        {"gather": fp.gather.Median()},
        {"start": [1.0, 2.0], "exact": True, "record_every": 2},
    ],
    ids=lambda options: ", ".join(options),
)
def test_every_part_with_a_fusion_center(options):
    check(fp.Experiment(AVERAGE, QUADRATIC, **options))


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        fp.RandomActivation(2),
        fp.PartiallyAsynchronous(3, loss=0.2),
        fp.TotallyAsynchronous(),
        fp.WorstCase(2),
        fp.OwnPace(CLOCK, loss=0.1),
        fp.InStep(CLOCK),
        fp.Replay(((0, "0", None, 0), (1, "1", "0", 1), (1, "2", None, 0), (2, "3", "2", 2))),
        fp.Replay(((0, "0"), (1, "1", "0"), (1, "2", "1", None))),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_every_schedule_on_a_network(schedule):
    network = fp.Network.from_edges([(0, 1), (1, 2), (2, 3)], [1.0, 2.0, 0.5])
    check(fp.Experiment(fp.FedGD(step=0.05), QUADRATIC, network=network, schedule=schedule))


def test_failing_links():
    network = fp.Network.from_edges([(0, 1), (1, 2), (2, 3)]).mixing()
    check(fp.Experiment(fp.Diffusion(step=0.05), QUADRATIC, network=network, schedule=fp.RandomLinks(0.2)))


def problems():
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(12, 2)), rng.integers(0, 2, 12), np.repeat(["a", "b", "c"], 4)
    yield fp.problems.LeastSquares([X[:4], X[4:]], [y[:4], y[4:]], mean=True)
    yield fp.problems.LeastSquares(X.astype(np.float32), y, groups=groups, batch=2)
    yield fp.problems.Logistic(X, np.array(["no", "yes"])[y], groups=groups, intercept=True)
    yield fp.problems.LinearStream.sample(4, 2, 0.1, seed=1)
    yield fp.problems.LinearSystem(
        np.eye(2)[None] * [[[1.0]], [[2.0]]], [[1.0, 0.0], [0.0, 1.0]], fp.problems.Noise(0.1)
    )
    yield fp.problems.garnet(states=4, dim=2, agents=2)


@pytest.mark.parametrize("problem", list(problems()), ids=lambda problem: type(problem).__name__)
def test_small_problems_are_written_down(problem):
    check(fp.Experiment(fp.FedAvg(step=0.05), problem))


def test_wrappers_at_any_depth():
    check(fp.Experiment(fp.Averaged(fp.Averaged(fp.Scaffold(step=0.05, local_steps=2)), burn_in=2), QUADRATIC))
    check(fp.Experiment(fp.Extrapolated(fp.FedAvg(fp.steps.InverseTime(1.0, 8.0))), QUADRATIC))
    steps = fp.Extrapolated(fp.FedAvg(step=[0.1, 0.2, 0.1, 0.3], local_steps=fp.steps.Stragglers(4, 0.5)))
    check(fp.Experiment(steps, QUADRATIC))


def squares(params, batch):
    x, y = batch
    return jnp.mean((x @ params["body"] + params["head"] - y) ** 2)


def test_trees_of_parameters_and_what_is_shared():
    rng = np.random.default_rng(1)
    data = rng.normal(size=(12, 2)), rng.normal(size=12)
    params = {"body": np.zeros(2, np.float32), "head": np.zeros((), np.float32)}
    problem = fp.problems.Loss(squares, params, data, groups=np.arange(12) % 3)
    start = {"body": np.ones(2, np.float32), "head": np.ones((), np.float32)}
    e = fp.Experiment(fp.FedAvg(step=0.1), problem, share=["body"], start=start)
    again = check(e, allow=[__name__])
    assert again.share == ["body"] and again.start["body"].dtype == np.float32
    with pytest.raises(fp.FedpointError, match=r"squares is not fedpoint's: name its module in allow="):
        fp.Experiment.from_dict(e.describe())


# Code of the user's own.


def test_classes_of_imported_modules_and_functions_of_allowed_ones():
    e = fp.Experiment(
        own_parts.Dithered(step=0.1, sigma=0.2),
        own_parts.Shifted(3.0, noise=0.1),
        participation=own_parts.RoundRobin(size=1),
        metrics={"drift": own_parts.drift},
    )
    again = check(e, allow=["own_parts"])
    assert type(again.problem) is own_parts.Shifted and again.metrics == {"drift": own_parts.drift}
    with pytest.raises(fp.FedpointError, match=r"metrics: own_parts.drift is not fedpoint's.*metrics="):
        fp.Experiment.from_dict(e.describe())
    assert fp.Experiment.from_dict(e.describe(), metrics={}).metrics == {}


@pytest.mark.parametrize(
    ("part", "table", "message"),
    [
        ("algorithm", {"name": "os.path.join"}, "not a class that an experiment can hold"),
        ("algorithm", {"name": "subprocess_of_mine.Method"}, "name its module in allow="),
        ("algorithm", {"name": "fedavgg"}, "not one of fedpoint's classes"),
        ("algorithm", {"name": "fedavg", "step": 0.1, "stepp": 1}, "stepp"),
        ("algorithm", {"name": "fedavg"}, "step"),
        ("participation", {"class": "Quadratic"}, "Quadratic needs H and centers"),
        ("participation", {"klass": "Uniform"}, "not a form that a value can have"),
        ("metrics", {"a": {"python": "os.system"}}, "os.system is not fedpoint's"),
        ("metrics", {"a": {"python": "__main__.f"}}, "is in the script that was run"),
        ("network", {"class": "Network", "nodes": 3}, "a network of 3 nodes is not stored"),
        ("problem", {"class": "Quadratic", "agents": 4}, "its data are not written down; give .*problem="),
        ("problem", {"class": "Uniform", "given": {}}, "not one of fedpoint's classes"),
        ("sed", 3, "no 'sed': did you mean 'seed'"),
    ],
)
def test_what_a_description_may_not_say(part, table, message):
    description = fp.Experiment(AVERAGE, QUADRATIC).describe()
    with pytest.raises(fp.FedpointError, match=message):
        fp.Experiment.from_dict({**description, part: table})


def test_what_cannot_be_built_again_is_said():
    large = fp.problems.LeastSquares(np.ones((2000, 2)), np.zeros(2000), groups=np.arange(2000) % 600)
    e = fp.Experiment(
        fp.FedAvg(step=0.1, optimiser=optax.trace(0.5)),
        large,
        network=fp.Network.ring(600, 0.5),
        metrics={"far": lambda state: jnp.sum(state.model)},
    )
    said = e.describe()["not_rebuildable"]
    assert [why.split(":")[0] for why in said] == ["algorithm.optimiser", "metrics.far", "network", "problem"]
    assert "trace" in said[0] and "<lambda>" in said[1] and "600 edges" in said[2] and "fingerprint" in said[3]
    with pytest.raises(fp.FedpointError, match=r"give Experiment.from_dict"):
        fp.Experiment.from_dict(e.describe())
    given = {
        name: part for name, part in e.arguments().items() if name in ("algorithm", "network", "metrics", "problem")
    }
    assert fp.Experiment.from_dict(e.describe(), **given).describe() == e.describe()


def test_data_that_were_changed_are_refused():
    centers = np.array(CENTERS)
    problem = fp.problems.Quadratic(1.0, centers)
    description = through_text(fp.Experiment(AVERAGE, problem).describe())
    description["problem"]["given"]["centers"]["values"][0][0] = 7.0
    with pytest.raises(fp.FedpointError, match="the data of the problem have changed"):
        fp.Experiment.from_dict(description)
