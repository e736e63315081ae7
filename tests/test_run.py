"""fp.run: the promises of its result, its options, its cost and its randomness."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.experiment.experiment import Options


def quad(agents=3, dim=2, noise=0.0, weights=None):
    rng = np.random.default_rng(0)
    return fp.problems.Quadratic(1.0 + rng.random(agents), rng.normal(size=(agents, dim)), noise=noise, weights=weights)


def rows(sizes=(5, 9, 7), seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sum(sizes), 3))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=len(X)) > 0, 1, -1)
    return X, y, np.repeat(np.arange(len(sizes)), sizes)


def test_the_first_page_works_as_it_is_written(rng):
    """Every line that a newcomer is shown."""
    X, y, ids = rows()
    A, b = [rng.normal(size=(n, 3)) for n in (4, 6)], [rng.normal(size=n) for n in (4, 6)]
    H, centers = np.stack([np.eye(2), 2 * np.eye(2)]), np.ones((2, 2))

    def loss(params, batch):
        return jnp.mean((batch[0] @ params["w"] - batch[1]) ** 2)

    params, data = {"w": np.zeros(3)}, (X, y.astype(float))

    lab = fp.problems.LinearStream.sample(agents=100, dim=10, spread=0.1, noise=0.01, seed=0)
    ls = fp.problems.LeastSquares(A, b, weights=None, mean=False)
    quad = fp.problems.Quadratic(H, centers, noise=0.0)
    logit = fp.problems.Logistic(X, y, groups=ids, ridge=0.01)
    own = fp.problems.Loss(loss, params, data, groups=ids, batch=10)

    run = fp.run(
        fp.FedAvg(step=0.02, local_steps=10, normalise=True), lab, rounds=30, participation=10, repeats=20, seed=1
    )
    assert run.error.shape == (20, 31) == run.loss.shape
    np.testing.assert_allclose(run.error[:, 0], (lab.solution() ** 2).sum())  # from the initial model on
    assert run.model.shape == (20, 10) and run.models.shape == (20, 100, 10)
    assert run.memories == ()
    cost = run.cost
    assert (cost.rounds, cost.floats_up, cost.bytes_down) == (30, 30 * 10 * 10, 30 * 10 * 10 * 8)
    assert cost.evaluations == 30 * 10 * 10

    algorithm = fp.Scaffold(step=0.05, local_steps=2)
    for problem in (lab, ls, quad, logit, own):
        done = fp.run(algorithm, problem, rounds=3, exact=True)
        assert done.loss.shape == (1, 4) and done.loss[0, -1] < done.loss[0, 0]
        assert done.has_error == (problem is not own)
        w, w_k, c = problem.solution(), problem.local_solutions(), problem.constants()
        assert (w is None) == (problem is own) and (w_k is None) == (problem is own)
        if problem is not own:
            assert min(c.nu, c.delta, c.delta_k.min()) > 0 and c.heterogeneity >= 0 and c.gamma >= -1e-12
            assert c.beta2_k.shape == c.sigma2_k.shape == (problem.agents,)
    assert done.memories["w"].shape == (1, 3, 3)

    table = fp.compare([fp.FedAvg(0.1), fp.FedAvg(0.1, 3, normalise=True), algorithm], quad, rounds=5)
    assert len(table) == 3 and "SCAFFOLD" in str(table)


def test_the_lab_is_what_it_says():
    """w_k ~ N(1, spread I), h ~ N(0, I), v ~ N(0, noise): variances, not deviations."""
    lab = fp.problems.LinearStream.sample(agents=2000, dim=10, spread=0.1, noise=0.01, seed=0)
    assert lab.own.model.mean() == pytest.approx(1, abs=0.02)
    assert lab.own.model.var() == pytest.approx(0.1, rel=0.05)
    np.testing.assert_allclose(lab.own.deviation, 0.1)
    assert (fp.problems.LinearStream.sample(agents=3, spread=0).own.model == 1).all()


def arguments(verb):
    """Those of a verb, the experiment's among them."""
    own = inspect.signature(verb).parameters
    return {*own, *(Options.__annotations__ if own["options"].annotation == "Unpack[MethodOptions]" else ())}


def test_every_verb_takes_the_same_options():
    common = {"participation", "start", "exact", "seed", "repeats", "record_every"}
    for verb in (fp.run, fp.sweep):
        assert common <= arguments(verb)
    assert {"network", "schedule", "folder", "evaluate", "stop", "callbacks"} <= arguments(fp.run)


def test_zero_rounds_are_the_start():
    run = fp.run(fp.FedAvg(0.1), quad(), rounds=0, start=[1.0, 2.0])
    np.testing.assert_array_equal(run.model, [[1.0, 2.0]])
    assert run.rounds.tolist() == [0] and run.cost.floats_up == 0


def test_results_are_numpy_in_double_precision():
    run = fp.run(fp.FedAvg(0.1), quad(noise=0.1), rounds=2, repeats=2)
    for array in (run.error, run.loss, run.model, run.models, run.history):
        assert type(array) is np.ndarray and array.dtype == np.float64


# Records.


@pytest.mark.parametrize(
    ("rounds", "every", "recorded"),
    [(10, 1, list(range(11))), (10, 5, [0, 5, 10]), (11, 4, [0, 4, 8, 11]), (3, 7, [0, 3]), (7, 7, [0, 7])],
)
def test_records_are_every_so_many_rounds_and_the_last(rounds, every, recorded):
    problem = quad(noise=0.1)
    all_ = fp.run(fp.FedAvg(0.1), problem, rounds=rounds, repeats=2, participation=2)
    some = fp.run(fp.FedAvg(0.1), problem, rounds=rounds, repeats=2, participation=2, record_every=every)
    assert some.rounds.tolist() == recorded
    np.testing.assert_array_equal(some.history, all_.history[:, recorded])
    np.testing.assert_array_equal(some.error, all_.error[:, recorded])
    np.testing.assert_array_equal(some.used, all_.used[:, recorded])
    assert some.cost == all_.cost


def test_records_stay_right_over_many_segments(monkeypatch):
    """Segments end where they like: also within a window of records, also when it was their last place."""
    from fedpoint.engine import layout

    monkeypatch.setattr(layout, "SEGMENT_RECORDS", 4)
    problem = fp.problems.Quadratic(1.0, [[1.0]])
    run = fp.run(fp.FedAvg(0.001), problem, rounds=1003, record_every=10)
    assert run.rounds.tolist() == [*range(0, 1001, 10), 1003]
    np.testing.assert_allclose(run.history[0, :, 0], 1 - 0.999**run.rounds, rtol=1e-12)


def test_a_long_run_is_thinned_to_what_fits(monkeypatch):
    from fedpoint.experiment import experiment

    monkeypatch.setattr(experiment, "HISTORY_BYTES", 2 * 8 * 100)
    run = fp.run(fp.FedAvg(0.1), quad(), rounds=250)
    assert len(run.rounds) <= 100 + 1 and run.rounds[-1] == 250 and run.session.every == 3


# Stopping, extending, watching.


def noisy_run(rounds, **options):
    return fp.run(
        fp.FedAvg(0.05, 2, normalise=True), quad(noise=0.01), rounds=rounds, seed=5, participation=2, **options
    )


def test_stop_at_a_tolerance():
    """As if it had been told the number of rounds: history, model, memories and cost."""
    full = noisy_run(500, repeats=3)
    expected = int(np.argmax(full.error.mean(0)[1:] <= 0.05)) + 1
    assert 1 < expected < 400
    stopped = noisy_run(500, repeats=3, stop=0.05)
    same = noisy_run(expected, repeats=3)
    assert stopped.rounds[-1] == expected
    np.testing.assert_array_equal(stopped.history, same.history)
    np.testing.assert_array_equal(stopped.model, same.model)
    np.testing.assert_array_equal(stopped.error, full.error[:, : expected + 1])
    assert stopped.cost == same.cost
    for name, array in stopped.session.save().items():
        np.testing.assert_array_equal(array, same.session.save()[name])


def test_stop_by_a_function():
    seen = []

    def enough(round, model, error):
        seen.append(round)
        assert model.shape == (2, 2) and error.shape == (2,)
        return round >= 12

    stopped = noisy_run(100, repeats=2, record_every=5, stop=enough)
    assert seen == [5, 10, 15] and stopped.rounds.tolist() == [0, 5, 10, 15]
    np.testing.assert_array_equal(stopped.model, noisy_run(15, repeats=2).model)
    longer = stopped.extend(40)
    np.testing.assert_array_equal(longer.model, noisy_run(40, repeats=2).model)


def test_stop_by_the_change_where_no_solution_is_known():
    X, _, ids = rows()

    def loss(w, batch):
        return jnp.mean(0.5 * (w - batch[:, 0]) ** 2)

    problem = fp.problems.Loss(loss, np.float64(3.0), X, groups=ids)
    run = fp.run(fp.GradientExchange(0.5), problem, rounds=200, stop=1e-8)
    change = np.diff(run.history[0]) ** 2
    assert not run.has_error and run.rounds[-1] < 200
    assert change[-1] <= 1e-8 < change[-2]


def undetermined():
    """Three parameters of which the agents' rows determine two."""
    A = [np.array([[1.0, 1.0, 0.0]]), np.array([[0.0, 0.0, 1.0]])]
    return fp.problems.LeastSquares(A, [np.array([1.0]), np.array([2.0])])


def test_where_w_star_is_not_unique_the_error_says_so_and_everything_else_works():
    run = fp.run(fp.FedAvg(0.1, 2), undetermined(), rounds=4)
    assert not run.has_error and run.has_loss
    with pytest.raises(fp.FedpointError, match=r"no error: w\* is not unique.*run.loss has the objective"):
        run.error.mean()
    assert "error" not in repr(run) and "error" not in run._repr_html_()
    run.plot()  # the loss
    with pytest.raises(fp.FedpointError, match="not unique"):
        run.plot(what="error")
    both = fp.compare([fp.FedAvg(0.1), fp.FedAvg(0.2)], undetermined(), rounds=3)
    assert [row["error"] for row in both.table()] == [None, None] and "loss" in both._repr_html_()
    both.plot()


def test_a_sweep_without_a_solution_says_so_and_chooses_by_the_loss():
    swept = fp.sweep(fp.FedAvg(0.1), undetermined(), {"step": [0.01, 0.5]}, rounds=20)
    assert not swept.has_error and swept.best() == {"step": 0.5}
    with pytest.raises(fp.FedpointError, match="not unique"):
        _ = swept.error


def test_on_a_network_the_error_names_who_lacks_data():
    net = fp.Network([(0, 1)], [1.0], "01")
    run = fp.run(fp.FedGD(step=0.1, coupling=1.0), undetermined(), network=net, rounds=3)
    assert not run.has_error
    with pytest.raises(fp.FedpointError, match=r"GTVMin's solution is not unique: .* determines 2 of 3 parameters"):
        _ = run.error
    swept = fp.sweep(fp.FedGD(step=0.1, coupling=1.0), undetermined(), {"coupling": [0.5, 1.0]}, network=net, rounds=3)
    assert not swept.has_error
    with pytest.raises(fp.FedpointError, match=r"at \{'coupling': 0.5\}: GTVMin's solution is not unique"):
        _ = swept.error


def test_a_loss_of_ones_own_is_asked_for_its_solution():
    X, _, ids = rows()
    problem = fp.problems.Loss(lambda w, x: jnp.mean((x[:, 0] - w) ** 2), np.float64(0), X, groups=ids)
    with pytest.raises(fp.FedpointError, match="give it as solution="):
        _ = fp.run(fp.FedAvg(0.1), problem, rounds=2).error


def test_a_stop_that_never_comes_changes_nothing():
    np.testing.assert_array_equal(noisy_run(30, stop=lambda *_: False).history, noisy_run(30).history)


def test_callbacks_are_told_how_far_it_is():
    seen = []
    run = noisy_run(3000, callbacks=[seen.append], repeats=2)
    assert [p.round for p in seen] == sorted({p.round for p in seen}) and seen[-1].round == 3000
    last = seen[-1]
    assert last.rounds == 3000 and last.seconds > 0 and last.rate > 0
    np.testing.assert_array_equal(last.model, run.model)
    np.testing.assert_array_equal(last.error, run.error[:, -1])


def test_one_callback_needs_no_list():
    seen = []
    noisy_run(3, callbacks=seen.append)
    assert seen[-1].round == 3


def test_an_extended_run_is_the_longer_one():
    short = noisy_run(13, record_every=5, repeats=2)
    model = short.model.copy()
    longer = short.extend(31)
    whole = noisy_run(31, record_every=5, repeats=2)
    assert longer.rounds.tolist() == whole.rounds.tolist() == [0, 5, 10, 15, 20, 25, 30, 31]
    np.testing.assert_array_equal(longer.history, whole.history)
    np.testing.assert_array_equal(longer.used, whole.used)
    np.testing.assert_array_equal(short.model, model)  # the shorter one stays what it was
    assert short.rounds[-1] == 13 and short.cost.rounds == 13
    with pytest.raises(fp.FedpointError, match="has 31 rounds already"):
        longer.extend(31)


# Held-out data.


def test_a_run_is_extended_once():
    """Its session has gone on: records behind a gap would be no run."""
    run = noisy_run(4)
    longer = run.extend(6)
    with pytest.raises(fp.FedpointError, match="extend the longer one"):
        run.extend(8)
    np.testing.assert_array_equal(longer.extend(8).history, noisy_run(8).history)


def test_evaluate_by_a_function():
    run = noisy_run(6, repeats=2, evaluate=lambda w: {"first": w[0], "norm": np.linalg.norm(w)})
    np.testing.assert_array_equal(run.evaluated_rounds, np.arange(7))
    np.testing.assert_array_equal(run.evaluation["first"], run.history[..., 0])
    np.testing.assert_allclose(run.evaluation["norm"], np.linalg.norm(run.history, axis=2))


def test_evaluate_on_held_out_rows():
    X, y, ids = rows()
    X_new, y_new, _ = rows(seed=1)
    logit = fp.run(
        fp.FedAvg(0.5, 2, normalise=True), fp.problems.Logistic(X, y, groups=ids), rounds=5, evaluate=(X_new, y_new)
    )
    scores = logit.history[0] @ X_new.T
    np.testing.assert_allclose(logit.evaluation["accuracy"][0, 1:], (np.sign(scores) == y_new).mean(1)[1:])
    np.testing.assert_allclose(logit.evaluation["log_loss"][0], np.log1p(np.exp(-y_new * scores)).mean(1))
    assert logit.evaluation["accuracy"][0, -1] > 0.6
    ls = fp.run(
        fp.FedAvg(0.1), fp.problems.LeastSquares(X, 1.0 * y, groups=ids, mean=True), rounds=4, evaluate=(X_new, y_new)
    )
    np.testing.assert_allclose(ls.evaluation["mse"][0], ((ls.history[0] @ X_new.T - y_new) ** 2).mean(1))


def test_a_finished_run_is_evaluated_on_any_rows():
    X, y, ids = rows()
    X_new, y_new, whose = rows(seed=1)
    problem = fp.problems.Logistic(X, y, groups=ids)
    run = fp.run(fp.FedAvg(0.5, 2), problem, rounds=5, evaluate=(X_new, y_new))
    assert run.evaluate(X_new, y_new) == {name: values[0, -1] for name, values in run.evaluation.items()}
    assert "worst_tenth" in run.evaluate(X_new, y_new, whose)
    own = fp.run(fp.FedGD(0.1, coupling=0.1), problem, rounds=5, network=fp.Network.ring(3), repeats=2)
    each = [problem.evaluate(own.models[1, k], X_new[whose == k], y_new[whose == k])["accuracy"] for k in range(3)]
    by_hand = np.average(each, weights=np.bincount(whose))
    assert own.evaluate(X_new, y_new, whose, repeat=1)["accuracy"] == pytest.approx(by_hand)
    right = run.predict(X_new) == y_new
    assert right.mean() == pytest.approx(run.evaluate(X_new, y_new)["accuracy"])


def test_at_most_two_hundred_rounds_are_evaluated():
    calls = []
    run = noisy_run(1000, evaluate=lambda w: calls.append(0) or {"x": 0.0})
    assert len(calls) == len(run.evaluated_rounds) == 200
    assert run.evaluated_rounds[0] == 0 and run.evaluated_rounds[-1] == 1000


# Cost.


def spent(run):
    c = run.cost
    return c.messages_down, c.messages_up, c.floats_down, c.floats_up, c.bytes_down, c.bytes_up, c.evaluations


def test_cost_of_fedavg():
    """K = 3 agents, d = 2: models down, changes up, E evaluations each."""
    assert spent(fp.run(fp.FedAvg(0.1, 4, normalise=True), quad(), rounds=5)) == (15, 15, 30, 30, 240, 240, 60)
    assert spent(fp.run(fp.FedAvg(0.1, 4, normalise=True), quad(), rounds=5, participation=2)) == (
        10,
        10,
        20,
        20,
        160,
        160,
        40,
    )
    unequal = fp.run(fp.FedAvg(0.1, [1, 2, 6], normalise=True), quad(), rounds=5)
    assert unequal.cost.evaluations == 5 * 9
    assert spent(fp.run(fp.GradientExchange(0.1), quad(), rounds=5, repeats=3)) == (15, 15, 30, 30, 240, 240, 15)


def test_cost_of_other_messages():
    """SCAFFOLD sends two vectors each way, option 1 evaluates once more; FedNova and q-FedAvg send numbers along."""
    scaffold = fp.run(fp.Scaffold(0.1, 4), quad(), rounds=5).cost
    assert (scaffold.floats_down, scaffold.floats_up, scaffold.evaluations) == (5 * 3 * 4, 5 * 3 * 4, 60)
    assert fp.run(fp.Scaffold(0.1, 4, option=1), quad(), rounds=5).cost.evaluations == 75
    assert fp.run(fp.Scaffold(0.1, [1, 2, 3], option=1), quad(), rounds=5).cost.evaluations == 5 * (2 + 3 + 4)
    for algorithm in (fp.FedNova(0.1, 2), fp.QFedAvg(1.0, 0.1, 2)):
        cost = fp.run(algorithm, quad(), rounds=5).cost
        assert cost.floats_down == 5 * 3 * 2 and cost.floats_up > cost.floats_down and cost.evaluations == 30
    assert fp.run(fp.FedAdam(0.1, 2), quad(), rounds=5).cost.floats_down == 30  # the server's state stays there
    assert fp.run(fp.FedProx(pull=1.0, exact=True), quad(), rounds=5).cost.evaluations == 0


def test_cost_of_a_random_number_of_steps():
    """Scaffnew's hub sends the number with the model; all agents take it; on average 1/p of them."""
    run = fp.run(fp.Scaffnew(0.1, probability=0.25), quad(), rounds=400)
    per_round = np.diff(run.used[0], axis=0)
    assert (per_round[:, :2] == 3).all() and (per_round[:, 2] % 3 == 0).all()
    steps = per_round[:, 2] // 3
    assert steps.min() == 1 and abs(steps.mean() - 4) < 5 * np.sqrt(12 / 400)
    assert run.cost.floats_down == 400 * 3 * 3 and run.cost.floats_up == 400 * 3 * 2


def test_cost_of_draws_with_replacement_counts_agents_once():
    weights = np.array([8.0, 1.0, 1.0])
    run = fp.run(fp.FedAvg(0.1, 2, normalise=True), quad(weights=weights), rounds=2000, participation=fp.ByWeight(3))
    per_round = np.diff(run.used[0], axis=0)
    assert set(per_round[:, 0]) == {1, 2, 3}
    np.testing.assert_array_equal(per_round[:, 1], per_round[:, 0])
    np.testing.assert_array_equal(per_round[:, 2], 2 * per_round[:, 0])
    expected = (1 - (1 - weights / 10) ** 3).sum()  # distinct agents among three draws
    assert per_round[:, 0].mean() == pytest.approx(expected, abs=5 * per_round[:, 0].std() / np.sqrt(2000))


def test_cost_of_stragglers_is_what_they_did():
    run = fp.run(fp.FedProx(0.1, fp.steps.Stragglers(4, 0.5)), quad(), rounds=2000)
    per_agent = np.diff(run.used[0, :, 2]) / 3
    expected = 0.5 * 4 + 0.5 * 2.5
    assert per_agent.mean() == pytest.approx(expected, abs=5 * per_agent.std() / np.sqrt(2000))
    assert run.cost.messages_up == 6000 and run.cost.evaluations == run.used[0, -1, 2]


def test_cost_of_those_who_do_not_answer():
    run = fp.run(
        fp.FedAvg(0.1, 2, normalise=True),
        quad(),
        rounds=2000,
        participation=fp.Answering(fp.Everyone(), probability=0.5),
    )
    assert run.cost.messages_down == 6000
    assert run.cost.messages_up == pytest.approx(3000, abs=5 * np.sqrt(6000 * 0.25))
    assert run.cost.evaluations == 2 * run.cost.messages_up


# What the engine says.


def test_the_engine_says_what_it_chose():
    X, y, ids = rows()
    stored = fp.problems.Logistic(X, y, groups=ids, batch=2)
    assert fp.run(fp.FedAvg(0.1), quad(noise=0.1), rounds=1).engine.startswith(
        "agents batched; samples drawn ahead for"
    )
    assert (
        fp.run(fp.FedAvg(0.1), quad(noise=0.1), rounds=1, exact=True).engine
        == "agents batched; exact fields, no samples"
    )
    assert "drawn on the spot" in fp.run(fp.Scaffnew(0.1, probability=0.5), stored, rounds=1).engine
    assert "one after the other" in fp.run(fp.FedAvg(0.1, [1, 1, 9], normalise=True), stored, rounds=1).engine


# Randomness.


def test_the_same_seed_gives_the_same_bits_and_another_others():
    lab = fp.problems.LinearStream.sample(agents=6, dim=3, seed=1)

    def history(**options):
        return fp.run(fp.FedAvg(0.1, 2, normalise=True), lab, rounds=20, participation=3, **options).history

    np.testing.assert_array_equal(history(seed=4, repeats=2), history(seed=4, repeats=2))
    assert np.abs(history(seed=4) - history(seed=5))[:, 1:].min() > 0
    assert np.abs(history(seed=4) - history(seed=4 + 2**32))[:, 1:].min() > 0


def test_repeats_are_independent_runs():
    """They differ, and each is what it is however many are batched with it (to rounding)."""
    lab = fp.problems.LinearStream.sample(agents=6, dim=3, seed=1)
    two, five = (
        fp.run(fp.FedAvg(0.1, 2, normalise=True), lab, rounds=20, participation=3, repeats=n).history for n in (2, 5)
    )
    np.testing.assert_allclose(two, five[:2], rtol=1e-11, atol=1e-13)
    final = five[:, -1]
    assert min(np.abs(final[i] - final[j]).max() for i in range(5) for j in range(i)) > 1e-3


def test_exact_removes_sampling_noise_only():
    """The participants stay those that the seed draws."""
    noisy, plain = quad(noise=0.5), quad(noise=0.0)
    exact = fp.run(fp.FedAvg(0.1, 2, normalise=True), noisy, rounds=10, participation=2, seed=3, exact=True)
    still = fp.run(fp.FedAvg(0.1, 2, normalise=True), plain, rounds=10, participation=2, seed=3)
    np.testing.assert_allclose(exact.history, still.history, rtol=1e-13)
    other = fp.run(fp.FedAvg(0.1, 2, normalise=True), noisy, rounds=10, participation=2, seed=4, exact=True)
    assert np.abs(exact.history - other.history)[:, 1:].max() > 1e-3  # participation is still random
    everyone = [fp.run(fp.FedAvg(0.1, 2, normalise=True), noisy, rounds=10, seed=s, exact=True).history for s in (3, 4)]
    np.testing.assert_array_equal(*everyone)


def test_full_gradients_unless_a_batch_is_asked_for():
    X, y, ids = rows()
    full, batched = (fp.problems.Logistic(X, y, groups=ids, batch=batch) for batch in (None, 2))
    histories = [fp.run(fp.FedAvg(0.3, 2, normalise=True), full, rounds=5, seed=s).history for s in (1, 2)]
    np.testing.assert_array_equal(*histories)
    exact = fp.run(fp.FedAvg(0.3, 2, normalise=True), batched, rounds=5, exact=True).history
    np.testing.assert_allclose(exact, histories[0], rtol=1e-13)
    assert np.abs(fp.run(fp.FedAvg(0.3, 2, normalise=True), batched, rounds=5).history - exact).max() > 1e-3


# Edges.


def test_one_agent_and_one_dimension():
    problem = fp.problems.Quadratic(2.0, [[3.0]])
    run = fp.run(fp.FedAvg(0.25), problem, rounds=4)
    np.testing.assert_allclose(run.history[0, :, 0], 3 - 3 * 0.5 ** np.arange(5))
    np.testing.assert_allclose(run.error[0], 9 * 0.25 ** np.arange(5))
    np.testing.assert_allclose(run.loss[0], 9 * 0.25 ** np.arange(5))
    one = fp.run(fp.Scaffold(0.25, 2), problem, rounds=4, participation=1)
    np.testing.assert_allclose(one.history[0, :, 0], 3 - 3 * 0.25 ** np.arange(5))
    lab = fp.problems.LinearStream.sample(agents=1, dim=1)
    assert fp.run(fp.FedAvg(0.1), lab, rounds=50, repeats=4).error[:, -1].mean() < 0.2


def test_few_of_many_agents():
    """K = 2000, L = 3: memories of those who were not heard stay as they were."""
    lab = fp.problems.LinearStream.sample(agents=2000, dim=2, spread=0.0, noise=0.0)
    run = fp.run(fp.Scaffold(0.2, 2), lab, rounds=40, participation=3, seed=2)
    assert run.error[0, -1] < 0.05 * run.error[0, 0]
    touched = np.abs(run.memories[0]).max(axis=1) > 0
    assert 100 < touched.sum() <= 120
    assert run.cost.messages_up == 120 and run.models.shape == (1, 2000, 2)


def test_a_diverging_run_says_when_and_what_to_do():
    with pytest.raises(fp.Diverged, match=r"FedAvg diverged: .* by round \d+ with step 5") as caught:
        fp.run(fp.FedAvg(5.0), quad(), rounds=1000)
    assert "largest stable step" in str(caught.value) and 10 < caught.value.round < 1000


def test_a_start_is_the_first_record():
    X, _, ids = rows()
    own = fp.problems.Loss(lambda p, b: jnp.mean((b @ p["w"]) ** 2), {"w": np.zeros(3)}, X, groups=ids)
    run = fp.run(fp.FedAvg(0.1), own, rounds=1, start={"w": np.arange(1.0, 4.0)})
    np.testing.assert_array_equal(run.history["w"][0, 0], [1, 2, 3])
    assert jax.tree.structure(run.model) == jax.tree.structure({"w": 0})


def test_a_run_prints_what_it_was():
    assert repr(fp.run(fp.FedAvg(0.1), quad(), rounds=3)).startswith("<Run FedAvg: 3 rounds, 1 repeat, error")


def test_steps_by_another_name_still_get_fresh_samples():
    class Mine(fp.Algorithm):
        step: float
        length: int = 5

        def init(self, w):
            return w, ()

        def local(self, w, memory, agent):
            return fp.descend(agent, w, self.length, lambda y, e: y - self.step * agent.field(y, e)) - w, memory

        def combine(self, w, inbox):
            return w + inbox.mean

    lab = fp.problems.LinearStream.sample(agents=10, dim=3, noise=0.1)
    mine = fp.run(Mine(0.05), lab, rounds=20)
    fedavg = fp.run(fp.FedAvg(0.05, local_steps=5, normalise=False), lab, rounds=20)
    assert np.allclose(mine.model, fedavg.model, rtol=1e-12, atol=0)  # the same draws, ahead or on the spot


@pytest.mark.parametrize("verb", [fp.run, fp.forecast])
def test_an_argument_that_no_experiment_has_is_named(verb):
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    with pytest.raises(fp.FedpointError, match="no argument 'participations': did you mean 'participation'"):
        verb(fp.FedAvg(step=0.1), quad, participations=1)
