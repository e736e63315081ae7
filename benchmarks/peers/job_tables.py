"""The rows of the jobs that are not streams: whose row is it, and where do models start?"""

from __future__ import annotations

import numpy as np

Table = tuple[np.ndarray, np.ndarray, np.ndarray]  # X, y, and whose row it is
CLASSES = {"network": 10, "images": 62, "text": 40}
LINE, WIDTH, LAYERS = 32, 64, 2  # letters of a line, and of the transformer its width and depth


def table(data: str, agents: int) -> Table:
    if data == "loans":
        return loans()
    if data == "images":
        return images(agents)
    if data == "text":
        return text(agents)
    X, y, groups = digits(agents, even=data == "network")
    if data == "noisy digits":  # as many pixels are white, many numbers of a change would be equal
        X = X + 0.01 * np.random.default_rng(5).standard_normal(X.shape)
    return X, y, groups


def digits(agents: int, even: bool) -> Table:
    """Digits (X / 16), their labels, and whose row it is: even, or Dirichlet(0.1) by label and a column of ones."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = X / 16.0, y.astype(np.int64)
    rng = np.random.default_rng(0)
    if even:
        each = len(y) // agents
        rows = rng.permutation(len(y))[: each * agents]
        return X[rows].astype(np.float32), y[rows], np.repeat(np.arange(agents), each)
    X, groups = np.column_stack([X, np.ones(len(X))]), np.empty(len(y), np.int64)
    for c in range(10):
        rows = rng.permutation(np.flatnonzero(y == c))
        cuts = np.round(np.cumsum(rng.dirichlet(np.full(agents, 0.1)))[:-1] * len(rows)).astype(int)
        for k, part in enumerate(np.split(rows, cuts)):
            groups[part] = k
    sizes = np.bincount(groups, minlength=agents)
    for empty in np.flatnonzero(sizes == 0):  # nobody is without rows
        giver = int(sizes.argmax())
        groups[np.flatnonzero(groups == giver)[0]] = empty
        sizes[giver], sizes[empty] = sizes[giver] - 1, 1
    return X, y, groups


def images(agents: int, each: int = 200) -> Table:
    """Of FEMNIST's shape, synthetic: a class is a mean and noise, and every writer writes some classes more often."""
    rng = np.random.default_rng(2)
    classes = CLASSES["images"]
    shares = rng.dirichlet(np.full(classes, 0.5), agents)
    y = np.concatenate([rng.choice(classes, each, p=share) for share in shares])
    means = rng.standard_normal((classes, 28, 28, 1))
    X = (means[y] + rng.standard_normal((len(y), 28, 28, 1))).astype(np.float32)
    return X, y, np.repeat(np.arange(agents), each)


def text(agents: int, each: int = 100) -> Table:
    """Lines of letters and the letters that follow, synthetic: a letter depends on the one before, and everybody has a
    dialect."""
    rng = np.random.default_rng(3)
    letters = CLASSES["text"]
    common = rng.dirichlet(np.full(letters, 0.1), letters)
    dialects = 0.8 * common + 0.2 * rng.dirichlet(np.full(letters, 0.1), (agents, letters))
    sums, groups = dialects.cumsum(-1), np.repeat(np.arange(agents), each)
    lines = np.empty((agents * each, LINE + 1), np.int64)
    lines[:, 0] = rng.integers(letters, size=len(lines))
    for t in range(LINE):
        beyond = rng.random(len(lines))[:, None] > sums[groups, lines[:, t]]
        lines[:, t + 1] = np.minimum(beyond.sum(1), letters - 1)
    return lines[:, :-1], lines[:, 1:], groups


def loans() -> Table:
    """Which of 9,857 loans turn bad? Columns scaled, and a column of ones; a state is an agent."""
    import fedpoint as fp

    table = fp.data.lending_club()
    X = np.asarray(table.X, float)
    X = np.column_stack([(X - X.mean(0)) / X.std(0), np.ones(len(X))])
    groups = np.unique(np.asarray(table.groups), return_inverse=True)[1]
    rows = np.argsort(groups, kind="stable")
    return X[rows], np.asarray(table.y)[rows].astype(np.int64), groups[rows]


def start(data: str, size: int) -> dict[str, np.ndarray]:
    """Where the networks begin: random numbers as large as one divided by the root of those that are summed."""
    rng, classes = np.random.default_rng(1), CLASSES[data]
    shapes: dict[str, tuple[int, ...]]
    if data == "images":
        shapes = {"c1": (5, 5, 1, 32), "c2": (5, 5, 32, 64), "d1": (3136, 512), "d2": (512, classes)}
        shapes |= {f"b{name}": shape[-1:] for name, shape in shapes.items()}
    elif data == "text":
        shapes = {"letters": (classes, WIDTH), "places": (LINE, WIDTH), "out": (WIDTH, classes)}
        for n in range(LAYERS):
            shapes |= {f"look{n}": (WIDTH, 3 * WIDTH), f"join{n}": (WIDTH, WIDTH)}
            shapes |= {f"up{n}": (WIDTH, 4 * WIDTH), f"down{n}": (4 * WIDTH, WIDTH)}
    else:
        shapes = {"w1": (64, size), "b1": (size,), "w2": (size, classes), "b2": (classes,)}
    return {
        n: (rng.standard_normal(s) / np.prod(s[:-1]) ** 0.5 * (len(s) > 1)).astype(np.float32)
        for n, s in shapes.items()
    }
