"""Garbage is looked for as before, but not among what an import or a trace has just made.

Run by test_garbage.py in a process of its own: among all that the tests have made a look takes seconds."""

import gc
import weakref

import pytest

from fedpoint.core.garbage import MANY, paused_collection


class Knot:
    def __init__(self):
        self.self = self


@pytest.fixture(autouse=True)
def swept():
    gc.collect()
    yield
    gc.enable()


@pytest.mark.parametrize("many", [True, False])
def test_garbage_is_found_afterwards(many):
    with paused_collection():
        assert not gc.isenabled()
        knots = [Knot() for _ in range(2 * MANY if many else 10)]
        seen = weakref.ref(knots[0])
        del knots
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert seen() is not None  # nobody has looked yet
    gc.collect()
    assert seen() is None


def test_much_that_was_made_is_old_and_little_is_young():
    with paused_collection():
        many = [[] for _ in range(2 * MANY)]
    assert gc.get_count()[0] < MANY and any(o is many[0] for o in gc.get_objects(generation=2))
    with paused_collection():
        few = [[] for _ in range(10)]
    assert any(o is few[0] for o in gc.get_objects(generation=0))


def test_who_does_not_collect_is_left_alone():
    gc.disable()
    with pytest.raises(ValueError, match="through"), paused_collection():
        raise ValueError("through")
    assert not gc.isenabled()


def test_what_others_froze_stays_frozen():
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with paused_collection():
            made = [[] for _ in range(2 * MANY)]
        assert gc.get_freeze_count() >= before - 10 and made
    finally:
        gc.unfreeze()
