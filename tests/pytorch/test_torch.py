"""Modules of PyTorch are run as they are: as the same loss in JAX, as loops written by hand, the same bits on resume.

`make test-torch` installs PyTorch and runs these; elsewhere they are skipped.
"""

import dataclasses
import pickle
from importlib.util import find_spec

import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
import fedpoint.algorithms
from fedpoint.core.random import Key

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: make test-torch")
if find_spec("torch") is not None:
    import torch
    from torch import nn

    torch.set_num_threads(1)

GROUPS = np.repeat([0, 1, 2], [12, 20, 16])


@pytest.fixture(scope="module")
def rows():
    draws = np.random.default_rng(3)
    X = draws.normal(size=(len(GROUPS), 3)) + GROUPS[:, None]
    return X, X @ [1.0, -2.0, 0.5] + 0.3 * GROUPS + draws.normal(0, 0.1, len(GROUPS))


def linear():
    module = nn.Linear(3, 1).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.1, 0.2, -0.1]]))
        module.bias.fill_(0.05)
    return nn.Sequential(module, nn.Flatten(0))


def squares(params, batch):
    return jnp.mean((batch[0] @ params["0.weight"][0] + params["0.bias"][0] - batch[1]) ** 2)


@pytest.fixture(scope="module")
def pair(rows):
    """The same least squares, by PyTorch and by JAX."""
    torched = fp.problems.Torch(linear(), nn.MSELoss(), rows, groups=GROUPS, batch=5)
    return torched, fp.problems.Loss(squares, torched.start(), rows, groups=GROUPS, batch=5)


def close(torched, jaxed, tolerance=1e-9):
    for name, tensor in torched.model.items():
        assert np.abs(tensor.numpy() - np.asarray(jaxed.model[name])[0]).max() < tolerance, name


def methods():
    """Every method of the catalogue with a hub, of its plainest form."""
    for card in fp.CATALOGUE.values():
        fields = {f.name: f for f in dataclasses.fields(card.cls)}
        if not card.cls.__module__.startswith("fedpoint.algorithms") or card.cls.at_agents:
            continue
        given = {"step": 0.02, "local_steps": 2, "probability": 0.5, "q": 0.1}
        yield card.cls(
            **{name: value for name, value in given.items() if name in fields and _needed(fields[name], name)}
        )


def _needed(field, name):
    return name in ("step", "local_steps") or field.default is dataclasses.MISSING


@pytest.mark.parametrize("method", list(methods()), ids=lambda m: m.card.name)
def test_every_method_does_what_it_does_on_the_same_loss_in_jax(method, pair):
    """Both draw the same rows, so that all rounds agree; 1e-9 is rounding over six rounds of numbers of order one."""
    torched, jaxed = pair
    try:
        expected = fp.run(method, jaxed, rounds=6)
    except fp.FedpointError as error:
        with pytest.raises(fp.FedpointError) as found:
            fp.run(method, torched, rounds=6)
        assert str(error).split(":")[0].replace("Loss", "") == str(found.value).split(":")[0].replace("Torch", "")
        return
    close(fp.run(method, torched, rounds=6), expected)


@pytest.mark.parametrize(
    "how",
    [
        {"participation": fp.Uniform(2)},
        {"channel": fp.channel.TopK(0.5)},
        {"exact": True},
        {"gather": fp.gather.Median()},
        {"share": fp.only("0.weight")},
        {"regions": fp.Regions(2, rounds=2)},
    ],
    ids=lambda how: next(iter(how)),
)
def test_every_argument_of_an_experiment_does_so_too(how, pair):
    method = fp.FedAvg(step=0.02, local_steps=3)
    runs = [fp.run(method, problem, rounds=5, **how) for problem in pair]
    if "share" not in how:  # models of the agents otherwise
        close(*runs)
    assert np.abs(runs[0].loss - runs[1].loss).max() < 1e-9


@pytest.mark.parametrize("sampling", ["iid", "shuffle"])
def test_batches_are_the_same_rows(rows, sampling):
    """Twelve rows in batches of five: the last one of an epoch has two."""
    torched = fp.problems.Torch(linear(), nn.MSELoss(), rows, groups=GROUPS, batch=5, sampling=sampling)
    jaxed = fp.problems.Loss(squares, torched.start(), rows, groups=GROUPS, batch=5, sampling=sampling)
    close(*(fp.run(fp.FedAvg(step=0.01, local_steps=fp.steps.Epochs(2)), p, rounds=2) for p in (torched, jaxed)))


def test_losses_fields_noise_and_products_with_hessians(pair, rows):
    torched, jaxed = pair
    w = {name: a + 0.3 for name, a in torched.start().items()}
    assert np.allclose(torched.losses(w), jaxed.losses(w), atol=1e-12)
    assert np.allclose(torched.fields(w), jaxed.fields(w), atol=1e-11)
    assert np.allclose(torched.noise(w), jaxed.noise(w), rtol=1e-9)
    assert np.allclose(torched.objective(w), jaxed.objective(w), atol=1e-12)
    z = np.column_stack([np.ones(len(GROUPS)), rows[0]])[GROUPS == 1]
    v = {"0.bias": np.array([0.5]), "0.weight": np.array([[1.0, -1.0, 2.0]])}
    mine = fp.problems.Mine(*torched_agent(torched, 1))
    found = with_doubles(torched.oracle.hessian_times)(mine, w, v)
    expected = 2 / len(z) * z.T @ (z @ [0.5, 1.0, -1.0, 2.0])
    assert np.allclose(np.concatenate([found["0.bias"], found["0.weight"][0]]), expected, rtol=1e-12)


def torched_agent(problem, k):
    return type(problem.own)(*(jnp.asarray(a[k]) for a in problem.own)), problem.common


def with_doubles(function):
    from fedpoint.core.precision import double

    return double(function)


def test_a_dataset_is_read_as_rows_are_used(rows, pair):
    class Lazy(torch.utils.data.Dataset):
        asked = 0

        def __len__(self):
            return len(GROUPS)

        def __getitem__(self, i):
            Lazy.asked += 1
            return torch.as_tensor(rows[0][i]), torch.as_tensor(rows[1][i])

    lazy = fp.problems.Torch(linear(), nn.MSELoss(), Lazy(), groups=GROUPS, batch=5)
    Lazy.asked = 0
    found = fp.run(fp.FedAvg(step=0.02, local_steps=2), lazy, rounds=3)
    assert Lazy.asked == 3 * 3 * 2 * 5  # rounds, agents, steps, rows
    close(found, fp.run(fp.FedAvg(step=0.02, local_steps=2), pair[1], rounds=3))


def test_rows_on_disk_are_those_in_memory(rows, pair, tmp_path):
    """A torch data set too, by JAX."""
    parts = []
    for name, part in zip("xy", rows, strict=True):
        np.save(tmp_path / f"{name}.npy", part)
        parts.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    method = fp.FedAvg(step=0.02, local_steps=2)
    expected = fp.run(method, pair[0], rounds=4)
    mapped = fp.run(method, fp.problems.Torch(linear(), nn.MSELoss(), tuple(parts), groups=GROUPS, batch=5), rounds=4)
    for name, tensor in mapped.model.items():
        assert torch.equal(tensor, expected.model[name])
    dataset = fp.data.on_disk(torch.utils.data.TensorDataset(*map(torch.as_tensor, rows)))
    close(expected, fp.run(method, fp.problems.Loss(squares, pair[1].start(), dataset, GROUPS, batch=5), rounds=4))


class Installed:
    """A module that every site has."""

    def start(self):
        return fp.problems.Torch(linear(), nn.MSELoss(), (np.zeros((2, 3)), np.zeros(2))).start()

    def problem(self, files, *, batch):
        parts = [np.loadtxt(path, delimiter=",") for path in files]
        table = np.concatenate(parts)
        groups = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        return fp.problems.Torch(linear(), nn.MSELoss(), (table[:, :3], table[:, 3]), groups=groups, batch=batch)


def test_a_module_learns_over_sites_as_in_simulation(rows, tmp_path, monkeypatch):
    from fedpoint.federation import installed
    from fedpoint.federation.study import parse

    monkeypatch.setattr(installed, "_allowed", {})
    installed.allow("linear", Installed())
    files = {}
    for k, site in enumerate("abc"):
        own = np.column_stack(rows)[k == GROUPS]
        files[site] = tmp_path / f"{site}.csv"
        np.savetxt(files[site], np.concatenate([own] * 3), delimiter=",")
    base = {"name": "trial", "sites": list(files), "server": "localhost:8102", "rounds": 4, "deadline": 10.0}
    method = {"name": "scaffold", "step": 0.02, "local_steps": 3}
    made = fp.federate(
        parse({**base, "algorithm": method, "problem": {"kind": "installed", "name": "linear", "batch": 8}}),
        files,
        folder=tmp_path / "run",
    )
    again = fp.run(made.replay(made.problem(files)), rounds=4)
    for name in ("0.weight", "0.bias"):
        assert np.abs(np.asarray(again.history[name])[0] - made.history[name]).max() < 1e-10


# Batch normalisation and dropout.


def normalising():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.3), nn.ReLU(), nn.Linear(4, 1), nn.Flatten(0))


def descended(state, X, y, steps, step):
    """Plain PyTorch: full batches, gradient descent."""
    module = normalising()
    module.load_state_dict(state)
    optimiser = torch.optim.SGD(module.parameters(), step)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.MSELoss()(module(X), y).backward()
        optimiser.step()
    return module.state_dict()


@pytest.mark.parametrize("method", [fp.FedAvg, fp.Scaffold])
def test_statistics_of_batch_normalisation_are_averaged(rows, method):
    """Parameters and statistics after two rounds, by a loop written by hand; in the first round SCAFFOLD is FedAvg.
    1e-5 is single precision over six steps."""
    X, y = (torch.tensor(a, dtype=torch.float32) for a in rows)
    problem = fp.problems.Torch(normalising(), nn.MSELoss(), (X, y), groups=GROUPS)
    rounds = 1 if method is fp.Scaffold else 2
    state = normalising().state_dict()
    for _ in range(rounds):
        ends = [descended(state, X[np.equal(GROUPS, k)], y[np.equal(GROUPS, k)], 3, 0.05) for k in range(3)]
        state = {
            name: sum(p * end[name] for p, end in zip(problem.weights, ends, strict=True)).to(start.dtype)
            for name, start in state.items()
        }
    found = fp.run(method(step=0.05, local_steps=3), problem, rounds=rounds).model
    for name, expected in state.items():
        assert (found[name].float() - expected.float()).abs().max() < 1e-5 * max(1, expected.abs().max()), name
    assert found["1.num_batches_tracked"] == 3 * rounds and found["1.num_batches_tracked"].dtype == torch.int64
    assert (found["1.running_var"] > 0).all()
    normalising().load_state_dict(found)


def test_statistics_stay_variances_when_weights_do_not_sum_to_one(rows):
    X, y = (torch.tensor(a, dtype=torch.float32) for a in rows)
    problem = fp.problems.Torch(normalising(), nn.MSELoss(), (X, y), groups=GROUPS, batch=4)
    run = fp.run(fp.FedAvg(step=0.01, local_steps=5), problem, rounds=30, participation=fp.participation.Poisson(0.4))
    assert (run.history["1.running_var"] > 0).all()
    counts = np.diff(run.history["1.num_batches_tracked"][0])
    assert set(np.round(counts, 4)) == {0.0, 5.0}  # nobody answered, or a mean of those who did


def test_statistics_may_stay_at_their_agents(rows):
    """A round of FedAvg with local statistics, by hand."""
    X, y = (torch.tensor(a, dtype=torch.float32) for a in rows)
    problem = fp.problems.Torch(normalising(), nn.MSELoss(), (X, y), groups=GROUPS)
    run = fp.run(fp.FedAvg(step=0.05, local_steps=3), problem, rounds=1, share=fp.all_but("1.running_*", "1.num_*"))
    for k in range(3):
        end = descended(normalising().state_dict(), X[np.equal(GROUPS, k)], y[np.equal(GROUPS, k)], 3, 0.05)
        for name in ("1.running_mean", "1.running_var"):
            assert np.abs(run.models[name][0, k] - end[name].numpy()).max() < 1e-5


def dropping():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 30), nn.Dropout(0.5), nn.BatchNorm1d(30), nn.Linear(30, 1), nn.Flatten(0))


@pytest.fixture(scope="module")
def dropped(rows):
    X, y = (np.asarray(a, np.float32) for a in rows)
    return fp.problems.Torch(dropping(), nn.MSELoss(), (X, y), groups=GROUPS, batch=4)


METHOD = fp.Scaffold(step=0.01, local_steps=3)


def bits(run):
    return {name: np.asarray(a).tobytes() for name, a in run.learnt.items()}


def test_the_same_bits_after_a_resume_and_whatever_pytorch_drew_meanwhile(dropped, tmp_path):
    whole = fp.run(METHOD, dropped, rounds=6, participation=fp.Uniform(2), seed=4)
    torch.manual_seed(9)
    before = torch.default_generator.get_state()
    fp.run(METHOD, dropped, rounds=2, participation=fp.Uniform(2), seed=4, folder=tmp_path / "run")
    assert torch.equal(before, torch.default_generator.get_state())
    torch.rand(5)
    resumed = fp.load(tmp_path / "run", dropped).extend(6)
    assert bits(resumed) == bits(whole)
    other = fp.run(METHOD, dropped, rounds=6, participation=fp.Uniform(2), seed=5)
    assert bits(other) != bits(whole)


def test_the_same_bits_on_two_processes(dropped):
    alone = fp.run(METHOD, dropped, rounds=4, processes=1)
    assert bits(fp.run(METHOD, dropped, rounds=4, processes=2)) == bits(alone)


def test_dropout_draws_anew_in_every_step():
    """A module that is its mask: over all steps of all rounds and agents the mean of 0/2 is 1 within 4 errors."""

    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.sums = nn.Parameter(torch.zeros(8, dtype=torch.float64))

        def forward(self, x):
            return (nn.functional.dropout(torch.ones(8, dtype=torch.float64), 0.5, self.training) * self.sums).sum()

    problem = fp.problems.Torch(
        Mask(), lambda out, y: out, (np.zeros((4, 1)), np.zeros(4)), groups=[0, 0, 1, 1], batch=1
    )
    run = fp.run(fp.FedAvg(step=1.0, local_steps=1), problem, rounds=200)
    masks = -np.diff(np.concatenate([np.zeros((1, 8)), run.history["sums"][0][1:]]), axis=0)  # means of two agents
    assert set(masks.ravel()) == {0.0, 1.0, 2.0}  # agents draw apart
    assert abs(masks.mean() - 1) < 4 * np.sqrt(0.5 / masks.size)
    assert len(np.unique(masks, axis=0)) > 150
    exact = fp.run(fp.FedAvg(step=1.0), problem, rounds=1, exact=True)
    assert np.array_equal(exact.learnt["sums"], -np.ones((1, 8)))  # no mask at all


# What users see.


def test_classes_are_evaluated(rows):
    X, y = np.asarray(rows[0], np.float32), GROUPS
    problem = fp.problems.Torch(nn.Linear(3, 3), nn.CrossEntropyLoss(), (X, y), groups=np.arange(len(X)) % 4)
    run = fp.run(fp.FedAvg(step=0.3, local_steps=5), problem, rounds=20)
    module = nn.Linear(3, 3)
    module.load_state_dict(run.model)
    said = module(torch.from_numpy(X)).detach()
    expected = float((said.argmax(1).numpy() == y).mean()), float(nn.CrossEntropyLoss()(said, torch.from_numpy(y)))
    found = run.evaluate(X, y)
    assert (found["accuracy"], found["loss"]) == pytest.approx(expected, rel=1e-5)
    assert run.loss[0, -1] == pytest.approx(expected[1], rel=1e-5)


def test_the_module_stays_as_it_was_and_frozen_parts_are_not_learnt(rows):
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1), nn.Flatten(0)).double()
    module[0].requires_grad_(False)
    before = {name: p.clone() for name, p in module.state_dict().items()}
    problem = fp.problems.Torch(module, nn.MSELoss(), rows, groups=GROUPS)
    run = fp.run(fp.FedAvg(step=0.01), problem, rounds=2)
    assert set(run.learnt) == {"1.weight", "1.bias"}
    assert torch.equal(run.model["0.weight"], before["0.weight"])
    assert all(torch.equal(p, before[name]) for name, p in module.state_dict().items())


def tied():
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 1), nn.Flatten(0))
    module[1].weight = module[0].weight
    return module.double()


def test_tied_parameters_are_one(rows):
    module = tied()
    problem = fp.problems.Torch(module, nn.MSELoss(), rows, groups=GROUPS)
    run = fp.run(fp.FedAvg(step=0.001), problem, rounds=2)
    assert sorted(run.learnt) == ["0.weight", "2.bias", "2.weight"]
    assert torch.equal(run.model["0.weight"], run.model["1.weight"])
    tied().load_state_dict(run.model)


def test_a_problem_can_be_sent_to_another_process(dropped, rows):
    sent = pickle.loads(pickle.dumps(dropped))
    assert np.array_equal(sent.losses(sent.start()), dropped.losses(dropped.start()))


def test_another_dataset_is_not_taken_for_the_same(rows, pair, tmp_path):
    fp.run(fp.FedAvg(step=0.01), pair[0], rounds=1, folder=tmp_path / "run")
    other = fp.problems.Torch(linear(), nn.MSELoss(), (rows[0], rows[1] + 1), groups=GROUPS, batch=5)
    with pytest.raises(fp.FedpointError):
        fp.load(tmp_path / "run", other).extend(2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda X, y: fp.problems.Torch(nn.Linear, nn.MSELoss(), (X, y)), "Linear is a class: give an object"),
        (lambda X, y: fp.problems.Torch(abs, nn.MSELoss(), (X, y)), "must be a torch.nn.Module"),
        (lambda X, y: fp.problems.Torch(linear(), nn.MSELoss(reduction="none"), (X, y)), "must return a number"),
        (lambda X, y: fp.problems.Torch(linear(), nn.MSELoss(), X), "arrays .inputs, targets."),
        (lambda X, y: fp.problems.Torch(linear(), nn.MSELoss(), (X, y[1:])), "one row a sample"),
        (lambda X, y: fp.problems.Torch(linear(), nn.MSELoss(), (X[:, :2], y)), "fails on two rows of the data"),
        (lambda X, y: fp.problems.Torch(linear(), nn.MSELoss(), (X * np.nan, y)), "NaN"),
        (lambda X, y: fp.problems.Torch(nn.Linear(3, 1).half(), nn.MSELoss(), (X, y)), "fails on two rows|float32"),
        (lambda X, y: fp.problems.Torch(nn.Flatten(), nn.MSELoss(), (X, y)), "nothing to learn"),
        (lambda X, y: fp.problems.Torch(linear(), nn.MSELoss(), (X, None)), "not one of numbers"),
        (lambda X, y: fp.problems.Torch(linear(), nn.MSELoss(), (X, y), groups=[]), "groups has shape"),
        (lambda X, y: fp.problems.Torch(linear(), nn.MSELoss(), (X[:0], y[:0])), "no rows|no agents"),
        (lambda X, y: fp.problems.Loss(linear(), {"w": y}, X), "fp.problems.Torch"),
    ],
)
def test_mistakes_are_told(rows, make, said):
    with pytest.raises(fp.FedpointError, match=said):
        make(*rows)


def test_a_sum_over_rows_is_told(rows):
    with pytest.raises(fp.FedpointError, match="is a sum over the rows"):
        fp.problems.Torch(linear(), nn.MSELoss(reduction="sum"), rows)


def test_what_needs_derivatives_of_a_round_says_so(pair):
    method = fp.FedAvg(step=0.01)
    with pytest.raises(fp.FedpointError, match="computed by PyTorch"):
        fp.forecast(method, pair[0])
    with pytest.raises(fp.FedpointError, match='give measure="loss"'):
        fp.plan(pair[0], 1e-3)
    with pytest.raises(fp.FedpointError, match="computed by PyTorch"):
        fp.check(fp.run(method, pair[0], rounds=3))


def test_a_probe_measures_what_it_does_in_jax(pair):
    """Products with Hessians are those of PyTorch; the rest is the same arithmetic."""
    method = fp.FedAvg(step=0.02, local_steps=2)
    torched, jaxed = (fp.probe(method, problem, participation=2, rounds=2, samples=4) for problem in pair)
    assert torched.rounds == jaxed.rounds
    for one, other in zip(torched.points, jaxed.points, strict=True):
        for name, value in one._asdict().items():
            np.testing.assert_allclose(value, getattr(other, name), rtol=1e-4, atol=1e-7, err_msg=name)
    assert (torched.local_steps, torched.enough, torched.scaffold) == (jaxed.local_steps, jaxed.enough, jaxed.scaffold)


def test_a_plan_probes_and_runs(pair):
    options = {"measure": "loss", "participation": [3], "local_steps": [1, 5], "methods": ["fedavg"]}
    torched, jaxed = (fp.plan(problem, 0.3, **options).best for problem in pair)
    assert torched.promise == "verified" and (torched.rounds, torched.label) == (jaxed.rounds, jaxed.label)


def test_baselines_compare_modules(rows):
    def with_torch(X, y, groups):
        return fp.Experiment(fp.FedAvg(step=0.02), fp.problems.Torch(linear(), nn.MSELoss(), (X, y), groups=groups))

    def with_jax(X, y, groups):
        start = with_torch(X, y, groups).problem.start()
        return fp.Experiment(fp.FedAvg(step=0.02), fp.problems.Loss(squares, start, (X, y), groups=groups))

    torched, jaxed = (fp.baselines(*rows, GROUPS, experiment=make, rounds=5) for make in (with_torch, with_jax))
    for name in ("local", "global", "personalised", "fine-tuned"):
        np.testing.assert_allclose(torched.errors[name], jaxed.errors[name], rtol=1e-6, err_msg=name)


def test_what_fails_in_a_round_is_one_message(rows):
    """Batch normalisation of one row, the last one of an epoch."""
    X, y = (torch.tensor(a, dtype=torch.float32) for a in rows)
    problem = fp.problems.Torch(normalising(), nn.MSELoss(), (X[:11], y[:11]), batch=10, sampling="shuffle")
    with pytest.raises(fp.FedpointError, match="the module or its loss raised ValueError: Expected more than 1 value"):
        fp.run(fp.FedAvg(step=0.1, local_steps=2), problem, rounds=1)


def test_words_of_luck_differ_from_those_of_rows():
    row = Key.of(0).row(0)
    from fedpoint.problems.luck import LUCK

    assert not np.array_equal(with_doubles(row.words)((), LUCK), with_doubles(row.words)((), 0))
