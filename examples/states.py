"""Output of 48 US states on the graph of their borders: local, pooled and coupled models, years held out.

Munnell's production function. Fitted to 1970-81, tested in 1982-86; ridge and coupling are chosen by 1978-81 alone.
Twice: as they are, as in `fedpoint lab states`, and with a ridge of its own for every competitor.

Run it: python examples/states.py [picture.png]      (needs the extra data: pip install 'fedpoint[data]')
"""

import sys

import numpy as np

import fedpoint as fp


def main(path: str = "states.png") -> None:
    data = fp.data.produc()
    print(data, data.licence, sep="\n", end="\n\n")
    options = {"groups": data.groups, "network": data.network, "time": data.year}

    plain = fp.baselines(data.X, data.y, **options)
    print("AS THEY ARE", plain, sep="\n", end="\n\n")
    tuned = fp.baselines(data.X, data.y, **options, ridge="tuned")
    print("EVERYBODY WITH A RIDGE OF ITS OWN", tuned, sep="\n", end="\n\n")

    # Is it the neighbours, or anybody? The same states, exchanged at random on the map.
    rng = np.random.default_rng(0)
    others = []
    for _ in range(10):
        net = data.network
        moved = fp.Network(rng.permutation(net.nodes)[net.edges], net.weights, net.names)
        found = fp.baselines(data.X, data.y, **{**options, "network": moved}, methods=["coupled"], ridge="tuned")
        others.append(found.error("coupled")[0])
    own = tuned.error("coupled")[0]
    print(f"coupled with neighbours {own:.4f}, with states exchanged at random {min(others):.4f} to {max(others):.4f}:")
    print(f"{sum(other > own for other in others)} of {len(others)} exchanged maps are worse")
    tuned.plot(path, title="Log output of states, 1982 to 1986")
    print(f"picture: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
