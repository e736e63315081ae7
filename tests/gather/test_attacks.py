"""Attacks: where a run under attack ends, in closed form; what is refused; every gather, some methods, every attack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedpoint as fp
from fedpoint.core.precision import double

PLACES = np.arange(7.0)  # of seven agents with unit curvature: a message is c (place - w)
QUAD = fp.problems.Quadratic(1.0, PLACES[:, None])
LIARS = [5, 6]
HONEST = PLACES[:5]


def end(attack, **options):
    options = {"rounds": 400, "record_every": 400} | options
    return float(fp.run(fp.FedAvg(step=0.2, local_steps=2), QUAD, attack=attack, **options).model[0, 0])


def expected_ends():
    """Where the sum of what arrives is zero."""
    mean, spread, liars = HONEST.mean(), HONEST.std(), PLACES[LIARS]
    z = stats.norm.ppf((5 - 2) / 5)  # 7 heard, 2 liars: 7 // 2 + 1 - 2 = 2 honest ones must be farther out
    return {
        "sign flip": (fp.attack.SignFlip(LIARS, scale=0.5), (HONEST.sum() - 0.5 * liars.sum()) / (5 - 1)),
        "scaling": (fp.attack.Scaling(LIARS, 10.0), (HONEST.sum() + 10 * liars.sum()) / 25),
        "inner product": (fp.attack.InnerProduct(LIARS, 0.5), mean),
        "little is enough": (fp.attack.LittleIsEnough(LIARS), mean - 2 * z * spread / 7),
        "a little more": (fp.attack.LittleIsEnough(LIARS, z=1.5), mean - 2 * 1.5 * spread / 7),
        "false rows": (fp.attack.FalseRows(LIARS, 5.0), (HONEST.sum() + 5 * liars.sum()) / 15),
    }


@pytest.mark.parametrize("name", expected_ends())
def test_a_run_ends_where_what_arrives_cancels(name):
    attack, expected = expected_ends()[name]
    assert end(attack) == pytest.approx(expected, abs=1e-9)


class MeansOfEveryone(fp.attack.InnerProduct):
    """A mutant: liars count themselves among the honest."""

    def sent(self, messages, heard, luck):
        return super().sent(messages, heard._replace(honest=heard.honest | heard.liars), luck)


class Others(fp.attack.SignFlip):
    """A mutant: the honest lie."""

    def on(self, messages, agents, heard, luck):
        return super().on(messages, 6 - agents, heard, luck)


@pytest.mark.parametrize(("mutant", "name"), [(MeansOfEveryone, "inner product"), (Others, "sign flip")])
def test_mutant_attacks_end_elsewhere(mutant, name):
    attack, expected = expected_ends()[name]
    assert abs(end(mutant(attack.agents, attack.scale)) - expected) > 0.1


# Broken variants. At the end of a run under attack what arrives cancels, weighted by what agents claim; and garbage
# has the law that it is said to have.


@double
def left_over(attack, where):
    """|sum_k p_k m_k| of what arrives, by the claimed weights p, of honest messages place - w."""
    told = attack.on(jnp.asarray(PLACES - where), jnp.arange(7), jnp.ones(7, bool), fp.Key.of(0).row())
    return abs(float(attack.claimed(np.full(7, 1 / 7)) @ told))


class Added(fp.attack.Scaling):
    """The factor is added."""

    def sent(self, messages, heard, luck):
        return messages + self.factor


class Everybody(fp.attack.Scaling):
    """Who is honest sends longer messages too."""

    def on(self, messages, agents, heard, luck):
        return self.sent(messages, None, luck)


class Variance(fp.attack.LittleIsEnough):
    """z variances from the mean."""

    def sent(self, messages, heard, luck):
        mean = heard.mean(messages)
        return jnp.broadcast_to(mean - self.z * heard.mean((messages - mean) ** 2), messages.shape)


class Unsupported(fp.attack.LittleIsEnough):
    """Hides as if the other liars did not stand with it: of 7 heard, 4 honest ones would have to be farther out, and so
    nothing hides."""

    def sent(self, messages, heard, luck):
        return (
            self.replace(z=0.0).sent(messages, heard, luck) if self.z is None else super().sent(messages, heard, luck)
        )


class OfAll(fp.attack.FalseRows):
    """Everybody's claims are larger."""

    def claimed(self, weights):
        return weights


class Unshared(fp.attack.FalseRows):
    """Claims are weights that no longer sum to one: a step too long, which cancels at the same place."""

    def claimed(self, weights):
        return np.where(np.isin(np.arange(len(weights)), self.agents), self.factor, 1.0) * weights


BROKEN = {
    "added": (Added(LIARS, 10.0), "scaling"),
    "everybody": (Everybody(LIARS, 10.0), "scaling"),
    "variance": (Variance(LIARS, z=1.5), "a little more"),
    "unsupported": (Unsupported(LIARS), "little is enough"),
    "of all": (OfAll(LIARS, 5.0), "false rows"),
}


@pytest.mark.parametrize("name", expected_ends())
def test_what_arrives_cancels_at_the_end(name):
    attack, where = expected_ends()[name]
    assert left_over(attack, where) < 1e-12


@pytest.mark.parametrize("name", BROKEN)
def test_what_arrives_of_a_broken_attack_does_not(name):
    mutant, law = BROKEN[name]
    assert left_over(mutant, expected_ends()[law][1]) > 0.05


def test_claims_are_weights():
    right, wrong = (kind(LIARS, 5.0).claimed(np.full(7, 1 / 7)) for kind in (fp.attack.FalseRows, Unshared))
    assert right.sum() == pytest.approx(1.0) and wrong.sum() > 1.5


class Everyones(fp.attack.LabelFlip):
    """All agents' labels are turned round."""

    def data(self, problem):
        return problem.flipped(np.ones(problem.agents, bool))


class Nobodys(fp.attack.LabelFlip):
    """The first agent's labels, whoever lies."""

    def data(self, problem):
        return problem.flipped(np.arange(problem.agents) == 0)


@pytest.mark.parametrize(("kind", "right"), [(fp.attack.LabelFlip, True), (Everyones, False), (Nobodys, False)])
def test_labels_of_the_liars_alone_are_turned_round(kind, right):
    X, y, groups = np.arange(6.0)[:, None], np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0]), np.repeat([0, 1, 2], 2)
    problem = fp.problems.LeastSquares([X[groups == k] for k in range(3)], [y[groups == k] for k in range(3)])
    labels = kind([2]).data(problem).all_rows()[1]
    assert (np.ravel(labels).tolist() == [1.0, -2.0, 3.0, 4.0, 5.0, -6.0]) is right


class TooShort(fp.attack.GarbageControls):
    """Numbers of standard deviation 1."""

    def _garbage(self, a, luck, first):
        return luck.normal(a.shape, first)


class TheSame(fp.attack.GarbageControls):
    """The same numbers in every part."""

    def _garbage(self, a, luck, first):
        return super()._garbage(a, luck, 0)


class FirstPart(fp.attack.GarbageControls):
    """The model is garbage too."""

    def sent(self, messages, heard, luck):
        return tuple(self._garbage(m, luck, i * m.size) for i, m in enumerate(messages))


@double
@pytest.mark.parametrize(
    ("kind", "right"),
    [(fp.attack.GarbageControls, True), (TooShort, False), (TheSame, False), (FirstPart, False)],
)
def test_garbage_is_normal_fresh_and_in_controls_alone(kind, right):
    """Standard deviations and correlations of 4,000 numbers to five standard errors."""
    message, few = tuple(jnp.ones((2, 2000)) for _ in range(3)), 5 / np.sqrt(4000)
    told = kind([0, 1], scale=3.0).on(message, jnp.arange(2), jnp.ones(2, bool), fp.Key.of(1).row())
    first, one, other = map(np.asarray, told)
    law = {
        "the model is honest": (first == 1).all(),
        "scale": abs(one.std() / 3 - 1) < few and abs(one.mean()) < 3 * few,
        "fresh": abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < few,
    }
    assert all(law.values()) is right


def test_flipped_labels_are_those_of_the_liars():
    """Least squares: the end is the solution with -b at the liars; errors are measured from the honest one."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(4, 6, 2)), rng.normal(size=(4, 6))
    problem = fp.problems.LeastSquares(list(A), list(b), mean=True)
    run = fp.run(fp.FedAvg(step=0.2), problem, rounds=600, attack=fp.attack.LabelFlip([1]))
    false = b * np.array([1, -1, 1, 1])[:, None]
    expected = np.linalg.lstsq(A.reshape(-1, 2), false.ravel(), rcond=None)[0]
    np.testing.assert_allclose(run.model[0], expected, atol=1e-9)
    honest = np.linalg.lstsq(A.reshape(-1, 2), b.ravel(), rcond=None)[0]
    assert run.error[0, -1] == pytest.approx(((expected - honest) ** 2).sum())


@pytest.mark.parametrize("classes", [2, 3])
def test_flipped_classes_are_the_same_problem_with_other_labels(classes):
    rng = np.random.default_rng(1)
    X, y, groups = rng.normal(size=(60, 3)), rng.integers(0, classes, 60), np.repeat([0, 1, 2], 20)
    false = np.where(groups == 2, classes - 1 - y, y)
    method, options = fp.FedAvg(step=0.3, local_steps=3), {"rounds": 20, "seed": 4}
    attacked = fp.run(method, fp.problems.Logistic(X, y, groups, batch=5), attack=fp.attack.LabelFlip([2]), **options)
    other = fp.run(method, fp.problems.Logistic(X, false, groups, batch=5), **options)
    np.testing.assert_allclose(attacked.model, other.model, atol=1e-12)


@double
def test_garbage_controls_leave_the_first_part_alone():
    message = (jnp.ones((4, 2)), jnp.ones((4, 2)), {"more": jnp.ones(4)})
    attack = fp.attack.GarbageControls([1], scale=3.0)
    told = attack.on(message, jnp.arange(4), jnp.ones(4, bool), fp.Key.of(0).row())
    pairs = zip(jax.tree.leaves(told), jax.tree.leaves(message), strict=True)
    changed = [np.asarray(a != b).reshape(4, -1).any(axis=1) for a, b in pairs]
    assert changed[0].tolist() == [False] * 4
    assert changed[1].tolist() == changed[2].tolist() == [False, True, False, False]


def test_garbage_controls_lead_scaffold_astray():
    """Without the attack it ends at w*; the models that it sends stay honest."""
    method = fp.Scaffold(step=0.1, local_steps=2)
    assert fp.run(method, QUAD, rounds=200).error[0, -1] < 1e-12
    assert fp.run(method, QUAD, rounds=200, attack=fp.attack.GarbageControls([6], scale=10.0)).error[0, -1] > 1.0


def test_only_who_is_heard_lies():
    """One participant a round: honest rounds lead to 1, the liar's away from 5; without the attack towards it."""
    quad = fp.problems.Quadratic(1.0, [[1.0], [1.0], [1.0], [5.0]])
    run = fp.run(fp.FedAvg(step=0.5), quad, 200, participation=1, start=[1.0], attack=fp.attack.SignFlip([3]), seed=1)
    assert run.history.min() < 0.0 and run.history.max() < 1.0 + 1e-12
    honest = fp.run(fp.FedAvg(step=0.5), quad, 200, participation=1, start=[1.0], seed=1)
    assert honest.history.min() > 1.0 - 1e-12


def test_a_lie_on_a_network_is_told_to_all_neighbours():
    """Against the recursion written out with matrices."""
    network, step, rounds = fp.Network.ring(7, weight=0.3), 0.2, 15
    run = fp.run(fp.FedAvg(step=step), QUAD, rounds, network=network, attack=fp.attack.SignFlip([2], scale=2.0))
    W = np.eye(7) * 0.4 + 0.3 * (np.roll(np.eye(7), 1, axis=0) + np.roll(np.eye(7), -1, axis=0))
    signs, x = np.where(np.arange(7) == 2, -2.0, 1.0), np.zeros(7)
    for _ in range(rounds):
        x = W @ (x + signs * step * (PLACES - x))
    np.testing.assert_allclose(np.ravel(run.models), x, atol=1e-12)


# Robust means under attack.

GATHERS = {
    "median": fp.gather.Median(),
    "trimmed": fp.gather.TrimmedMean(2),
    "geometric": fp.gather.GeometricMedian(),
    "krum": fp.gather.Krum(2),
    "multi-krum": fp.gather.MultiKrum(2, keep=2),
    "clipping": fp.gather.CentredClipping(0.3),
    "mixing": fp.gather.NearestNeighbourMixing(2, then=fp.gather.Median()),
}
ATTACKS = {
    "sign flip": fp.attack.SignFlip(LIARS, scale=30.0),
    "scaling": fp.attack.Scaling(LIARS, 1e3),
    "inner product": fp.attack.InnerProduct(LIARS, 20.0),
    "little": fp.attack.LittleIsEnough(LIARS),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("gather", GATHERS)
def test_robust_means_stay_near_the_honest_where_sums_do_not(gather, attack):
    """Inside of the honest range, widened by half of it (by their radius where messages are clipped)."""
    found = end(ATTACKS[attack], gather=GATHERS[gather], rounds=100, record_every=100)
    assert -2.0 <= found <= 6.0


def test_sums_do_not():
    with pytest.raises(fp.Diverged):
        end(ATTACKS["sign flip"], rounds=2000)


METHODS = {
    "FedAvg": fp.FedAvg(step=0.1, local_steps=2),
    "FedAvgM": fp.FedAvgM(step=0.1),
    "FedNova": fp.FedNova(step=0.1, local_steps=2),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("gather", ["trimmed", "krum", "mixing"])
def test_every_gather_runs_with_other_methods_and_few_participants(method, gather):
    attack = fp.attack.LittleIsEnough([0, 3])
    quad = fp.problems.Quadratic(1.0, np.arange(9.0)[:, None] * [1.0, -1.0], noise=0.1)
    run = fp.run(method, quad, 30, participation=7, gather=GATHERS[gather], attack=attack, repeats=2)
    assert np.isfinite(run.error).all()


# Written down, refused.


def test_described_and_built_again(tmp_path):
    e = fp.Experiment(
        fp.FedAvg(step=0.1),
        QUAD,
        attack=fp.attack.LittleIsEnough(LIARS, z=0.5),
        gather=fp.gather.NearestNeighbourMixing(1, then=fp.gather.TrimmedMean(1)),
    )
    again = fp.Experiment.from_dict(e.describe())
    assert again.attack == e.attack and again.gather == e.gather
    fp.write(tmp_path / "e.toml", e)
    read = fp.read(tmp_path / "e.toml")[0].experiment
    assert read.attack == e.attack and read.gather == e.gather


def test_in_the_words_of_files(tmp_path):
    (tmp_path / "e.toml").write_text(
        """
        rounds = 3
        attack = {kind = "sign_flip", agents = [1, 2], scale = 2}
        gather = {kind = "nearest_neighbour_mixing", liars = 1, then = "median"}
        [problem]
        kind = "quadratic"
        H = 1.0
        centers = [[0.0], [1.0], [2.0], [3.0]]
        [algorithm]
        name = "fedavg"
        step = 0.1
        """
    )
    e = fp.read(tmp_path / "e.toml")[0].experiment
    assert e.attack == fp.attack.SignFlip([1, 2], scale=2.0)
    assert e.gather == fp.gather.NearestNeighbourMixing(1, then=fp.gather.Median())
    assert {"attack", "gather"} <= set(fp.schema()["properties"])


REFUSED = {
    "nobody": (lambda: fp.attack.SignFlip([]), "agents must name at least one agent"),
    "half of one": (lambda: fp.attack.SignFlip([1.5]), "agents must be a list of whole numbers"),
    "negative": (lambda: fp.attack.SignFlip([-1]), "agent numbers, counted from 0"),
    "no length": (lambda: fp.attack.SignFlip([1], scale=0.0), "SignFlip: scale must be above 0"),
    "no rows": (lambda: fp.attack.FalseRows([1], 0.0), "FalseRows: factor must be above 0"),
    "who is not there": (
        lambda: end(fp.attack.SignFlip([7])),
        "there is no agent 7; the 7 agents are numbered from 0 to 6",
    ),
    "all": (lambda: end(fp.attack.SignFlip(list(range(7)))), "all 7 agents lie"),
    "one part": (lambda: end(fp.attack.GarbageControls([1])), "messages of several parts"),
    "no labels": (lambda: end(fp.attack.LabelFlip([1])), "Quadratic has no labels"),
    "a forecast": (
        lambda: fp.forecast(fp.Scaffold(step=0.1), QUAD, attack=fp.attack.GarbageControls([1])),
        "what it does to a round is not known beforehand",
    ),
    "processes": (
        lambda: fp.run(fp.FedAvg(step=0.1), QUAD, 2, attack=fp.attack.SignFlip([1]), processes=2),
        "SignFlip needs all messages of a round in one place",
    ),
    "processes, robust": (
        lambda: fp.run(fp.FedAvg(step=0.1), QUAD, 2, gather=fp.gather.Median(), processes=2),
        "Median needs all messages of a round in one place",
    ),
}


@pytest.mark.parametrize(("make", "match"), REFUSED.values(), ids=REFUSED)
def test_refused_with_one_message(make, match):
    with pytest.raises(fp.FedpointError, match=match):
        make()


def test_a_folder_goes_on_with_its_attack_and_gather(tmp_path):
    options = {"attack": fp.attack.LittleIsEnough(LIARS), "gather": fp.gather.TrimmedMean(1)}
    fp.run(fp.FedAvg(step=0.1), QUAD, 5, folder=tmp_path / "run", **options)
    again = fp.load(tmp_path / "run", QUAD).extend(12)
    np.testing.assert_array_equal(again.model, fp.run(fp.FedAvg(step=0.1), QUAD, 12, **options).model)


def test_real_sites_refuse_an_attack():
    from fedpoint.federation.study import parse

    content = {
        "name": "lies",
        "sites": ["a", "b", "c"],
        "server": "localhost:8102",
        "rounds": 2,
        "algorithm": {"name": "fedavg", "step": 0.1},
        "problem": {"kind": "quadratic", "H": 1.0, "centers": [[0.0], [1.0], [2.0]]},
        "attack": {"kind": "sign_flip", "agents": [1]},
    }
    with pytest.raises(fp.FedpointError, match="attacks are for simulation"):
        parse(content)
