"""Does the picture of a network show its nodes, edges, weights and values?"""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint import Network
from fedpoint.show.network import layout


def parts(figure):
    ax = figure.axes[0]
    (edges,) = (c for c in ax.collections if type(c).__name__ == "LineCollection")
    return ax, edges, [c for c in ax.collections if type(c).__name__ == "PathCollection"]


def test_nodes_edges_and_values(tmp_path):
    net = Network.from_edges([(0, 1), (1, 2)], [1.0, 4.0])
    values = np.array([0.5, 2.0, -1.0])
    figure = net.plot(tmp_path / "net.svg", color=values, label="w_1", title="three")
    ax, edges, (nodes,) = parts(figure)
    assert len(edges.get_segments()) == 2 and nodes.get_array().tolist() == values.tolist()
    thin, thick = edges.get_linewidths()
    assert thick == pytest.approx(2 * thin)  # the root of the weight
    assert nodes.get_clim() == (-1, 2) and figure.axes[1].get_ylabel() == "w_1"
    assert ax.get_title(loc="left") == "three" and [t.get_text() for t in ax.texts] == ["0", "1", "2"]
    first = (tmp_path / "net.svg").read_bytes()
    net.plot(tmp_path / "again.svg", color=values, label="w_1", title="three")
    assert (tmp_path / "again.svg").read_bytes() == first


def test_words_have_a_key():
    net = Network.clusters(list("aabb"), between=1.0)
    ax, _, nodes = parts(net.plot(color=list("aabb")))
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b"] and len(nodes) == 2
    assert len(parts(net.plot(color=[True, False, True, True]))[2]) == 2
    assert parts(net.plot())[0].get_legend() is None


def test_many_nodes_go_without_names():
    assert len(parts(Network.grid(8, 8).plot())[0].texts) == 0


def test_components_lie_apart():
    net = Network.clusters(np.repeat(np.arange(4), [15, 8, 4, 1]), degree=4)
    places = layout(net)
    boxes = [(p.min(0), p.max(0)) for p in (places[net.components == c] for c in range(4))]
    for i, (low, high) in enumerate(boxes):
        for a, b in boxes[:i]:
            assert (a > high).any() or (b < low).any()


def test_places_as_given():
    net = fp.data.contiguity(codes=True)
    assert (layout(net) == net.positions).all()
    moved = net.positions + 1
    assert (parts(net.plot(positions=moved))[2][0].get_offsets() == moved).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"color": [1.0]}, r"color has shape \(1,\): give one value for each of 3 nodes"),
        ({"color": [1j, 0, 0]}, "color holds complex128"),
        ({"positions": np.zeros((2, 2))}, "positions have shape"),
        ({"positions": np.full((3, 2), np.nan)}, "positions must be finite"),
        ({"path": "net.bmp"}, "a picture is saved as png, svg or pdf"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(fp.FedpointError, match=message):
        Network.ring(3).plot(**arguments)


def test_too_many_for_springs():
    with pytest.raises(fp.FedpointError, match="give positions="):
        Network.ring(5000).plot()
