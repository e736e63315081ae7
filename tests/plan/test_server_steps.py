"""The hub's step is planned: constant extrapolation of FedAvg, SCAFFOLD's own, held against exact runs."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.config.plans import read_plan


def bowls():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(8, 3, 3))
    return fp.problems.Quadratic(roots @ np.swapaxes(roots, 1, 2) / 3 + 0.5 * np.eye(3), rng.normal(size=(8, 3)))


def test_a_longer_way_of_the_hub_is_planned_where_it_pays():
    """FedAvg's bias is proportional to the local step, its speed to the product of both: so several times the hub's
    step reach the target in fewer rounds. Without noise a run is its forecast: there in the round that the plan says,
    and not before."""
    target = 1e-4
    made = fp.plan(
        bowls(),
        target,
        methods=["fedavg", "scaffold"],
        local_steps=[4],
        participation=[8],
        server_steps=[1, 4],
        exact=True,
    )
    rounds = {choice.title: choice.rounds for choice in made.choices}
    assert set(rounds) == {"FedAvg", "FedAvg, 4 x server_step", "SCAFFOLD", "SCAFFOLD, 4 x server_step"}
    assert rounds["FedAvg, 4 x server_step"] < 0.5 * rounds["FedAvg"]
    for choice in made.choices:
        error = fp.run(choice.algorithm, bowls(), rounds=choice.rounds, exact=True).error[0]
        assert error[-1] <= target < error[-2]
    far = {choice.title: choice.algorithm for choice in made.choices}
    average, control = far["FedAvg, 4 x server_step"], far["SCAFFOLD, 4 x server_step"]
    assert isinstance(average, fp.FedOpt) and (average.server, average.server_step) == ("sgd", 4.0)
    assert isinstance(control, fp.Scaffold) and control.server_step == 4.0


def test_the_hub_that_goes_farther_is_the_same_method_else():
    """w + factor x the mean change; through wrappers; None where the hub has no step, or the method is another one."""
    start = np.array([1.0, -2.0, 0.5])
    plain, far = (
        fp.run(method, bowls(), rounds=1, start=start, exact=True).model[0] - start
        for method in (fp.FedAvg(0.1, 3), fp.FedAvg(0.1, 3).farther(2.5))
    )
    np.testing.assert_allclose(far, 2.5 * plain, rtol=1e-12)
    assert fp.Averaged(fp.Scaffold(0.1, server_step=0.5)).farther(4.0).inner.server_step == 2.0
    assert all(m.farther(2.0) is None for m in (fp.Scaffnew(0.1, local_steps=2), fp.Ditto(0.1), fp.FedNewton()))


@pytest.mark.parametrize(
    ("methods", "factors", "words"),
    [
        (["fedavg"], [0.0], "server_steps must be a list of numbers above 0"),
        (["scaffnew"], [2.0], "none of these methods has a step of the hub"),
    ],
)
def test_refusals(methods, factors, words):
    with pytest.raises(fp.FedpointError, match=words):
        fp.plan(bowls(), 1e-3, methods=methods, server_steps=factors)


def test_in_a_file(tmp_path):
    text = '[problem]\nkind = "quadratic"\nagents = 4\n[plan]\ntarget = 1e-3\nserver_steps = [2.0, 4]\n'
    (tmp_path / "plan.toml").write_text(text)
    assert read_plan(tmp_path / "plan.toml").arguments["server_steps"] == [2.0, 4.0]
