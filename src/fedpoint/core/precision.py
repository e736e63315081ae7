"""In which precision does fedpoint compute? In double, in a scope of its own: JAX's default stays the user's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax

from fedpoint.core.forks import check_fork

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def double(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, with 64-bit numbers while it runs. Models keep the precision they come in.

    >>> import jax.numpy as jnp
    >>> double(jnp.ones)(()).dtype
    dtype('float64')
    """

    @wraps(function)
    def scoped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        check_fork()
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped
