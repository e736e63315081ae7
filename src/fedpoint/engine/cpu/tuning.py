"""What is done so that XLA's compiler for CPUs makes fast programs? One value of a layout says so; off: plain JAX.

`FEDPOINT_CPU_TRICKS=0` in the environment switches all of it off, with the same results but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
from jax import Array

from fedpoint.core.compiling import allowed
from fedpoint.core.types import Function, Tree
from fedpoint.engine.cpu import kernel

THREAD_BYTES = 1 << 18  # of a round's arrays or a chunk's draws, from which threads gain more than waking them costs
COPIED_BYTES = 1 << 20  # of all agents' memories, which a kernel of many rounds copies once

# XLA's passes that are left out. Sums of more than 32 terms would be made in two stages, which takes longer; one thread
# is not woken for work that is done before it comes; products of small matrices are faster of matrices that lie as they
# are read, and written out rather than given to a library. Long arrays take whole registers: half as many instructions
# for the same numbers where a processor has 512 bits.
LARGE = ("tree_reduction_rewriter",)
SMALL = (*LARGE, "cpu-parallel-task-assigner", "transpose-folding", "dot-library-rewriter")
OPTIONS: Mapping[str, dict[str, str | bool | int] | None] = {
    "plain": None,
    "one thread": {"xla_disable_hlo_passes": ",".join(SMALL), "xla_cpu_multi_thread_eigen": False},
    "threads": {
        "xla_disable_hlo_passes": ",".join(LARGE),
        "xla_cpu_multi_thread_eigen": True,
        "xla_cpu_prefer_vector_width": 512,
    },
}


def switched_on() -> bool:
    return allowed() and jax.default_backend() == "cpu"


@dataclass(frozen=True)
class Tuning:
    """How a program is helped; by default not at all."""

    on: bool = False
    threads: bool = True  # single operations are shared out between threads
    kernel: bool = False  # agents one after the other, small, are one kernel
    light: bool = False  # what all agents remember is so little that a kernel of many rounds may copy it

    @classmethod
    def choose(cls, small: bool, at_once: int, remembered: Callable[[], int]) -> Tuning:
        """For a program that works on so many bytes at once; small: agents one after the other, on small models."""
        if not switched_on():
            return PLAIN
        threads = at_once > THREAD_BYTES
        one_kernel = small and not threads
        return cls(True, threads, one_kernel, one_kernel and remembered() <= COPIED_BYTES)

    def without_kernel(self, at_once: int) -> Tuning:
        """The same for a program of another size that is no kernel."""
        return replace(self, threads=at_once > THREAD_BYTES, kernel=False) if self.on else self

    @property
    def compiled(self) -> str:
        """Which of `programs` it asks for."""
        return "plain" if not self.on else "threads" if self.threads else "one thread"

    def computed_once(self, once: Array, function: Function, *arguments: Tree) -> Tree:
        """function(*arguments), computed once and kept; once is 1, in a way that the compiler does not know."""
        return kernel.keep_out_of_fusion(once, function, *arguments) if self.on else function(*arguments)

    def dense(self, rows: Tree) -> Tree:
        """Rows without axes of length one, which XLA would lay out in another order than a loop's, and copy."""
        if not self.on:
            return rows
        return jax.tree.map(lambda a: a.reshape(a.shape[0], *(n for n in a.shape[1:] if n > 1)), rows)


PLAIN = Tuning()


def like_rows(row: Tree, rows: Tree) -> Tree:
    """One of the dense rows, in the shape of one of these."""
    return jax.tree.map(lambda d, a: d.reshape(a.shape[1:]), row, rows)


def programs(function: Function, static: tuple[str, ...], donated: str) -> dict[str, Function]:
    """The function, to be compiled in each of the ways that a tuning can ask for."""
    return {
        name: jax.jit(function, static_argnames=static, donate_argnames=donated, compiler_options=options)
        for name, options in OPTIONS.items()
    }
