"""A program of an earlier process is used again, to the same bits, where all that it was made from is the same."""

import json
import os
import platform
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.runtimes import cache, recall, round
from fedpoint.runtimes.simulation import PROGRAMS

NOISY = fp.problems.Quadratic(
    np.array([np.diag([1.0, 2]), np.diag([3.0, 1])]), np.eye(2), noise=0.1, weights=[2.0, 1.0]
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Programs are kept in a folder of the test's own."""
    monkeypatch.setenv("FEDPOINT_CACHE", str(tmp_path))
    monkeypatch.setattr(recall, "enabled", True)
    monkeypatch.setattr(recall, "programs", {})
    cache.folder.cache_clear()
    jax.clear_caches()  # some programs cannot be written once they have run
    yield tmp_path / "programs"
    monkeypatch.undo()
    cache.folder.cache_clear()


def files(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


def forget(monkeypatch):
    """As in a new process, which may not trace."""
    monkeypatch.setattr(recall, "programs", {})

    class Traced:
        def lower(self, *_):
            raise AssertionError("traced")

        __call__ = lower
        __name__ = "all_lanes"

    monkeypatch.setitem(PROGRAMS, True, Traced())
    monkeypatch.setitem(PROGRAMS, False, Traced())


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, (a.history, a.memories, a.used), (b.history, b.memories, b.used))


def softmax():
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(40, 3)), rng.integers(0, 3, 40), np.repeat(np.arange(4), (4, 6, 10, 20))
    return fp.problems.Logistic(X, y, groups=groups, batch=3, sampling="shuffle", ridge=0.1)


STUDIES = {
    "one kernel": lambda: fp.run(fp.FedAvg(step=0.1, local_steps=fp.Epochs(2)), softmax(), rounds=20, participation=2),
    "memories": lambda: fp.run(fp.Scaffold(step=0.1), NOISY, rounds=20, participation=1, repeats=2),
    "optax's state": lambda: fp.run(fp.FedAdam(step=0.1, server_step=0.1), NOISY, rounds=20),
    "a network": lambda: fp.run(fp.FedGD(step=0.1), NOISY, network=fp.Network.ring(2), rounds=20),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_recalled_program_computes_the_same_bits(name, folder, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(recall, "enabled", False)
        plain = STUDIES[name]()
    jax.clear_caches()
    made = STUDIES[name]()
    assert len(files(folder)) == 1
    forget(monkeypatch)
    recalled = STUDIES[name]()
    same(made, plain)
    same(recalled, plain)


PROCESS = """
import json, sys
import numpy as np
import fedpoint as fp

problem = fp.problems.Quadratic(np.array([np.diag([1.0, 2]), np.diag([3.0, 1])]), np.eye(2), noise=0.1)
run = fp.run(fp.Scaffold(step=0.1), problem, rounds=int(sys.argv[1]), seed=int(sys.argv[2]))
print(json.dumps(run.history.tolist()))
"""


def test_a_new_process_uses_it(tmp_path):
    """Rounds and seeds are numbers: the program is the same."""

    def told(rounds, seed):
        command = [sys.executable, "-c", PROCESS, str(rounds), str(seed)]
        environment = {**os.environ, "FEDPOINT_CACHE": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120, text=True)
        return json.loads(done.stdout)

    problem = fp.problems.Quadratic(np.array([np.diag([1.0, 2]), np.diag([3.0, 1])]), np.eye(2), noise=0.1)
    written = []
    for rounds, seed in ((10, 0), (30, 7)):
        history = told(rounds, seed)
        plain = fp.run(fp.Scaffold(step=0.1), problem, rounds=rounds, seed=seed).history
        np.testing.assert_array_equal(history, plain)
        (file,) = files(tmp_path / "programs")
        written.append(file.stat().st_ino)
    assert written[0] == written[1]  # it would take its place as another file


# Other programs.


def test_what_a_program_is_made_from_is_part_of_its_name(folder, monkeypatch):
    def kept(local_steps=1, **options):
        monkeypatch.setattr(recall, "programs", {})
        fp.run(fp.FedAvg(step=0.1, local_steps=local_steps), NOISY, rounds=3, **options)
        return len(files(folder))

    assert kept() == 1
    assert kept(seed=5) == 1  # a number
    assert kept(local_steps=2) == 2  # structure
    assert kept(repeats=3) == 3  # shape
    with jax.default_matmul_precision("highest"):  # setting
        assert kept() == 4
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    recall._surroundings.cache_clear()
    try:
        assert kept() == 5
    finally:
        recall._surroundings.cache_clear()


def test_another_source_or_processor_is_another_place(tmp_path, monkeypatch):
    surroundings, file = recall._surroundings.__wrapped__, tmp_path / "inner" / "method.py"
    file.parent.mkdir()
    file.write_text("step = 1")
    monkeypatch.setattr(recall, "PACKAGE", tmp_path)
    monkeypatch.setattr(fp, "IMPORTED", time.time() + 60)
    found = [surroundings(), surroundings()]
    file.write_text("step = 2")
    found.append(surroundings())
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    found.append(surroundings())
    monkeypatch.setattr(recall, "_processor", lambda: "without vectors")
    found.append(surroundings())
    assert found[0] == found[1] and len(set(found)) == 4
    monkeypatch.setattr(fp, "IMPORTED", time.time() - 60)  # this process runs what was there before
    with pytest.raises(recall.Unknown, match="changed since"):
        surroundings()


def test_the_processor_is_named():
    assert "flags" in recall._processor() or recall._processor() == platform.processor()


# What may change without its name is traced in every process.


@fp.algorithm
class Own:
    """A method of a user's own: gradient steps at the hub."""

    step: float

    def init(self, w):
        return w, ()

    def local(self, w, _, agent):
        return -self.step * agent.field(w, 0), ()

    def combine(self, w, inbox):
        return w + inbox.mean


def test_a_users_class_is_not_kept(folder):
    fp.run(Own(step=0.1), NOISY, rounds=5)
    assert not files(folder)


def test_a_users_function_is_not_kept(folder):
    data = (np.ones((4, 1)), np.arange(4.0))

    def loss(w, row):
        return (row[0] @ w - row[1]) ** 2

    fp.run(fp.FedAvg(step=0.1), fp.problems.Loss(loss, np.zeros(1), data, groups=[0, 0, 1, 1]), rounds=5)
    assert not files(folder)


def test_an_exchanged_method_is_not_taken_for_the_old_one(folder, monkeypatch):
    kept = fp.run(fp.FedAvg(step=0.1), NOISY, rounds=5)
    assert len(files(folder)) == 1
    combine = fp.FedAvg.combine
    monkeypatch.setattr(recall, "programs", {})
    monkeypatch.setattr(
        fp.FedAvg, "combine", lambda self, hub, inbox: combine(self, hub, inbox._replace(mean=0.0 * inbox.mean))
    )
    jax.clear_caches()
    stuck = fp.run(fp.FedAvg(step=0.1), NOISY, rounds=5)
    assert len(files(folder)) == 1
    assert not np.array_equal(stuck.history, kept.history)


def test_an_exchanged_function_is_not_taken_for_the_old_one(folder, monkeypatch):
    gather = round.gather
    monkeypatch.setattr(round, "gather", lambda *arguments: gather(*arguments))
    STUDIES["memories"]()
    assert not files(folder)
    monkeypatch.setattr(round, "gather", gather)
    STUDIES["optax's state"]()
    assert len(files(folder)) == 1


def test_a_program_that_calls_a_library_is_not_kept(folder):
    """Lowering sets the library up, and a recalled program is not lowered."""
    fp.run(fp.FedRelax(), NOISY, network=fp.Network.ring(2), rounds=3)
    assert not files(folder)


@pytest.mark.parametrize("value", [{1, 2}, lambda: 0, object(), np.ones(2), Own, Own(step=0.1), (1, {2})])
def test_only_known_things_have_names(value):
    with pytest.raises(recall.Unknown):
        list(recall._spell(value))


def test_a_name_belongs_to_what_stands_in_the_source():
    def nearest():
        """Takes the name of another."""

    nearest.__module__, nearest.__qualname__ = fp.errors.__name__, "nearest"
    assert list(recall._spell(fp.errors.nearest)) == ["fedpoint.errors.nearest"]
    with pytest.raises(recall.Unknown):
        list(recall._spell(nearest))


def test_different_things_have_different_names():
    things = [
        None,
        1,
        True,
        1.0,
        np.float32(1),
        np.float64(1),
        "1",
        b"1",
        (1,),
        [1],
        (1, (2, 3)),
        ((1, 2), 3),
        (1, 2, 3),
    ]
    things += [jax.tree.structure(t) for t in ((1, 2), [1, 2], (1, (2,)), {"a": 1}, {"b": 1}, None, 1)]
    things += [fp.FedAvg, fp.FedProx, fp.Uniform(3), fp.Uniform(2), np.dtype("f4"), np.dtype("f8")]
    assert len({tuple(recall._spell(t)) for t in things}) == len(things)


# The disk.


@pytest.mark.parametrize("spoil", [lambda b: b[:-100], lambda b: b"", lambda b: b[:-9000] + b"?" + b[-8999:]])
def test_a_spoilt_file_is_made_again(spoil, folder, monkeypatch):
    made = STUDIES["memories"]()
    (file,) = files(folder)
    file.write_bytes(spoil(file.read_bytes()))
    assert recall._load(file) is None
    monkeypatch.setattr(recall, "programs", {})
    jax.clear_caches()
    same(STUDIES["memories"](), made)
    assert recall._load(file) is not None
    forget(monkeypatch)
    same(STUDIES["memories"](), made)


def test_a_file_that_the_machine_refuses_is_made_again(folder, monkeypatch):
    made = STUDIES["memories"]()
    (file,) = files(folder)
    file.write_bytes(recall._digest(b"no program") + b"no program")
    monkeypatch.setattr(recall, "programs", {})
    jax.clear_caches()
    same(STUDIES["memories"](), made)
    assert recall._load(file) is not None


def test_a_program_of_somebody_else_is_not_run(folder, monkeypatch):
    STUDIES["memories"]()
    (file,) = files(folder)
    assert recall._load(file) is not None
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert recall._load(file) is None


def test_programs_that_nobody_uses_are_thrown_away(folder, monkeypatch):
    STUDIES["memories"]()
    (used,) = files(folder)
    old, young = folder / "old", folder / "young"
    for file, days in ((old, 31), (young, 29), (used, 31)):
        file.touch()
        os.utime(file, (time.time() - days * 86400,) * 2)
    monkeypatch.setattr(recall, "programs", {})
    STUDIES["memories"]()  # by which it is used again
    STUDIES["a network"]()
    assert not old.exists() and young.exists() and used.exists() and len(files(folder)) == 3


def test_without_room_a_run_goes_on(tmp_path, folder):
    folder.write_text("a file where the folder would be")
    made = STUDIES["memories"]()
    assert folder.read_text().startswith("a file") and made.rounds[-1] == 20


def test_jax_keeps_its_own_cache(folder):
    """It is left out while a program is compiled that is kept here, and then used as before."""
    was = jax.config.values["jax_enable_compilation_cache"]
    STUDIES["memories"]()
    assert jax.config.values["jax_enable_compilation_cache"] == was


@pytest.mark.parametrize("setting", ["jax_debug_nans", "jax_log_compiles"])
def test_who_looks_on_sees_jax_at_work(setting, folder):
    jax.config.update(setting, True)
    try:
        fp.run(fp.FedAvg(step=0.1), NOISY, rounds=2)
    finally:
        jax.config.update(setting, False)
    assert not files(folder)
