"""The comparison with other frameworks, without them: its jobs, its processes and its page."""

import importlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

PEERS = Path(__file__).resolve().parents[1] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))
common, draws, explain, jobs, page, processes, catalogue = (
    importlib.import_module(name) for name in ("common", "draws", "explain", "jobs", "page", "processes", "catalogue")
)
scoreboard, certificates, numpy_loops, jax_model, real_page = (
    importlib.import_module(name) for name in ("scoreboard", "certificates", "numpy_loops", "jax_model", "real_page")
)
sys.path.remove(str(PEERS))

ROUNDS = 2
LARGE = ("agents-10000", "size-99985", "size-999985", "cnn", "transformer")  # their sizes are other numbers
REPLAYED = ("streamed", "stored", "softmax", "scaffold", "size-985", "loans", "clipped", "compressed", "sites-3")


def few(name):
    return replace(jobs.JOBS[name], rounds=ROUNDS)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in jobs.JOBS])
def test_every_job_runs_on_fedpoint(name, tmp_path):
    """And a plain loop over the draws that were written down ends at the same model: peers compute the same."""
    job = few(name)
    model = _model_of(job)
    assert all(np.isfinite(v).all() for v in model.values())
    if name not in REPLAYED:
        return
    draws.write(job, tmp_path / name)
    told = common.Job(tmp_path / name)
    replayed = {"w": explain.scaffold(told, ROUNDS)} if job.method == "scaffold" else _fedavg(told)
    # Ten thousand operations on numbers of order one, each of which rounds.
    tolerance = 1e-5 if told.X.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(common.flatten(model), common.flatten(replayed), rtol=0, atol=tolerance)
    assert np.abs(common.flatten(model) - common.flatten(told.parameters)).max() > 1e-3  # it moved
    score = jobs.score(job, common.flatten(model))
    assert 0 < score < 1 if job.kind != "linear" else 0 < score < 20


def _model_of(job):
    model = job.run(ROUNDS, record_every=1).model
    return job.parameters({n: v[0] for n, v in model.items()} if isinstance(model, dict) else model[0])


def _fedavg(told):
    w = told.parameters
    for r in range(ROUNDS):
        ends = [common.local_steps(told, w, told.batches(r, k)) for k in told.participants(r)]
        changes = [common.sent(told, w, end) for end in ends]
        w = {n: w[n] + sum(c[n] for c in changes) / len(changes) for n in w}
    return w


@pytest.mark.slow
def test_a_private_job_is_the_clipped_one_with_noise_of_the_deviation_that_frameworks_add():
    """Clip times multiplier in the sum of the ten, in each of two rounds of which the second sees the first's."""
    private = replace(jobs.JOBS["private"], rounds=1)
    runs = [job.run(1, repeats=40).model for job in (private, replace(private, noise=0.0))]
    noise = (runs[0] - runs[1]) * 10
    assert noise.std() == pytest.approx(private.clip * private.noise, rel=0.02)  # of 26,000 numbers


def test_a_networks_model_is_scored_by_its_names(tmp_path):
    """The parameters come back from the flat model: a transformer that says what follows gets it right."""
    job = few("transformer")
    job = replace(job, rows=tuple(a[::50] for a in job.table))
    right, start = job.table[1], job.parameters(job.start)
    flat = common.flatten(start)
    outputs = jax_model.OUTPUTS["transformer"](start, job.table[0])
    assert jobs.score(job, flat) == pytest.approx(float((outputs.argmax(-1) == right).mean()), abs=2e-3)
    assert np.unique(right).size == 40 and right.shape == (60, 32)
    np.testing.assert_array_equal(job.table[0][:, 1:], right[:, :-1])


def test_the_page_of_real_jobs_says_what_was_found(tmp_path):
    runs = [
        _run("fedpoint", "loans", 2e-3, wire=0.0, counted=19_200.0),
        _run("fedjax", "loans", 30e-3, wire=0.0, apart=1e-16),
        _run("flower", "loans", 1.0, wire=5e5, apart=0.5),
        {"peer": "pfl", "job": "loans", "memory": 0, "error": "ValueError: verbatim"},
    ]
    found = {**FOUND, "runs": runs}
    text = real_page.text(found)
    rows = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in _table(text, "Logistic")}
    assert rows["**fedpoint**"][0] == "2" and rows["**fedpoint**"][5] == "(19.2)"
    assert rows["FedJAX"][1] == "15" and rows["FedJAX"][-1] == "1e-16"
    assert rows["Flower"][5] == "500" and rows["Flower"][-1] == "5e-01 **another model**"
    assert rows["pfl"][0] == "ValueError: verbatim"
    assert "of 50 states: times as fast as FedJAX | 15 | >= 10 | met |" in text
    assert "statsmodels" not in text  # not measured
    real_page.picture(found, tmp_path / "real.png")
    assert (tmp_path / "real.png").read_bytes()[:4] == b"\x89PNG"


def test_a_federation_is_held_to_seconds_beside_nvflare_and_a_regression_to_statsmodels():
    """Processor time and whoever else is faster do not count there; each target can be missed."""
    runs = [
        _run("fedpoint", "sites-3", 0.1, wire=5e3, work=0.9),
        _run("nvflare", "sites-3", 0.4, wire=5e3, work=0.1),
        _run("flower", "sites-3", 0.2, wire=5e3, work=0.01),
    ]
    pooled = {"fedpoint": {"seconds": 30.0, "memory": 1.0}, "statsmodels": {"seconds": 10.0, "memory": 2.0}}
    pooled |= {"apart": {"params": 1e-12, "errors": 1e-3}, "shape": {"rows": 1000, "sites": 5, "columns": 2}}
    text = real_page.text({**FOUND, "runs": runs, "pooled": pooled})
    assert "3 sites: times as fast as NVFlare by seconds | 4 | >= 3 | met |" in text
    assert "part of statsmodels' processor time | 3 | <= 2 | missed |" in text
    assert "coefficients apart | 1e-12 | <= 1e-08 | met |" in text
    rows = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in _table(text, "A feder")}
    assert rows["**fedpoint**"][0] == "900" and rows["**fedpoint**"][2] == "10" and rows["Flower"][0] == "10"


def test_a_model_is_explained_by_the_mistake_that_was_made(tmp_path):
    draws.write(few("scaffold"), tmp_path / "scaffold")
    told = common.Job(tmp_path / "scaffold")
    right = explain.scaffold(told, ROUNDS)
    for name, options in explain.VARIANTS.items():
        wrong = explain.scaffold(told, ROUNDS, **options)
        assert np.abs(wrong - right).max() > 1e-3
        assert explain.explain(tmp_path / "scaffold", wrong, ROUNDS) == (name, 0.0)
    assert explain.explain(tmp_path / "scaffold", right, ROUNDS)[1] > 100 * page.PARITY


def test_a_process_is_measured_and_its_error_is_kept(tmp_path):
    code = "x = bytearray(80_000_000); import time; time.sleep(0.6); print('a word'); raise ValueError('what it says')"
    ended = processes.run([sys.executable, "-c", code], tmp_path / "log", 30.0, {})
    assert ended.error == "ValueError: what it says"
    assert 80e6 < ended.memory < 200e6 and ended.seconds < 30


def test_a_process_has_no_network_but_loopback(tmp_path):
    """Some peers listen on every interface: there is only the one."""
    code = (
        "import socket; s = socket.create_server(('0.0.0.0', 0)); "
        "socket.create_connection(('127.0.0.1', s.getsockname()[1]), 5); "
        "print([line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])"
    )
    ended = processes.run([sys.executable, "-c", code], tmp_path / "log", 30.0, {})
    if ended.error.startswith("OSError: no network of its own"):
        pytest.skip(ended.error)
    assert ended.error == "" and (tmp_path / "log").read_text().strip() == "['lo']"


def test_a_process_that_does_not_end_is_ended_with_its_children(tmp_path):
    child = f"import time, os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True).wait()"
    ended = processes.run([sys.executable, "-c", code], tmp_path / "log", 2.0, {})
    assert ended.error == "not done after 2 s"
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_clock_makes_blocks_and_a_report(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(common, "time", SimpleNamespace(time=lambda: now[0], process_time=time.process_time))
    monkeypatch.setattr(common, "BEGUN", 97.0)
    monkeypatch.setenv("PEER_OUT", str(tmp_path))
    clock = common.Clock()
    clock.lap()
    for _ in range(10):  # three of a tenth of a second make a block
        now[0] += 0.1
        clock.lap()
    common.report(clock, 11, np.arange(3.0), version="1.0")
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["first"] == 3.0 and [b[0] for b in told["blocks"]] == [3, 3, 3] and told["rounds"] == 11
    np.testing.assert_allclose([b[1] for b in told["blocks"]], 0.3)
    np.testing.assert_array_equal(np.load(tmp_path / "model.npy"), np.arange(3.0))


def _run(peer, job, seconds, **more):
    facts = {"round": seconds, "work": seconds, "first": 2.0, "rounds": 7, "version": "1.0", "apart": 1e-9}
    return {"peer": peer, "job": job, "memory": 10**8, "error": "", "score": 0.9, **facts, **more}


FOUND = {
    "machine": "a machine",
    "seconds": 60.0,
    "installed": {"fedjax": "", "fedlab": "", "flower": "ERROR: no such package", "jax": ""},
    "runs": [
        _run("fedpoint", "softmax", 1e-3, first=1.0, memory=9 * 10**7, compiled=4.0),
        _run("fedpoint", "softmax", 3e-3, first=1.5, memory=8 * 10**7),
        _run("fedjax", "softmax", 20e-3),
        _run("fedlab", "softmax", 50e-3, apart=0.1, explained=["it counts from one", 1e-9]),
        _run("jax", "softmax", 1e-3),
        {"peer": "pfl", "job": "softmax", "memory": 0, "error": "ValueError: verbatim"},
        _run("fedpoint", "agents-100", 1e-6),
        _run("fedpoint", "agents-100000", 2e-6),
        _run("fedlab", "agents-100", 1e-2),
        _run("fedlab", "agents-100000", 1e-2),
    ],
}


def test_the_page_says_what_was_found():
    text = page.text(FOUND)
    rows = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in _table(text, "Softmax on")
    }
    assert rows["**fedpoint**"][0] == "500"  # the median of both: 2 ms
    assert rows["FedJAX"][:2] == ["50", "10"] and rows["FedJAX"][-1] == "1e-09"
    assert rows["FedLab"][-1] == "1e-01 **another model**"
    assert rows["pfl"][0] == "ValueError: verbatim"
    assert "- FedLab: it counts from one. A NumPy loop that does so ends at its model (apart 1e-09)." in text
    assert "does not install: ERROR: no such package" in text
    assert page.fastest(FOUND["runs"]) == ["fedjax", "fedlab"]


def _table(text, heading):
    section = text.split(f"## {heading}")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def test_targets_are_those_of_the_fastest_framework():
    rows = page.Results(FOUND).targets()
    found = {what.split(":")[0]: (value, sense, target) for what, value, sense, target, _ in rows}
    value, sense, target = found["softmax on digits"]
    assert (value, sense, target) == (pytest.approx(10.0), ">=", 12.0)  # FedJAX; the plain loop does not count
    assert found["softmax, cold, 100 rounds"][0] == pytest.approx((2.0 + 99 * 20e-3) / 1.25)  # medians
    assert found["memory, over the least of a framework's (worst job)"][0] == pytest.approx(0.9)
    assert found["time per round, K = 100,000 over K = 100 at L = 10"][0] == pytest.approx(2.0)
    text = page.text(FOUND)
    assert "| softmax on digits: times as fast as FedJAX | 10 | >= 12 | missed | 10 |" in text


def test_what_was_measured_in_turn_is_compared_with_its_neighbour():
    """The machine became half as fast, and then again: the ratio did not change."""
    runs = [_run(p, "stored", s * slow) for slow in (1, 2, 8) for p, s in (("fedpoint", 1e-3), ("fedjax", 5e-3))]
    runs.append(_run("fedlab", "stored", 0.1))  # once: beside the median
    results = page.Results({"runs": runs})
    assert results.ratio("fedjax", "stored") == results.work_ratio("fedjax", "stored") == pytest.approx(5.0)
    assert results.ratio("fedlab", "stored") == pytest.approx(0.1 / 2e-3)
    assert results.ratio("pfl", "stored") is None and results.work_ratio("nvflare", "stored") is None


def test_the_picture_is_drawn(tmp_path):
    page.picture(FOUND, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes()[:4] == b"\x89PNG"


def test_peers_have_a_file_each_and_do_jobs_that_exist():
    for name, peer in catalogue.PEERS.items():
        assert (PEERS / f"run_{name}.py").exists() == bool(peer.jobs)
        assert (PEERS / f"run_{name}_sites.py").exists() == bool(set(peer.jobs) & set(catalogue.LIVE))
        assert set(peer.jobs) <= set(jobs.JOBS) and peer.kind in ("framework", "primitives", "plain")
    assert os.fspath(catalogue.PLACE).endswith("build/peers")


@pytest.mark.parametrize(
    ("peer", "method", "mistake"),
    [
        ("fedlab", "scaffold", "weights_dropped"),
        ("fedlab", "fedprox", "weights_dropped"),
        ("pfl", "fedprox", "weights_renormalised"),
        ("flower", "fedprox", "pull_not_squared"),
    ],
)
def test_a_loop_in_numpy_is_convicted_of_the_mistake_that_it_makes(peer, method, mistake):
    verdict = certificates.Verdict(peer, method)
    certificates.examine(numpy_loops.LOOPS[peer, method], method, verdict)
    assert not verdict.passed and verdict.mistake == mistake


def test_a_loop_in_numpy_without_mistakes_is_told_from_those_with_them():
    """Everyone with p_k is FedProx; who is compared with another loop is apart from it."""
    right, wrong = numpy_loops.prox(weighted=True), numpy_loops.prox(weighted=True, squared=False)
    assert numpy_loops.apart(right, numpy_loops.prox(weighted=True)) == 0.0
    assert numpy_loops.apart(right, wrong) > 1e-3
    loops = {id(loop): loop for loop in numpy_loops.LOOPS.values()}
    assert all(np.isfinite(numpy_loops.play(loop)).all() for loop in loops.values())


def test_the_scoreboard_says_what_was_found():
    method = {"peer": "pfl", "method": "scaffold", "version": "0.6", "passed": False, "error": "", "apart": 2e-16}
    method |= {"ends": "it diverges (within 9 rounds)", "some": "", "mistake": "weights_dropped", "reason": ""}
    mechanism = {"peer": "flower", "mechanism": "LocalDpMod, sensitivity 0.01", "setting": "s", "epsilon": 2.0}
    mechanism |= {"version": "1", "passed": False, "least": float("inf"), "mistake": "too little noise", "error": ""}
    late = {"peer": "fluke", "method": "fednova", "version": "", "error": "not done after 300 s"}
    shown = {"script": "pfl_scaffold.py", "shown": False, "printed": ["it is 1"]}
    found = {"methods": [method, late], "mechanisms": [mechanism], "reproductions": [shown]}
    text = scoreboard.text(found | {"installed": {"appfl": "no such package"}})
    script = "[pfl_scaffold.py](peers/reproductions/pfl_scaffold.py)"
    assert (
        f"| pfl 0.6 | scaffold | **no** | it diverges (within 9 rounds) |  | weights dropped | 2e-16 | {script} |"
        in text
    )
    assert "| fluke | fednova | not examined: not done after 300 s |  |  |  |  |  |" in text
    assert (
        "| Flower 1 | LocalDpMod, sensitivity 0.01 | s | 2 | without bound | **convicted** | too little noise |" in text
    )
    assert "- `pfl_scaffold.py` (**not shown**): it is 1" in text and "APPFL does not install: no such package" in text
    method["apart"] = 0.1
    assert "| 1e-01 **another** |" in scoreboard.text(found | {"installed": {}})


def test_everything_on_the_scoreboard_has_its_files():
    for peer, methods in certificates.SHIPPED.items():
        assert (PEERS / f"conform_{peer}.py").exists() and set(methods) <= set(certificates.SETTINGS)
        assert all((peer, method) in numpy_loops.LOOPS for method in methods)
    named = {(c.peer, c.mechanism) for c in scoreboard.CLAIMS} | {
        (p, m) for p, ms in certificates.SHIPPED.items() for m in ms
    }
    assert set(scoreboard.REPRODUCTIONS) <= named
    assert {p.name for p in (PEERS / "reproductions").glob("*.py")} == set(scoreboard.REPRODUCTIONS.values())
    for claim in scoreboard.CLAIMS:
        assert f'"{claim.mechanism}"' in (PEERS / f"mechanisms_{claim.peer}.py").read_text()
