"""Plans that spend at most a given privacy, and plans of the fewest bytes."""

import math
import re

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.config.plans import read_plan
from fedpoint.results.plan import Goal
from fedpoint.verbs.plan.private import PrivateSearch
from fedpoint.verbs.plan.search import method_of

CENTERS = 1.0 + 0.3 * np.random.default_rng(0).normal(size=(200, 3))
QUAD = fp.problems.Quadratic(1.0, CENTERS, noise=0.05)
PRIVACY = fp.Privacy(epsilon=4.0, delta=1e-5)


@pytest.fixture(scope="module")
def made() -> fp.Plan:
    schemes = [fp.Everyone(), fp.participation.Poisson(0.2)]
    return fp.plan(QUAD, target=0.05, privacy=PRIVACY, methods=["fedavg"], local_steps=[1, 4], participation=schemes)


def test_a_private_plan_spends_no_more_and_keeps_its_promise(made: fp.Plan):
    best = made.best
    assert best is not None and best.promise == "verified"
    asked = fp.Experiment(best.algorithm, QUAD, participation=best.participation, channel=best.channel, repeats=400)
    assert fp.privacy.spent(asked, best.rounds, PRIVACY.delta).epsilon <= PRIVACY.epsilon
    ends = fp.run(asked.replace(record_every=best.rounds, seed=7), rounds=best.rounds).error[:, -1]
    assert ends.mean() <= 0.05 + 3 * ends.std(ddof=1) / math.sqrt(len(ends))
    # The promise is the noisy error: without the noise for privacy it is far less, which a plan that forgot it says.
    plain = fp.run(asked.replace(channel=None, record_every=best.rounds), rounds=best.rounds).error[:, -1]
    assert plain.mean() < 0.5 * best.error
    clip, noise = best.channel.stages()
    quiet = [clip, fp.channel.Gaussian(0.5 * noise.multiplier)]
    assert fp.privacy.spent(asked.replace(channel=quiet), best.rounds, PRIVACY.delta).epsilon > PRIVACY.epsilon


def test_it_says_what_is_not_counted(made: fp.Plan):
    assert "epsilon 4 at delta 1e-05" in str(made) and "which is not counted" in str(made)
    assert made.to_dict()["choices"][0]["channel"] is not None


def test_noise_for_privacy_in_closed_form():
    """FedAvg with one step s on |w - c|^2 / 2: w+ - w* = (1 - s)(w - w*) + ... + noise, so that unit noise on a clip of
    1 adds d v^2 (1 + r + ... + r^(t-1)), v the largest weight: 1/(qK) with Poisson(q). r = E(1 - s sum_k v_k)^2 is
    (1 - s)^2 + s^2 (1 - q)/(qK)."""
    search = PrivateSearch(fp.Experiment(fp.FedAvg(step=1.0), QUAD), Goal(0.05, privacy=PRIVACY), 1)
    for scheme, v, more in ((fp.Everyone(), 1 / 200, 0.0), (fp.participation.Poisson(0.2), 1 / 40, 0.8 / 40)):
        found = search.errors(method_of("fedavg"), 1, scheme, 0.3, 12)[1]
        r = 0.7**2 + 0.3**2 * more
        assert np.allclose(found, 3 * v**2 * (1 - r ** np.arange(13)) / (1 - r), rtol=1e-9)


def test_a_clip_of_the_longest_message_seen():
    exact = fp.problems.Quadratic(1.0, [[3.0, 4.0], [0.0, 0.0]])
    search = PrivateSearch(fp.Experiment(fp.FedAvg(step=1.0), exact), Goal(0.05, privacy=PRIVACY), 1)
    assert math.isclose(search.length(method_of("fedavg"), 1, 0.1), 1.05 * 0.1 * 5.0, rel_tol=1e-6)  # at the start


def test_what_cannot_be_reached_says_what_could():
    made = fp.plan(
        QUAD,
        target=1e-3,
        privacy=fp.Privacy(epsilon=0.1, delta=1e-5),
        methods=["fedavg"],
        local_steps=[1],
        participation=[fp.Everyone()],
    )
    assert made.best is None and "the least epsilon that reaches it is about" in str(made)


def test_a_target_below_the_sampling_floor_names_the_nearest_and_keeps_it():
    """No epsilon reaches what the run does not reach without privacy either; the target that is named instead can be
    asked for, and a tenth of it cannot."""
    asked = {"privacy": PRIVACY, "methods": ["fedavg"], "local_steps": [1], "participation": [fp.Everyone()]}
    made = fp.plan(QUAD, target=1e-9, **asked)
    floor, target = (float(x) for x in re.findall(r"the least target is about ([-.e\d]*\d)", str(made)))
    assert made.best is None and "no epsilon does" in made.advice and 1e-9 < floor < target
    assert fp.plan(QUAD, target=1.1 * target, **asked).best is not None
    assert fp.plan(QUAD, target=0.1 * target, **asked).best is None


def test_privacy_chooses_the_channel_itself():
    with pytest.raises(fp.FedpointError, match="leave out channel="):
        fp.plan(QUAD, target=0.05, privacy=PRIVACY, channel=fp.channel.Clip(1.0))
    with pytest.raises(fp.FedpointError, match="privacy must be"):
        fp.plan(QUAD, target=0.05, privacy=2.0)


def test_a_file_may_ask_for_privacy(tmp_path):
    text = """
problem = {kind = "quadratic", agents = 3, dim = 2}
[plan]
target = 0.1
privacy = {epsilon = 2.0, delta = 1e-5}
"""
    (tmp_path / "plan.toml").write_text(text)
    assert read_plan(tmp_path / "plan.toml").arguments["privacy"].epsilon == 2.0
    (tmp_path / "plan.toml").write_text(text.replace("delta = 1e-5", "delta = 2.0"))
    with pytest.raises(fp.FedpointError, match="delta"):
        read_plan(tmp_path / "plan.toml")


def test_fewest_bytes_with_compression_among_the_choices():
    made = fp.plan(
        QUAD,
        target=0.05,
        minimise="bytes",
        methods=["fedavg"],
        local_steps=[4],
        participation=[20],
        channels=[None, fp.channel.Cast("bfloat16"), fp.channel.RandK(0.34)],
    )
    by = {c.title: c for c in made.choices}
    assert made.best is by["FedAvg, Cast(bfloat16)"] and by["FedAvg"].bytes > made.best.bytes
    best = made.best
    run = fp.run(best.algorithm, QUAD, rounds=best.rounds, participation=20, channel=best.channel)
    assert best.bytes == run.cost.bytes_up + run.cost.bytes_down
    with pytest.raises(fp.FedpointError, match="channels is empty"):
        fp.plan(QUAD, target=0.05, channels=[])


def test_a_compressor_that_cannot_be_the_best_is_not_looked_at():
    """SCAFFOLD sends two models, and half of their width is more than FedAvg sends: no forecast is asked."""
    made = fp.plan(
        QUAD,
        target=0.05,
        minimise="bytes",
        methods=["fedavg", "scaffold"],
        local_steps=[4],
        participation=[20],
        channels=[None, fp.channel.Cast("float32"), fp.channel.RandK(0.34)],
    )
    excluded = {e.method: e.reason for e in made.excluded}
    by = {c.title: c for c in made.choices}
    assert {"FedAvg", "SCAFFOLD", "FedAvg, Cast(float32)"} <= set(by) and "SCAFFOLD, Cast(float32)" not in by
    assert "remembers what arrived" in excluded["SCAFFOLD, RandK(0.34)"]  # refused, not too dear
    use = 20 * (2 * 3 * 8 + 2 * 3 * 4) * by["SCAFFOLD"].rounds  # two models of three numbers, down and up
    assert f"would cost {use:,}" in excluded["SCAFFOLD, Cast(float32)"] and use > made.best.cost
