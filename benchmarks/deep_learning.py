"""How fast are networks, beside loops in PyTorch written by hand, and is it the same model? Processor time, one thread.

    python benchmarks/deep_learning.py [--turns 5] [--only CNN] [--fashion FOLDER] [--write]

Four networks: McMahan's CNN, a small ResNet with group normalisation (no statistics of batches), a perceptron, and a
transformer of two layers that reads 32 characters and says each next one. Images are synthetic ones of FEMNIST's shape
(28 x 28, 62 classes, 60 writers of 20 to 400 rows, classes skewed) and, with --fashion, Fashion-MNIST over 60 agents
(Dirichlet, 0.3); characters are those of the project's own pages, an agent a page. FedAvg, 5 agents a round, 10 steps
on batches of 20.

First five rounds are run in fedpoint, which notes the rows of every batch; the loop by hand takes the same ones, and
the largest difference of the two models is told, beside the largest number. Then both are timed in turn, after a
warm-up: the median of the ratios of neighbouring measurements. Above 1 fedpoint takes less.

Targets, written down before the first measurement: CNN and ResNet 0.7 (goal 0.9), perceptron 2, transformer 1.0.
--write puts the rows into DEEP_LEARNING.md, with commit and load. --double tells how far the models are apart in double
precision: differences of single precision that it does not have are rounding, which training makes larger.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["OMP_NUM_THREADS"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
import torch
from measured_at import measured_at
from torch import Tensor, nn
from torch.nn import functional as F

import fedpoint as fp

AGENTS, A_ROUND, STEPS, BATCH, ROUNDS = 60, 5, 10, 20, 5
LENGTH, WIDTH, HEADS, LAYERS = 32, 64, 4, 2
PAGE = Path(__file__).with_name("DEEP_LEARNING.md")
Params = dict[str, np.ndarray]


class Rows(NamedTuple):
    """Rows, their agents, and how many classes there are."""

    x: np.ndarray
    y: np.ndarray
    who: np.ndarray
    classes: int


class Kind(NamedTuple):
    """A network in JAX and in PyTorch: where it starts, what it says, and the module that says the same."""

    start: Callable[[np.random.Generator, int], Params]
    predict: Callable[[Params, jax.Array], jax.Array]
    module: Callable[[int], nn.Module]
    step: float
    target: float


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype("f")


# In JAX: names are those of the module's parameters.


def cnn_start(rng: np.random.Generator, classes: int) -> Params:
    kernels = {"0": drawn(rng, 5, 5, 1, 32), "3": drawn(rng, 5, 5, 32, 64)}
    kernels |= {"7": drawn(rng, 3136, 512), "9": drawn(rng, 512, classes)}
    return {f"{n}.weight": k for n, k in kernels.items()} | {
        f"{n}.bias": np.zeros(k.shape[-1], "f") for n, k in kernels.items()
    }


def convolved(w: Params, name: str, x: jax.Array, stride: int = 1) -> jax.Array:
    kernel = w[f"{name}.weight"]
    pad = [(kernel.shape[0] // 2,) * 2] * 2
    x = jax.lax.conv_general_dilated(x, kernel, (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return x + w[f"{name}.bias"] if f"{name}.bias" in w else x


def dense(w: Params, name: str, x: jax.Array) -> jax.Array:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def cnn(w: Params, x: jax.Array) -> jax.Array:
    for name in ("0", "3"):
        x = jax.nn.relu(convolved(w, name, x))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return dense(w, "9", jax.nn.relu(dense(w, "7", x.reshape(len(x), -1))))


WIDTHS = ((16, 16, 1), (16, 32, 2), (32, 64, 2))


def resnet_start(rng: np.random.Generator, classes: int) -> Params:
    w = {
        "first.weight": drawn(rng, 3, 3, 1, 16),
        "said.weight": drawn(rng, 64, classes),
        "said.bias": np.zeros(classes, "f"),
    }
    for i, (before, after, stride) in enumerate(WIDTHS):
        w |= {
            f"blocks.{i}.one.weight": drawn(rng, 3, 3, before, after),
            f"blocks.{i}.two.weight": drawn(rng, 3, 3, after, after),
        }
        for name, width in (("a", before), ("b", after)):
            w |= {f"blocks.{i}.{name}.weight": np.ones(width, "f"), f"blocks.{i}.{name}.bias": np.zeros(width, "f")}
        if stride > 1:
            w[f"blocks.{i}.skip.weight"] = drawn(rng, 1, 1, before, after)
    return w


def grouped(w: Params, name: str, x: jax.Array) -> jax.Array:
    """Means over places first: XLA takes three times as long for places and channels of a group at once."""

    def mean(x: jax.Array) -> jax.Array:
        groups = x.mean((1, 2)).reshape(len(x), 4, -1).mean(-1)
        return jnp.repeat(groups, x.shape[-1] // 4, axis=1)[:, None, None]

    apart = x - mean(x)
    return apart * jax.lax.rsqrt(mean(jnp.square(apart)) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def resnet(w: Params, x: jax.Array) -> jax.Array:
    x = convolved(w, "first", x)
    for i, (_, _, stride) in enumerate(WIDTHS):
        inner = jax.nn.relu(grouped(w, f"blocks.{i}.a", x))
        skip = convolved(w, f"blocks.{i}.skip", inner, stride) if stride > 1 else x
        inner = convolved(w, f"blocks.{i}.one", inner, stride)
        x = skip + convolved(w, f"blocks.{i}.two", jax.nn.relu(grouped(w, f"blocks.{i}.b", inner)))
    return dense(w, "said", x.mean((1, 2)))


def mlp_start(rng: np.random.Generator, classes: int) -> Params:
    kernels = {"1": drawn(rng, 784, 200), "3": drawn(rng, 200, classes)}
    return {f"{n}.weight": k for n, k in kernels.items()} | {
        f"{n}.bias": np.zeros(k.shape[-1], "f") for n, k in kernels.items()
    }


def mlp(w: Params, x: jax.Array) -> jax.Array:
    return dense(w, "3", jax.nn.relu(dense(w, "1", x.reshape(len(x), -1))))


def transformer_start(rng: np.random.Generator, classes: int) -> Params:
    w = {name: rng.normal(size=(n, WIDTH)).astype("f") for name, n in (("letters", classes), ("places", LENGTH))}
    w = {f"{name}.weight": array for name, array in w.items()} | {"said.weight": drawn(rng, WIDTH, classes)}
    w["said.bias"] = np.zeros(classes, "f")
    for i in range(LAYERS):
        shapes = {
            "mixed": (WIDTH, 3 * WIDTH),
            "joined": (WIDTH, WIDTH),
            "up": (WIDTH, 4 * WIDTH),
            "down": (4 * WIDTH, WIDTH),
        }
        for name, shape in shapes.items():
            w |= {f"blocks.{i}.{name}.weight": drawn(rng, *shape), f"blocks.{i}.{name}.bias": np.zeros(shape[1], "f")}
        for name in ("a", "b"):
            w |= {f"blocks.{i}.{name}.weight": np.ones(WIDTH, "f"), f"blocks.{i}.{name}.bias": np.zeros(WIDTH, "f")}
    return w


def normed(w: Params, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    spread = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(spread + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def transformer(w: Params, x: jax.Array) -> jax.Array:
    n, (short, heads) = len(x), (LENGTH, HEADS)
    x = w["letters.weight"][x] + w["places.weight"]
    seen = jnp.tril(jnp.ones((short, short), bool))
    for i in range(LAYERS):
        parts = dense(w, f"blocks.{i}.mixed", normed(w, f"blocks.{i}.a", x)).reshape(n, short, 3, heads, WIDTH // heads)
        q, k, v = (parts[:, :, j].swapaxes(1, 2) for j in range(3))
        scores = q @ k.swapaxes(2, 3) / np.float32(np.sqrt(WIDTH // heads))
        told = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v
        x = x + dense(w, f"blocks.{i}.joined", told.swapaxes(1, 2).reshape(n, short, WIDTH))
        x = x + dense(w, f"blocks.{i}.down", jax.nn.relu(dense(w, f"blocks.{i}.up", normed(w, f"blocks.{i}.b", x))))
    return dense(w, "said", x)


# In PyTorch.


def cnn_module(classes: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
    ]
    layers += [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, classes)]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.GroupNorm(4, before), nn.GroupNorm(4, after)
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.a(x))
        skip = x if self.skip is None else self.skip(inner)
        return skip + self.two(F.relu(self.b(self.one(inner))))


class ResNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*(Residual(*widths) for widths in WIDTHS))
        self.said = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.said(self.blocks(self.first(x)).mean((2, 3)))


def mlp_module(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, classes))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        parts = self.mixed(self.a(x)).view(n, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        told = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.joined(told.transpose(1, 2).reshape(n, LENGTH, WIDTH))
        return x + self.down(F.relu(self.up(self.b(x))))


class Transformer(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(classes, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Attention() for _ in range(LAYERS)))
        self.said = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.said(self.blocks(self.letters(x) + self.places.weight))


KINDS = {
    "CNN": Kind(cnn_start, cnn, cnn_module, 0.05, 0.7),
    "ResNet": Kind(resnet_start, resnet, ResNet, 0.05, 0.7),
    "MLP": Kind(mlp_start, mlp, mlp_module, 0.05, 2.0),
    "transformer": Kind(transformer_start, transformer, Transformer, 0.1, 1.0),
}


def as_module(name: str, array: np.ndarray) -> Tensor:
    """A parameter as PyTorch lays it out: kernels (out, in, h, w), matrices (out, in); images by channel."""
    if array.ndim == 4:
        array = array.transpose(3, 2, 0, 1)
    elif len(array) == 3136:
        array = array.reshape(7, 7, 64, -1).transpose(3, 2, 0, 1).reshape(-1, 3136)
    elif array.ndim == 2 and name.split(".")[0] not in ("letters", "places"):
        array = array.T
    return torch.from_numpy(np.array(array, order="C"))


# Rows.


def synthetic() -> Rows:
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(4.6, 0.7, AGENTS), 20, 400).astype(int)
    shares = rng.dirichlet(np.full(62, 0.3), AGENTS)
    y = np.concatenate([rng.choice(62, size, p=share) for size, share in zip(sizes, shares, strict=True)])
    means = rng.normal(size=(62, 28, 28, 1))
    x = (means[y] + rng.normal(size=(len(y), 28, 28, 1))).astype("f")
    return Rows(x, y, np.repeat(np.arange(AGENTS), sizes), 62)


def fashion(folder: Path) -> Rows:
    data = fp.data.fashion_mnist(folder)
    x, y = np.asarray(data.X[:10000], "f").reshape(-1, 28, 28, 1), np.asarray(data.y[:10000]).astype(int)
    return Rows(x, y, fp.data.partition(y, "dirichlet", AGENTS, alpha=0.3), 10)


def characters() -> Rows:
    """Pieces of the pages of docs/, and the next character of each."""
    texts = [path.read_text() for path in sorted(PAGE.parents[1].glob("docs/*.md"))]
    letters = sorted(set("".join(texts)))
    known = [letter for letter in letters if sum(text.count(letter) for text in texts) > 20]
    place = {letter: i + 1 for i, letter in enumerate(known)}  # rare ones are one
    codes = [np.array([place.get(letter, 0) for letter in text]) for text in texts]
    pieces = [code[: len(code) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)[:400] for code in codes]
    whole = np.concatenate(pieces)
    return Rows(
        whole[:, :-1].copy(),
        whole[:, 1:].copy(),
        np.repeat(np.arange(len(pieces)), [len(p) for p in pieces]),
        len(known) + 1,
    )


class Noted(fp.data.StoredRows):
    """Rows in memory that note who asked for which."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.count, self.batches = rows, len(rows.y), list[np.ndarray]()

    def read(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(at) == BATCH:
            self.batches.append(np.array(at))
        return self.rows.x[at], self.rows.y[at]


class ByHand:
    """Rounds of federated averaging, as one writes them in PyTorch."""

    def __init__(self, kind: Kind, rows: Rows, start: Params) -> None:
        self.module, self.kind, self.rows = kind.module(rows.classes), kind, rows
        if next(iter(start.values())).dtype == np.float64:
            self.module.double()
        self.common = {name: as_module(name, array) for name, array in start.items()}
        self.module.load_state_dict(self.common)
        x = rows.x.transpose(0, 3, 1, 2) if rows.x.ndim == 4 else rows.x
        self.x, self.y = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(rows.y)
        self.shares = np.bincount(rows.who) / len(rows.who)

    def round(self, agents: list[list[np.ndarray]]) -> None:
        """agents: of each the rows of its batches."""
        change = {name: torch.zeros_like(p) for name, p in self.common.items()}
        for batches in agents:
            self.module.load_state_dict(self.common)
            for at in batches:
                self.module.zero_grad()
                said = self.module(self.x[at])
                F.cross_entropy(said.reshape(-1, said.shape[-1]), self.y[at].reshape(-1)).backward()
                with torch.no_grad():
                    for p in self.module.parameters():
                        assert p.grad is not None
                        p -= self.kind.step * p.grad
            weight = self.shares[self.rows.who[batches[0][0]]] * len(self.shares) / A_ROUND
            for name, p in self.module.state_dict().items():
                change[name] += weight * (p - self.common[name])
        self.common = {name: p + change[name] for name, p in self.common.items()}

    def some(self, rng: np.random.Generator) -> None:
        """A round of batches that are drawn on the spot."""
        chosen = rng.choice(len(self.shares), A_ROUND, replace=False)
        own = [np.flatnonzero(self.rows.who == k) for k in chosen]
        self.round([[rng.choice(rows, BATCH) for _ in range(STEPS)] for rows in own])


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


class Measured(NamedTuple):
    """ms a step, the median ratio, and how far the models are apart after five rounds."""

    own: float
    hand: float
    ratio: float
    apart: float
    largest: float
    engine: str


METHOD_OPTIONS = {"participation": A_ROUND, "record_every": 10**6}


def problem_of(kind: Kind, rows: Rows, start: Params, stored: Noted | None = None) -> fp.problems.Loss:
    def loss(w: Params, batch: tuple) -> jax.Array:
        said = jax.nn.log_softmax(kind.predict(w, batch[0]))
        return -jnp.mean(jnp.take_along_axis(said, batch[1][..., None], -1))

    return fp.problems.Loss(loss, start, stored or (rows.x, rows.y), rows.who, batch=BATCH)


def begin(kind: Kind, rows: Rows, double: bool) -> tuple[Rows, Params]:
    """Rows and a start, in this precision."""
    real = np.dtype("d" if double else "f")
    x = rows.x.astype(real) if rows.x.dtype.kind == "f" else rows.x
    start = kind.start(np.random.default_rng(1), rows.classes)
    return rows._replace(x=x), {name: array.astype(real) for name, array in start.items()}


def apart(kind: Kind, rows: Rows, double: bool) -> tuple[float, float]:
    """How far the two models are apart after rounds of the same batches, and the largest number."""
    rows, start = begin(kind, rows, double)
    noted, method = Noted(rows), fp.FedAvg(step=kind.step, local_steps=STEPS)
    told = fp.run(method, problem_of(kind, rows, start, noted), ROUNDS, **METHOD_OPTIONS)
    hand = ByHand(kind, rows, start)
    agents = [noted.batches[i : i + STEPS] for i in range(0, len(noted.batches), STEPS)]
    assert len(agents) == ROUNDS * A_ROUND
    for i in range(0, len(agents), A_ROUND):
        hand.round(agents[i : i + A_ROUND])
    found = {name: as_module(name, array[0]).numpy() for name, array in told.session.model().items()}
    gap = max(float(np.abs(found[name] - p.numpy()).max()) for name, p in hand.common.items())
    return gap, max(float(p.abs().max()) for p in hand.common.values())


def measure(kind: Kind, rows: Rows, turns: int) -> Measured:
    rows, start = begin(kind, rows, double=False)
    method, hand = fp.FedAvg(step=kind.step, local_steps=STEPS), ByHand(kind, rows, start)
    run = fp.run(method, problem_of(kind, rows, start), 2, **METHOD_OPTIONS)
    rng, pairs = np.random.default_rng(2), []
    hand.some(rng)
    for _ in range(turns):
        longer = int(run.session.round) + 1
        pairs.append((seconds(lambda: run.session.advance(longer)), seconds(lambda: hand.some(rng))))  # noqa: B023
    own, by_hand = (1e3 * statistics.median(column) / (A_ROUND * STEPS) for column in zip(*pairs, strict=True))
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    return Measured(own, by_hand, ratio, *apart(kind, rows, double=False), run.engine)


HEAD = """# Networks beside loops in PyTorch

`python benchmarks/deep_learning.py --fashion FOLDER --write`: milliseconds of processor time a local step (batches of
20) on one thread, both measured in turn; the ratio is the median of neighbours, above 1 fedpoint takes less. "Apart" is
the largest difference of the two models after five rounds of the same batches, in single precision, beside their
largest number. The targets were written down before the first measurement.

In double precision the models of the CNN are 4.5e-13 apart, those of the transformer 2.2e-15 and those of the ResNet
2.2e-16 (`--only CNN --double`). What remains in single precision is therefore rounding, which training at
these steps enlarges.

| network, rows | fedpoint | by hand | ratio | target | apart, of | commit, load |
|---|---|---|---|---|---|---|
"""


def written(name: str, found: Measured, target: float) -> None:
    """The row of this name in the page, in the place of an earlier one."""
    cells = [name, *(f"{number:.2f}" for number in found[:3]), f"{target}", f"{found.apart:.1e}, {found.largest:.2g}"]
    row = f"| {' | '.join([*cells, measured_at()])} |"
    lines = PAGE.read_text().splitlines() if PAGE.exists() else HEAD.splitlines()
    kept = [line for line in lines if not line.startswith(f"| {name} |")]
    PAGE.write_text("\n".join([*kept, row]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--fashion", type=Path, help="the folder with the four files of Fashion-MNIST")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--double", action="store_true", help="only how far the models are apart, in double precision")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    images = {"FEMNIST's shape": synthetic()}
    if asked.fashion is not None:
        images["Fashion-MNIST"] = fashion(asked.fashion)
    for name, kind in KINDS.items():
        if asked.only not in (None, name):
            continue
        for where, rows in ({"characters": characters()} if name == "transformer" else images).items():
            if asked.double:
                print(
                    "{}, {}: apart {:.1e} of {:.2g} in double precision".format(name, where, *apart(kind, rows, True))
                )
                continue
            found = measure(kind, rows, asked.turns)
            print(
                f"{name}, {where}: {found.own:.2f} ms, by hand {found.hand:.2f}, ratio {found.ratio:.2f} "
                f"(target {kind.target}); apart {found.apart:.1e} of {found.largest:.2g}; {found.engine}",
                flush=True,
            )
            if asked.write:
                written(f"{name}, {where}", found, kind.target)


if __name__ == "__main__":
    main()
