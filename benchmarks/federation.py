"""How long is a round over real sites? Three on loopback with mutual TLS; the shares of engine, serialisation and us.

Writes benchmarks/FEDERATION.md. `python benchmarks/federation.py [rounds]`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedpoint.federation import wire
from fedpoint.federation.flare.demo import free_port
from fedpoint.federation.flare.kits import Kit, provision
from fedpoint.federation.flare.lead import Lead
from fedpoint.federation.flare.parties import consent
from fedpoint.federation.flare.processes import running
from fedpoint.federation.hub import validate
from fedpoint.federation.hub.ledger import Ledger
from fedpoint.federation.result import StudyResult
from fedpoint.federation.shapes import shapes_of
from fedpoint.federation.study import Study, parse

SITES = ["a", "b", "c"]
SIZES = {"10": 10, "1,000": 1_000, "1,000,000": 1_000_000}


def study_of(dim: int, rounds: int) -> Study:
    """One gradient step a round, on one row: the work is small, the model as large as is asked for."""
    problem = {"kind": "logistic", "agents": 3, "rows": 2, "dim": dim}
    base = {"name": "timing", "sites": SITES, "server": f"localhost:{free_port()}", "rounds": rounds}
    return parse({**base, "problem": problem, "algorithm": {"name": "fedavg", "step": 0.1}, "deadline": 60.0,
                  "record_every": rounds})  # fmt: skip


def measured(study: Study, root: Path) -> StudyResult:
    kits = {name: Kit(path) for name, path in provision(study, root / "kits").items()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(kits["server"]))
        for site in SITES:
            consent(kits[site], None)
            stack.enter_context(running(kits[site]))
        lead = stack.enter_context(Lead(kits["admin"], wait=180.0))
        return lead.run(root / "result", lambda event: None, wait=240.0)


def timed(function: Callable[[], Any], turns: int) -> float:
    begun = time.perf_counter()
    for _ in range(turns):
        function()
    return (time.perf_counter() - begun) / turns


def parts(made: StudyResult) -> dict[str, float]:
    """Median seconds of a round, and what each part takes of it; the rest is the hub's own: asking, merging, noting."""
    events, study = made.events[1:], made.study
    said, wait, site = (float(np.median([e["seconds"][key] for e in events])) for key in ("all", "wait", "site"))
    start = study.generated().start()
    shapes, array = shapes_of(study.experiment(study.outline(start)).bind()), np.zeros(np.shape(start))
    header, turns = {"weight": 1 / 3, "seconds": 0.1, "round": 1}, 5 if array.size > 1e5 else 200
    sent = wire.encode(header, {"model": array})
    packet = wire.decode(sent)
    encoding = timed(lambda: wire.encode(header, {"model": array}), turns)
    decoding = timed(lambda: wire.decode(sent), turns)
    checking = timed(lambda: validate.message(packet, shapes.message, 1 / 3, None), turns)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "hub", study)
        progress = {"round": 1, "merged": {}, "refused": {}, "setup": {}, "measures": {}}
        saving = timed(lambda: ledger.save({"model": array}, progress), 5)
        ledger.close()
    count = len(SITES)  # the hub writes and reads a message for each site; sites do theirs side by side
    found = {
        "round": said + saving,  # a hub notes how long a round took before it writes it down
        "engine": max(0.0, wait - site - encoding - decoding - count * (decoding + checking)),
        "serialisation": (count + 1) * (encoding + decoding),
        "site's work": site,
        "validation": count * checking,
        "checkpoint": saving,
    }
    return found | {"the rest": max(0.0, 2 * found["round"] - sum(found.values()))}


def main(rounds: int = 40) -> None:
    rows, begun = {}, time.perf_counter()
    for name, dim in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="fedpoint-bench-") as folder:
            rows[name] = parts(measured(study_of(dim, rounds if dim < 1e5 else max(rounds // 4, 5)), Path(folder)))
        print(name, {key: round(value, 4) for key, value in rows[name].items()}, flush=True)
    small, large = rows["1,000"]["round"], rows["1,000,000"]["round"]
    lines = [
        "# A round over real sites",
        "",
        "Three sites and a server as processes of one machine (2 shared cores), mutual TLS on loopback, FedAvg;",
        "medians in seconds, and their share of a round. Engine: NVIDIA FLARE with its polling. The rest is ours.",
        f"`python benchmarks/federation.py` (took {time.perf_counter() - begun:.0f} s); load average of the machine "
        f"meanwhile: {os.getloadavg()[1]:.0f}.",
        "",
        "| model | " + " | ".join(rows["10"]) + " |",
        "|" + "---|" * (1 + len(rows["10"])),
    ]
    for name, row in rows.items():
        cells = [f"{value:.4f} ({value / row['round']:.1%})" for key, value in row.items() if key != "round"]
        lines.append(f"| {name} numbers | {row['round']:.4f} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Aims: less than 0.5 s a round for small models: {'met' if small < 0.5 else 'missed'}; less than 2 s for a "
        f"million numbers: {'met' if large < 2 else 'missed'}.",
    ]
    Path(__file__).with_name("FEDERATION.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
