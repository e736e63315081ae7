"""Where the meaning of a call is plain, it works; where it is not, one message says what to write."""

import networkx
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.errors import FedpointError


def refuses(message):
    return pytest.raises(FedpointError, match=message)


# Names of arguments.


@pytest.mark.parametrize("name", ["lr", "learning_rate", "eta", "stp"])
def test_a_step_by_another_name_is_told_apart(name):
    with refuses(f"^FedAvg has no argument '{name}': did you mean 'step'\\? Known: local_steps, normalise, "):
        fp.FedAvg(**{name: 0.1})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp.FedAvg(0.1, epochs=2), "FedAvg has no argument 'epochs': did you mean 'local_steps'"),
        (lambda: fp.FedProx(0.1, mu=1.0), "FedProx has no argument 'mu': did you mean 'pull'"),
        (lambda: fp.FedAdam(0.1, server_lr=1.0), "FedAdam has no argument 'server_lr': did you mean 'server_step'"),
        (lambda: fp.FedAvg(), r"FedAvg needs step: FedAvg\(step=...\)"),
        (lambda: fp.FedAvg(0.1, step=0.2), "FedAvg got 'step' twice: by position and by name"),
        (lambda: fp.FedAvg(0.1, 1, False, None, 3), "FedAvg takes at most 4 arguments, got 5"),
        (lambda: fp.Everyone(3), "Everyone takes no arguments, got 1"),
        (lambda: fp.Network.ring(nodes=3, wieght=2.0), "Network.ring has no argument 'wieght': did you mean 'weight'"),
        (lambda: fp.Network.ring(3).eigenvalues(n=1), "Network.eigenvalues has no argument 'n'"),
        (
            lambda: fp.problems.Quadratic(1.0, [[0.0]], nois=1.0),
            "Quadratic has no argument 'nois': did you mean 'noise'",
        ),
        (lambda: fp.FedAvg(0.1).replace(lr=0.2), "FedAvg has no argument 'lr': did you mean 'step'"),
    ],
)
def test_a_call_that_does_not_fit_names_what_does(call, message):
    with refuses(message):
        call()


# Kinds of arguments.


class Own(fp.FedAvg):
    scale: float = 1.0
    signs: bool = False
    note: str = ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp.FedAvg(0.1, optimiser=1), "FedAvg: optimiser must be an optimiser of optax or None; got 1"),
        (lambda: fp.FedAvg(0.1, normalise=3), "FedAvg: normalise must be True or False; got 3"),
        (lambda: fp.FedProx(0.1, exact=[True]), r"FedProx: exact must be True or False; got \[True\]"),
        (lambda: Own(0.1, scale="x"), "Own: scale must be a number; got 'x'"),
        (lambda: Own(0.1, scale=float("nan")), "Own: scale must be a number; got nan"),
        (lambda: Own(0.1, signs=1), "Own: signs must be True or False; got 1"),
        (lambda: Own(0.1, note=None), "Own: note must be a string; got None"),
        (lambda: fp.problems.LeastSquares([[[1.0]]], [[1.0]], sampling=3), "sampling must be a string; got 3"),
        (lambda: fp.Clock.sample(agents=2.5), "Clock.sample: agents must be a whole number, at least 1; got 2.5"),
        (lambda: fp.problems.Quadratic("x", [[0.0]]), "H must be an array of numbers; got 'x'"),
        (lambda: fp.problems.Quadratic([[1.0], [1.0, 2.0]], [[0.0]]), "H must be an array of numbers, but its rows"),
    ],
)
def test_a_value_of_another_kind_is_shown_beside_the_kind_that_is_meant(call, message):
    with refuses(message):
        call()


def test_an_own_method_is_given_what_its_fields_say():
    made = Own(0.1, scale=np.float32(2), signs=np.bool_(True), note="mine")
    assert (made.scale, made.signs, made.note) == (2.0, True, "mine")


# A network of networkx.


def test_a_graph_of_networkx_is_a_network():
    graph = networkx.Graph()
    graph.add_weighted_edges_from([("a", "b", 2.0), ("b", "c", 0.5)])
    graph.add_edge("a", "c")
    graph.add_node("alone")
    net = fp.Network(graph)
    assert net.names == ["a", "b", "c", "alone"]
    A = np.array([[0, 2, 1, 0], [2, 0, 0.5, 0], [1, 0.5, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(net.adjacency.toarray(), A)


def test_a_graph_of_networkx_serves_a_run():
    problem = fp.problems.Quadratic(1.0, [[0.0], [1.0], [5.0]])
    graph = networkx.path_graph(3)
    given, made = (fp.run(fp.FedGD(step=0.1), problem, rounds=3, network=n) for n in (graph, fp.Network(graph)))
    np.testing.assert_array_equal(given.history, made.history)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (networkx.DiGraph([(0, 1)]), "the graph is directed; .* use graph.to_undirected"),
        (networkx.MultiGraph([(0, 1), (0, 1)]), r"parallel edges: use networkx.Graph\(graph\)"),
        (networkx.Graph(), "the graph has no nodes"),
        (networkx.Graph([(0, 0)]), "node 0 has an edge to itself"),
        (networkx.Graph([(0, 1, {"weight": "heavy"})]), "weights must be an array of numbers"),
        (networkx.Graph([(0, 1, {"weight": -1.0})]), "the weight between 0 and 1 is -1: it must be above 0"),
    ],
)
def test_a_graph_that_is_no_network_is_told_why(graph, message):
    with refuses(message):
        fp.Network(graph)


def test_a_network_of_pairs_alone():
    assert fp.Network([("b", "a"), ("b", "c")]).names == ["a", "b", "c"]
    np.testing.assert_array_equal(fp.Network([(0, 1), (1, 2)]).degrees, [1.0, 2.0, 1.0])
    with refuses("leave out weights= and names="):
        fp.Network(networkx.path_graph(2), weights=[1.0])


# One model, or several.

CENTERS = np.array([[0.0, 1.0], [2.0, -1.0], [1.0, 3.0]])


def bowls():
    return fp.problems.Quadratic([1.0, 2.0, 3.0], CENTERS, weights=[1, 1, 2])


def test_the_objective_of_one_model_is_a_number():
    w = np.array([0.5, -0.5])
    exact = sum(p * h / 2 * ((w - c) ** 2).sum() for p, h, c in zip([0.25, 0.25, 0.5], [1, 2, 3], CENTERS, strict=True))
    assert bowls().objective(w) == pytest.approx(exact)
    assert bowls().objective([0.5, -0.5]) == pytest.approx(exact)
    np.testing.assert_allclose(bowls().objective([w, CENTERS[0]])[0], exact)
    assert np.shape(bowls().objective(w)) == () and bowls().objective(w[None]).shape == (1,)


def every_problem():
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(12, 2)), rng.normal(size=12), np.repeat([0, 1, 2], 4)
    yield fp.problems.LeastSquares(X, y, groups=groups)
    yield fp.problems.Logistic(X, np.tile([0, 1], 6), groups)
    yield fp.problems.Logistic(X, np.tile([0, 1, 2], 4), groups)  # softmax: a model has two axes
    yield fp.problems.LinearStream(CENTERS)
    yield fp.problems.Loss(
        lambda params, batch: ((batch[0] @ params["w"] + params["b"] - batch[1]) ** 2).mean(),
        {"w": np.zeros(2), "b": np.zeros(())},
        (X, y),
        groups,
    )


@pytest.mark.parametrize("problem", list(every_problem()), ids=lambda p: type(p).__name__)
def test_one_model_stands_for_a_stack_of_one(problem):
    import jax

    w = jax.tree.map(lambda a: np.full(np.shape(a), 0.3), problem.start())
    stack = jax.tree.map(lambda a: np.stack([a, 2 * a]), w)
    np.testing.assert_allclose(problem.objective(w), problem.objective(stack)[0])
    np.testing.assert_allclose(problem.objective(w), problem.weights @ problem.losses(w))


@pytest.mark.parametrize("ask", ["objective", "losses", "fields", "noise"])
@pytest.mark.parametrize("w", [3.0, [1.0], np.zeros((2, 3)), np.zeros((1, 1, 2)), {"w": 1.0}, "model", None])
def test_what_is_no_model_is_refused(ask, w):
    with refuses("w has shape|w must be an array|models have shape|models must be an array"):
        getattr(bowls(), ask)(w)


# Modules of other libraries.


def torch_module(name):
    """As PyTorch's are, which need not be installed."""

    def call(self, *inputs):
        return self.forward(*inputs)

    held = {"forward": call, "parameters": lambda self: iter(()), "state_dict": lambda self: {}, "__call__": call}
    return type(name, (), {**held, "__module__": "torch.nn.modules"})()


@pytest.mark.parametrize(
    ("loss", "params", "name"),
    [
        (torch_module("Linear"), np.zeros(2), "loss is a Linear"),
        (lambda w, b: 0.0, torch_module("Net"), "params is a Net"),
    ],
)
def test_a_module_of_torch_is_told_what_to_write(loss, params, name):
    with refuses(f"^{name}, a module of PyTorch: JAX cannot differentiate it. fp.problems.Torch"):
        fp.problems.Loss(loss, params, np.zeros((4, 2)))


def test_a_tensor_among_parameters_is_told():
    class Tensor:
        pass

    with refuses("params"):
        fp.problems.Loss(lambda w, b: 0.0, {"w": Tensor()}, np.zeros((4, 2)))
