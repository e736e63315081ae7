"""Sliders change numbers, not programs; what they run is what `fp.run` runs, and the forecasts are exact."""

import random
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.random import Key
from fedpoint.engine.program import PROGRAMS
from fedpoint.ui.lessons import lessons
from fedpoint.ui.live import SomeOf
from fedpoint.ui.mathml import formula
from fedpoint.ui.playground import playgrounds

PLAYGROUNDS = playgrounds()


def start(name):
    return {control.name: control.start for control in PLAYGROUNDS[name].controls}


def programs():
    return sum(program._cache_size() for program in PROGRAMS.values())


def test_another_position_compiles_nothing_and_is_what_a_run_does():
    play = PLAYGROUNDS["averaging"]
    play.models(start("averaging"))
    before = programs()
    values = {"step": 0.2, "local_steps": 4, "participants": 7, "heterogeneity": 0.3, "noise": 0.5}
    models = play.models(values)
    assert programs() == before
    run = fp.run(
        fp.FedAvg(step=0.2, local_steps=4, normalise=True),
        play.problem(values),
        rounds=play.rounds,
        participation=SomeOf(np.array(7), play.agents),
        seed=play.seed,
        repeats=play.repeats,
    )
    np.testing.assert_allclose(models, run.history, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PLAYGROUNDS)
def test_sliders_describe_the_experiments_that_are_run(name):
    play, values = PLAYGROUNDS[name], {**start(name), "heterogeneity": 0.4}
    found, experiments = play.run(values), play.experiments(values)
    assert list(found) == list(experiments)
    for title, experiment in experiments.items():
        run = fp.run(experiment, rounds=play.rounds)
        np.testing.assert_allclose(found[title], run.history, rtol=1e-9, atol=1e-12, err_msg=title)


def test_some_of_has_the_law_of_uniform():
    K, L, n = 6, 2, 20_000
    p = np.arange(1.0, K + 1) / np.arange(1.0, K + 1).sum()
    with jax.enable_x64(True):
        scheme = SomeOf(np.array(L), K)
        keys = jax.vmap(lambda r: Key.of(0, 0, 1).fold(r))(jnp.arange(n))
        ticks = jax.jit(jax.vmap(lambda k: scheme.completed(k, jnp.asarray(p), 0)))(keys)
        agents, weight, heard = (np.asarray(a) for a in (ticks.agents, ticks.weight, ticks.heard))
    assert (heard.sum(1) == L).all()
    v = np.zeros((n, K))
    np.put_along_axis(v, agents, weight, axis=1)
    exact = fp.Uniform(L).moments(p)
    for drawn, wanted in ((v, exact.mean), (v**2, exact.second()[0])):
        assert (np.abs(drawn.mean(0) - wanted) < 5 * drawn.std(0) / np.sqrt(n)).all()
    pair = v[:, 0] * v[:, 1]
    assert abs(pair.mean() - p[0] * p[1] * K * (L - 1) / (L * (K - 1))) < 5 * pair.std() / np.sqrt(n)


def test_the_simulation_follows_the_forecast():
    play, values = PLAYGROUNDS["averaging"], {**start("averaging"), "participants": 5}
    forecast, simulated = play.forecast(values), play.simulate(values)
    exact, mean = (np.array(found["lines"][0]["y"]) for found in (forecast, simulated))
    assert exact[0] == mean[0]
    assert 0.7 < mean[100:].mean() / exact[100:].mean() < 1.4
    assert exact[-1] == pytest.approx(forecast["lines"][1]["level"], rel=1e-3)


def test_a_step_too_long_leaves_the_picture():
    play = PLAYGROUNDS["averaging"]
    values = {**start("averaging"), "step": 0.5, "participants": 1}
    found = play.forecast(values), play.simulate(values)
    assert "without bound" in found[0]["says"] and len(found[0]["lines"]) == 1
    assert found[0]["lines"][0]["y"][-1] is None


def test_coupling_is_gtvmin_and_fedrelax_goes_there_as_forecast():
    play, values = PLAYGROUNDS["coupling"], {**start("coupling"), "coupling": 0.3, "noise": 0.05}
    play.models(start("coupling"))
    before = programs()
    forecast, simulated = play.forecast(values), play.simulate(values)
    assert programs() == before
    curves = [np.array(found["lines"][0]["y"]) for found in (forecast, simulated)]
    np.testing.assert_allclose(*curves, rtol=1e-4, atol=1e-20)
    problem = play.problem(values)
    solved = fp.gtv.solve(problem, play.network, 0.3)[:, 0]
    assert forecast["network"]["end"] == pytest.approx(solved, rel=1e-4)
    np.testing.assert_allclose(simulated["history"][-1], solved, rtol=1e-3)


def moves(play, count, seed=1):
    """Positions, each of which differs from the one before it in one slider."""
    luck, values = random.Random(seed), {control.name: control.start for control in play.controls}
    for _ in range(count):
        control = luck.choice(play.controls)
        values = {**values, control.name: luck.choice(control.values)}
        yield values


def test_the_numbers_are_those_of_the_forecast():
    """`fp.forecast` of what is run; and SCAFFLSA's curve is not FedLSA's."""
    values = {"local_steps": 30, "step": 0.05, "heterogeneity": 1.0}
    play = PLAYGROUNDS["local-steps"]
    problem, shown = play.problem(values), play.forecast(values)["lines"]
    for make, drawn in ((fp.FedLSA, shown[0]), (fp.ScaffLSA, shown[1])):
        f = fp.forecast(make(step=0.05, local_steps=30), problem)
        assert f.exact and drawn["y"] == pytest.approx(f.curve(play.rounds), rel=1e-4)
    assert shown[0]["y"][-1] > 1.2 * shown[1]["y"][-1]
    bias = fp.theory.lsa_bias(problem, 0.05, 30)
    assert shown[2]["level"] == pytest.approx((bias**2).sum(), rel=1e-9)


def test_averaging_is_forecast_as_the_closed_form_says():
    values = {"step": 0.2, "local_steps": 4, "participants": 7, "heterogeneity": 0.3, "noise": 0.5}
    play = PLAYGROUNDS["averaging"]
    forecast, problem = play.forecast(values), play.problem(values)
    exact = fp.theory.lms_msd(problem, 0.2, 4, 7, rounds=play.rounds, normalise=True)
    floor, plain = (fp.theory.lms_floor(problem, 0.2, *work, normalise=True) for work in ((4, 7), (1, 20)))
    assert forecast["lines"][0]["y"] == pytest.approx(exact, rel=1e-4)
    assert forecast["lines"][1]["level"] == pytest.approx(floor, rel=1e-9)
    assert f"settles at {floor:.3g}, {floor / plain:.3g} times" in forecast["says"]
    assert "times" not in play.forecast({**values, "local_steps": 1, "participants": 20})["says"]


def test_missed_is_that_of_the_solution_for_every_coupling():
    play, values = PLAYGROUNDS["coupling"], {"coupling": 1.0, "heterogeneity": 1.4, "noise": 0.3}
    found, problem = play.missed(values), play.problem(values)
    for i in (0, 9, 20):
        solved = fp.gtv.solve(problem, play.network, play.grid[i])[:, 0]
        assert found[i] == pytest.approx(((solved - play.truth(values)) ** 2).mean(), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYGROUNDS)
def test_after_warming_up_no_move_compiles(name):
    play, compiled = playgrounds()[name], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    play.warm()
    compiled.clear()
    for values in moves(play, 40):
        play.forecast(values)
        play.simulate(values)
        assert not compiled, values


def test_local_steps_keep_one_program_whatever_the_heterogeneity():
    play = PLAYGROUNDS["local-steps"]
    for heterogeneity in (0.0, 0.35, 1.0):
        problem = play.problem({"heterogeneity": heterogeneity})
        own, w = play.padded(problem), np.array([0.3, -1.0])
        assert own.chance.shape[1] == play._width
        np.testing.assert_allclose(own.chance.sum(1), 1)
        phi, gamma = problem.common
        left, error = phi[own.state], (phi[own.state] - gamma * phi[own.after]) @ w - own.reward
        mean = np.einsum("kz,kz,kzi->ki", own.chance, error, left)
        np.testing.assert_allclose(mean, problem.A @ w - problem.b, atol=1e-12)
        # The alias tables draw each outcome with its probability.
        n = play._width
        for cut, other, chance in zip(own.cut, own.other, own.chance, strict=True):
            drawn = (cut + np.bincount(other, weights=1 - cut, minlength=n)) / n
            np.testing.assert_allclose(drawn, chance, atol=1e-12)


def test_numbers_from_a_request_are_brought_into_range():
    play = PLAYGROUNDS["averaging"]
    read = play.read({"step": "1e9", "participants": "3.6", "noise": "-4"})
    assert (read["step"], read["participants"], read["noise"]) == (0.5, 4, 1e-4)
    assert read["local_steps"] == 1  # not given
    for wrong in ("nan", "inf", "", "1; drop", "0x10"):
        with pytest.raises(fp.FedpointError, match="step must be a number"):
            play.read({"step": wrong})
    with pytest.raises(fp.FedpointError, match="no slider 'steps'"):
        play.read({"steps": "1"})


def test_every_slider_starts_at_one_of_its_values():
    for play in PLAYGROUNDS.values():
        for control in play.controls:
            assert list(control.values) == sorted(set(control.values))
            assert min(abs(v - control.start) for v in control.values) <= 0.06 * control.start, control


def test_formulas_are_well_formed():
    found = lessons()
    assert {lesson["name"] for lesson in found} == {*fp.CATALOGUE, "fedlsa", "scafflsa"}
    for lesson in found:
        for part in (*lesson["formulas"], *lesson["words"], *(p["what"] for p in lesson["parameters"])):
            ET.fromstring(f"<p>{part}</p>")
        assert lesson["formulas"] or lesson["name"] == "fedsgd"  # which is FedGD's, with samples
    for play in PLAYGROUNDS.values():
        ET.fromstring(formula(play.formula))
    with pytest.raises(fp.FedpointError, match="not known"):
        formula(r"\unknown x")
    with pytest.raises(fp.FedpointError, match="too early"):
        formula(r"\frac{1}")
