"""Can a program of an earlier process be used without tracing it again? Yes, where all that it was made from is known.

JAX keeps compiled programs by what they compute, so a new process traces and lowers them to find out which one it
needs: that takes longer than a short run. Here they are kept by what they are made from as well: fedpoint's source,
versions, settings, the processor, the structure of the run and the shapes of its numbers. What cannot be named so (a
user's function, a class from elsewhere, a part that was exchanged) is traced in every process, as JAX does it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import enum
import functools
import hashlib
import os
import platform
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

import fedpoint
from fedpoint.runtimes import cache

CLIENT = (0, 10)  # the release of JAX whose way to load a program is used here; others trace
DIGEST = 32  # bytes
UNUSED = 30 * 86400.0  # seconds, after which a program is thrown away
CODE = (b"\x7fELF", b"\xcf\xfa\xed\xfe")  # how machine code begins
PACKAGE = Path(fedpoint.__file__).parent
PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype)
GENERATED = ("<string>", dataclasses.__file__, collections.__file__)  # methods that Python makes for a class
LIBRARIES = (f"{Path(jax.__file__).parents[1]}{os.sep}", f"{Path(os.__file__).parent}{os.sep}")  # where they lie
# Of JAX's settings: they say where and when to keep programs, what to log and how to show errors.
IDLE = ("cache", "log", "traceback", "explain")
# What JAX does around a program that it calls itself.
SEEN = ("jax_default_device", "jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_log_compiles")

enabled = True  # a test that exchanges parts of fedpoint traces anew
programs: dict[Any, Any] = {}  # of this process: None where a program cannot be kept


def call(jitted: Callable, static: tuple, traced: tuple, like: Any) -> Any:
    """jitted(*static, *traced), whose results are arrays in the structure of `like`."""
    leaves, tree = jax.tree.flatten(traced)
    folder = cache.folder() if enabled and jax.version.__version_info__[:2] == CLIENT else None
    if folder is None or not _plainly_placed(leaves):
        return jitted(*static, *traced)
    shapes = tuple((np.shape(a), a.dtype, getattr(a, "weak_type", False)) for a in leaves)
    settings = repr([(n, v) for n, v in jax.config.values.items() if not any(word in n for word in IDLE)])
    made_from = (jitted, static, tree, shapes, settings)
    if made_from not in programs:
        programs[made_from] = _find(folder, made_from, traced, jax.tree.structure(like))
        _give_back()
    program = programs[made_from]
    if program is None:
        return jitted(*static, *traced)
    given = [a if isinstance(a, jax.Array) else jax.device_put(a) for a in leaves]
    results = program.execute_sharded(given).disassemble_into_single_device_arrays()
    return jax.tree.unflatten(jax.tree.structure(like), [shards[0] for shards in results])


def _plainly_placed(leaves: list) -> bool:
    """Whether all numbers are, or would be put, on the one processor, and nobody looks on."""
    if jax.default_backend() != "cpu" or any(jax.config.values[name] for name in SEEN):
        return False
    device = jax.devices()[0]

    def here(a):
        if isinstance(a, jax.Array):
            return not isinstance(a, jax.core.Tracer) and a.sharding.device_set == {device}
        return isinstance(a, np.ndarray | np.generic)

    return all(map(here, leaves))


def _find(folder: Path, made_from: tuple, traced: tuple, results: Any) -> Any:
    """The program, of an earlier process or made now and kept; None if it cannot be named or kept."""
    jitted, static, *rest = made_from
    try:
        _untouched()
        name = _digest("\n".join((_surroundings(), jitted.__name__, *_spell((static, *rest))))).hex()
    except Unknown:
        return None
    file = folder / "programs" / name
    program = _load(file)
    if program is not None:
        return program
    lowered = jitted.lower(*static, *traced)
    # A library or a callback would have to be set up before the program runs, which lowering does.
    as_expected = lowered.out_tree == results and not any(a.weak_type for a in jax.tree.leaves(lowered.out_info))
    if not as_expected or "custom_call" in lowered.as_text():
        return None
    with _made_anew():
        program = lowered.compile().runtime_executable()
    _keep(file, program)
    return program


@contextlib.contextmanager
def _made_anew() -> Iterator[None]:
    """Without JAX's own cache: a program that was loaded is written without its machine code."""
    was = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", was)
        compilation_cache.reset_cache()


def _load(file: Path) -> Any:
    from jaxlib import _jax

    try:
        content = file.read_bytes()
        if file.stat().st_uid != os.getuid():
            return None  # nobody else's code is run
        os.utime(file)
    except OSError:
        return None
    if content[:DIGEST] != _digest(content[DIGEST:]):
        return None  # spoilt: it is made and written again
    device = jax.devices()[0]
    one = _jax.DeviceList((device,))
    try:
        return device.client.deserialize_executable(content[DIGEST:], one, _jax.CompileOptions())
    except jax.errors.JaxRuntimeError:
        return None  # not for this machine after all


def _keep(file: Path, program: Any) -> None:
    from fedpoint.report.disk import Refused, write_bytes

    try:
        content = program.serialize()
    except jax.errors.JaxRuntimeError:
        return  # some cannot be written once they have run
    if not any(mark in content for mark in CODE):
        return
    try:
        file.parent.mkdir(exist_ok=True)
        write_bytes(file, _digest(content) + content)
        for other in file.parent.iterdir():  # of other versions, mostly
            if time.time() - other.stat().st_mtime > UNUSED:
                other.unlink()
    except (OSError, Refused):
        return  # a full disk costs time at the next start, not this run


def _give_back() -> None:
    """To the system: what the compiler or loader has freed, which the C library would keep."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _digest(content: str | bytes) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


# What a program is made from, in words.


class Unknown(Exception):
    """Something whose meaning may change without its name."""


@functools.cache
def _surroundings() -> str:
    """fedpoint's source, versions, flags of the compiler and the processor."""
    source = hashlib.blake2b()
    files = (os.path.join(place, name) for place, _, names in os.walk(PACKAGE) for name in names)
    for path in sorted(path for path in files if path.endswith(".py")):
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_ctime > fedpoint.IMPORTED:
                raise Unknown(f"{path} was changed since it was imported")
            source.update(file.read() + path.encode())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = (jax.__version__, jaxlib.__version__, np.__version__, platform.platform())
    return repr((source.hexdigest(), versions, os.environ.get("XLA_FLAGS"), cores, _processor()))


def _processor() -> str:
    """What it can do: programs are compiled for that."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = file.read(1 << 14).split(b"\n\n")[0]  # of many alike
    except OSError:
        return platform.processor()
    told = (line.partition(b":") for line in first.splitlines())
    return repr([(n, v) for n, _, v in told if n.strip() in (b"model name", b"flags", b"Features", b"CPU part")])


def _spell(value: Any) -> Iterator[str]:
    """All that a static value says, part by part."""
    kind = type(value)
    if isinstance(value, PLAIN) and kind.__module__ in ("builtins", "numpy", "numpy.dtypes"):
        yield f"{kind.__name__} {value!r}"
    elif isinstance(value, jax.tree_util.PyTreeDef):
        node = value.node_data()
        yield "leaf" if node is None else f"node of {len(value.children())}"
        if node is not None:
            yield from _spell(node)
        for child in value.children():
            yield from _spell(child)
    elif isinstance(value, enum.Enum):
        yield f"{_named(kind)}.{value.name}"
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield _named(kind)
        for field in dataclasses.fields(value):
            yield field.name
            yield from _spell(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        yield f"{_named(kind)} of {len(value)}"
        for part in value:
            yield from _spell(part)
    elif isinstance(value, type | types.FunctionType):
        yield _named(value)
    else:
        raise Unknown(repr(kind))


def _named(thing: type | types.FunctionType) -> str:
    """The name of a class or function that stands in a known source as it is: fedpoint's, or optax's by its version."""
    module, name = thing.__module__, thing.__qualname__
    root = module.partition(".")[0]
    if root == "builtins":
        return name
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if root not in ("fedpoint", "optax") or found is not thing:
        raise Unknown(f"{module}.{name}")
    if root == "optax":
        return f"{module}.{name} {sys.modules[root].__version__}"
    for parent in getattr(thing, "__mro__", ()):
        if parent.__module__.partition(".")[0] == "fedpoint" and not all(map(_ours, vars(parent).values())):
            raise Unknown(f"a method of {name} was exchanged")
    return f"{module}.{name}"


def _untouched() -> None:
    """No function of fedpoint's modules was exchanged for somebody's."""
    for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "fedpoint"]:
        for name, member in vars(module).items():
            function = getattr(member, "__wrapped__", member)
            if isinstance(function, types.FunctionType) and not _ours(function) and not _library(function.__module__):
                raise Unknown(f"{name} of {module.__name__} was exchanged")


def _library(module: str | None) -> bool:
    """Whether a module is part of an installed package, or of Python."""
    root = (module or "__main__").partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None)
    return root != "__main__" and (root in sys.stdlib_module_names or str(file).startswith(LIBRARIES))


def _ours(member: Any) -> bool:
    """Whether a member of a class or module, if it is a function, is fedpoint's (or was made for it by Python)."""
    member = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
    code = getattr(member, "__code__", None)
    return code is None or code.co_filename.startswith((f"{PACKAGE}{os.sep}", *GENERATED))
