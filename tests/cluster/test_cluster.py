"""Runs on real processes: the same bits at any number of them, whoever is killed; nobody left behind."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.errors import Recovered
from fedpoint.engine.cluster.blocks import BLOCKS, Blocks
from fedpoint.engine.cluster.session import ClusterSession, ProcessGroup
from fedpoint.experiment import Experiment
from fedpoint.results.drive import begin, drive
from fedpoint.store.records import Place
from fedpoint.store.statement import versions
from fedpoint.verbs.processes.job import (
    PARTING,
    Job,
    RunGoal,
    Seat,
    SupervisorLink,
    UnnamedFile,
    _agree,
    _join,
    _part,
    pack,
    unpack,
)
from fedpoint.verbs.processes.supervisor import _free_port

HERE = Path(__file__).parent
ROUNDS, EVERY, L = 600, 50, 8
VERSION = fp.__version__
METHOD = fp.Scaffold(step=0.02, local_steps=2)


class Stream(fp.problems.LinearStream):
    """Whoever asks for what takes all data must be the process that was given them."""

    home: int

    def solution(self):
        assert os.getpid() == self.home
        return super().solution()


def problem():
    made = Stream.sample(agents=20, dim=3, seed=0)
    made.home = os.getpid()
    return made


def here(rounds=ROUNDS):
    """The same sums in this process."""
    bound = Experiment(METHOD, problem(), L, seed=3).bind()
    return drive(begin(ClusterSession(bound, EVERY, ProcessGroup(), False)), rounds)


def shared_out(tmp_path, processes=2, rounds=ROUNDS, **options):
    options = {"participation": L, "record_every": EVERY, "seed": 3, "processes": processes, **options}
    return fp.run(METHOD, problem(), rounds=rounds, folder=tmp_path / "run", **options)


class Strike:
    """A callback that sends a signal to one process of the job, or to the supervisor, once the run is going."""

    def __init__(self, number, what):
        self.number, self.what, self.struck = number, what, False

    def __call__(self, progress):
        if not self.struck:
            self.struck = True
            children = sorted(multiprocessing.active_children(), key=lambda child: child.pid)
            os.kill(os.getpid() if self.number is None else children[self.number].pid, self.what)


def test_two_processes_one_of_them_killed_are_one_process(tmp_path):
    with pytest.warns(Recovered, match=r"process 1 .* of 2 was ended by signal 9"):
        run = shared_out(tmp_path, callbacks=Strike(1, signal.SIGKILL))
    alone = here()
    np.testing.assert_array_equal(run.history, alone.history)
    np.testing.assert_array_equal(run.used, alone.used)
    np.testing.assert_array_equal(run.memories, alone.memories)
    plain = fp.run(METHOD, problem(), rounds=ROUNDS, participation=L, record_every=EVERY, seed=3)
    np.testing.assert_allclose(run.history, plain.history, rtol=0, atol=1e-12)
    assert not multiprocessing.active_children()
    # A run that was shared out goes on in one process, to the same bits.
    longer = fp.load(tmp_path / "run", problem()).extend(ROUNDS + EVERY)
    np.testing.assert_array_equal(longer.history, here(ROUNDS + EVERY).history)


def test_a_script_that_computes_when_it_is_read_is_told_what_to_move():
    jnp.zeros(1).block_until_ready()  # as a problem does that is made above the guard
    with pytest.raises(fp.FedpointError, match=r'every process reads your script.*below if __name__ == "__main__":'):
        _join(Seat(1, 2, "127.0.0.1:1", "127.0.0.1", 1.0), SupervisorLink(None))


def test_a_clock_shows_the_same_time_on_processes():
    clock = fp.Clock(work=1.0, law="lognormal", spread=0.5)
    waits = fp.Waiting(clock, count=8, keep=5, dropout=0.1, deadline=9.0)
    run, alone = (fp.run(METHOD, problem(), rounds=4, schedule=waits, processes=n) for n in (1, None))
    np.testing.assert_array_equal(run.time, alone.time)
    assert (np.diff(run.time) > 0).all()


@pytest.mark.parametrize("model", [fp.problems.LeastSquares, fp.problems.Logistic])
def test_rows_of_any_number_of_agents_go_through_one_file_once(model):
    X, groups = np.random.default_rng(0).normal(size=(4_000, 30)), np.repeat(np.arange(100), 40)
    given = model(X, X.sum(1) > 0, groups=groups, batch=3)
    asked = Experiment(METHOD, given, seed=3, record_every=1)
    arrays = UnnamedFile()
    packed = pack(Job(asked, RunGoal(1), Place(Path()), False, ""), arrays)
    assert len(packed) < 20_000  # bytes: the data are not in the stream
    others = given.label.nbytes if model is fp.problems.Logistic else 100 * 31 * 31 * 8
    assert arrays.bytes().size < 1.1 * sum(a.nbytes for a in given.common.rows) + others
    taken = unpack(packed, arrays).experiment.problem
    for a, b in zip(
        jax.tree.leaves((taken.own, taken.common)), jax.tree.leaves((given.own, given.common)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def collectives(*names):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}
    command = [sys.executable, HERE / "compiled.py", *names]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def test_a_round_of_a_star_is_an_all_reduce_of_the_model():
    found = collectives("fedavg", "blocks")
    assert found["fedavg"] == [["all-reduce", "f64[7]"]]
    assert found["blocks"] == [["all-gather", "f64[64,7]"]]


@pytest.mark.slow
def test_a_control_variate_is_one_more():
    assert collectives("scaffold")["scaffold"] == [["all-reduce", "f64[7]"]] * 2


@pytest.mark.parametrize("agents", [1, 5, 37, 64, 1000])
@pytest.mark.parametrize("processes", [1, 2, 3, 4, 5, 64])
def test_every_agent_has_one_process_and_its_block_does_not_depend_on_it(agents, processes):
    if processes > agents:
        return
    blocks = Blocks(agents, processes)
    held = []
    for i in range(processes):
        part = blocks.part(i)
        assert part.first == blocks.bounds[i] == part.edges[0]
        for b in range(part.blocks):
            block = blocks.begins[i] + b
            inside = np.arange(part.edges[b], part.edges[b + 1])
            assert (inside * BLOCKS // agents == block).all()
            held += inside.tolist()
        assert blocks.bounds[i + 1] > blocks.bounds[i]  # nobody is idle
        assert (part.edges[part.blocks :] == blocks.bounds[i + 1]).all()
    assert held == list(range(agents))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 21}, "21 processes for 20 agents"),
        ({"processes": 0}, "at least 1"),
        ({"processes": 2, "stop": lambda *_: False}, "cannot be shared out"),
        ({"processes": 2, "participation": 99}, "99 participants of 20 agents"),
    ],
)
def test_mistakes_are_said_before_a_process_is_started(tmp_path, options, message, monkeypatch):
    monkeypatch.setattr(multiprocessing.get_context("spawn"), "Process", None)
    with pytest.raises(fp.FedpointError, match=message):
        shared_out(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 2, "coordinator": "host:1"}, "both"),
        ({"count": 2, "coordinator": "host", "process": 0}, "HOST:PORT"),
        ({"count": 2, "coordinator": "host:1", "process": 2}, "numbered from 0"),
        ({"count": 2, "watchdog": -1.0}, "above 0"),
    ],
)
def test_what_processes_cannot_be(options, message):
    with pytest.raises(fp.FedpointError, match=message):
        fp.Processes(**options)


def test_a_run_of_one_process_does_not_go_on_with_several(tmp_path):
    fp.run(METHOD, problem(), rounds=2, folder=tmp_path / "run")
    with pytest.raises(fp.FedpointError, match="begun in one process"):
        fp.load(tmp_path / "run", problem()).extend(4, processes=2)


# Slow: everything, on real processes.


def everything(processes, out, *fast, flags=None):
    """What all worlds give on so many processes."""
    environment = {**os.environ, **({} if flags is None else {"XLA_FLAGS": flags})}
    port = str(_free_port())
    started = [
        subprocess.Popen([sys.executable, HERE / "many.py", str(i), str(processes), port, out, *fast], env=environment)
        for i in range(processes)
    ]
    assert [process.wait(timeout=1800) for process in started] == [0] * processes
    with np.load(out) as found:
        return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [None, ""])  # as the tests compile, and as users do
def test_same_bits_in_every_kind_of_round(tmp_path, flags):
    sys.path.insert(0, str(HERE))
    from kinds_of_rounds import ROUNDS, worlds

    found = {n: everything(n, tmp_path / f"{n}.npz", flags=flags) for n in (1, 2, 3, 4)}
    for n in (2, 3, 4):
        assert found[n].keys() == found[1].keys()
        differ = {name for name in found[1] if not np.array_equal(found[n][name], found[1][name])}
        assert not differ, (n, sorted(differ))
    for name, (method, task, options) in worlds().items():
        plain = fp.run(method, task, rounds=ROUNDS, seed=3, record_every=2, **options)
        loose = 1e-5 if name == "single precision" else 1e-11
        for i, leaf in enumerate(jax.tree.leaves(plain.history)):
            np.testing.assert_allclose(found[2][f"{name}/{i}"], leaf, rtol=loose, atol=loose, err_msg=name)
        np.testing.assert_array_equal(found[2][f"{name}/used"], plain.used, err_msg=name)


@pytest.mark.slow
def test_fast_sums_are_the_same_but_for_rounding(tmp_path):
    found = {n: everything(n, tmp_path / f"{n}.npz", "fast") for n in (1, 3)}
    for name, values in found[1].items():
        np.testing.assert_allclose(found[3][name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("number", [0, -1])
def test_whoever_is_killed(tmp_path, processes, number):
    with pytest.warns(Recovered, match="signal 9"):
        run = shared_out(tmp_path, processes, callbacks=Strike(number, signal.SIGKILL))
    np.testing.assert_array_equal(run.history, here().history)


@pytest.mark.slow
def test_a_stuck_process_is_named_and_the_job_goes_on_later(tmp_path):
    begun = time.monotonic()
    with pytest.raises(fp.FedpointError) as told:
        shared_out(tmp_path, rounds=10**6, callbacks=Strike(1, signal.SIGSTOP))
    text = str(told.value)
    assert "process 1 (pid" in text and "has not answered for 30 s" in text and "round" in text
    assert f"fp.load('{tmp_path / 'run'}', problem)" in text
    assert time.monotonic() - begun < 120
    assert not multiprocessing.active_children()
    run = fp.load(tmp_path / "run", problem())
    goal = int(run.rounds[-1]) // EVERY * EVERY + EVERY
    run = run.extend(goal, processes=3)  # another number of processes, the same bits
    np.testing.assert_array_equal(run.history, here(goal).history)


@pytest.mark.slow
def test_ctrl_c_ends_all_and_loses_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        shared_out(tmp_path, rounds=10**6, callbacks=Strike(None, signal.SIGINT))
    assert not multiprocessing.active_children()
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events[-1] == "interrupted"
    assert fp.load(tmp_path / "run").rounds[-1] > 0


EXPERIMENT = """
rounds = 300
record_every = 50
participation = 8
seed = 3
[problem]
kind = "linear_stream"
agents = 20
dim = 3
[algorithm]
name = "scaffold"
step = 0.02
local_steps = {steps}
"""


def host(file, process, port, *more):
    command = [sys.executable, "-m", "fedpoint", "run", file, "--coordinator", f"127.0.0.1:{port}", "--of", "2"]
    command += ["--process", str(process), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_one_process_per_host(tmp_path):
    file, port = tmp_path / "lab.toml", _free_port()
    file.write_text(EXPERIMENT.format(steps=2))
    hosts = [host(file, i, port, "--folder", tmp_path / "run", "--no-figure") for i in (0, 1)]
    ends = [process.communicate(timeout=300) for process in hosts]
    assert [process.returncode for process in hosts] == [0, 0], ends
    np.testing.assert_array_equal(fp.load(tmp_path / "run").history, here(300).history)


def refused(hosts, message):
    """Each ends with this one message."""
    for process in hosts:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 2 and message in said and "Traceback" not in said, said


@pytest.mark.slow
def test_hosts_that_do_not_come_together_are_told_why(tmp_path):
    files = [tmp_path / f"{i}.toml" for i in (0, 1)]
    for i, file in enumerate(files):
        file.write_text(EXPERIMENT.format(steps=2 + i))
    more = ("--folder", tmp_path / "run", "--no-figure", "--patience", "240")
    port = _free_port()
    refused([host(file, i, port, *more) for i, file in enumerate(files)], "another experiment")
    refused([host(files[0], 0, _free_port(), *more[:-1], "5")], "not all of the 2 processes reached 127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused([host(files[0], 0, taken.getsockname()[1], *more)], "Address already in use")


class Board:
    """What processes tell each other through the coordinator."""

    def __init__(self, *hellos):
        self.said = {f"hello/{i}": json.dumps({**versions(), "experiment": "same", **h}) for i, h in enumerate(hellos)}
        self.read = []

    def key_value_set(self, key, value):
        assert json.loads(value) == {**versions(), "experiment": "same"}

    def blocking_key_value_get(self, key, milliseconds):
        self.read.append(key)
        return self.said[key]

    def wait_at_barrier(self, name, milliseconds):
        assert self.read == list(self.said)  # nobody goes before it has read what all say


@pytest.mark.parametrize(
    ("hellos", "message"),
    [
        ([{}, {}, {}], None),
        ([{}, {}, {"jax": "0.0.7"}], f"process 2 has other versions than process 0: jax 0.0.7, not {jax.__version__}"),
        (
            [{}, {"fedpoint": "7", "experiment": "b"}],
            f"process 1 has other versions than .*: fedpoint 7, not {VERSION}$",
        ),
        ([{}, {"experiment": "b"}, {}], "process 1 has another experiment than process 0: start the same file"),
    ],
)
def test_processes_of_other_versions_or_with_another_experiment_are_refused(hellos, message):
    """All of them, with the same words."""
    for process in range(len(hellos)):
        group = ProcessGroup(process, 1)
        group.processes, group.client = len(hellos), Board(*hellos)
        with contextlib.nullcontext() if message is None else pytest.raises(fp.FedpointError, match=message):
            _agree(group, "same")


class Goodbyes:
    """Who says what to whom, in its order: process 0 hears who has left."""

    def __init__(self):
        self.said, self.left = [], set()

    def key_value_set(self, key, value):
        self.said.append(key)
        self.left.add(key)

    def blocking_key_value_get(self, key, milliseconds):
        assert 0 < milliseconds <= 1000 * PARTING
        self.said.append(f"waits for {key}")
        if key not in self.left:
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")

    def end(self, word):
        self.said.append(word["message"])


def test_whoever_leaves_tells_the_others_why_and_process_0_leaves_last():
    board, why = Goodbyes(), {"is": "refused", "message": "another experiment"}
    for process in (1, 2, 0):
        group = ProcessGroup(process, 1)
        group.processes, group.client = 4, board
        _part(group, board, why)  # process 3 is gone, and nobody waits for it for ever
    waits = [f"waits for left/{i}" for i in (1, 2, 3)]
    assert board.said == ["another experiment", "left/1", "another experiment", "left/2", *waits]
