"""Plans of what has no forecast: a probe chooses what is run, and runs say how many rounds the target takes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp

TARGET = 0.4


def network():
    """Six agents, each with two of three classes."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(6), 20)
    y = (groups + rng.integers(0, 2, 120)) % 3
    X = rng.normal(size=(3, 4))[y] + 0.7 * rng.normal(size=(120, 4))
    start = {"W": rng.normal(size=(4, 5)) / 2, "V": np.zeros((5, 3))}

    def loss(w, rows):
        scores = jnp.tanh(rows[0] @ w["W"]) @ w["V"]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), rows[1][:, None], axis=1).mean()

    return fp.problems.Loss(loss, start, (X, y), groups=groups, batch=5)


def test_a_network_is_planned_by_a_probe_and_runs():
    problem = network()
    made = fp.plan(
        problem, TARGET, measure="loss", participation=[6, 2], local_steps=[1, 5, 20],
        methods=["fedavg", "scaffold", "fedprox"],
    )  # fmt: skip
    assert {choice.title for choice in made.choices} == {"FedAvg", "SCAFFOLD"}
    assert [(e.method, e.reason) for e in made.excluded] == [
        ("FedProx", "nothing is forecast here, and a probe predicts FedAvg and SCAFFOLD only")
    ]
    best = made.best
    assert best.promise == "verified" and best.cost == min(choice.cost for choice in made.choices)
    # What is promised holds for others: runs with a seed that the plan has not seen.
    run = fp.run(best.algorithm, problem, best.rounds, participation=best.participation, repeats=30, seed=77)
    ends = run.loss[:, -1]
    assert ends.mean() < TARGET + 3 * ends.std() / np.sqrt(30)
    assert run.cost.floats_down + run.cost.floats_up == pytest.approx(best.floats)
    # The step is that with which ten rounds of FedAvg, or as many as take one of them to the target, are lowest.
    steps = 0.1 * 3.0 ** np.arange(-4, 4)
    sweep = fp.sweep(fp.FedAvg(step=0.1, local_steps=5), problem, {"step": list(steps)}, 10, seed=1, record_every=1)
    curves = sweep.loss[:, 0]
    first = np.append(np.flatnonzero((curves <= TARGET).any(0)), 10)[0]
    assert made.probe.step == steps[curves[:, first].argmin()]
    assert "E f(w) <= 0.4" in str(made) and "a probe said which settings to run" in str(made)
    assert made.measured == [] and made.verify(1, 4)[0].mean < 1.2 * TARGET
    json.dumps(made.to_dict())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r'the solution of this problem is not known.*give measure="loss".*\(now 1.099\)'),
        ({"measure": "loss", "confidence": 0.9}, "confidence= needs forecasts"),
        ({"measure": "loss", "target": 2.0}, "the start is at 1.1 already"),
        ({"measure": "loss", "privacy": fp.Privacy(1.0, 1e-5)}, "a plan needs forecasts"),
    ],
)
def test_what_a_probe_cannot_promise(given, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.plan(network(), **{"target": TARGET, **given})
