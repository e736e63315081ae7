"""Mean and covariance together, to second order: against every outcome of a few rounds, and against the stationary law
of a model of one number, whose density is followed on a fine grid. Nothing in the oracles comes from the library."""

import itertools

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory import closure, operator, shift

RIDGE = 0.2
X = [np.array([[1.0], [-0.6]]), np.array([[0.4], [1.7]])]
Y = [np.array([1, -1]), np.array([-1, 1])]
P = np.array([0.6, 0.4])


def problem():
    return fp.problems.Logistic(
        np.concatenate(X), np.concatenate(Y), groups=np.repeat([0, 1], 2), ridge=RIDGE, weights=P, batch=1
    )


def gradient(k, row, w):
    margin = Y[k][row] * X[k][row, 0]
    return RIDGE * w - margin / (1 + np.exp(margin * w))


def descended(k, rows, w, step, correction=0.0):
    for row in rows:
        w = w - step * (gradient(k, row, w) + correction)
    return w


def outcomes(local_steps, count):
    """Every round: its chance, the weights of who takes part, and the rows that each agent meets."""
    lineups = [P] if count == 2 else [2 * P * s for s in np.eye(2)]
    rows = list(itertools.product((0, 1), repeat=local_steps))
    for v in lineups:
        for each in itertools.product(rows, rows):
            yield 1 / (len(lineups) * len(rows) ** 2), v, each


def averaged(state, outcome, step):
    """Federated averaging, of states (w,)."""
    _, v, rows = outcome
    (w,) = state
    return (w + sum(v[k] * (descended(k, rows[k], w, step) - w) for k in range(2)),)


def scaffold(state, outcome, step):
    """SCAFFOLD, option II, of states (w, c, c_1, c_2)."""
    _, v, rows = outcome
    w, c, *own = state
    moved, control, kept = 0.0, 0.0, list(own)
    for k in range(2):
        y = descended(k, rows[k], w, step, c - own[k])
        new = own[k] - c + (w - y) / (len(rows[k]) * step)
        moved += v[k] * (y - w)
        if v[k]:
            control += P[k] * (new - own[k])
            kept[k] = new
    return (w + moved, c + control, *kept)


def enumerated(round, start, step, local_steps, count, rounds):
    """Mean and variance of w after each round, by going through every outcome."""
    law, found = [(1.0, start)], []
    for _ in range(rounds):
        law = [(p * o[0], round(s, o, step)) for p, s in law for o in outcomes(local_steps, count)]
        chance, w = np.array([p for p, _ in law]), np.array([s[0] for _, s in law])
        mean = chance @ w
        found.append((mean, chance @ (w - mean) ** 2))
    return np.array(found)


def forecast(method, count):
    return fp.forecast(method, problem(), start=np.array([1.0]), participation=None if count == 2 else count)


def followed(f, rounds):
    """Mean and variance of w by the closure."""
    laws = [f.outlook.law(t) for t in range(1, rounds + 1)]
    means = [float(f.setting.read(f.outlook.moments_at(t).x)[0]) for t in range(1, rounds + 1)]
    return np.array([(m, law.weights.sum()) for m, law in zip(means, laws, strict=True)])


def test_the_first_round_is_exact():
    """One step from a certain start: nothing is left out, samples and participation included."""
    f = forecast(fp.FedAvg(0.4), 1)
    np.testing.assert_allclose(followed(f, 1), enumerated(averaged, (1.0,), 0.4, 1, 1, 1), rtol=1e-12)


def extrapolated(state, outcome, step):
    """Step and half step side by side; what is read is 2 x(s/2) - x(s), kept in front."""
    _, *chains = state
    (whole,), (half,) = averaged((chains[0],), outcome, step), averaged((chains[1],), outcome, step / 2)
    return (2 * half - whole, whole, half)


CASES = [
    (extrapolated, (1.0, 1.0, 1.0), lambda s: fp.Extrapolated(fp.FedAvg(s, local_steps=2)), 2, 2),
    (averaged, (1.0,), lambda s: fp.FedAvg(s, local_steps=3), 3, 2),
    (averaged, (1.0,), lambda s: fp.FedAvg(s, local_steps=3), 3, 1),
    (scaffold, (1.0, 0.0, 0.0, 0.0), lambda s: fp.Scaffold(s, local_steps=2), 2, 1),
]


def gaps(case, step, rounds=2):
    """How far closure and expected round are from the truth after some rounds: of the mean, and of the variance."""
    round, start, make, local_steps, count = case
    f = forecast(make(step), count)
    truth = enumerated(round, start, step, local_steps, count, rounds)[-1]
    plain = f.setting.path(f.setting.origin, rounds)[-1, 0]
    mean, variance = followed(f, rounds)[-1]
    return mean - truth[0], plain - truth[0], variance / truth[1] - 1


@pytest.mark.parametrize(
    "case",
    [pytest.param(CASES[0], marks=pytest.mark.slow), *CASES[1:]],
    ids=["Extrapolated", "FedAvg", "FedAvg, one", "SCAFFOLD, one"],
)
def test_what_is_left_out_is_of_higher_order(case):
    """The mean within 2 % of its shift and the variance within 2 %, after two rounds of steps far from small."""
    left, plain, spread = gaps(case, 0.2)
    assert abs(plain) > 4e-5 and abs(left) < 0.02 * abs(plain) and abs(spread) < 0.02


@pytest.mark.parametrize("broken", ["between rounds", "inside a round"])
def test_a_closure_without_a_part_of_the_shift_is_convicted(broken, monkeypatch):
    if broken == "between rounds":
        monkeypatch.setattr(shift, "bend", lambda function, x, M: 0 * function(x))
    else:
        monkeypatch.setattr(shift.Shifting, "loop", _without_noise)
    fresh = jax.jit(lambda *given: closure.shift_at(*given), static_argnums=0)  # traced anew, and only here
    monkeypatch.setattr(closure, "_shifted", fresh)
    left, plain, _ = gaps(CASES[1], 0.2)
    assert abs(left) > 0.2 * abs(plain)


def _without_noise(self, start, steps, advance):
    self.fields[self._place] = 0 * self.fields[self._place]
    return LOOP(self, start, steps, advance)


LOOP = shift.Shifting.loop


# The stationary law of one number.


def stationary(step, local_steps, count):
    """Mean and variance of w once settled: the density on a grid, moved by linear interpolation until it stands."""
    grid = np.linspace(0.0, 1.8, 601)  # beyond it there is nothing: 10 standard deviations
    T = np.zeros((len(grid), len(grid)))
    for outcome in outcomes(local_steps, count):
        (after,) = averaged((grid,), outcome, step)
        at = np.clip((after - grid[0]) / (grid[1] - grid[0]), 0, len(grid) - 1.001)
        low, part = at.astype(int), at - at.astype(int)
        rows = np.arange(len(grid))
        np.add.at(T, (rows, low), outcome[0] * (1 - part))
        np.add.at(T, (rows, low + 1), outcome[0] * part)
    law = np.linalg.matrix_power(T, 1024)[len(grid) // 2]
    mean = law @ grid
    return mean, law @ (grid - mean) ** 2


@pytest.mark.parametrize(("local_steps", "count"), [(1, 1), (3, 2)])
def test_where_the_mean_settles(local_steps, count):
    """The limit within a tenth of the shift, the variance within 3 %."""
    f = forecast(fp.FedAvg(0.3, local_steps=local_steps), count)
    mean, variance = stationary(0.3, local_steps, count)
    moved = mean - float(f.fixed_point[0])
    assert abs(float(f.limit[0]) - mean) < 0.1 * abs(moved)
    assert f.variance == pytest.approx(variance, rel=0.03) and f.accuracy.good
    assert f.noise_bias == pytest.approx(abs(float(f.limit[0]) - float(f.fixed_point[0])))
    assert f.bias == pytest.approx(abs(float(f.limit[0]) - problem().solution()[0]))
    assert f.floor == pytest.approx(f.bias**2 + f.variance)
    np.testing.assert_allclose(f.curve(400)[-1], f.floor, rtol=1e-9)


def test_exact_fields_are_those_of_all_rows():
    """The same experiment, told in two ways: few agents take part, and what they answer is not drawn."""
    rows = fp.problems.Logistic(np.concatenate(X), np.concatenate(Y), groups=np.repeat([0, 1], 2), ridge=RIDGE)
    method = fp.FedAvg(step=0.2, local_steps=3, normalise=False)
    told, full = (fp.forecast(method, rows, participation=1, exact=exact) for exact in (True, False))
    assert told.noise_bias == pytest.approx(full.noise_bias, rel=1e-9) and told.noise_bias > 0
    np.testing.assert_allclose(told.curve(5), full.curve(5), rtol=1e-9)


@pytest.mark.slow
def test_agents_one_after_the_other_are_those_of_a_batch(monkeypatch):
    """Where one agent has many more rows than the others, nobody is padded to it; the forecast is the same."""
    luck = np.random.default_rng(0)
    counts = [600, 20, 20, 20]
    rows, labels = luck.normal(size=(sum(counts), 1)), luck.choice([-1, 1], size=sum(counts))
    uneven = fp.problems.Logistic(rows, labels, groups=np.repeat(range(4), counts), ridge=RIDGE, batch=2)
    method, found = fp.FedAvg(step=0.2, local_steps=2, normalise=False), []
    for ragged in (operator.RAGGED, np.inf):
        monkeypatch.setattr(operator, "RAGGED", ragged)
        f = fp.forecast(method, uneven, participation=2)
        assert f.setting.space.ragged == (ragged < np.inf)
        found.append([f.floor, f.noise_bias, *f.curve(3)])
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_nothing_moves_where_nothing_bends():
    """Affine fields, and exact fields with everyone: the mean settles at the fixed point."""
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    assert fp.forecast(fp.FedAvg(0.2, 3), quad).noise_bias == 0
    exact = fp.forecast(fp.FedAvg(0.2, 3), problem(), exact=True)
    assert exact.noise_bias == 0 and exact.accuracy is None and exact.drift == exact.bias
