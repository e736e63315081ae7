"""What does a network look like? Nodes coloured by a number or a word; edges as thick as their weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arrays import array_of, numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.graphs.network import Network
from fedpoint.show import palette
from fedpoint.show.figures import COLOURS, INK, PALE, check_path, new_figure, save, set_title

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure, SubFigure

MAP = "viridis"  # ordered and readable for colour-blind eyes
EDGE = palette.RULE
NAMED = 50  # nodes up to which their names are written beside them
MOST = 3000  # nodes that a spring layout places in reasonable time


class Dots(TypedDict):
    """How the dots of nodes are drawn."""

    s: float
    zorder: float
    edgecolors: str
    linewidths: float


def picture(
    network: Network,
    path: str | Path | None = None,
    color: ArrayLike | None = None,
    label: str = "",
    positions: ArrayLike | None = None,
    title: str | None = None,
) -> Figure:
    """See `Network.plot`."""
    if path is not None:
        check_path(path)
    places = layout(network, positions)
    wide, high = np.maximum(np.ptp(places, axis=0), 1e-9) if network.nodes else (1.0, 1.0)
    figure = new_figure(7.0, float(np.clip(6.2 * high / wide, 3.4, 6.2)) + (0.3 if title else 0.0))
    ax = figure.add_subplot()
    drawn = draw_network(ax, network, color, places, title=title, size=_size(places))
    colour_bar(figure, drawn, ax, label)
    if path is not None:
        save(figure, path)
    return figure


def draw_network(
    ax: Axes,
    network: Network,
    color: ArrayLike | None = None,
    positions: ArrayLike | None = None,
    title: str | None = None,
    limits: tuple[float, float] | None = None,
    names: bool | None = None,
    size: float | None = None,
) -> PathCollection | None:
    """Draw onto axes; returns what a colour bar needs, or None where colours are no numbers.

    Args:
        limits: the least and greatest value of the colours, common to several pictures.
        names: whether names are written beside the nodes, those that find room; default: when there are few.
        size: of a node, in points squared.
    """
    from matplotlib.collections import LineCollection

    places = layout(network, positions)
    ends = places[network.edges]
    if len(network.edges):
        thick = np.sqrt(network.weights / network.weights.max())  # the area of a line is what the eye compares
        scale = np.clip(28 / np.sqrt(len(network.edges)), 0.6, 2.2)
        alpha = float(np.clip(18 / np.sqrt(len(network.edges)), 0.4, 0.8))
        ax.add_collection(
            LineCollection(list(ends), linewidths=np.maximum(scale * thick, 0.2), colors=EDGE, alpha=alpha, zorder=1)
        )
    size = size or _size(places)
    dots: Dots = {"s": size, "zorder": 2, "edgecolors": "white", "linewidths": 0.25 * size**0.25}
    drawn = None
    values = _colours(color, network)
    if values is None:
        ax.scatter(*places.T, color=COLOURS[0], **dots)
    elif values.dtype.kind in "OUS":
        _groups(ax, places, values, dots)
    else:
        finite = values[np.isfinite(values)]
        low, high = limits or ((finite.min(), finite.max()) if len(finite) else (0.0, 1.0))
        drawn = ax.scatter(
            places[:, 0], places[:, 1], c=values, cmap=MAP, vmin=low, vmax=high, plotnonfinite=False, **dots
        )
    if network.nodes <= NAMED if names is None else names:
        from fedpoint.show.placement import NodeNames

        NodeNames(ax, network.names, places, np.sqrt(size) / 2, 8.0 if network.nodes <= 25 else 6.5)
    ax.set_aspect("equal")
    ax.margins(0.06)
    ax.set_axis_off()
    if title:
        set_title(ax, title)
    return drawn


def layout(network: Network, positions: ArrayLike | None = None) -> np.ndarray:
    """(K, 2): as given, or the network's own, or springs: the same picture every time."""
    given = network.positions if positions is None else positions
    if given is not None:
        places = numbers("positions", given)
        if places.shape != (network.nodes, 2):
            raise FedpointError(f"positions have shape {places.shape}: give ({network.nodes}, 2), a place per node")
        if not np.isfinite(places).all():
            raise FedpointError("positions must be finite numbers")
        return places
    if network.nodes > MOST:
        raise FedpointError(f"{network.nodes} nodes are too many for a spring layout (at most {MOST}): give positions=")
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(network.nodes))
    graph.add_edges_from(map(tuple, network.edges))
    # Components apart, each by springs, side by side: springs alone would send them to infinity.
    parts = sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    places = np.zeros((network.nodes, 2))
    boxes = []
    for part in parts:
        nodes = sorted(part)
        placed = _springs(graph.subgraph(nodes), nodes)
        placed = placed - placed.mean(0)
        reach = np.abs(placed).max() if len(nodes) > 1 else 0.0
        boxes.append(max(np.sqrt(len(nodes)), 1.0))
        places[nodes] = placed / reach * 0.42 * boxes[-1] if reach > 0 else 0.0
    for nodes, at in zip(map(sorted, parts), _shelves(boxes), strict=True):
        places[nodes] += at
    return places


def _size(places: np.ndarray) -> float:
    """Of a node, in points squared: as large as lets most of them lie apart."""
    if len(places) < 2:
        return 170.0
    from scipy.spatial import cKDTree

    apart = np.quantile(cKDTree(places).query(places, k=2)[0][:, 1], 0.2)
    points = apart / max(np.ptp(places, axis=0).max(), 1e-9) * 5.5 * 72
    return float(np.clip((0.75 * points) ** 2, 16, 170))


def _springs(graph: nx.Graph, nodes: list[int]) -> np.ndarray:
    """Kamada and Kawai's for few nodes, where it is clearest; Fruchterman and Reingold's for many."""
    import networkx as nx

    if len(nodes) <= 120:
        found = nx.kamada_kawai_layout(graph) if len(nodes) > 2 else nx.spectral_layout(graph)
    else:
        found = nx.spring_layout(graph, seed=0, iterations=100 if len(nodes) <= 500 else 40, method="force")
    return np.array([found[node] for node in nodes])


def _shelves(sizes: list[float]) -> np.ndarray:
    """Centres of squares of these sizes (largest first), row after row, in about the shape of a picture."""
    width = max(sizes[0], 1.25 * np.sqrt(sum(s * s for s in sizes))) if sizes else 0.0
    places, x, y, height = [], 0.0, 0.0, 0.0
    for s in sizes:
        if x > 0 and x + s > 1.01 * width:
            x, y, height = 0.0, y - height, 0.0
        places.append((x + s / 2, y - s / 2))
        x, height = x + s, max(height, s)
    return np.array(places).reshape(-1, 2)


def _colours(color: ArrayLike | None, network: Network) -> np.ndarray | None:
    if color is None:
        return None
    values = array_of("color", color)
    if values.shape != (network.nodes,):
        raise FedpointError(
            f"color has shape {values.shape}: give one value for each of {counted(network.nodes, 'node')}"
        )
    if values.dtype.kind == "b":
        return values.astype(str)
    if values.dtype.kind not in "iufOUS":
        raise FedpointError(f"color holds {values.dtype}: give numbers, or words")
    return values.astype(str) if values.dtype.kind in "OUS" else values.astype(float)


def _groups(ax: Axes, places: np.ndarray, words: np.ndarray, dots: Dots) -> None:
    """A colour and a form per word, with a key."""
    forms = "osD^vP*X"
    known = list(dict.fromkeys(words))
    if len(known) > len(COLOURS) * len(forms):
        raise FedpointError(f"color has {len(known)} different words: more than can be told apart")
    for i, word in enumerate(known):
        some = words == word
        colour, form = COLOURS[i % len(COLOURS)], forms[i // len(COLOURS)]
        ax.scatter(*places[some].T, color=colour, marker=form, label=word, **dots)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=1.0)


def colour_bar(
    figure: Figure | SubFigure,
    drawn: PathCollection | None,
    axes: Axes | Sequence[Axes],
    label: str = "",
    shrink: float = 0.7,
    aspect: float = 28,
    pad: float = 0.02,
    extend: str = "neither",
) -> None:
    """A thin bar with its name, without a frame; none where colours are no numbers."""
    if drawn is None:
        return
    bar = figure.colorbar(drawn, ax=axes, shrink=shrink, aspect=aspect, pad=pad, extend=extend)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9, labelcolor=INK, color=PALE, length=2)
    bar.set_label(label, color=INK, fontsize=10)
