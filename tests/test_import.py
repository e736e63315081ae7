"""What `import fedpoint` costs: little beyond JAX, and nothing that a run may not need."""

import json
import subprocess
import sys

import pytest

HEAVY = ("sklearn", "matplotlib", "networkx", "optax", "pydantic", "click", "rich", "pandas", "torch", "scipy.stats")

USE = """
import fedpoint as fp
fp.run, fp.sweep, fp.compare, fp.FedAvg, fp.Scaffold, fp.Uniform, fp.problems.Logistic, fp.metrics.fairness
"""


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def used():
    """What a fresh process has loaded once the names are used, and its types before, in and after a run."""
    code = """
import sys, json
print(json.dumps(sorted(sys.modules)))
import jax, numpy as np
print(jax.config.jax_enable_x64)
run = fp.run(fp.FedAvg(0.1), fp.problems.Quadratic(1.0, [[0.0], [1.0]]), rounds=2)
print(jax.config.jax_enable_x64, run.model.dtype, jax.numpy.ones(2).dtype)
"""
    return fresh(USE + code).split("\n", 1)


def test_import_loads_nothing_heavy(used):
    loaded = set(json.loads(used[0]))
    assert "jax" in loaded
    assert not [name for name in HEAVY if name in loaded]


def test_the_name_alone_does_not_even_load_jax():
    """So that the command line answers at once."""
    assert fresh("import fedpoint, sys; print('jax' in sys.modules, fedpoint.__version__)").split()[0] == "False"


def test_import_takes_at_most_a_fifth_of_a_second_beyond_jax():
    """With everything that a run needs loaded; in one of several tries, because machines are noisy."""
    code = """
import time
start = time.perf_counter()
import jax, jax.numpy
between = time.perf_counter()
{}
print(between - start, time.perf_counter() - between)
"""
    for _ in range(5):
        jax_alone, beyond = (float(x) for x in fresh(code.format(USE)).split())
        if beyond < 0.2 + 0.2 * jax_alone:
            return
    pytest.fail(f"{beyond:.3f} s beyond {jax_alone:.3f} s of jax")


def test_import_and_use_leave_the_x64_flag_alone(used):
    before, after, ours, theirs = used[1].split()
    assert (before, after, ours, theirs) == ("False", "False", "float64", "float32")


def test_every_name_that_is_promised_is_there():
    import fedpoint

    for name in fedpoint.__all__:
        assert getattr(fedpoint, name) is not None
    assert set(fedpoint.__all__) <= set(dir(fedpoint))
