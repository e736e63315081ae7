"""A scoreboard of implementations: what the methods of other frameworks converge to, and which privacy their mechanisms
give.

    python benchmarks/peers/scoreboard.py [--peers a,b] [--page]

Each framework is installed into an environment of its own below build/peers. Its methods go through `fp.certify`, its
mechanisms of privacy through `fp.privacy.certify`. With --peers the rest of the page stays as it was found before.
--page writes it again from build/peers/scoreboard.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import catalogue
import certificates
import environments
import mechanisms
import numpy_loops
from catalogue import PEERS, PLACE
from claims import AGENTS, CLIP, DELTA, EPSILON, MULTIPLIER
from lines import Line
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedpoint.privacy.accounting import gaussian_epsilon

HERE = Path(__file__).resolve().parent
SAME = 1e-6  # apart, at most, of a framework's rounds and of the loop that explains them; some keep single precision
OF_MEANS = gaussian_epsilon(MULTIPLIER, DELTA)  # what noise of so many clips gives
CLAIMS = (
    mechanisms.Claim("pfl", "GaussianMechanism", "construct_single_iteration(clip, epsilon, delta)"),
    mechanisms.Claim("pfl", "LaplaceMechanism", "(clip, epsilon)"),
    mechanisms.Claim("pfl", "GaussianMechanism, central", f"noise of {MULTIPLIER:g} clips on a sum", OF_MEANS,
                     agents=AGENTS),
    mechanisms.Claim("flower", "LocalDpMod, sensitivity 0.01", "sensitivity is a number apart from the clip of 1"),
    mechanisms.Claim("flower", "LocalDpMod, sensitivity 2", "sensitivity twice the clip"),
    mechanisms.Claim("flower", "central, equal rows", f"noise_multiplier {MULTIPLIER:g}", OF_MEANS, agents=AGENTS),
    mechanisms.Claim("flower", "central, unequal rows", f"the same; one client of {AGENTS} has 97 % of the rows",
                     OF_MEANS, agents=AGENTS),
    mechanisms.Claim("nvflare", "SVTPrivacy", "half of epsilon for the release"),
    mechanisms.Claim("nvflare", "PercentilePrivacy", "names no epsilon"),
    mechanisms.Claim("appfl", "gaussian, one step", "clip_grad, one local step"),
    mechanisms.Claim("appfl", "gaussian, ten steps", "the same with ten local steps"),
    mechanisms.Claim("appfl", "laplace, clipped by sums of absolute values", "clip_norm 1"),
    mechanisms.Claim("appfl", "laplace, clipped by Euclidean norm", "clip_norm 2"),
)  # fmt: skip
# In the framework's own terms: what a maintainer can run. The first of (peer, method) that it shows.
REPRODUCTIONS = {
    ("fedlab", "scaffold"): "fedlab_weights.py",
    ("fedlab", "fedprox"): "fedlab_weights.py",
    ("fedlab", "fednova"): "fedlab_weights.py",
    ("fedlab", "qfedavg"): "fedlab_weights.py",
    ("pfl", "scaffold"): "pfl_scaffold.py",
    ("flower", "fedprox"): "flower_fedprox.py",
    ("nvflare", "scaffold"): "nvflare_scaffold.py",
    ("fluke", "scaffold"): "fluke_weights.py",
    ("fluke", "fednova"): "fluke_fednova.py",
    ("flower", "LocalDpMod, sensitivity 0.01"): "flower_localdp.py",
    ("flower", "central, unequal rows"): "flower_central.py",
    ("appfl", "gaussian, ten steps"): "appfl_steps.py",
    ("appfl", "laplace, clipped by Euclidean norm"): "appfl_laplace.py",
}


def log_of(peer: str, name: str) -> Path:
    place = PLACE / "scoreboard"
    place.mkdir(parents=True, exist_ok=True)
    return place / f"{peer}-{name.replace(', ', '-').replace(' ', '-')}.txt"


def method(python: Path, peer: str, name: str) -> dict[str, Any]:
    """The certificate of a method, and how far it is from the loop in NumPy that makes the same mistake."""
    verdict = vars(certificates.certify(python, peer, name, log_of(peer, name)))
    if verdict["error"] or verdict["passed"]:
        return verdict
    line = Line(python, f"conform_{peer}.py", name, log_of(peer, f"{name}-loop"), certificates.LIMIT)
    try:
        subject = certificates.Subject(line, name)
        verdict["apart"] = numpy_loops.apart(subject, numpy_loops.LOOPS[peer, name])
    finally:
        line.close()
    return verdict


def reproduction(python: Path, script: str) -> dict[str, Any]:
    """What a reproduction prints; it ends with status 0 if the mistake is there."""
    command = [str(python), str(HERE / "reproductions" / script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return {"script": script, "shown": done.returncode == 0, "printed": done.stdout.strip().splitlines()[-1:]}


class Scoreboard:
    def __init__(self, peers: list[str], console: Console):
        self.peers, self.console = peers, console
        self.found: dict[str, Any] = {"methods": [], "mechanisms": [], "reproductions": [], "installed": {}}
        before = PLACE / "scoreboard.json"
        if before.exists():
            for kind, verdicts in json.loads(before.read_text()).items():
                self.found[kind] = verdicts if isinstance(verdicts, dict) else [v for v in verdicts if self._kept(v)]

    def _kept(self, verdict: dict[str, Any]) -> bool:
        """Whether it is of a framework that is not asked for."""
        return (verdict.get("peer") or verdict["script"].split("_")[0]) not in self.peers

    def fill(self) -> dict[str, Any]:
        pythons = {}
        for peer in self.peers:
            self.console.log(f"installing {PEERS[peer].title}")
            pythons[peer], error = environments.install(peer, PEERS[peer].packages)
            self.found["installed"][peer] = error
            if error:
                self.console.log(f"  it does not install: {error}")
                del pythons[peer]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as bar, ThreadPoolExecutor(os.cpu_count()) as pool:
            waited: list[tuple[str, str, Future[Any]]] = []
            for peer, python in pythons.items():
                names = certificates.SHIPPED.get(peer, ())
                waited += [("methods", f"{peer}, {m}", pool.submit(method, python, peer, m)) for m in names]
            for claim in CLAIMS:
                if claim.peer in pythons:
                    log = log_of(claim.peer, claim.mechanism)
                    work = pool.submit(mechanisms.certify, pythons[claim.peer], claim, log)
                    waited.append(("mechanisms", f"{claim.peer}, {claim.mechanism}", work))
            for script in sorted(set(REPRODUCTIONS.values())):
                peer = script.split("_")[0]
                if peer in pythons:
                    waited.append(("reproductions", script, pool.submit(reproduction, pythons[peer], script)))
            task = bar.add_task("", total=len(waited))
            for kind, name, work in waited:
                bar.update(task, description=name)
                verdict = work.result()
                self.found[kind].append(verdict if isinstance(verdict, dict) else vars(verdict))
                bar.advance(task)
                fresh = PLACE / "scoreboard.json.new"
                fresh.write_text(json.dumps(self.found, indent=1))
                fresh.replace(PLACE / "scoreboard.json")
        return self.found


METHODS = """
`fp.certify` ([docs/certify.md](../docs/certify.md)): five agents with unequal weights and numbers of steps, exact
gradients. Weights are handed over where the framework takes them. What a framework leaves to the user is as in its
documentation: Flower's FedProx client is that of its docstring, its q-FedAvg client reports the loss at the start.
FedLab's q-FedAvg as shipped stops with AttributeError ('qFedAvgClientTrainer' object has no attribute 'lr'): lr was
set by hand. Changes are kept in double precision. "Weights renormalised" is what averaging by numbers of examples
among those who take part does: with a selection the mean is another one than with p_k, a choice that papers make too.
A conviction names a known mistake that was seen; it need not be the only one, nor why a method diverges. The last
columns: a loop in NumPy that makes the same mistakes ([numpy_loops.py](peers/numpy_loops.py)) and how far its rounds
are from the framework's at most, and a script in the framework's own terms.
"""
MECHANISMS = f"""
`fp.privacy.certify`, {CLIP:g} as clip, delta {DELTA:g}; claimed is epsilon {EPSILON:g} where a mechanism takes one,
else what noise of {MULTIPLIER:g} clips on a sum of {AGENTS} gives. A mechanism that passes is not proved private. An
update of zeros ends in ZeroDivisionError in Flower's clip; 1e-9 was put in its place. APPFL's trainer assumes that a
model moves by 2 clip step at most, whatever the number of local steps. Laplace noise is meant to give epsilon at
delta 0, which calls cannot measure; the script computes it.
"""


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def text(found: dict[str, Any]) -> str:
    """The page."""
    lines = ["# A scoreboard of implementations", ""]
    lines += [
        "Written by `make scoreboard` (`python benchmarks/peers/scoreboard.py`). Each framework is installed from its",
        "package, by version. A conviction says what was seen with these versions and settings, no more.",
        "",
    ]
    lines += ["## Where methods end", METHODS]
    lines.append(row("framework", "method", "as it claims", "everyone takes part", "some take part", "mistake",
                     "NumPy loop, apart", "script"))  # fmt: skip
    lines.append("|---|---|---|---|---|---|---:|---|")
    lines += [_method(v) for v in in_order(found["methods"])]
    lines += ["", "## Which privacy mechanisms give", MECHANISMS]
    lines.append(row("framework", "mechanism", "setting", "epsilon claimed", "spent at least", "verdict", "mistake",
                     "script"))  # fmt: skip
    lines.append("|---|---|---|---:|---:|---|---|---|")
    lines += [_mechanism(v) for v in in_order(found["mechanisms"])]
    lines += ["", "## What the scripts print", ""]
    lines += [
        "In an environment of the framework: `python benchmarks/peers/reproductions/NAME`. Status 0: so it is.",
        "",
    ]
    for r in sorted(found["reproductions"], key=lambda r: str(r["script"])):
        shown = "" if r["shown"] else " (**not shown**)"
        lines.append(f"- `{r['script']}`{shown}: {' '.join(r['printed'])}")
    failed = {peer: error for peer, error in found["installed"].items() if error}
    lines += ["", *(f"{PEERS[peer].title} does not install: {error}" for peer, error in failed.items())]
    return "\n".join(lines).rstrip() + "\n"


def in_order(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the catalogue has the frameworks."""
    return sorted(verdicts, key=lambda v: list(PEERS).index(v["peer"]))


def _titled(v: dict[str, Any]) -> str:
    return f"{PEERS[v['peer']].title} {v['version']}".strip()


def _method(v: dict[str, Any]) -> str:
    if v["error"]:
        return row(_titled(v), v["method"], f"not examined: {v['error']}", "", "", "", "", "")
    apart = f"{v['apart']:.0e}" + ("" if v["apart"] < SAME else " **another**") if "apart" in v else ""
    claims, mistake = "yes" if v["passed"] else "**no**", v["mistake"].replace("_", " ")
    script = link(v["peer"], v["method"])
    return row(_titled(v), v["method"], claims, v["ends"].split(";")[0], v["some"], mistake, apart, script)


def _mechanism(v: dict[str, Any]) -> str:
    if v["error"]:
        return row(_titled(v), v["mechanism"], v["setting"], "", "", f"not examined: {v['error']}", "", "")
    spent = "without bound" if v["least"] is None or math.isinf(v["least"]) else f"{v['least']:.3g}"
    verdict, script = "nothing contradicts it" if v["passed"] else "**convicted**", link(v["peer"], v["mechanism"])
    claimed = f"{v['epsilon']:.3g}"
    return row(_titled(v), v["mechanism"], v["setting"], claimed, spent, verdict, v["mistake"], script)


def link(peer: str, name: str) -> str:
    script = REPRODUCTIONS.get((peer, name))
    return f"[{script}](peers/reproductions/{script})" if script else ""


def main() -> int:
    everybody = [name for name in PEERS if name in certificates.SHIPPED]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help=f"only these, by commas: {', '.join(everybody)}")
    parser.add_argument("--page", action="store_true", help="write the page again, from build/peers/scoreboard.json")
    options = parser.parse_args()
    if options.page:
        found = json.loads((PLACE / "scoreboard.json").read_text())
    else:
        peers = options.peers.split(",") if options.peers else everybody
        unknown = [peer for peer in peers if peer not in everybody]
        if unknown:
            parser.error("; ".join(f"no framework {peer!r}: {', '.join(everybody)}" for peer in unknown))
        PLACE.mkdir(parents=True, exist_ok=True)
        found = Scoreboard(peers, Console(stderr=True)).fill()
    print(text(found))
    (catalogue.ROOT / "benchmarks" / "SCOREBOARD.md").write_text(text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
