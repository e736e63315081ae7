"""Compiled programs are machine code: nobody else's is ever loaded."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.engine.cpu import cache

RUN = """
import sys, warnings
import fedpoint as fp
warnings.simplefilter("always")
import jax
from fedpoint.engine.cpu import cache
cache.enable()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a quick machine compiles below the bound
fp.run(fp.FedAvg(step=0.1), fp.problems.LinearStream.sample(agents=6, dim=3, seed=0), rounds=3)
"""


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """What `cache.folder` says of a path that is asked for."""
    monkeypatch.setattr("fedpoint.engine.cpu.cache.folder", cache.folder.__wrapped__)

    def asked(path):
        monkeypatch.setenv("FEDPOINT_CACHE", str(path))
        return cache.folder()

    return asked


def test_a_folder_that_is_made_is_ours_alone(folder, tmp_path):
    found = folder(tmp_path / "new" / "jax")
    assert found == (tmp_path / "new" / "jax").resolve() and found.stat().st_mode & 0o077 == 0
    assert folder("off") is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_is_not_used_and_that_is_said(folder, tmp_path, mode):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.warns(UserWarning, match="others can write to .*shared.* FEDPOINT_CACHE"):
        assert folder(shared) is None
    shared.chmod(0o700)
    assert folder(shared) == shared


def test_nor_one_that_others_could_exchange(folder, tmp_path):
    """Whoever can write to the folder above can put one of the same name there; not with the sticky bit."""
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write to .*above and could have planted"):
        assert folder(above / "jax") is None
    above.chmod(0o1777)
    assert folder(above / "jax") is not None


def test_nor_one_of_another_user(folder, tmp_path, monkeypatch):
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    with pytest.warns(UserWarning, match="theirs belongs to another user"):
        assert folder(theirs) is None


def test_a_link_is_judged_by_where_it_leads(folder, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "link").symlink_to(shared)
    with pytest.warns(UserWarning, match="others can write"):
        assert folder(tmp_path / "link") is None


def test_a_run_neither_reads_nor_writes_there(tmp_path):
    """JAX's own cache included; of a folder of our own it is used."""
    own, shared = tmp_path / "own", tmp_path / "shared"
    for path, mode in ((own, 0o700), (shared, 0o777)):
        path.mkdir()
        path.chmod(mode)
        environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        environment |= {"FEDPOINT_CACHE": str(path)}
        done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True)
        assert ("are not used" in done.stderr) == (path == shared)
    assert any(own.iterdir()) and not any(shared.iterdir())


def test_a_folder_of_ours_is_used_without_a_word(folder, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert folder(tmp_path / "jax") == Path(tmp_path / "jax").resolve()


# In memory.


def most_used(sizes):
    """The memory maps of this process while problems of these sizes are run, at most, beyond those before."""
    before, most = cache.maps(), 0
    for agents in sizes:
        quad = fp.problems.Quadratic(np.linspace(1.0, 2.0, agents), np.zeros((agents, 1)), noise=0.1)
        fp.run(fp.FedAvg(step=0.1), quad, rounds=2)
        most = max(most, cache.maps() - before)
    return most


needs_maps = pytest.mark.skipif(cache.most_maps() is None, reason="this system has no such limit")


@needs_maps
def test_many_shapes_do_not_use_up_the_memory_maps(monkeypatch):
    """Without a bound they grow with the shapes; with one they stay near half of it."""
    most_used([2])  # what all sizes share
    few, many = most_used(range(3, 5)), most_used(range(5, 12))
    assert few > 20 and many > 2.5 * few
    jax.clear_caches()
    most_used([2])
    limit = 2 * (cache.maps() + few)
    monkeypatch.setattr(cache, "most_maps", lambda: limit)
    monkeypatch.setattr(cache, "LOOK", 1)
    assert most_used(range(5, 12)) < 2 * few


@needs_maps
@pytest.mark.slow
def test_hundreds_of_shapes(monkeypatch):
    jax.clear_caches()
    limit = 2 * (cache.maps() + 1_500)
    monkeypatch.setattr(cache, "most_maps", lambda: limit)
    assert most_used(range(2, 302)) < limit


def test_a_run_goes_on_after_its_program_was_forgotten():
    """To the bits of one that kept it."""
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    whole = fp.run(fp.Scaffold(step=0.1), quad, rounds=40)
    half = fp.run(fp.Scaffold(step=0.1), quad, rounds=20)
    jax.clear_caches()
    assert half.extend(40).history.tobytes() == whole.history.tobytes()
