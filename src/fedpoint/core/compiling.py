"""How is a program compiled that runs a few times only? With less care: else compiling it takes longer than running it.

XLA's newer emitters of fused loops for CPUs take three to five times as long to compile as the older ones, which make
programs as fast (`FEDPOINT_CPU_TRICKS=0` compiles as JAX does by default).
"""

from __future__ import annotations

import os
from functools import partial

import jax

SWITCH = "FEDPOINT_CPU_TRICKS"


def allowed() -> bool:
    """Whether programs may be compiled in another way than JAX's own."""
    return os.environ.get(SWITCH, "1") != "0"


OLDER: dict[str, str | bool | int] = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
LITTLE: dict[str, str | bool | int] = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}

# In place of jax.jit, at the top of a program only.
quickly = partial(jax.jit, compiler_options={**OLDER, **LITTLE} if allowed() else None)  # runs a few times
fairly_quickly = partial(jax.jit, compiler_options=OLDER if allowed() else None)  # runs long, too
