"""Importing JAX and tracing a program make hundreds of thousands of objects that stay: none of them is garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 20_000  # objects made, from which looking through them would be felt


@contextmanager
def paused_collection() -> Iterator[None]:
    """Without looking for garbage meanwhile; what was made, if it is much, counts as old afterwards."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was and gc.get_count()[0] > MANY and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, which is looked through rarely
        if was:
            gc.enable()
