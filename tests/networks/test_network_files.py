"""Does a TOML file's network become the network it says, or all its mistakes at once?"""

import tomllib

import numpy as np
import pytest

import fedpoint as fp
from fedpoint import Network
from fedpoint.config import networks
from fedpoint.config.mistakes import Mistakes
from fedpoint.config.text import absolute
from fedpoint.core.describe import Unreadable
from fedpoint.experiment.describe import describe_network, rebuild_network

SIX = fp.problems.LeastSquares(
    [[[1.0]]] * 6, [[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]]
)  # two kinds of agents, 0 to 2 and 3 to 5
NAMED = fp.problems.LeastSquares(np.ones((3, 1)), np.zeros(3), groups=["ann", "bob", "cat"])


def read(text, problem=SIX, base=None):
    return networks.network_of(tomllib.loads(text)["network"], base, problem)


def same(one, other):
    return one.names == other.names and (one.edges == other.edges).all() and (one.weights == other.weights).all()


@pytest.mark.parametrize(
    "text, expected",
    [
        ('network = "ring"', Network.ring(6)),
        ('network = {kind = "star", weight = 2.0}', Network.star(6, 2.0)),
        ('network = {kind = "complete"}', Network.complete(6)),
        ('network = {kind = "ring", mixing = "metropolis"}', Network.ring(6).mixing()),
        (
            'network = {kind = "random", degree = 3, seed = 4, mixing = "laplacian", lazy = true}',
            Network.random(6, 3, seed=4).mixing("laplacian", lazy=True),
        ),
        ('network = {kind = "grid", rows = 2, columns = 3}', Network.grid(2, 3)),
        ('network = {kind = "random", degree = 3, seed = 4}', Network.random(6, 3, seed=4)),
        ('network = {kind = "clusters", count = 2}', Network.clusters([0, 0, 0, 1, 1, 1])),
        (
            'network = {kind = "clusters", labels = [1, "x", 1, "x", 1, 1], between = 0.5, seed = 1}',
            Network.clusters(list("1x1x11"), between=0.5, seed=1),
        ),
        ('network = {kind = "knn", k = 2, of = "gradients"}', Network.clusters([0, 0, 0, 1, 1, 1])),
        (
            'network = {kind = "knn", k = 1, points = [[0], [1], [2], [3], [4], [5]], weight = "gaussian"}',
            Network.knn(np.arange(6.0), 1, weight="gaussian"),
        ),
        ("network = {edges = [[0, 1], [1, 0], [3, 2]]}", Network.from_edges([(0, 1), (2, 3)], nodes=6)),
        ("[network]\nedges = [[0, 1], [5, 2]]\nweights = [1, 2.5]", Network.from_edges([(0, 1), (2, 5)], [1, 2.5])),
    ],
)
def test_forms(text, expected):
    assert same(read(text), expected)
    assert networks.mistakes(tomllib.loads(text)["network"], ("network",), None) == []


def test_names_and_files(tmp_path):
    by_name = read('network = {edges = [["cat", "ann"]], weights = [2.0]}', NAMED)
    assert by_name.names == ["ann", "bob", "cat"] and by_name.edges.tolist() == [[0, 2]]
    (tmp_path / "edges.csv").write_text("a,b,weight\ncat,ann,2.0\n\n bob , cat,1\n")
    net = read('network = {file = "edges.csv"}', NAMED, tmp_path)
    assert net.edges.tolist() == [[0, 2], [1, 2]] and net.weights.tolist() == [2, 1]
    (tmp_path / "plain.csv").write_text("b,a\r\nann,bob\r\n")
    assert read('network = {file = "plain.csv"}', NAMED, tmp_path).edges.tolist() == [[0, 1]]
    assert absolute({"file": "edges.csv"}, tmp_path) == {"file": str(tmp_path / "edges.csv")}
    assert absolute("ring", tmp_path) == "ring"
    assert networks.network_of(None, None, SIX) is None and networks.mistakes(None, ("network",), None) == []


@pytest.mark.parametrize(
    "text, said",
    [
        ("network = 3", ["line 1: network = 3: must be the name of a network, or a table"]),
        ('network = "rng"', ["line 1: network = \"rng\": unknown kind; did you mean 'ring'?"]),
        ('[network]\nkind = "gird"', ["line 2: network.kind = \"gird\": unknown kind; did you mean 'grid'?"]),
        ("network = {k = 3}", ["give one of kind, edges and file; kinds are ring, star"]),
        ('network = {kind = "ring", file = "x.csv"}', ["give one of kind, edges and file"]),
        (
            '[network]\nkind = "grid"\nrow = 2\ncolumns = 0\nweight = -1',
            [
                "network.rows: is missing",
                "line 3: network.row = 2: unknown key; did you mean 'rows'?",
                "line 4: network.columns = 0: must be above 0",
                "line 5: network.weight = -1: must be above 0",
            ],
        ),
        ('network = {kind = "clusters"}', ["network: give labels, one for each agent, or count"]),
        ('network = {kind = "clusters", count = 2, inside = 0.5, degree = 2}', ["inside and degree say the same"]),
        ('network = {kind = "clusters", count = 2, between = 1.5}', ["network.between = 1.5: must be at most 1"]),
        ('network = {kind = "ring", lazy = true}', ["lazy halves the weights of a mixing"]),
        ('network = {kind = "ring", mixing = "x"}', ["must be 'metropolis', 'laplacian' or 'fastest'"]),
        ('network = {kind = "knn", k = 2}', ['give of = "gradients", "statistics" or "models", or points']),
        ('network = {kind = "knn", k = 2, of = "x"}', ["must be 'gradients', 'statistics' or 'models'"]),
        ('network = {kind = "knn", k = 1, points = [[0.0], [1.0, 2.0]]}', ["points must all have the same length"]),
        ("network = {edges = [[0, 1, 2], [0, 1.5]]}", ["network.edges[1]", "an edge is a pair", "network.edges[2][2]"]),
        ("network = {edges = [[0, 0]]}", ["node 0 has an edge to itself"]),
        ("network = {edges = [[0, 1]], weights = [-1.0]}", ["the weight between 0 and 1 is -1: it must be above 0"]),
        ("network = {edges = [[0, 1], [1, 0]], weights = [1.0, 2.0]}", ["differ by direction"]),
        ('network = {file = "none.csv"}', ['line 1: network.file = "none.csv": there is no file']),
    ],
)
def test_all_mistakes_at_once(text, said):
    found = networks.mistakes(tomllib.loads(text)["network"], ("network",), None)
    message = str(Mistakes("file", found, text))
    assert all(words in message for words in said), message
    with pytest.raises(fp.FedpointError):
        read(text)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", ["the file is empty"]),
        ("from,to\nx,y\n", ["its first line names the columns: a,b or a,b,weight; got from,to"]),
        (
            "a,b,weight\nx,y,1\ny,z\nz,u,heavy\n",
            ["line 3 of the file: 2 values for 3", "line 4 of the file: the weight"],
        ),
        ("a,b\nx,x\n", ["node x has an edge to itself"]),
        ("a,b\n" + "x\n" * 9, ["and 4 more lines of the file"]),
    ],
)
def test_mistakes_in_a_file_of_edges(tmp_path, text, said):
    (tmp_path / "edges.csv").write_text(text)
    found = [m.message for m in networks.mistakes({"file": "edges.csv"}, ("network",), tmp_path)]
    assert len(found) <= 6 and all(any(words in message for message in found) for words in said), found


@pytest.mark.parametrize(
    "text, message",
    [
        ('network = {kind = "grid", rows = 2, columns = 2}', "4 nodes, but the problem has 6 agents"),
        ('network = {kind = "clusters", labels = ["a"]}', "1 label, but there are 6 agents"),
        ('network = {kind = "clusters", count = 7}', "7 clusters, but there are 6 agents"),
        ('network = {kind = "knn", k = 6, of = "models"}', "there are 6 nodes: take k below that"),
        ('network = {kind = "knn", k = 1, points = [[0.0], [1.0]]}', "2 points, but there are 6 agents"),
        ('network = {edges = [["ann", 2]]}', "edges name nodes that do not exist: ann"),
        ("network = {edges = [[0, 6]]}", "names a node that does not exist; nodes are 0 to 5"),
    ],
)
def test_what_does_not_fit_the_agents(text, message):
    with pytest.raises(fp.FedpointError, match=message):
        read(text)


def test_a_folder_tells_the_network():
    net = Network.from_edges([("b", "a"), ("b", "c")], [0.5, 2.0])
    assert same(rebuild_network(describe_network(net)), net)
    large = Network.ring(500)
    stated = describe_network(large)
    assert stated["nodes"] == stated["edge_count"] == 500 and stated == describe_network(Network.ring(500))
    assert stated["sha256"] != describe_network(Network.ring(500, 2.0))["sha256"]
    with pytest.raises(Unreadable, match="a network of 500 nodes is not stored"):
        rebuild_network(stated)
