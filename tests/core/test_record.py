"""Records: frozen, compared by value, numbers traced and the rest compiled in."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpoint.core.errors import FedpointError
from fedpoint.core.record import Record, with_leaves


class Inner(Record):
    x: float


class Outer(Record):
    number: float
    array: object = None
    inner: object = None
    count: int = 3
    name: str = "n"
    flag: bool = True

    def check(self):
        if isinstance(self.number, float) and self.number < 0:
            raise FedpointError(f"number must not be negative, got {self.number}")


def test_floats_arrays_and_records_are_leaves_and_the_rest_is_structure():
    value = Outer(1.5, array=np.arange(3.0), inner=Inner(2.0))
    leaves = jax.tree.leaves(value)
    assert [np.ndim(a) for a in leaves] == [0, 1, 0]
    assert jax.tree.structure(value) == jax.tree.structure(Outer(7.0, np.ones(3), Inner(0.0)))
    for other in (
        dataclasses.replace(value, count=4),
        dataclasses.replace(value, name="m"),
        dataclasses.replace(value, flag=False),
        dataclasses.replace(value, inner=None),
    ):
        assert jax.tree.structure(value) != jax.tree.structure(other)


def test_a_new_number_does_not_trace_again_and_a_new_structure_does():
    traced = []

    @jax.jit
    def double(value):
        traced.append(value.count)
        return 2 * value.number * value.count

    assert float(double(Outer(1.0))) == 6 and float(double(Outer(2.0))) == 12
    assert traced == [3]
    assert float(double(Outer(1.0, count=4))) == 8 and traced == [3, 4]


def test_a_leaf_can_be_batched_and_differentiated():
    value = jax.vmap(lambda v: Outer(number=v, inner=Inner(v)))(jnp.arange(3.0))
    assert value.number.shape == (3,) and value.inner.x.shape == (3,)
    slope = jax.grad(lambda v: v.number**2 + 3 * v.inner.x)(Outer(2.0, inner=Inner(1.0)))
    assert isinstance(slope, Outer) and float(slope.number) == 4 and float(slope.inner.x) == 3


def test_numbers_in_a_list_become_an_array():
    value = Outer(1.0, array=[1, 2, 3])
    assert isinstance(value.array, np.ndarray) and value.array.dtype == int
    assert Outer(1.0, array=(1.0, 2)).array.dtype == float
    assert Outer(1.0, array=[]).array == []  # nothing to trace


def test_it_is_frozen_and_its_hash_is_of_its_structure():
    value = Outer(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.number = 2.0
    assert hash(value) == hash(Outer(2.0)) != hash(Outer(1.0, count=4))


def test_equality_is_by_value_also_for_arrays():
    assert Outer(1.0, array=[1.0, 2.0]) == Outer(1.0, array=np.array([1.0, 2.0]))
    assert Outer(1.0, array=[1.0, 2.0]) != Outer(1.0, array=[1.0, 3.0])
    assert Outer(1.0, inner=Inner(1.0)) == Outer(1.0, inner=Inner(1.0))
    assert Outer(1.0, inner=Inner(1.0)) != Outer(1.0, inner=Inner(2.0))
    assert Inner(1.0) != Outer(1.0) and Inner(1.0) != 1.0


def test_check_is_for_what_users_write_not_for_what_is_traced():
    with pytest.raises(FedpointError, match="must not be negative, got -1"):
        Outer(-1.0)
    negated = jax.tree.map(lambda a: -a, Outer(1.0))  # inside a program any number may pass
    assert negated.number == -1.0


def test_it_prints_its_fields():
    assert repr(Inner(2.0)) == "Inner(x=2.0)"


def test_records_stack_into_one_that_vmap_takes_apart():
    """As a sweep does: swept whole numbers become traced ones."""
    records = [Outer(float(i), array=np.array([i, 2.0 * i]), inner=Inner(3.0 * i), count=i) for i in range(1, 4)]
    traced = [with_leaves(record, {"count": record.count}) for record in records]
    both = jax.tree.map(lambda *a: np.stack(a), *traced)
    assert both.number.shape == (3,) and both.array.shape == (3, 2) and both.inner.x.shape == (3,)
    got = jax.vmap(lambda r: r.number * r.count + r.array[1] + r.inner.x)(both)
    np.testing.assert_allclose(got, [i * i + 2 * i + 3 * i for i in range(1, 4)])
    assert both.name == "n" and both.flag is True
