"""A forked process computes, or says at once that it cannot: it never hangs."""

import os
import subprocess
import sys

import pytest

PROBLEM = """
import multiprocessing, os, warnings
import fedpoint as fp

warnings.simplefilter("ignore")  # JAX's own, of forks
quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
method = fp.FedAvg(step=0.1)

def go(_=None):
    return float(fp.run(method, quad, rounds=20, seed=3).error[0, -1])

def attempt(work):
    try:
        return work()
    except fp.FedpointError as error:
        return str(error)
"""
SAID = "Start processes with multiprocessing.get_context"


def fresh(code):
    """What a fresh interpreter prints, in lines; one that hangs is ended, and fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", PROBLEM + code], capture_output=True, text=True, timeout=200, env=os.environ, check=True
    )
    return done.stdout.splitlines()


WORKS = {
    "run": "go",
    "forecast": "lambda: fp.forecast(method, quad).floor",
    "check": "lambda: fp.check(run)",
    "extend": "lambda: run.extend(30)",
    "an experiment": "lambda: fp.Experiment(method, quad)",
}


def test_a_fork_after_a_run_says_so_at_once():
    """Each in a fork of its own, and in a fork of a fork; the parent goes on as before."""
    works = ", ".join(WORKS.values())
    lines = fresh(f"""
run = fp.run(method, quad, rounds=20, seed=3)
before = go()
for work in ({works}):
    if os.fork() == 0:
        print(attempt(work), flush=True)
        if os.fork() == 0:
            print(attempt(work), flush=True)
            os._exit(0)
        os.wait()
        os._exit(0)
    os.wait()
assert go() == before
print("the parent goes on")
""")
    assert len(lines) == 2 * len(WORKS) + 1 and lines[-1] == "the parent goes on"
    assert all(SAID in line for line in lines[:-1])


def test_a_pool_of_forks():
    (line,) = fresh("""
go()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(attempt(lambda: pool.map(go, range(4))))
""")
    assert SAID in line


def test_a_fork_before_the_first_run_computes():
    """An experiment is made, and nothing has run: JAX has no threads yet."""
    own, forked = fresh("""
fp.Experiment(method, quad)
if os.fork() == 0:
    print(attempt(go), flush=True)
    os._exit(0)
os.wait()
print(go())
""")
    assert float(own) == float(forked)


@pytest.mark.slow
def test_spawned_processes_compute(tmp_path):
    """What the message says to do, does."""
    (tmp_path / "script.py").write_text(
        PROBLEM
        + """
if __name__ == "__main__":
    own = go()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(go, range(2)) == [own, own]
"""
    )
    subprocess.run([sys.executable, str(tmp_path / "script.py")], timeout=300, check=True)
