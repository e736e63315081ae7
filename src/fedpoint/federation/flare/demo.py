"""What does it look like? Credit scoring over three banks, as real processes of this machine, beside the simulation."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.types import Plain
from fedpoint.data.tables import read_table
from fedpoint.federation.flare.lead import Lead
from fedpoint.federation.flare.parties import consent
from fedpoint.federation.flare.processes import needs_flare, running
from fedpoint.federation.flare.trial import begin
from fedpoint.federation.preparation import features
from fedpoint.federation.result import StudyResult
from fedpoint.federation.study import Study, parse
from fedpoint.federation.transport import Tell
from fedpoint.results.run import Run
from fedpoint.verbs.run import run

BANKS = ("north", "south", "west")
STATES = {"north": "NY NJ PA MA CT OH MI IL", "south": "FL TX GA NC VA", "west": "CA WA OR NV AZ CO"}
SAME = 1e-10

Shown = Callable[[Study], contextlib.AbstractContextManager[Tell]]  # hears of the study's rounds


def loans() -> dict[str, dict[str, np.ndarray]]:
    """Three banks' loans: of Lending Club, or made up where the extra `data` is missing."""
    try:
        from fedpoint.data import lending_club

        whole = lending_club()
        table = {"grade": "grade", "income": "log income", "amount": "log amount", "months": "months"}
        columns = {name: whole.X[:, whole.features.index(key)] for name, key in table.items()}
        columns["verified"] = np.where(whole.X[:, whole.features.index("verified")] > 0, "yes", "no")
        columns["bad"] = whole.y
        mine = {bank: np.isin(np.asarray(whole.groups), STATES[bank].split()) for bank in BANKS}
        return {bank: {name: c[mine[bank]] for name, c in columns.items()} for bank in BANKS}
    except FedpointError:
        return {bank: _made_up(400 + 200 * k, k) for k, bank in enumerate(BANKS)}


def _made_up(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([7, seed])
    columns: dict[str, np.ndarray] = {
        "grade": rng.integers(1, 36, rows).astype(float),
        "income": rng.normal(11 + 0.1 * seed, 0.5, rows),
        "amount": rng.normal(9.5, 0.7, rows),
        "months": rng.choice([36.0, 60.0], rows),
        "verified": rng.choice(["yes", "no"], rows),
    }
    score = -3 + 0.12 * columns["grade"] - (columns["income"] - 11)
    columns["bad"] = (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
    return columns


def write_csv(path: Path, columns: dict[str, np.ndarray]) -> None:
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*map(np.ndarray.tolist, columns.values()), strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n")


def demo_study(rounds: int, port: int) -> Study:
    columns: list[Plain] = ["grade", "income", "amount", "months", "verified"]
    content: dict[str, Plain] = {
        "name": "credit",
        "sites": [*BANKS],
        "server": f"localhost:{port}",
        "rounds": rounds,
        "deadline": 30.0,
        "problem": {"kind": "table", "model": "logistic", "target": "bad", "batch": 32, "features": columns},
        "algorithm": {"name": "scaffold", "step": 0.2, "local_steps": 10},
    }
    return parse(content)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Compared(TypedDict):
    """What came of the demo, beside the simulation."""

    sites: list[str]
    rounds: int
    rows: list[int]
    loss: float
    loss_simulated: float
    gap: float
    same: bool
    seconds: float
    seconds_a_round: float


def simulated(made: StudyResult, files: list[Path]) -> Run:
    """The same study by `fp.run` on all rows together."""
    table = made.study.table
    if table is None or table.target is None:
        raise FedpointError("the demo is a study of tables")
    read = read_table([str(f) for f in files], table.target, model=table.model, features=table.features)
    problem = read.problem(table.model, table.ridge, table.batch, table.sampling, None, table.intercept)
    return run(made.replay(problem), rounds=made.round)


def play(rounds: int, port: int, keep: Path | None, show: Shown) -> tuple[Compared, list[str]]:
    """The demo: what came out, in plain types and in lines for people."""
    needs_flare()
    with contextlib.ExitStack() as stack:
        if keep is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpoint-demo-")))
        else:
            keep.mkdir(parents=True, exist_ok=True)
            root = keep.absolute()
        begun = time.perf_counter()
        study = demo_study(rounds, port or free_port())
        files = [root / f"{bank}.csv" for bank in BANKS]
        for bank, path in zip(BANKS, files, strict=True):
            write_csv(path, loans()[bank])
        _, kits, signed, parts = begin(study, root / "project")
        with contextlib.ExitStack() as processes:
            processes.enter_context(running(kits["server"]))
            for bank, path in zip(BANKS, files, strict=True):
                consent(kits[bank], parts[bank], path)
                processes.enter_context(running(kits[bank]))
            lead = processes.enter_context(Lead(kits["admin"], signed, wait=120.0))
            made = lead.run(root / "result", processes.enter_context(show(study)), wait=120.0)
        took = time.perf_counter() - begun
        beside = simulated(made, files)
        gap = float(np.abs(beside.history[0] - made.history).max())
        pace = float(np.median([event["seconds"]["all"] for event in made.events]))
        found = Compared(
            sites=made.study.sites,
            rounds=made.round,
            rows=made.setup["rows"] or [],
            loss=float("nan") if made.loss is None else made.loss,
            loss_simulated=float(beside.loss[0, -1]),
            gap=gap,
            same=gap <= SAME,
            seconds=round(took, 2),
            seconds_a_round=pace,
        )
        lines = _lines(made, beside, found)
        if not found["same"]:
            raise FedpointError("\n".join(lines))
        return found, lines


def _lines(made: StudyResult, beside: Run, found: Compared) -> list[str]:
    names = [name for feature in features(made.setup["recipe"]) for name in feature.names] + ["intercept"]
    lines = [f"{'':>14}  {'three sites':>14}  {'simulation':>14}"]
    for name, a, b in zip(names, made.model, beside.model[0], strict=True):
        lines.append(f"{name:>14}  {a:14.10f}  {b:14.10f}")
    lines.append(f"{'loss':>14}  {found['loss']:14.3g}  {found['loss_simulated']:14.10f}  (sites round theirs)")
    word = "the same numbers" if found["same"] else "NOT the same numbers"
    rows = ", ".join(f"{site} {n}" for site, n in zip(found["sites"], found["rows"], strict=True))
    return [
        *lines,
        f"{word}: largest difference over {counted(found['rounds'], 'round')} {found['gap']:.1e}",
        f"rows, which stayed where they are: {rows}",
        f"{found['seconds']:.1f} seconds in all, {found['seconds_a_round']:.2f} a round; mutual TLS on loopback",
    ]
