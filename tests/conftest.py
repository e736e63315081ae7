"""Shared configuration of the tests."""

import gc
import itertools
import os
import shutil
import signal
import threading
from pathlib import Path

# A shell starts what it puts into the background without Ctrl-C, nohup without SIGHUP: some tests send them to
# processes of their own, which would inherit that.
if threading.current_thread() is threading.main_thread():
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)

# Before jax and matplotlib are imported; subprocesses of the tests inherit these.
# One cache folder, so that compilations are reused between test processes.
os.environ["FEDPOINT_CACHE"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax")
os.environ["JAX_ENABLE_X64"] = "0"  # the library asks for double precision itself
os.environ["JAX_PLATFORMS"] = "cpu"  # the tolerances are those of the CPU
os.environ["MPLBACKEND"] = "Agg"
# Most of the time goes into compiling small programs that run once. `make test-all` compiles as users do.
# The older emitters of fused loops compile a third faster; a program in one piece, since other cores have tests of
# their own, with a quarter less work.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

import hypothesis
import jax
import numpy as np
import pytest

# Tracing makes millions of small objects that stay: looking through them less often saves a tenth of the suite's time.
gc.set_threshold(200_000, 20, 50)

# No deadline: the first example pays for compilation. Derandomized: a red run can be repeated.
hypothesis.settings.register_profile("fedpoint", deadline=None, derandomize=True)
hypothesis.settings.load_profile("fedpoint")


collect_ignore_glob = ["*conftest.py"]  # no doctests in them, and several of one name confuse the collection


def pytest_addoption(parser) -> None:
    parser.addoption("--soak", type=float, default=3600.0, help="Seconds of the long soak (a slow test).")


EXHAUSTIVE = Path(__file__).with_name("exhaustive.txt")


def exhaustive() -> dict[str, set[str]]:
    """Tests of which `make test` runs some cases only, or none, and those cases."""
    lines = (line for line in EXHAUSTIVE.read_text().splitlines() if line and not line.startswith("#"))
    parts = (line.partition(" keeps ") for line in lines)
    return {name: set(filter(None, kept.split(" | "))) for name, _, kept in parts}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config, items) -> None:
    kept, cases = exhaustive(), {}
    for item in items:
        name, _, case = item.nodeid.removesuffix("]").partition("[")
        if name in kept:
            cases.setdefault(name, set()).add(case)
            if case not in kept[name]:
                item.add_marker(pytest.mark.slow)
    if not config.option.file_or_dir:  # all tests were collected
        missing = [name for name in kept if name not in cases]
        missing += [f"{name}[{case}]" for name in cases for case in kept[name] - cases[name]]
        if missing:
            raise pytest.UsageError(f"{EXHAUSTIVE.name} names what is no test: {', '.join(sorted(missing))}")


def pytest_configure() -> None:
    """Folders of runs are made durable file by file, as they should: a third of the tests' time on a disk, none in
    memory."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
        os.environ.setdefault("TMPDIR", str(memory))


def pytest_report_header() -> str:
    cache = os.environ["FEDPOINT_CACHE"]
    return f"fedpoint: jax {jax.__version__} on cpu, x64 flag off (the library scopes it), cache {cache}"


@pytest.fixture(autouse=True)
def x64_flag_stays_off():
    """Double precision is a context of the library: no test may leave it on for the next."""
    yield
    leaked = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)  # so that only the culprit fails
    assert not leaked


_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def room_for_programs():
    """A compiled program takes some hundred memory maps. Linux gives a process 65,530; then the compiler crashes."""
    yield
    maps = Path("/proc/self/maps")
    if next(_tests) % 10 == 0 and maps.exists() and maps.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
