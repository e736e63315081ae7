"""The engine's pieces for networks: messages kept and found again, neighbours summed over padded groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.graphs.wiring import hear, inbox_of, newest, rebased, wire
from fedpoint.timing.mail import deepen, look, open_mail, post


def random_weights(net, seed=0):
    weights = np.random.default_rng(seed).uniform(0.2, 2.0, len(net.weights))
    return fp.Network(net.edges, weights, net.names)


NETWORKS = {
    "star": random_weights(fp.Network.star(200)),  # one node with 199 neighbours, 199 with one
    "hub": random_weights(fp.Network.star(40)),
    "ring": random_weights(fp.Network.ring(9)),
    "isolated": fp.Network.from_edges([(1, 2), (2, 4), (2, 5)], [1.0, 0.5, 2.0], nodes=8),  # 0, 3, 6 and 7 have no edge
    "alone": fp.Network.from_edges([], nodes=3),
    "mixed": random_weights(fp.Network.random(40, 5, seed=2), seed=3),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


# Mail.


def test_mail_finds_what_was_said_when():
    """Random sequences of messages, against a dictionary that forgets nothing."""
    rng = np.random.default_rng(0)
    N, D = 4, 5
    with jax.enable_x64(True):
        send, find = jax.jit(post), jax.jit(look)
        first = rng.standard_normal((N, 2))
        mail = open_mail({"w": jnp.asarray(first)}, D)
        said = [{0: first[i]} for i in range(N)]
        for version in range(1, 20):
            sender = rng.permutation(N)[:3]
            speaks = rng.random(3) < 0.6
            value = rng.standard_normal((3, 2))
            mail = send(mail, jnp.asarray(sender), jnp.asarray(speaks), {"w": jnp.asarray(value)}, version)
            for i, yes, w in zip(sender, speaks, value, strict=True):
                if yes:
                    said[i][version] = w
            for i in range(N):
                for asked in range(version % 3, version + 1, 3):
                    known = sorted(v for v in said[i] if v <= asked)
                    if len([v for v in said[i] if v > known[-1]]) < D:  # among the last D
                        found = find(mail, jnp.asarray([i]), jnp.asarray([asked]))["w"][0]
                        np.testing.assert_array_equal(found, said[i][known[-1]])
        deeper = deepen(mail, 8)
        assert deeper.stamp.shape == (N, 8) and deeper.value["w"].shape == (N, 8, 2)
        for i in range(N):
            for v in sorted(said[i])[-D:]:
                np.testing.assert_array_equal(find(deeper, jnp.asarray([i]), jnp.asarray([v]))["w"][0], said[i][v])
        assert deepen(mail, 3) is mail and deepen((), 3) == ()


def test_mail_of_depth_one_holds_the_newest():
    with jax.enable_x64(True):
        mail = open_mail(jnp.zeros((3, 2)), 1)
        mail = post(mail, jnp.asarray([2, 0]), jnp.asarray([True, False]), jnp.ones((2, 2)), 1)
        np.testing.assert_array_equal(newest(mail, 1), [[0, 0], [0, 0], [1, 1]])
        assert mail.stamp == () and deepen(mail, 4) is mail


# Wiring.


@every_network
def test_groups_pad_little_and_hold_every_arc_once(name):
    net = NETWORKS[name]
    wiring, wires = wire(net, 1)
    assert wiring.arcs == 2 * len(net.edges)
    held = sum(int(np.count_nonzero(group.weight)) for group in wires.groups)
    padded = sum(group.weight.size for group in wires.groups)
    assert held == 2 * len(net.edges)
    assert padded <= 2 * max(2 * len(net.edges), 1) + net.nodes
    assert sorted(np.asarray(wires.order).tolist()) == list(range(net.nodes))


@pytest.mark.parametrize(
    "name",
    ["hub", "ring", "isolated", *(pytest.param(name, marks=pytest.mark.slow) for name in ("star", "alone", "mixed"))],
)
def test_neighbours_are_summed_whatever_the_groups(name):
    """sum_j A_ij m_j for all nodes and for some, fresh and with an age for every arc, against the dense matrix."""
    net = NETWORKS[name]
    K, arcs, rng = net.nodes, net.arcs, np.random.default_rng(1)
    A = net.adjacency.toarray()
    versions = rng.standard_normal((5, K, 2))  # what everybody said in four ticks
    ages = rng.integers(5, size=max(len(arcs.says), 1)).astype(np.int32)
    some = rng.permutation(K)[: min(K, 6)].astype(np.int32)
    with jax.enable_x64(True):
        shallow = open_mail(jnp.asarray(versions[4]), 1)
        deep = open_mail(jnp.asarray(versions[0]), 8)
        for v in range(1, 5):
            deep = post(deep, jnp.arange(K), jnp.ones(K, bool), jnp.asarray(versions[v]), v)
        table = jnp.asarray(ages)

        def age(arc, says):
            return table[arc]

        late = np.zeros((K, 2))
        for n, (i, j) in enumerate(zip(arcs.hears, arcs.says, strict=True)):
            late[i] += arcs.weight[n] * versions[4 - ages[n], j]
        for mail, depth, expected in ((shallow, 1, A @ versions[4]), (deep, 8, late)):
            wiring, wires = wire(net, depth)
            wires = jax.device_put(wires)
            both = jax.jit(
                lambda w, m, n, wiring=wiring: (hear(wiring, w, m, None, age, 4), hear(wiring, w, m, n, age, 4))
            )
            everyone, few = both(wires, mail, jnp.asarray(some))
            np.testing.assert_allclose(everyone, expected, rtol=0, atol=1e-12)
            np.testing.assert_allclose(few, expected[some], rtol=0, atol=1e-12)


def test_what_a_hub_hears():
    total, mass = jnp.asarray([[2.0, 4.0], [0.0, 0.0]]), jnp.asarray([2.0, 0.0])
    values = inbox_of(total, mass)
    np.testing.assert_allclose(values.mean, [[1, 2], [0, 0]])  # a node alone hears nothing, and no division by zero
    np.testing.assert_allclose(values.total, total)
    np.testing.assert_allclose(values.mass, mass)
    # y_i keeps what is left of the weight: sum_j A_ij y_j + (1 - sum_j A_ij) y_i - x_i
    own, base, part = (
        jnp.asarray([[1.0, 1.0], [5.0, 5.0]]),
        jnp.asarray([[3.0, 0.0], [1.0, 1.0]]),
        jnp.asarray([0.75, 0.0]),
    )
    changes = rebased(total, own, part, base)
    np.testing.assert_allclose(changes.mean, [[2 + 0.25 - 3, 4 + 0.25], [4, 4]])
    np.testing.assert_allclose(changes.mass, 1)


# Whole runs on graphs of every shape.


@pytest.mark.parametrize("name", ["star", "isolated"])
def test_fedgd_on_a_graph_of_unequal_degrees_is_the_dense_recursion(name):
    net = NETWORKS[name]
    K, A = net.nodes, net.adjacency.toarray()
    rng = np.random.default_rng(4)
    h, c = rng.uniform(0.5, 1.5, K), rng.standard_normal((K, 2))
    coupling = 0.1
    step = 0.9 / (h + 2 * coupling * A.sum(1)).max()
    run = fp.run(fp.FedGD(step, coupling), fp.problems.Quadratic(h, c), network=net, rounds=20)
    w = np.zeros((K, 2))
    for k in range(20):
        w = w - step * (h[:, None] * (w - c) + 2 * coupling * (A.sum(1)[:, None] * w - A @ w))
        np.testing.assert_allclose(run.history[0, k + 1], w, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(run.used[0, :, 1], 2 * len(net.edges) * np.arange(21))
    np.testing.assert_array_equal(run.used[0, :, 2], K * np.arange(21))


def test_fedrelax_leaves_nodes_without_an_edge_to_their_own_loss():
    net = NETWORKS["isolated"]
    K, A = net.nodes, net.adjacency.toarray()
    rng = np.random.default_rng(5)
    h, c = rng.uniform(0.5, 1.5, K), rng.standard_normal((K, 2))
    run = fp.run(fp.FedRelax(0.3), fp.problems.Quadratic(h, c), network=net, rounds=6)
    w = np.zeros((K, 2))
    for k in range(6):
        w = (h[:, None] * c + 2 * 0.3 * A @ w) / (h + 2 * 0.3 * A.sum(1))[:, None]
        np.testing.assert_allclose(run.history[0, k + 1], w, rtol=0, atol=1e-12)
    alone = A.sum(1) == 0
    np.testing.assert_allclose(run.history[0, 1:, alone], np.repeat(c[alone][:, None], 6, axis=1), rtol=0, atol=1e-14)
    np.testing.assert_allclose(run.models[0][alone], fp.gtv.solve(run.problem, net, 0.3)[alone], rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 200])
def test_some_nodes_of_a_large_star(count):
    """One node pads to 199 neighbours; of three all groups are cheaper; all in a random order."""
    net = NETWORKS["star"]
    rng = np.random.default_rng(6)
    c = rng.standard_normal((200, 2))
    run = fp.run(
        fp.FedRelax(0.1), fp.problems.Quadratic(1.0, c), network=net, schedule=fp.RandomActivation(count), rounds=20
    )
    A = net.adjacency.toarray()
    w = np.zeros((200, 2))
    for k in range(20):
        new = (c + 0.2 * A @ w) / (1 + 0.2 * A.sum(1))[:, None]
        changed = (run.history[0, k + 1] != run.history[0, k]).any(1)
        assert changed.sum() <= count
        np.testing.assert_allclose(run.history[0, k + 1][changed], new[changed], rtol=0, atol=1e-12)
        w = run.history[0, k + 1]
