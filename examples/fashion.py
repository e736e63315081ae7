"""A small neural network on Fashion-MNIST: 100 agents, each with few of the ten kinds of clothes.

784-64-10 in single precision, 10 agents a round, 20 local steps on 20 pictures each. FedAvg and SCAFFOLD, and with as
many gradients SGD on all pictures in one place: what federated training costs. Then who is served how: an agent's
accuracy is that on the kinds it holds.

Run it: python examples/fashion.py [picture.png]      (needs Debian's package dataset-fashion-mnist)
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp
from fedpoint.data.images import CLOTHES
from fedpoint.show.figures import COLOURS, Line, draw, new_figure, save, style

AGENTS, PARTICIPANTS, ROUNDS, LOCAL_STEPS, BATCH, STEP, HIDDEN = 100, 10, 200, 20, 20, 0.1, 64
CONCENTRATION = 0.3  # of Dirichlet's distribution: small is uneven
LAST = 5


def uneven(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whose picture it is: every kind is shared out by Dirichlet's distribution."""
    owner = np.empty(len(labels), int)
    for kind in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == kind))
        shares = rng.dirichlet(np.full(AGENTS, CONCENTRATION))
        cuts = (np.cumsum(shares)[:-1] * len(rows)).round().astype(int)
        for agent, part in enumerate(np.split(rows, cuts)):
            owner[part] = agent
    return owner


def network(rng: np.random.Generator) -> dict[str, np.ndarray]:
    first, second = (rng.normal(size=s) * np.sqrt(2 / s[0]) for s in ((784, HIDDEN), (HIDDEN, 10)))
    zero = np.zeros(HIDDEN), np.zeros(10)
    return {k: np.asarray(v, np.float32) for k, v in zip("AaBb", (first, zero[0], second, zero[1]), strict=True)}


def scores(w, x):
    return jax.nn.relu(x @ w["A"] + w["a"]) @ w["B"] + w["b"]


def loss(w, batch):
    x, y = batch
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(w, x)), y[:, None], axis=1).mean()


def main(path: str = "fashion.png") -> None:
    data = fp.data.fashion_mnist()
    print(data, data.licence, sep="\n")
    rng = np.random.default_rng(0)
    train, test = data.rows(~data.extra["test"]), data.rows(data.extra["test"])
    owner, start = uneven(train.y, rng), network(rng)
    held = np.stack([np.bincount(train.y[owner == k], minlength=10) for k in np.unique(owner)])
    kinds = (held >= 0.05 * held.sum(1, keepdims=True)).sum(1)
    print(
        f"{len(held)} agents with {held.sum(1).min()} to {held.sum(1).max()} pictures, of {kinds.mean():.1f} kinds each"
    )
    print("(kinds that are 5 % of an agent's pictures or more)\n")

    rows = (train.X, train.y.astype(np.int32))
    predict = jax.jit(lambda w: scores(w, test.X).argmax(1))

    def measure(w) -> dict[str, float]:
        return {"accuracy": float((np.asarray(predict(w)) == test.y).mean())}

    spread_out = fp.problems.Loss(loss, start, rows, groups=owner, batch=BATCH)
    # In one place, 10 agents' batches are one batch: as many steps, and as many gradients, as theirs.
    together = fp.problems.Loss(loss, start, rows, batch=BATCH * PARTICIPANTS)
    cases = {
        "pooled SGD": (fp.FedAvg(step=STEP, local_steps=LOCAL_STEPS), together, None),
        "FedAvg": (fp.FedAvg(step=STEP, local_steps=LOCAL_STEPS), spread_out, PARTICIPANTS),
        "SCAFFOLD": (fp.Scaffold(step=STEP, local_steps=LOCAL_STEPS), spread_out, PARTICIPANTS),
    }
    share = held / held.sum(1, keepdims=True)
    runs, served = {}, {}
    print(f"means over the last {LAST} recorded models, every tenth round")
    head = ("accuracy", "from ... to", "worst tenth of agents", "hardest kind", "seconds")
    print(f"{'method':<12}" + "".join(f"{h:>{w}}" for h, w in zip(head, (10, 18, 24, 15, 9), strict=True)))
    for name, (algorithm, problem, participation) in cases.items():
        begin = time.perf_counter()
        runs[name] = run = fp.run(
            algorithm, problem, rounds=ROUNDS, participation=participation, record_every=10, evaluate=measure, seed=1
        )
        seconds = time.perf_counter() - begin
        each, hard = [], []  # a single model of a noisy run says little: the mean over the last ones
        for i in range(-LAST, 0):
            right = np.asarray(predict(jax.tree.map(lambda a, i=i: a[0, i], run.history))) == test.y
            hard.append([right[test.y == kind].mean() for kind in range(10)])
            each.append(share @ np.array(hard[-1]))
        served[name] = np.mean(each, axis=0)
        curve = run.evaluation["accuracy"][0][-LAST:]
        worst = np.sort(served[name])[: len(held) // 10].mean()
        few = f"{curve.min():.3f} to {curve.max():.3f}"
        least = int(np.argmin(np.mean(hard, axis=0)))
        kind = f"{CLOTHES[least]} {np.mean(hard, axis=0)[least]:.2f}"
        print(f"{name:<12}{curve.mean():10.3f}{few:>18}{worst:24.3f}{kind:>15}{seconds:9.1f}")
    picture(runs, served, path)
    print(f"picture: {path}")


def picture(runs: dict, served: dict, path: str) -> None:
    figure = new_figure(10.5, 4.3)
    left, right = figure.subplots(1, 2)
    lines = [
        Line(run.evaluated_rounds, run.evaluation["accuracy"][0], name, COLOURS[i])
        for i, (name, run) in enumerate(runs.items())
    ]
    draw(left, lines, log=False)
    style(left, "communication rounds", "accuracy on held-out pictures", "784-64-10 on Fashion-MNIST")
    left.set_ylim(0.7, 0.88)
    lines = [
        Line(np.arange(1, len(each) + 1), np.sort(each), name, COLOURS[i])
        for i, (name, each) in enumerate(served.items())
    ]
    draw(right, lines, log=False)
    style(right, "agents, from the worst served on", "accuracy on the kinds an agent holds", "Who is served how")
    save(figure, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
