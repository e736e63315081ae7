"""Identities between methods, and limits: what holds exactly, whatever the numbers.

Everything is unequal (weights, Hessians, local steps) unless the identity needs otherwise. `SAME` = 1e-12: two
computations of the same 30 models, numbers of order 1 to 10, fewer than 1e3 roundings of 1e-16 each in a stable
recursion. `LIMIT` = 1e-10 on the distance to a limit: runs are long enough for the transient to fall below 1e-13, and
what remains is rounding, amplified by at most the conditioning (below 10) of the aggregate.
"""

import numpy as np
import optax
import plain
import pytest

import fedpoint as fp

SAME, LIMIT = 1e-12, 1e-10
WORLD = plain.bowls(seed=0, K=5, d=3)
RAGGED = (1, 1, 2, 6, 2)  # so uneven that the engine maps over agents
UNEVEN = (2, 3, 4, 3, 3)  # so that it batches them
START = np.array([2.0, -1.0, 3.0])
ROUNDS = 30


def path(algorithm, problem=None, **options):
    """(rounds + 1, d): the models of a run."""
    options = {"rounds": ROUNDS, "start": START, "seed": 4, "exact": problem is None} | options
    return fp.run(algorithm, WORLD.problem() if problem is None else problem, **options).history[0]


def assert_same(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=SAME)


def assert_limit(run, w):
    np.testing.assert_allclose(run.model[0], w, rtol=0, atol=LIMIT)


# Exchange of gradients, of parameters, and FedAvg with one step.


@pytest.mark.parametrize("participation", [None, 2], ids=["all", "uniform"])
def test_gradient_exchange_is_parameter_exchange(participation):
    """L0 (11)-(14), (31)-(34): identical iterates, with the same samples and the same participants."""
    problem = WORLD.problem(0.5)
    gradients = path(fp.GradientExchange(0.3), problem, participation=participation)
    parameters = path(fp.ParameterExchange(0.3), problem, participation=participation)
    assert_same(gradients, parameters)


def test_gradient_exchange_is_parameter_exchange_with_decaying_steps():
    schedule = fp.steps.InverseTime(2.0, 5.0)
    assert_same(path(fp.GradientExchange(schedule)), path(fp.ParameterExchange(schedule)))
    assert_same(path(fp.GradientExchange(schedule)), plain.descent(WORLD, START, ROUNDS, lambda r: 2.0 / (5.0 + r)))


@pytest.mark.parametrize("normalise", [True, False])
def test_fedavg_with_one_step_is_gradient_descent(normalise):
    descent = plain.descent(WORLD, START, ROUNDS, 0.3)
    assert_same(path(fp.FedAvg(0.3, 1, normalise=normalise)), descent)
    assert_same(path(fp.GradientExchange(0.3)), descent)


def test_fedavg_with_one_noisy_step_is_parameter_exchange():
    """The same samples: the first of each round."""
    problem = WORLD.problem(0.5)
    assert_same(
        path(fp.FedAvg(0.3, 1), problem, participation=2), path(fp.ParameterExchange(0.3), problem, participation=2)
    )


# The general rule, FedNova, FedProx, q-FedAvg, FedOpt beside FedAvg.


@pytest.mark.parametrize("participation", [None, 2], ids=["all", "uniform"])
def test_fednova_with_equal_steps_is_fedavg(participation):
    """Also when weights p_k K/L do not add up to one: tau_eff is a mean over those heard."""
    assert_same(
        path(fp.FedNova(0.1, 4), participation=participation),
        path(fp.FedAvg(0.1, 4, normalise=False), participation=participation),
    )


@pytest.mark.parametrize("participation", [None, 2], ids=["all", "uniform"])
def test_qfedavg_with_q_zero_is_fedavg(participation):
    assert_same(
        path(fp.QFedAvg(0.0, 0.1, RAGGED), participation=participation),
        path(fp.FedAvg(0.1, RAGGED, normalise=False), participation=participation),
    )


@pytest.mark.parametrize("steps", [UNEVEN, RAGGED], ids=["uneven", "ragged"])
def test_the_general_rule_with_fedavgs_numbers_is_fedavg(steps):
    """L2: (tau_eff, w, a) = (sum p tau, p tau / sum p tau, ones); its first form (1, p, accumulated gradient) too."""
    fedavg = path(fp.FedAvg(0.1, steps, normalise=False))
    tau = np.array(steps, dtype=float)
    mean = WORLD.p @ tau
    ones = np.ones(max(steps))
    rules = [
        fp.GeneralRule(0.1, steps),
        fp.GeneralRule(0.1, steps, weights=WORLD.p * tau / mean, effective=float(mean), coefficients=ones),
        # The first form: w = p and d the accumulated gradient, that is |a|_1 times the normalised one.
        fp.GeneralRule(0.1, steps, weights=WORLD.p * tau, effective=1.0, coefficients=ones),
    ]
    for rule in rules:
        assert_same(path(rule), fedavg)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_the_general_rule_with_momentum_is_fedavg_with_local_momentum(rho):
    """A buffer m <- rho m + g, zeroed every round, as optax's trace has it."""
    fedavg = path(fp.FedAvg(0.05, RAGGED, normalise=False, optimiser=optax.trace(rho)))
    assert_same(path(fp.GeneralRule(0.05, RAGGED, momentum=rho)), fedavg)
    hand = plain.fedavg(WORLD, plain.everyone(WORLD.p, ROUNDS), START, RAGGED, lambda k, t: 0.05, momentum=rho)
    assert_same(fedavg, hand)


def test_the_general_rule_with_a_pull_is_fedprox():
    assert_same(path(fp.GeneralRule(0.1, RAGGED, pull=0.8)), path(fp.FedProx(0.1, RAGGED, pull=0.8)))


@pytest.mark.parametrize(
    "solver",
    [{}, {"momentum": 0.6}, {"pull": 0.8}, {"decay": 0.7}, {"momentum": 0.6, "pull": 0.8, "decay": 0.7}],
    ids=["plain", "momentum", "pull", "decay", "all three"],
)
def test_the_general_rule_with_fednovas_numbers_is_fednova(solver):
    assert_same(path(fp.GeneralRule(0.1, RAGGED, weights="fednova", **solver)), path(fp.FedNova(0.1, RAGGED, **solver)))


def test_the_general_rule_with_given_numbers_is_fednova():
    """w = p and tau_eff = sum p tau as numbers, a as ones."""
    tau_eff = float(WORLD.p @ np.array(RAGGED, dtype=float))
    rule = fp.GeneralRule(0.1, RAGGED, weights=WORLD.p, effective=tau_eff, coefficients=np.ones(6))
    assert_same(path(rule), path(fp.FedNova(0.1, RAGGED)))


def test_fedprox_without_pull_is_fedavg():
    """With the same samples."""
    problem = WORLD.problem(0.5)
    assert_same(
        path(fp.FedProx(0.1, RAGGED, pull=0.0), problem), path(fp.FedAvg(0.1, RAGGED, normalise=False), problem)
    )


def test_fedprox_with_many_steps_is_fedprox_solved_exactly():
    """Contraction 1 - 0.3 (0.5 + 1) = 0.55 a step at worst: 80 steps leave 1e-20."""
    exact = path(fp.FedProx(pull=1.0, exact=True))
    assert_same(path(fp.FedProx(0.3, 80, pull=1.0)), exact)


def test_fedprox_with_a_vanishing_pull_is_fedavgs_inner_problem_solved():
    """L3: for eta -> inf (pull = 2/eta -> 0) the local solution is the agent's own minimiser, c_k here.

    It is (H + pull)^-1 (H c + pull x) = c + O(pull) with a constant below |x - c| / lambda_min < 20.
    """
    pull = 1e-9
    model = path(fp.FedProx(pull=pull, exact=True), rounds=1)[-1]
    np.testing.assert_allclose(model, WORLD.p @ WORLD.c, rtol=0, atol=20 * pull)


def test_fedopt_with_a_plain_server_is_fedavg():
    assert_same(path(fp.FedOpt(0.1, RAGGED, server="sgd")), path(fp.FedAvg(0.1, RAGGED, normalise=False)))


# Control variates.


@pytest.mark.parametrize("H", [1, 5])
def test_scaffnew_with_a_fixed_length_is_scaffold(H):
    """p = 1/H, option 2, server step 1, everyone: the same models, and h_k = c_k - c (L1's xi_k)."""
    scaffnew = fp.run(fp.Scaffnew(0.2, local_steps=H), WORLD.problem(), rounds=ROUNDS, start=START, exact=True)
    scaffold = fp.run(fp.Scaffold(0.2, H), WORLD.problem(), rounds=ROUNDS, start=START, exact=True)
    assert_same(scaffnew.history, scaffold.history)
    xi = scaffold.memories[0] - np.asarray(scaffold.session.state.hub.c[0])
    assert_same(scaffnew.memories.h[0], xi)


def scafflsa(world, x, rounds, H, eta):
    """L1: th -= eta (g - xi_k), H times; then xi_k += (mean - th_k)/(eta H), with the sign that converges."""
    xi, models = np.zeros((len(world.p), len(x))), [x]
    for _ in range(rounds):
        ends = np.array([plain.local(world, k, x, H, eta, shift=-xi[k])[0] for k in range(len(world.p))])
        x = world.p @ ends
        xi = xi + (x - ends) / (eta * H)
        models.append(x)
    return np.array(models), xi


def test_scafflsa_on_a_gradient_field_is_scaffold_and_scaffnew():
    models, xi = scafflsa(WORLD, START, ROUNDS, 5, 0.2)
    scaffold = fp.run(fp.Scaffold(0.2, 5), WORLD.problem(), rounds=ROUNDS, start=START, exact=True)
    assert_same(scaffold.history[0], models)
    assert_same(scaffold.memories[0] - np.asarray(scaffold.session.state.hub.c[0]), xi)
    assert_same(path(fp.Scaffnew(0.2, local_steps=5)), models)


EXACT_METHODS = {
    "scaffold 1": fp.Scaffold(0.1, RAGGED, option=1),
    "scaffold 2": fp.Scaffold(0.1, UNEVEN, option=2),
    "scaffold, ragged, own steps": fp.Scaffold([0.1, 0.2, 0.05, 0.1, 0.3], RAGGED, server_step=0.9),
    "scaffnew": fp.Scaffnew(0.4, 0.3),
    "scaffnew, fixed": fp.Scaffnew(0.3, local_steps=4),
    "fedavg, one step": fp.FedAvg(0.4, 1),
}


@pytest.mark.parametrize("name", EXACT_METHODS)
def test_methods_without_bias_end_at_the_solution(name):
    """With exact fields, unequal p and unequal Hessians: at w* itself, and what agents keep at g_k(w*)."""
    run = fp.run(EXACT_METHODS[name], WORLD.problem(), rounds=600, start=START, exact=True)
    star = WORLD.star()
    assert_limit(run, star)
    fields = np.array([WORLD.g(k, star) for k in range(5)])
    if name.startswith("scaffold"):
        np.testing.assert_allclose(run.memories[0], fields, rtol=0, atol=LIMIT)
    elif name.startswith("scaffnew"):
        np.testing.assert_allclose(run.memories.h[0], fields, rtol=0, atol=LIMIT)


def test_a_logistic_problem_is_solved_by_scaffold(rng):
    """Not only quadratics: w* where the gradient, written out here, vanishes."""
    X, groups = rng.standard_normal((60, 3)), np.repeat(np.arange(4), [6, 12, 18, 24])
    y = np.where(X @ [1.0, -2.0, 0.5] + rng.standard_normal(60) + 0.5 * groups > 0, 1, -1)
    problem = fp.problems.Logistic(X, y, groups=groups, ridge=0.1)
    w = fp.run(fp.Scaffold(0.5, 3), problem, rounds=400).model[0]
    gradient = 0.1 * w - (y / (1 + np.exp(y * (X @ w)))) @ X / 60  # p_k = n_k/n: the mean over all rows
    np.testing.assert_allclose(gradient, 0, atol=LIMIT)


SCHEMES = {
    "uniform": fp.Uniform(2),
    "by weight": fp.ByWeight(3),
    "importance": fp.Importance(3, [0.3, 0.1, 0.2, 0.25, 0.15]),
    "answering": fp.Answering(fp.Everyone(), [0.3, 0.9, 0.5, 0.7, 0.6]),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scaffold_ends_at_the_solution_whoever_answers(scheme):
    """The multiplicative noise of participation dies with y_k - x: exact fields leave no floor. c = sum p_k c_k."""
    run = fp.run(
        fp.Scaffold(0.05, 3),
        WORLD.problem(),
        rounds=3000,
        start=START,
        participation=SCHEMES[scheme],
        exact=True,
        seed=3,
    )
    assert_limit(run, WORLD.star())
    c = np.asarray(run.session.state.hub.c[0])
    np.testing.assert_allclose(c, WORLD.p @ run.memories[0], rtol=0, atol=SAME)
    np.testing.assert_allclose(c, 0, atol=LIMIT)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_conserves_c_at_every_end(option):
    """c - sum p_k c_k = 0 in every round, with sampled fields and few participants, for both options."""
    run = fp.run(fp.Scaffold(0.1, 3, option=option), WORLD.problem(1.0), rounds=1, participation=2, start=START, seed=9)
    for rounds in (2, 3, 5, 8, 40):
        c = np.asarray(run.session.state.hub.c[0])
        assert np.abs(c).max() > 1e-3  # there is something to conserve
        np.testing.assert_allclose(c, WORLD.p @ run.memories[0], rtol=0, atol=SAME)
        run = run.extend(rounds)


def test_scaffnew_keeps_its_corrections_balanced():
    """sum p_k h_k = 0 after every round, with sampled fields."""
    run = fp.run(fp.Scaffnew(0.2, 0.4), WORLD.problem(1.0), rounds=1, start=START, seed=9)
    for rounds in (2, 3, 5, 8, 40):
        h = run.memories.h[0]
        assert np.abs(h).max() > 1e-3
        np.testing.assert_allclose(WORLD.p @ h, 0, atol=SAME)
        run = run.extend(rounds)


# Where FedAvg has no bias, and where weights come from.


def equal_grams(rng, K=4, d=3):
    """A_k with the same A_k'A_k and different column spaces, so that b_k differ as they like."""
    root = rng.standard_normal((d, d)) + 2 * np.eye(d)
    A = [np.linalg.qr(rng.standard_normal((m, d)))[0] @ root for m in (4, 5, 7, 9)]
    return A, [rng.standard_normal(len(a)) for a in A]


def test_fedavg_with_equal_grams_has_no_bias(rng):
    """L4: equal A_k'A_k, equal E and steps; weights may differ."""
    A, b = equal_grams(rng)
    p = np.array([0.1, 0.2, 0.3, 0.4])
    step = 1.0 / np.linalg.eigvalsh(A[0].T @ A[0])[-1]
    run = fp.run(fp.FedAvg(step, 5, normalise=False), fp.problems.LeastSquares(A, b, weights=p), rounds=2000)
    gram = sum(w * a.T @ a for w, a in zip(p, A, strict=True))
    assert_limit(run, np.linalg.solve(gram, sum(w * a.T @ y for w, a, y in zip(p, A, b, strict=True))))


def test_fedavg_with_equal_grams_and_unequal_steps_is_biased(rng):
    """The condition on E_k is needed: the limit moves by more than a thousandth."""
    A, b = equal_grams(rng)
    step = 0.5 / np.linalg.eigvalsh(A[0].T @ A[0])[-1]
    problem = fp.problems.LeastSquares(A, b)
    run = fp.run(fp.FedAvg(step, [1, 2, 4, 8], normalise=False), problem, rounds=2000)
    assert run.error[0, -1] > 1e-6


def test_fedavg_on_a_consistent_system_has_no_bias(rng):
    """L4: all agents agree on x, so any E_k and any steps end there."""
    x = rng.standard_normal(3)
    A = [rng.standard_normal((m, 3)) for m in (4, 5, 7, 9)]
    problem = fp.problems.LeastSquares(A, [a @ x for a in A], weights=[1, 2, 3, 4])
    step = 1.0 / np.array([np.linalg.eigvalsh(a.T @ a)[-1] for a in A])
    run = fp.run(fp.FedAvg(step, [1, 2, 8, 3], normalise=False), problem, rounds=3000)
    assert_limit(run, x)


def test_the_mean_lms_iterate_is_unbiased_when_covariances_agree(rng):
    """L0: exact fields are the mean of LMS; any common E. With different covariances E > 1 is biased."""
    models = rng.standard_normal((5, 3))
    R = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 1.5]])
    p = np.array([1.0, 2.0, 3.0, 4.0, 5.0]) / 15
    same = fp.problems.LinearStream(models, covariance=R, weights=p)
    run = fp.run(fp.FedAvg(1.0, 5, normalise=True), same, rounds=400, exact=True)
    assert_limit(run, p @ models)
    other = fp.problems.LinearStream(models, covariance=[0.5, 1.0, 1.5, 2.0, 2.5])
    assert fp.run(fp.FedAvg(1.0, 5, normalise=True), other, rounds=400, exact=True).error[0, -1] > 1e-6
    assert fp.run(fp.FedAvg(0.4, 1), other, rounds=400, exact=True).error[0, -1] < LIMIT**2


def test_a_sum_over_rows_and_a_weighted_mean_share_their_solution(rng):
    """A sum with p = 1/K and a mean with p_k = m_k/m; a mean with p = 1/K has another solution."""
    A = [rng.standard_normal((m, 3)) for m in (4, 6, 9, 21)]
    b = [rng.standard_normal(len(a)) for a in A]
    groups = np.repeat(np.arange(4), [len(a) for a in A])
    stacked = np.linalg.lstsq(np.concatenate(A), np.concatenate(b), rcond=None)[0]
    total = fp.problems.LeastSquares(A, b)
    mean = fp.problems.LeastSquares(A, b, weights=[4, 6, 9, 21], mean=True)
    flat = fp.problems.LeastSquares(np.concatenate(A), np.concatenate(b), groups=groups, mean=True)
    for problem, step in ((total, 0.02), (mean, 0.3), (flat, 0.3)):
        np.testing.assert_allclose(problem.solution(), stacked, rtol=0, atol=LIMIT)
        assert_limit(fp.run(fp.Scaffold(step, 3), problem, rounds=600), stacked)
    plain_mean = fp.problems.LeastSquares(A, b, mean=True)
    other = np.linalg.solve(sum(a.T @ a / len(a) for a in A), sum(a.T @ y / len(a) for a, y in zip(A, b, strict=True)))
    np.testing.assert_allclose(plain_mean.solution(), other, rtol=0, atol=LIMIT)
    assert np.abs(other - stacked).max() > 1e-2
