"""Trees, a forest, boosting and neighbours at the nodes of a small network of two clusters.

Each node has few rows. It could fit alone; with all the others' rows, which belong to two different laws; or alone
and to what its neighbours predict on points without labels (FedRelax for any model): no row ever leaves its node.

Run it: python examples/any_model.py [picture.png]
"""

import sys

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

import fedpoint as fp

NODES, ROWS, NOISE = 8, 25, 0.4
KINDS = [
    DecisionTreeRegressor(max_depth=5, random_state=0),
    RandomForestRegressor(50, random_state=0),
    GradientBoostingRegressor(n_estimators=60, random_state=0),
    KNeighborsRegressor(4),
]


def law(X: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """What the clusters have in common is the wave; in the slope they differ."""
    return np.sin(2 * X[:, 0]) + np.where(cluster == 0, 1.0, -1.0) * X[:, 1]


def draw(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes = np.repeat(np.arange(NODES), rows)
    X = rng.uniform(-2, 2, (len(nodes), 2))
    return X, law(X, nodes // 4), nodes


def main(path: str = "any_model.png") -> None:
    rng = np.random.default_rng(0)
    X, y, nodes = draw(rng, ROWS)
    y = y + NOISE * rng.normal(size=len(y))
    new, truth, whose = draw(rng, 400)
    points = rng.uniform(-2, 2, (200, 2))

    within = [(i, j) for i in range(NODES) for j in range(i) if i // 4 == j // 4]
    net = fp.Network.from_edges([*within, (3, 4)], weights=[1.0] * len(within) + [0.05])
    models = [KINDS[i % 4] for i in range(NODES)]
    task = fp.problems.AnyModel(X, y, groups=nodes, models=models, shared=points)
    run = fp.run(fp.FedRelax(coupling=1.0), task, network=net, rounds=8, evaluate=(new, truth, whose))

    alone = [clone(model).fit(X[nodes == i], y[nodes == i]) for i, model in enumerate(models)]
    pooled = [clone(model).fit(X, y) for model in models]
    rows = []
    for i in range(NODES):
        mine = whose == i
        fits = [alone[i].predict(new[mine]), run.predict(new[mine], groups=whose[mine]), pooled[i].predict(new[mine])]
        rows.append([((fit - truth[mine]) ** 2).mean() for fit in fits])
    print("mean squared error on new rows\n")
    print(f"{'node':<6}{'model':<28}{'alone':>8}{'coupled':>9}{'pooled':>8}")
    for i, row in enumerate(rows):
        print(f"{i:<6}{type(models[i]).__name__:<28}{row[0]:8.3f}{row[1]:9.3f}{row[2]:8.3f}")
    for cluster in range(2):
        mean = np.mean(rows[4 * cluster : 4 * cluster + 4], axis=0)
        print(f"{f'cluster {cluster}':<34}{mean[0]:8.3f}{mean[1]:9.3f}{mean[2]:8.3f}")
    print(f"\n{run.cost.messages_up:.0f} messages of {len(points)} predictions; no row has left its node")
    run.plot(path, what="mse", title="Nodes with different models, coupled by predictions")
    print(f"picture: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
