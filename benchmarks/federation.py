"""How long is a round over real sites, what does a site hold, and how soon is one known that comes or goes?

Processes of this machine on loopback, with mutual TLS. Writes benchmarks/FEDERATION.md.
`python benchmarks/federation.py [rounds] [sites] [sections]`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedpoint.federation import wire
from fedpoint.federation.flare.demo import free_port
from fedpoint.federation.flare.lead import Lead
from fedpoint.federation.flare.parties import consent
from fedpoint.federation.flare.processes import environment
from fedpoint.federation.flare.trial import begin
from fedpoint.federation.hub import validate
from fedpoint.federation.hub.ledger import Ledger
from fedpoint.federation.result import StudyResult
from fedpoint.federation.shapes import shapes_of
from fedpoint.federation.study import Study, parse
from fedpoint.federation.transport import Event, Stopped

PROCESSES = {  # of a site, by what their command lines name
    "flare.waiting": "waiting command",
    "client_train": "connection",
    "worker_process": "job",
    "site.worker": "worker, with data and JAX",
}
WAIT = 600.0  # seconds for anything to happen
SIZES = {"10": 10, "1,000": 1_000, "1,000,000": 1_000_000}


SECURE = {"secure": True, "channel": {"kind": "clip", "norm": 10.0}}


def study_of(dim: int, rounds: int, sites: int = 3, **terms: Any) -> Study:
    """One gradient step a round, on one row: the work is small, the model as large as is asked for."""
    problem = {"kind": "logistic", "agents": sites, "rows": 2, "dim": dim}
    names = [f"site-{k:02}" for k in range(sites)]
    base = {"name": "timing", "sites": names, "server": f"localhost:{free_port()}", "rounds": rounds, "deadline": 60.0}
    return parse({**base, "problem": problem, "algorithm": {"name": "fedavg", "step": 0.1}, "record_every": rounds,
                  **terms})  # fmt: skip


class Federation:
    """A server and sites: each party is the process that its command becomes, and all that this starts."""

    def __init__(self, study: Study, root: Path):
        self.study, self.root = study, root
        _, self.kits, self.signed, self.parts = begin(study, root / "kits")
        self.parties: dict[str, subprocess.Popen] = {}
        for site in study.sites:
            consent(self.kits[site], self.parts[site], None)

    def start(self, *names: str) -> None:
        for name in names:
            kit = self.kits[name]
            command = [sys.executable, "-m", "fedpoint.federation.flare.waiting", str(kit.folder), kit.party]
            log = (kit.folder / "waiting.log").open("ab")
            self.parties[name] = subprocess.Popen(command, env=environment(kit), stdout=log, stderr=log)
            log.close()

    def processes(self, name: str) -> list[psutil.Process]:
        party = psutil.Process(self.parties[name].pid)
        return [party, *party.children(recursive=True)]

    def kill(self, *names: str) -> float:
        """kill -9 of parties with all that they started; the moment."""
        for name in names:
            for process in self.processes(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.parties.pop(name).wait()
        return time.monotonic()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        for party in self.parties.values():
            party.terminate()
        for party in self.parties.values():
            party.wait()

    def heard(self, site: str) -> int:
        """Answers of a site so far, by its own record."""
        path = self.parts[site].records / "audit.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def megabytes(self) -> dict[str, float]:
        """Mean resident memory of each process of a site."""
        found: dict[str, list[float]] = {name: [] for name in PROCESSES.values()}
        for site in self.study.sites:
            for process in self.processes(site):
                line = " ".join(process.cmdline())
                for mark, name in PROCESSES.items():
                    if mark in line:
                        found[name].append(process.memory_info().rss / 2**20)
                        break
        return {name: sum(sizes) / len(self.study.sites) for name, sizes in found.items()}


class Going(threading.Thread):
    """A study that somebody leads."""

    def __init__(self, parties: Federation):
        super().__init__(daemon=True)
        self.parties, self.rounds = parties, 0
        self.made: StudyResult | None = None
        self.answered: set[str] = set()  # in the last round

    def told(self, event: Event) -> None:
        if "round" in event:
            self.rounds, self.answered = event["round"] + 1, set(event["answered"])

    def run(self) -> None:
        with Lead(self.parties.kits["admin"], self.parties.signed, wait=WAIT) as lead, contextlib.suppress(Stopped):
            self.made = lead.run(self.parties.root / "result", self.told, wait=WAIT)


def wait_for(condition: Callable[[], object]) -> float:
    """The moment when it holds."""
    end = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.02)
    return time.monotonic()


def measured(study: Study, root: Path) -> tuple[StudyResult, dict[str, float]]:
    """A study from its start to its end, and what its sites hold meanwhile."""
    with Federation(study, root) as parties:
        parties.start("server", *study.sites)
        going = Going(parties)
        going.start()
        wait_for(lambda: going.rounds > 0 or not going.is_alive())
        memory = parties.megabytes()
        wait_for(lambda: not going.is_alive())
    if going.made is None:
        raise RuntimeError("the study came to no end")
    return going.made, memory


def comings_and_goings(root: Path) -> dict[str, float]:
    """Seconds until a late site, a dead one and one that is back are known."""
    study = study_of(10, 100_000, quorum=2, deadline=10.0)
    late, found = study.sites[-1], {}
    with Federation(study, root) as parties, Lead(parties.kits["admin"], parties.signed, wait=WAIT) as lead:
        parties.start("server", *study.sites[:-1])
        going = Going(parties)
        going.start()
        wait_for(lambda: going.rounds > 5)

        def comes(what: str) -> None:
            before = parties.heard(late)
            parties.start(late)
            begun = wait_for(lambda: late in lead.sites())
            found[f"{what}: first answer"] = wait_for(lambda: parties.heard(late) > before) - begun
            found[f"{what}: in a round"] = wait_for(lambda: late in going.answered) - begun

        def goes(what: str, *sites: str) -> None:
            killed = parties.kill(*sites)
            found[f"{what}: known by `status`"] = (
                wait_for(lambda: not set(sites) & set(lead.status()["sites"])) - killed
            )

        comes("a late site")
        goes("a site that is killed", late)
        wait_for(lambda: late not in going.answered)
        comes("it comes back")
        lead.stop()
        wait_for(lambda: not going.is_alive())
        goes("all sites are killed at once", *study.sites)
    return found


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
        progress = {"round": 1, "merged": {}, "refused": {}, "setup": {}, "measured": {}}
        saving = timed(lambda: ledger.save({"model": array}, progress), 5)
        ledger.close()
    count = len(study.sites)  # the hub writes and reads a message for each site; sites do theirs side by side
    found = {
        "round": said + saving,  # a hub notes how long a round took before it writes it down
        "engine": max(0.0, wait - site - encoding - decoding - count * (decoding + checking)),
        "serialisation": (count + 1) * (encoding + decoding),
        "site's work": site,
        "validation": count * checking,
        "checkpoint": saving,
    }
    return found | {"the rest": max(0.0, 2 * found["round"] - sum(found.values()))}


def within(job: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="fedpoint-bench-", ignore_cleanup_errors=True) as folder:
        return job(Path(folder))


def sizes(rounds: int) -> list[str]:
    """How long a round is by the size of the model."""
    rows = {}
    for name, dim in SIZES.items():
        study = study_of(dim, rounds if dim < 1e5 else max(rounds // 4, 5))
        rows[name] = within(lambda root, study=study: parts(measured(study, root)[0]))
        print(name, {key: round(value, 4) for key, value in rows[name].items()}, flush=True, file=sys.stderr)
    small, large = rows["1,000"]["round"], rows["1,000,000"]["round"]
    lines = ["| model | " + " | ".join(rows["10"]) + " |", "|" + "---|" * (1 + len(rows["10"]))]
    for name, row in rows.items():
        cells = [f"{value:.4f} ({value / row['round']:.1%})" for key, value in row.items() if key != "round"]
        lines.append(f"| {name} numbers | {row['round']:.4f} | " + " | ".join(cells) + " |")
    aims = (
        f"less than 0.5 s a round for small models: {'met' if small < 0.5 else 'missed'}; less than 2 s for a million"
    )
    return [*lines, "", f"Aims: {aims} numbers: {'met' if large < 2 else 'missed'}."]


def crowd(study: Study, root: Path) -> tuple[StudyResult, dict[str, float]]:
    """What came of a study, its folder left, and the megabytes of a site's processes."""
    made, memory = measured(study, root)
    assert made.events  # read now
    return made, memory


def crowds(rounds: int, counts: list[int]) -> list[str]:
    """How long a round is by the number of sites, with and without secure sums, and what a site holds."""
    names = list(PROCESSES.values())
    sizes_of = ["seconds a round", "slowest tenth", "kilobytes a site and round, down", "up", "megabytes a site"]
    lines = ["| " + " | ".join(["sites", "sums", *sizes_of, *names]) + " |", "|" + "---|" * (7 + len(names))]
    for count in counts:
        for sums, terms in (("plain", {}), ("secure", SECURE)):
            study = study_of(10, rounds, count, **terms)
            made, memory = within(lambda root, study=study: crowd(study, root))
            events = [event for event in made.events[1:] if event["merged"]]
            seconds = [event["seconds"]["all"] for event in events]
            down, up = (np.median([event[way] for event in events]) / count / 1e3 for way in ("down", "up"))
            times = [f"{np.median(seconds):.3f}", f"{np.quantile(seconds, 0.9):.3f}", f"{down:.1f}", f"{up:.1f}"]
            held = [f"{size:.0f}" for size in (sum(memory.values()), *(memory[name] for name in names))]
            lines.append("| " + " | ".join([str(count), sums, *times, *held]) + " |")
            print(lines[-1], flush=True, file=sys.stderr)
    return lines


def how_many(rounds: int, most: int) -> list[str]:
    load, begun = os.getloadavg()[1], time.perf_counter()
    table = crowds(rounds, [3, most])
    return [
        "A model of 10 numbers; with secure sums a round is five exchanges instead of one. Aims: 0.3 s for 3 sites,",
        f"1.5 s for 20. Load average before: {load:.1f}, at the end: {os.getloadavg()[1]:.1f}; {rounds} rounds, "
        f"{time.perf_counter() - begun:.0f} s in all.",
        "Megabytes are resident memory in the first round; pages that processes share count in each.",
        "",
        *table,
    ]


def who_comes(rounds: int, most: int) -> list[str]:
    return [
        "Three sites, quorum 2; seconds from the moment when the site is connected to the server, or killed. The first",
        'answer is that to "columns", or to "ready" of a site that was there before; a new job is started in between.',
        "",
        "| what happens | seconds |",
        "|---|---|",
        *(f"| {what} | {seconds:.1f} |" for what, seconds in within(comings_and_goings).items()),
        "",
        f"Load average of the machine meanwhile: {os.getloadavg()[1]:.1f}.",
    ]


def how_large(rounds: int, most: int) -> list[str]:
    return [
        "Three sites; each part with its share of a round. Engine: NVIDIA FLARE, which carries them. The rest is ours.",
        "",
        *sizes(rounds),
        "",
        f"Load average at the end: {os.getloadavg()[1]:.1f}.",
    ]


SECTIONS = {"How many sites": how_many, "Who comes and who goes": who_comes, "How large a model": how_large}
HEAD = """# Real sites, measured

A server and sites as processes of one machine (2 shared cores), mutual TLS on loopback, FedAvg; medians in
seconds. `python benchmarks/federation.py`. The sites come on top of the load that is named.
"""


def main(rounds: int = 40, most: int = 20, *only: str) -> None:
    """All sections, or those that are named; the others stay as they are."""
    path = Path(__file__).with_name("FEDERATION.md")
    before = path.read_text().split("\n## ")[1:]
    kept = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in before}
    for title, section in SECTIONS.items():
        if not only or title in only:
            kept[title] = "\n".join(section(rounds, most))
        parts = [f"## {name}\n\n{kept[name]}\n" for name in SECTIONS if name in kept]
        path.write_text("\n".join([HEAD, *parts]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
