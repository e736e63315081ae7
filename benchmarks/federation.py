"""How long is a round over real sites? Three on loopback with mutual TLS; the shares of engine, serialisation and us.

Writes benchmarks/FEDERATION.md. `python benchmarks/federation.py [rounds]`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedpoint.federation import validate, wire
from fedpoint.federation.flare.demo import free_port
from fedpoint.federation.flare.kits import Kit, provision
from fedpoint.federation.flare.lead import Lead
from fedpoint.federation.flare.parties import consent, running
from fedpoint.federation.ledger import Ledger
from fedpoint.federation.result import Federated
from fedpoint.federation.shapes import shapes_of
from fedpoint.federation.site import own_method
from fedpoint.federation.study import Study, parse

SITES = ["a", "b", "c"]
SIZES = {"10": 10, "1,000": 1_000, "1,000,000": 1_000_000}


def study_of(dim: int, rounds: int) -> Study:
    """One gradient step a round, on one row: the work is small, the model as large as is asked for."""
    problem = {"kind": "logistic", "agents": 3, "rows": 2, "dim": dim}
    base = {"name": "timing", "sites": SITES, "server": f"localhost:{free_port()}", "rounds": rounds}
    return parse({**base, "problem": problem, "algorithm": {"name": "fedavg", "step": 0.1}, "deadline": 60.0,
                  "record_every": rounds})  # fmt: skip


def measured(study: Study, root: Path) -> Federated:
    kits = {name: Kit(path) for name, path in provision(study, root / "kits").items()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(kits["server"]))
        for site in SITES:
            consent(kits[site], None)
            stack.enter_context(running(kits[site]))
        lead = stack.enter_context(Lead(kits["admin"], wait=180.0))
        return lead.run(root / "result", lambda event: None, wait=240.0)


def parts(made: Federated) -> dict[str, float]:
    """Median seconds of a round: all of it, and what each part takes."""
    events = made.events[1:]
    whole, wait, site, down = (
        float(np.median([event["seconds"][key] for event in events])) for key in ("all", "wait", "site", "down")
    )
    study = made.study
    start = study.generated().start()
    shapes = shapes_of(own_method(study, 0, None, float), start, False)
    array = np.zeros(np.shape(start))
    header = {"weight": 1 / 3, "seconds": 0.1, "round": 1}
    turns = max(3, int(2e6 / array.size) if array.size > 1e5 else 200)
    begun = time.perf_counter()
    for _ in range(turns):
        letter = wire.decode(wire.encode(header, {"model": array}))
    coded = (time.perf_counter() - begun) / turns
    begun = time.perf_counter()
    for _ in range(turns):
        validate.message(letter, shapes.message, 1 / 3, None)
    checked = (time.perf_counter() - begun) / turns
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "hub", study)
        begun = time.perf_counter()
        for number in range(5):
            ledger.save(number, {"model": array}, {"merged": {}, "refused": {}, "setup": None})
        saved = (time.perf_counter() - begun) / 5
        ledger.close()
    messages = 2 * len(SITES)  # down and up; each is written at one end and read at the other
    return {
        "round": whole,
        "site": site,
        "serialisation": messages * coded,
        "validation": len(SITES) * checked,
        "checkpoint": saved,
        "merging": max(0.0, whole - wait - down - saved),
        "engine": max(0.0, wait - site - len(SITES) * (coded + checked)),
    }


def main(rounds: int = 40) -> None:
    rows, table = (
        {},
        ["model", "round", "engine", "site's work", "serialisation", "validation", "checkpoint", "merging"],
    )
    for name, dim in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="fedpoint-bench-") as folder:
            rows[name] = parts(measured(study_of(dim, rounds if dim < 1e5 else max(rounds // 4, 5)), Path(folder)))
        print(name, {key: round(value, 4) for key, value in rows[name].items()}, flush=True)
    lines = [
        "# A round over real sites",
        "",
        "Three sites and a server as processes of one machine (2 shared cores), mutual TLS on loopback, FedAvg;",
        "medians in seconds. Engine: NVIDIA FLARE with its polling. Serialisation: ours, all messages, both ends.",
        f"`python benchmarks/federation.py`; load average of the machine meanwhile: {os.getloadavg()[1]:.0f}.",
        "",
        "| " + " | ".join(table) + " |",
        "|" + "---|" * len(table),
    ]
    keys = ("round", "engine", "site", "serialisation", "validation", "checkpoint", "merging")
    for name, row in rows.items():
        lines.append(f"| {name} numbers | " + " | ".join(f"{row[key]:.4f}" for key in keys) + " |")
    Path(__file__).with_name("FEDERATION.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
