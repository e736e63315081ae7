"""A server for tests: it asks one site as an honest hub would, or anything else."""

import hashlib
import json

import numpy as np
from attacks import ATTACKS, MOMENTS, READY
from studies import content

from fedpoint.federation import preparation, wire
from fedpoint.federation.protocol import OWN
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import parse

ROWS = 40
TABLE = {
    "kind": "table",
    "model": "logistic",
    "target": "ill",
    "features": ["age", "dose", "kind"],
    "missing": "mean",
}
METHOD = {"name": "fedavg", "step": 0.1, "local_steps": 2}
STUDY = parse(content(METHOD, TABLE, rounds=3, sites=["north", "south"]))


def write_table(path, seed=1, rows=ROWS):
    rng = np.random.default_rng(seed)
    lines = [f"{rng.integers(20, 90)},{rng.normal(9, 2):.4f},{'xyz'[i % 3]},{i % 2},secret{i}" for i in range(rows)]
    path.write_text("\n".join(["age,dose,kind,ill,name", *lines]) + "\n")
    return path


class Server:
    """Orders to the site "north" of a study, in one run."""

    def __init__(self, data, run="ab12", study=STUDY):
        self.study, self.run = study, run
        table = study.table
        columns = table.read(data)
        said, arrays = preparation.columns_of(table, columns)
        recipe, self.classes, _ = preparation.first_recipe(table, [wire.Packet(said, arrays)])
        for feature in recipe:
            if feature.categories is not None:
                feature.categories.append("zz")  # the other site has one more
        self.recipe = preparation.written(recipe)
        scaled = [{**one, "mean": 1.0, "scale": 2.0} if one["categories"] is None else one for one in self.recipe]
        self.setup = {"index": 0, "share": 0.5, "heaviest": 0.5, "recipe": scaled, "classes": self.classes}
        self.width = preparation.start_of(table, preparation.features(scaled), self.classes).shape[0]

    def order(self, kind, arrays=None, **header):
        """An order; None takes a field away."""
        about = {**OWN.plain(), "study": self.study.fingerprint, "run": self.run, "order": "w", "kind": kind}
        about |= {"round": 0, "merged": -1}
        if kind == "moments":
            about["recipe"] = self.recipe
        if kind in ("ready", "work", "measure"):
            about["setup"] = self.setup
        if kind in ("work", "measure") and arrays is None:
            arrays = {"model": np.full(self.width, 0.1 * (1 + header.get("round", 0)))}
        about |= header
        return wire.encode({key: value for key, value in about.items() if value is not None}, arrays)

    def work(self, round, **header):
        return self.order("work", round=round, **{"merged": round - 1, **header})

    def measure(self, round=3, arrays=None, **header):
        return self.order("measure", arrays, round=round, **{"merged": round - 1, **header})

    def honest(self):
        """All that an honest hub asks in a run."""
        rounds = [self.work(round) for round in range(self.study.rounds)]
        return [self.order("columns"), self.order("moments"), self.order("ready"), *rounds, self.measure()]


def over_the_wire(hub, data, path):
    """A server's hub that tries all attacks on the site "north", at most two in a row (a third would stop it),
    in as many runs as that takes; then three in a row. What came of each is written to `path`, once."""
    if path.exists():
        return
    left = {name: attack for name, attack in ATTACKS.items() if isinstance(attack[0], int)}
    found = {}

    def ask(order):
        hub.engine.send("north", order, 60.0)
        while (arrival := hub.engine.receive(60.0)) is None or arrival.site != "north":
            assert arrival is not None, "no answer"
        return "gone" if arrival.data is None else wire.decode(arrival.data).header.get("failure", "answered")

    runs = 0
    while left:
        runs += 1
        server = Server(data, f"run{runs}", hub.study)
        for stage, honest in enumerate([*server.honest(), None]):
            # Before an answer that forgives: "ready" does not, and the end of a run is before the start of the next.
            at_once = 1 if stage in (0, MOMENTS, READY) or honest is None else 2
            some = [name for name, attack in left.items() if attack[0] == stage][:at_once]
            found |= {name: ask(left.pop(name)[1](server)) for name in some}
            if honest is not None:
                found[f"honest {runs} {stage}"] = ask(honest)
    last = Server(data, f"run{runs + 1}", hub.study)
    found["a new run"] = ask(last.order("columns"))
    found["three in a row"] = [ask(last.work(999 + k)) for k in range(3)]
    path.write_text(json.dumps(found))


def answered(site: Site, order: bytes) -> wire.Packet:
    return wire.decode(site.answer(order))


def failure(site: Site, order: bytes) -> str | None:
    return answered(site, order).header.get("failure")


def refusals(folder):
    path = folder / "refusals.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def state(folder):
    """All that a site has on disk but its audit and its refusals, by content."""
    left_out = ("audit.jsonl", "audit.head", "refusals.jsonl", "orders.json")
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}
    orders = folder / "orders.json"
    studies = json.loads(orders.read_text())["studies"] if orders.exists() else {}
    return {name: sha for name, sha in files.items() if name not in left_out}, studies
