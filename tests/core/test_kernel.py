"""What is compiled into one kernel is what it was, and what a kernel cannot hold never gets there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedpoint as fp
from fedpoint.core import operations
from fedpoint.core.compiling import SWITCH
from fedpoint.core.random import threefry
from fedpoint.engine import layout
from fedpoint.engine.cpu import kernel
from fedpoint.engine.session import Session

x = np.random.default_rng(0).uniform(0.1, 0.9, (5, 7))
i = np.arange(35, dtype=np.int64).reshape(5, 7) - 9
TWO = ("add", "atan2", "div", "max", "min", "mul", "pow", "rem", "sub", "eq", "ge", "gt", "le", "lt", "ne")
ONE = """abs ceil cos erf exp exp2 expm1 floor is_finite log log1p logistic neg round rsqrt sign sin sqrt square
    stop_gradient tan tanh"""
WHOLE = {
    "not": lambda: ~i,
    "and": lambda: i & 5,
    "or": lambda: i | 5,
    "xor": lambda: i ^ 5,
    "shift_left": lambda: jnp.asarray(i) << 3,
    "shift_right_arithmetic": lambda: jnp.asarray(i) >> 1,
    "shift_right_logical": lambda: lax.shift_right_logical(jnp.asarray(i), jnp.full(i.shape, 3)),
}
OTHERS = {
    "add_any": lambda: jax.grad(lambda v: jnp.sum(v * v) + v[0, 0])(jnp.asarray(x)),
    "bitcast_convert_type": lambda: lax.bitcast_convert_type(x, jnp.int64),
    "broadcast_in_dim": lambda: jnp.broadcast_to(x[0], (3, 7)),
    "clamp": lambda: lax.clamp(0.3, jnp.asarray(x), 0.6),
    "concatenate": lambda: jnp.concatenate([x, x[:2]]),
    "cond": lambda: lax.cond(jnp.asarray(x)[0, 0] > 0.5, lambda v: v + 1, lambda v: v * 2, x),
    "convert_element_type": lambda: jnp.asarray(x).astype(jnp.float32),
    "copy": lambda: jnp.array(jnp.asarray(x), copy=True),
    "custom_jvp_call": lambda: jax.nn.relu(jnp.asarray(x) - 0.5),
    "dot_general": lambda: x @ jnp.asarray(x).T,
    "dynamic_slice": lambda: lax.dynamic_slice(x, (jnp.asarray(i)[1, 4], 0), (2, 7)),
    "dynamic_update_slice": lambda: lax.dynamic_update_slice(x, 2 * jnp.asarray(x)[:2], (jnp.asarray(i)[1, 4], 0)),
    "gather": lambda: jnp.asarray(x)[jnp.asarray(i)[2] % 5],
    "integer_pow": lambda: jnp.asarray(x) ** 3,
    "iota": lambda: jnp.arange(7) * jnp.asarray(x),
    "jit": lambda: jax.jit(lambda v: v + 1)(x),
    "pad": lambda: jnp.pad(x, ((1, 0), (0, 2))),
    "reduce_and": lambda: jnp.all(x > 0.2, axis=1),
    "reduce_max": lambda: jnp.max(x, axis=1),
    "reduce_min": lambda: jnp.min(x, axis=0),
    "reduce_or": lambda: jnp.any(x > 0.8, axis=1),
    "reduce_prod": lambda: jnp.prod(x, axis=1),
    "reduce_sum": lambda: jnp.sum(x, axis=0),
    "reshape": lambda: jnp.reshape(x, (7, 5)),
    "rev": lambda: lax.rev(x, (1,)),
    "scan": lambda: lax.scan(lambda c, v: (c + v, c * v), jnp.zeros(7), x)[1],
    "select_n": lambda: jnp.where(x > 0.5, x, -x),
    "slice": lambda: lax.slice(x, (1, 2), (4, 6)),
    "squeeze": lambda: jnp.squeeze(jnp.asarray(x)[:1]),
    "stack": lambda: jnp.stack([jnp.asarray(x)[0], x[1]]),
    "threefry": lambda: threefry((jnp.uint32(1), jnp.uint32(2)), (i.astype(jnp.uint32), jnp.uint32(3)))[0],
    "transpose": lambda: jnp.transpose(x),
    "while": lambda: lax.while_loop(lambda v: v[0, 0] < 3, lambda v: v * 1.5, jnp.asarray(x)),
}


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    """These are tests of the kernels themselves, whatever the environment says."""
    monkeypatch.setenv(SWITCH, "1")


def one_of_each():
    """Each operation that a kernel may hold, as a function of no arguments that reads x and i."""
    yield from OTHERS.items()
    yield from WHOLE.items()
    for name in ONE.split():
        yield name, lambda name=name: getattr(lax, name)(jnp.asarray(x))
    for name in TWO:
        yield name, lambda name=name: getattr(lax, name)(jnp.asarray(x), jnp.asarray(x)[::-1])


def names(jaxpr):
    return {e.primitive.name for e in jaxpr.eqns} | {
        n for e in jaxpr.eqns for inner in jax.extend.core.jaxprs_in_params(e.params) for n in names(inner)
    }


def kernels(text):
    """Calls that were marked here; XLA marks small loops of its own."""
    return len([line for line in text.splitlines() if " call(" in line and 'inlineable="false"' in line])


def test_every_operation_that_is_let_in_gives_what_it_gives_outside():
    """All in one kernel, which is compiled once: XLA would end the process at one that it cannot compile."""
    with jax.enable_x64(True):
        functions = dict(one_of_each())
        missing = kernel.KNOWN - set(functions)
        assert not missing, f"operations without a case here: {missing}"

        def everything(a, b):
            global x, i
            x, i, before = a, b, (x, i)
            try:
                return {name: function() for name, function in functions.items()}
            finally:
                x, i = before

        used = names(jax.make_jaxpr(everything)(x, i).jaxpr)
        assert used >= kernel.KNOWN, f"cases that do not do what they say: {kernel.KNOWN - used}"

        def inside(once, a, b):
            return kernel.in_one_kernel(once, everything, a, b)

        compiled = jax.jit(inside).lower(1, x, i).compile()
        assert kernels(compiled.as_text()) == 1
        for name, value in compiled(1, x, i).items():
            expected = np.asarray(functions[name]())
            assert value.dtype == expected.dtype, name
            np.testing.assert_allclose(value, expected, rtol=1e-14, atol=1e-15, err_msg=name)


@pytest.mark.parametrize(
    "function",
    [
        lambda v: jnp.sort(v),
        lambda v: v.at[jnp.argsort(v)[:2]].set(0.0),
        lambda v: jnp.fft.fft(v).real,
        lambda v: jnp.linalg.cholesky(jnp.eye(35) + jnp.outer(v, v))[0],
        lambda v: jnp.cumsum(v),
        lambda v: jnp.outer(v, jnp.tile(v, 8)) @ jnp.outer(jnp.tile(v, 8), v),  # (35, 280) times (280, 35)
        lambda v: jnp.einsum("ab,acb->ac", v.reshape(5, 7), jnp.ones((5, 3, 7))),
        lambda v: lax.fori_loop(0, 3, lambda _, u: jnp.sort(u), v),
        lambda v: (v.astype(jnp.float16) * 2).astype(jnp.float64),
    ],
    ids=[
        "sort",
        "scatter",
        "fft",
        "cholesky",
        "cumsum",
        "large product",
        "batched product",
        "sort in a loop",
        "halves",
    ],
)
def test_what_a_kernel_cannot_hold_is_computed_outside(function):
    with jax.enable_x64(True):
        v = x.ravel()
        made = jax.jit(lambda once, v: kernel.in_one_kernel(once, function, v)).lower(1, v).compile()
        assert kernels(made.as_text()) == 0
        np.testing.assert_allclose(made(1, v), function(jnp.asarray(v)), rtol=1e-14)


def test_arguments_of_no_use_do_not_end_the_process():
    """Neither those that are never read, nor those of which XLA finds out, nor those that are empty."""
    with jax.enable_x64(True):

        def function(a, unread, index, empty):
            return lax.fori_loop(0, 3, lambda _, v: v + a[:1][index], jnp.zeros(())) + empty.sum()

        made = jax.jit(lambda once, *given: kernel.in_one_kernel(once, function, *given))
        assert made(1, x[0], x, 0, np.zeros((0, 3))) == 3 * x[0, 0]


def test_softmax_and_products_are_the_same_inside():
    with jax.enable_x64(True):
        big = 800 * (x - 0.5)  # exp(400) without the shift would be infinite squared

        def both(a, z):
            return operations.products(a, a[:3]), operations.softmax(z)

        inside = jax.jit(lambda once, a, z: kernel.in_one_kernel(once, both, a, z))(1, x, big)
        e = np.exp(big - big.max(0))
        for value, expected in zip(inside, (x @ x[:3].T, e / e.sum(0)), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-14)
        for value, expected in zip(inside, both(jnp.asarray(x), jnp.asarray(big)), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-14)


METHODS = {
    "fedavg": fp.FedAvg(step=0.1, local_steps=fp.steps.Epochs(2), normalise=True),
    "scaffold": fp.Scaffold(step=0.1, local_steps=fp.steps.Epochs(2)),
    "fedprox": fp.FedProx(step=0.1, pull=0.5, local_steps=fp.steps.Epochs(2)),
    "qfedavg": fp.QFedAvg(step=0.1, q=1.0, local_steps=fp.steps.Epochs(2)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("participation", [None, 3])
def test_rounds_in_a_kernel_are_the_rounds_outside(method, participation, monkeypatch):
    """Agents of very different sizes, so that they work one after the other."""
    rng = np.random.default_rng(1)
    X, groups = rng.standard_normal((90, 4)), np.repeat(np.arange(8), [40, 20, 10, 8, 5, 4, 2, 1])
    problem = fp.problems.Logistic(X, rng.integers(0, 3, 90), groups=groups, batch=4, sampling="shuffle")
    options = {"rounds": 12, "participation": participation, "seed": 3}
    inside = fp.run(METHODS[method], problem, **options)
    assert "one after the other" in inside.engine
    monkeypatch.setattr(layout, "LARGE_MODEL", 0)  # no model is small enough for a kernel
    outside = fp.run(METHODS[method], problem, **options)
    np.testing.assert_allclose(inside.models, outside.models, rtol=1e-11, atol=1e-13)


def test_a_kernel_of_many_rounds_copies_no_large_memories():
    """What all agents remember would be copied at its every call: the cost would grow with the population."""
    rng = np.random.default_rng(0)

    def of(agents):
        counts = np.r_[40, np.ones(agents - 1, int)]
        X, groups = rng.standard_normal((counts.sum(), 10)), np.repeat(np.arange(agents), counts)
        problem = fp.problems.Logistic(X, rng.integers(0, 2, len(X)), groups=groups, batch=4, sampling="shuffle")
        method = METHODS["scaffold"]
        return Session(fp.Experiment(method, problem, participation=3).bind(), 1).layout

    few, many = of(20), of(20_000)
    assert few.tuning.kernel and few.whole and many.tuning.kernel and not many.whole
