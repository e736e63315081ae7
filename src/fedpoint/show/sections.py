"""What does a page say of one run? Section by section."""

from __future__ import annotations

import math

import numpy as np

from fedpoint.core.files import read_file
from fedpoint.core.numbers import counted
from fedpoint.core.types import Plain
from fedpoint.privacy.spent import NOT_COUNTED
from fedpoint.results.labels import short
from fedpoint.show import svg
from fedpoint.show.charts import chart, curve, error_chart, held_out, loggable, repeats
from fedpoint.show.facts import Facts, status
from fedpoint.show.from_data import Part
from fedpoint.show.markup import MARKS, Cell, Html, join, number, scrolling, size, table, tag, with_error
from fedpoint.show.plots import WHAT

LONGEST_CONFIG = 20_000  # characters that are shown
ONE_BY_ONE = 40  # agents up to which each has a row


def run_section(facts: Facts) -> Html:
    several = facts.several
    parts = [
        tag("h2", tag("span", class_=f"dot c{facts.colour % 7}"), facts.label, id=facts.anchor) if several else None,
        tag("p", status(facts.run)) if several else None,
        _verdict(facts),
        _tiles(facts),
        _missing(facts),
        *(_charts(facts) if facts.in_full else ()),
        _agents(facts),
        _network(facts),
        _cost(facts),
        _privacy(facts),
        _theory(facts),
        _configuration(facts),
    ]
    return tag("section", *parts, class_="run")


def _verdict(facts: Facts) -> Html | None:
    verdict = facts.forecast.get("verdict")
    if verdict is None:
        return None
    head, colon, words = verdict["headline"].partition(": ")
    mark, class_ = MARKS[verdict["good"]], {True: "verdict good", False: "verdict bad", None: "verdict"}
    return tag("p", tag("strong", f"{mark} {head}{colon}"), f"{words}.", class_=class_[verdict["good"]])


def _tiles(facts: Facts) -> Html:
    cost, part = facts.run.cost, facts.forecast
    tiles = []
    for what, words in (("error", "squared distance to the solution"), ("loss", "loss, all agents together")):
        mean, spread = facts.final(what)
        if mean is not None:
            tiles.append((what, with_error(mean, spread), words))
    if part.get("diverges"):
        tiles.append(("forecast", "diverges", part["reason"]))
    else:
        if part.get("floor") is not None:
            tiles.append(("forecast floor", number(part["floor"]), "where the error settles"))
        if part.get("bias") is not None:
            tiles.append(("bias", number(part["bias"]), "distance of the limit to the solution"))
        if part.get("rate") is not None:
            tiles.append(("rate", number(part["rate"], 4), "factor per round"))
    fair = facts.parts["agents"].get("fairness")
    if fair and fair["jain"] is not None:
        tiles.append(("Jain's index", number(fair["jain"]), "of the agents' losses; 1 is equal"))
    tiles.append(("sent", size(cost.bytes_down + cost.bytes_up), "down and up together"))
    cells = [tag("div", tag("dt", a), tag("dd", b, class_="value"), tag("dd", c)) for a, b, c in tiles]
    return tag("dl", *cells, class_="tiles")


def _missing(facts: Facts) -> Html | None:
    """What is not on the page, and why: parts with the same reason together."""
    whys: dict[str, list[str]] = {}
    parts: dict[str, Part] = {
        "virtual time": facts.parts["time"],
        "the network": facts.parts["network"],
        "losses per agent and fairness": facts.parts["agents"],
        "the forecast": facts.parts["forecast"],
    }
    for what, part in parts.items():
        if "missing" in part:
            whys.setdefault(part["missing"], []).append(what)
    if "no_curve" in facts.forecast:
        whys.setdefault(facts.forecast["no_curve"], []).append("the forecast's curve")
    for what, why in facts.run.absent().items():
        whys.setdefault(why, []).append(what)
    rows = [tag("li", f"Not here: {', '.join(what)}: {why}") for why, what in whys.items()]
    return tag("ul", *rows, class_="missing") if rows else None


def _charts(facts: Facts) -> list[Html]:
    """The curves of one run; beside others, only what the comparison has not shown."""
    run, charts = facts.run, []
    if run.has_error:
        charts.append(error_chart(facts))
    if run.has_loss and not (facts.several and run.has_error):
        own = curve(facts, run.loss, run.rounds, "run")
        charts.append(chart("Loss", WHAT["loss"], [own], loggable([facts], "loss"), repeats([facts])))
    for name, values in run.metrics.items():
        if values.ndim == 2:  # one number a record
            charts.append(chart(name, name, [curve(facts, np.asarray(values, float), run.rounds, "run")]))
    charts += [] if facts.several else [held_out([facts], name) for name in run.evaluation]
    variation = facts.parts["network"].get("variation")
    if variation is not None and any(variation):
        values = np.array([variation], float)
        own = curve(facts, values, run.rounds, "run")
        charts.append(chart("Disagreement", "sum over edges of A_ij |w_i − w_j|²", [own]))
    return charts


def _agents(facts: Facts) -> Html | None:
    part = facts.parts["agents"]
    if "losses" not in part:
        return None
    losses = np.array(part["losses"], float)
    fair, count = part["fairness"], len(losses)
    rows = [
        ["mean loss", number(fair["mean"]), ""],
        ["variance", number(fair["variance"]), "lower is fairer"],
        ["worst tenth", number(fair["worst"]), "mean loss of the agents served worst"],
        ["best tenth", number(fair["best"]), "mean loss of the agents served best"],
    ]
    if fair["jain"] is not None:
        rows.append(["Jain's index", number(fair["jain"]), f"from {number(1 / count)} (one has all) to 1 (all equal)"])
    if fair["entropy"] is not None:
        rows.append(["entropy", number(fair["entropy"]), f"at most {number(math.log(count))}"])
    shown = list(range(count))
    if count > ONE_BY_ONE:
        order = np.argsort(-losses, kind="stable").tolist()
        shown = [*order[:5], *order[-5:]]
    if not facts.in_full:
        shown = []
    top = max(float(np.nanmax(np.abs(losses))), 1e-300)
    each = [
        [part["names"][k], number(part["weights"][k]), number(losses[k]), svg.bar(abs(losses[k]) / top)] for k in shown
    ]
    caption = "The five worst and the five best served" if count > ONE_BY_ONE else None
    whole = tag("div", svg.columns(losses[np.isfinite(losses)], "loss"), class_="picture")
    return tag(
        "section",
        tag("h3", "Agents"),
        whole if count > ONE_BY_ONE and facts.in_full else None,
        tag(
            "div",
            scrolling(table(["agent", "weight", "loss", ""], each, caption, class_="agents"), "Agents")
            if each
            else None,
            scrolling(table(["fairness", "value", ""], rows, class_="words"), "Fairness"),
            class_="beside",
        ),
    )


def _network(facts: Facts) -> Html | None:
    part = facts.parts["network"]
    if "places" not in part or not (facts.in_full or facts.colour == 0):
        return None
    weights, values = (np.array(part[key], float) for key in ("weights", "values"))  # null: nan
    drawn = svg.network(part["places"], part["edges"], weights, part["names"], values, part["label"])
    told = f"{counted(part['nodes'], 'node')} and {counted(part['links'], 'edge')}; "
    told += f"nodes are coloured by {part['label']} in the end"
    if part["links"] > svg.MOST_EDGES:
        told += f"; the {svg.MOST_EDGES:,} heaviest edges are drawn"
    return tag(
        "section",
        tag("h3", "Network"),
        tag("div", drawn, class_="picture"),
        tag("p", told + ".", class_="note"),
    )


def _cost(facts: Facts) -> Html:
    cost, run = facts.run.cost, facts.run
    rows = [
        ["messages", number(cost.messages_down), number(cost.messages_up)],
        ["numbers", number(cost.floats_down), number(cost.floats_up)],
        ["bytes", size(cost.bytes_down), size(cost.bytes_up)],
    ]
    seconds = run.pace.seconds
    told = (
        f"{number(cost.evaluations)} evaluations of local fields, all agents together; {number(seconds)} seconds of "
        f"computing, {number(run.speed)} rounds a second."
    )
    sent = scrolling(table(["sent", "down", "up"], rows), "Cost")
    return tag("section", tag("h3", "Cost"), sent, tag("p", told, class_="note"))


def _privacy(facts: Facts) -> Html | None:
    line = facts.run.privacy_line
    if not line:
        return None
    rest = None if line.startswith("not") else tag("p", f"Not counted: {'; '.join(NOT_COUNTED)}.", class_="note")
    return tag("section", tag("h3", "Privacy of agents"), tag("p", line), rest)


def _theory(facts: Facts) -> Html | None:
    part = facts.forecast
    if "text" not in part:
        return None
    checks = None
    if "verdict" in part:
        rows = [
            [join([MARKS[c["ok"]], " ", c["name"]]), c["words"], "" if c["z"] is None else f"{c['z']:+.1f}"]
            for c in part["verdict"]["checks"]
        ]
        heading = ["check", "what was found", "z"]
        checks = scrolling(table(heading, rows, class_="words"), "Checks")
    return tag("section", tag("h3", "Forecast and check"), tag("pre", part["text"]), checks)


def _configuration(facts: Facts) -> Html:
    run, config = facts.run, facts.run.config
    stored, meta, problem = run.stored, run.stored.meta, run.config["problem"]
    events = stored.events()
    begun = next((e["time"] for e in events if e["event"] == "started"), None)
    versions = {name: [str(v)] for name, v in meta["versions"].items()}
    for event in events:
        for name, version in event.get("versions", {}).items():
            if version not in versions.setdefault(name, []):
                versions[name].append(version)  # a run may be gone on with by another version
    who = "schedule" if "schedule" in config else "participation"
    given = [name for name in ("channel", "gather", "attack", "share") if config.get(name)]
    sent: list[list[Cell]] = [[name, _table_of(config[name])] for name in given]
    rows: list[list[Cell]] = [
        ["algorithm", _table_of(config["algorithm"])],
        [who, _table_of(config[who])],
        *sent,
        ["problem", f"{problem['class']}, {counted(problem['agents'], 'agent')}"],
        ["rounds", f"{int(run.rounds[-1]):,}"],
        ["repeats", str(run.repeats)],
        ["seed", str(run.seed)],
        ["fields", "exact" if config["exact"] else "sampled"],
        [
            "records",
            f"every {counted(config['record_every'], 'round')}" if config["record_every"] > 1 else "every round",
        ],
        ["begun", begun],
        ["engine", meta["engine"]],
        ["versions", "; ".join(f"{name} {', then '.join(seen)}" for name, seen in versions.items())],
        ["data, SHA-256", tag("code", problem["sha256"])],
        ["configuration, SHA-256", tag("code", stored.config_hash)],
    ]
    text = read_file(stored.path / "config.toml", links=False).decode("utf-8", "replace")
    cut = len(text) > LONGEST_CONFIG
    shown = text[:LONGEST_CONFIG] + ("\n# ... the rest is in config.toml of the run's folder" if cut else "")
    whole = tag("details", tag("summary", "config.toml"), tag("pre", shown))
    return tag(
        "section",
        tag("h3", "Configuration"),
        scrolling(table([], rows, class_="words"), "Configuration"),
        whole if facts.in_full else None,
    )


def _table_of(values: Plain) -> str:
    """A description in plain types as words: the name, then its fields."""
    if not isinstance(values, dict):
        return short(values) if not isinstance(values, list) else f"[{', '.join(map(_table_of, values[:6]))}]"
    for several in ("links", "tuple"):
        if several in values:
            inside = values[several]
            return ", ".join(map(_table_of, inside)) if isinstance(inside, list) else _table_of(inside)
    name = values.get("name") or values.get("class") or ""
    rest = [f"{k} = {_table_of(v)}" for k, v in values.items() if k not in ("name", "class") and v is not None]
    inside = ", ".join(rest)
    return f"{name}({inside})" if name and inside else f"{name}{inside}"
