"""What does a site's record say to somebody who is not an engineer? Nothing in it is believed before it is verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.core.numbers import counted
from fedpoint.federation.site.chain import HEAD, LOG, Broken, Entry, examine, origin
from fedpoint.federation.site.engagement import Engagement, find
from fedpoint.store.disk import Table, os_errors, read_lines, read_manifest, read_toml

ASKED = {  # what an order of a kind asks for
    "columns": "describe the columns",
    "moments": "give means and spreads of columns",
    "ready": "get ready",
    "work": "train on the rows for a round",
    "share": "share secrets with other sites",
    "mask": "send the change with masks on",
    "agree": "sign who is left",
    "reveal": "open the sum of those",
    "measure": "measure the model on the rows",
    "end": "hear of the end of the study",
    "unknown": "(orders that no study has)",
    "none": "(bytes that were no order)",
}
LEFT = {  # one message of a kind, and several
    "columns": ("description of the columns", "descriptions of the columns"),
    "moments": ("list of means and spreads of the columns", "lists of means and spreads of the columns"),
    "ready": ('message "ready"', 'messages "ready"'),
    "work": ("change of the model", "changes of the model"),
    "keys": ("set of fresh public keys", "sets of fresh public keys"),  # of "work", in secure sums
    "share": ("list of encrypted shares for other sites", "lists of encrypted shares for other sites"),
    "mask": ("masked change of the model", "masked changes of the model"),
    "agree": ("signature of who is left", "signatures of who is left"),
    "reveal": ("list of shares that open a sum", "lists of shares that open a sum"),
    "measure": ("measurement of the model", "measurements of the model"),
    "end": ("receipt of the end", "receipts of the end"),
}
WHY = {  # an order was refused
    "order": "not a valid order",
    "terms": "not allowed by the terms of the study",
    "study": "an order of another study",
    "version": "an order from an incompatible version of fedpoint",
    "data": "the data did not permit an answer",
    "floor": "too few rows to speak of",
    "range": "a number that secure sums have no room for",
    "privacy": "the agreed epsilon is used up",
    "rows": "more or fewer rows than the study allows this site",
    "memory": "the site's memory of the study did not fit",
    "stopped": "the site had been stopped",
    "error": "the computation failed",
}
MOST = 20  # different refusals that are listed
KEEP = "Keep the folder as it is, and ask whoever looks after this site's computer what happened."


class Kept(TypedDict):
    """Whose record it is."""

    site: str
    study: str
    fingerprint: str
    folder: str
    secure: bool  # its answers leave with masks on


class Asked(TypedDict):
    """Orders of one kind; rounds, columns and models are those of orders that were carried out."""

    kind: str
    times: int
    refused: int
    rounds: list[int]  # the first and the last
    columns: list[str]
    models: int  # different ones


class Left(TypedDict):
    """Answers of one kind."""

    kind: str
    times: int
    bytes: list[int]  # of the shortest and the longest
    total: int
    told: list[str]  # what it said in words
    arrays: dict[str, str]  # name: shape, "3, 2"


class Refusal(TypedDict):
    """Orders that were refused for one reason."""

    reason: str
    detail: str
    times: int


class Report(TypedDict):
    """All of it, in plain types."""

    kept: Kept
    verified: bool
    broken: str | None
    line: int | None  # the first that is wrong
    lines: int
    since: str | None
    until: str | None
    runs: int
    interrupted: int  # how often the site was ended in the middle of writing
    asked: list[Asked]
    left: list[Left]
    refusals: int
    refused: list[Refusal]  # the most frequent
    bytes: int
    leader: str | None  # "agrees", "differs", "knows nothing"; None where it was not compared
    seals: int  # that the leader holds
    sealed: int | None  # the line of the last one
    measured: dict[str, Entry]  # after so many rounds: what this site said of the model, in the last run


def kept_by(part: Engagement) -> Kept:
    path = part.folder / "study.toml"
    secure = path.exists() and read_toml(read_file(path).decode()).get("secure") is True
    return Kept(site=part.party, study=part.name, fingerprint=part.fingerprint, folder=str(part.folder), secure=secure)


def left_words(kind: str, secure: bool, several: bool) -> str:
    """What leaves as the answer to an order of a kind."""
    kind = "keys" if secure and kind == "work" else kind
    return LEFT.get(kind, ("other answer", "other answers"))[several]


@dataclass
class Reading:
    """What has been read of a record so far."""

    times: list[str] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)
    interrupted: int = 0
    asked: dict[str, Asked] = field(default_factory=dict)
    models: dict[str, set[str]] = field(default_factory=dict)
    left: dict[str, Left] = field(default_factory=dict)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: int = 0
    seals: dict[str, int] = field(default_factory=dict)  # the lines by their hashes
    measured: dict[str, Entry] = field(default_factory=dict)

    def hear(self, entry: Entry, sha256: str) -> None:
        """One line that follows the one before. Its words are somebody's: only those of the expected kind count."""
        self.seals[sha256] = len(self.seals) + 1
        self.times = [*self.times[:1], _word(entry.get("time"))]
        if "found" in entry:
            self.interrupted += 1
            return
        asked, left = _table(entry.get("asked")), _table(entry.get("left"))
        kind = "none" if "kind" not in asked else _word(asked["kind"])
        kind = kind if kind in ASKED else "unknown"
        self._ask(kind, asked, "failure" in _table(left.get("says")))
        self._leave(kind, left, _word(asked.get("run")), _word(entry.get("detail")))
        said = _table(left.get("says"))
        if kind == "measure" and "measures" in said:
            self.measured[_word(asked.get("round"))] = said

    def _ask(self, kind: str, asked: Entry, refused: bool) -> None:
        one = self.asked.setdefault(kind, Asked(kind=kind, times=0, refused=0, rounds=[], columns=[], models=0))
        one["times"], one["refused"] = one["times"] + 1, one["refused"] + refused
        if refused:
            return
        number = asked.get("round")
        if type(number) is int and kind == "work":
            one["rounds"] = [min([number, *one["rounds"]]), max([number, *one["rounds"]])]
        columns = asked.get("columns")
        if isinstance(columns, list) and kind == "moments":
            one["columns"] = sorted({*one["columns"], *map(_word, columns)})
        if "model" in asked:
            self.models.setdefault(kind, set()).add(_word(asked["model"]))
            one["models"] = len(self.models[kind])

    def _leave(self, kind: str, left: Entry, run: str, detail: str) -> None:
        size, says = left.get("bytes"), _table(left.get("says"))
        size = size if type(size) is int else 0
        self.bytes += size
        if "failure" in says:
            self.refused[_word(says["failure"]), detail] += 1
            return
        self.runs.add(run)
        one = self.left.setdefault(kind, Left(kind=kind, times=0, bytes=[size, size], total=0, told=[], arrays={}))
        one["times"], one["total"] = one["times"] + 1, one["total"] + size
        one["bytes"] = [min(size, one["bytes"][0]), max(size, one["bytes"][1])]
        one["arrays"] |= {_word(name): _word(shape) for name, shape in _table(left.get("arrays")).items()}
        one["told"] += [text for text in _told(says) if text not in one["told"]]


def _told(says: Entry) -> Iterable[str]:
    """What an answer said in words, without its numbers but for the count of rows."""
    rows, columns, classes = says.get("rows"), _table(says.get("columns")), says.get("classes")
    if type(rows) is int and rows:
        yield f"the number of rows ({rows:,})"
    for name, column in columns.items():
        words = _table(column).get("words")
        if isinstance(words, list):
            yield f"the {counted(len(words), 'category')} of {_word(name)}"
        if "forms" in _table(column):
            yield f"how dates of {_word(name)} are written"
    if isinstance(classes, list):
        yield f"the {counted(len(classes), 'class')} of the target"
    if "measures" in says:
        said = [*_table(says["measures"]), *_table(says.get("tables"))]
        yield " and ".join(sorted(map(_word, said), reverse=True))
    count = says.get("count")
    if "measures" in says and type(count) is int:
        yield f"the number of rows held out ({count:,})"


def _table(value: object) -> Entry:
    return value if isinstance(value, dict) else {}


def _word(value: object) -> str:
    """Somebody's word, on one line of a terminal."""
    if isinstance(value, list | dict):  # a shape, or what no site notes
        value = ", ".join(map(_word, value)) if all(isinstance(one, str | int | float) for one in value) else "..."
    text = "" if value is None else str(value)
    return "".join(one if one.isprintable() else "?" for one in text[:300])


def report(folder: Path, against: Path | None = None, study: str | None = None) -> Report:
    """Verify and summarise the record of a study in a site's kit; held against the seal in the leader's result folder,
    where given."""
    part, read = find(folder, study, "" if against is None else str(_about(against).get("study"))), Reading()
    kept, records, broken = kept_by(part), part.records, None
    first = origin(kept["fingerprint"], kept["site"])
    seals = [] if against is None else _seals(against, kept)
    with os_errors(f"read {records}"):
        begun = (records / LOG).exists() or (records / HEAD).exists()
    if not begun and not seals:
        raise FedpointError(f"{records} holds no record: no order has reached this site yet, or the record was removed")
    try:
        examine(records, first, read.hear)
    except Broken as error:
        broken = error
    where = [read.seals.get(seal, 0) for seal in seals]
    same = all(where) and where == sorted(where)
    leader = None if against is None else "knows nothing" if not seals else "agrees" if same else "differs"
    return Report(
        kept=kept,
        verified=broken is None and leader != "differs",
        broken=None if broken is None else str(broken),
        line=None if broken is None else broken.line,
        lines=len(read.seals),
        since=read.times[0] if read.times else None,
        until=read.times[-1] if read.times else None,
        runs=len(read.runs),
        interrupted=read.interrupted,
        asked=[*read.asked.values()],
        left=[*read.left.values()],
        refusals=read.refused.total(),
        refused=[Refusal(reason=reason, detail=why, times=n) for (reason, why), n in read.refused.most_common(MOST)],
        bytes=read.bytes,
        leader=leader,
        seals=len(set(seals)),
        sealed=where[-1] if where and same else None,
        measured=read.measured,
    )


def _seals(against: Path, kept: Kept) -> list[str]:
    """The seals of a site's record that the hub has kept, of every round and the last one; the oldest first."""
    about = _about(against)
    if about.get("study") != kept["fingerprint"]:
        raise FedpointError(f"{against} is the result of another study than {kept['folder']}")
    rounds = [_table(event.get("seals")) for event in read_lines(against / "rounds.jsonl")[0]]
    return [_word(seals[kept["site"]]) for seals in (*rounds, _table(about.get("chains"))) if kept["site"] in seals]


def _about(against: Path) -> Table:
    """What the hub has kept of its result."""
    with os_errors(f"read {against}"):
        return read_manifest(against / "hub.npz", "hub")


# For people.


def lines(found: Report) -> list[str]:
    """The page."""
    kept = found["kept"]
    text = [f"Record of site {kept['site']} in study {kept['study']} ({kept['fingerprint'][:12]})", ""]
    text += [*verdict_lines(found), ""]
    if found["since"] is None:
        return [*text, "Nothing was asked, and nothing left this site."]
    text.append(f"From {_when(found['since'])} to {_when(found['until'])} (UTC). {_runs(found['runs'])}")
    width = max((len(ASKED[one["kind"]]) for one in found["asked"]), default=0)
    text += ["", "What was asked", *(f"  {_asked(one, width)}" for one in found["asked"])]
    text += ["", "What left this site", *(f"  {_left(one, kept['secure'])}" for one in found["left"])]
    text += [f"  in all {found['bytes']:,} bytes, refusals included" if found["left"] else "  nothing but refusals"]
    text += ["", "What was refused", *(f"  {_refused(one)}" for one in found["refused"])]
    others = found["refusals"] - sum(one["times"] for one in found["refused"])
    if others:
        text.append(f"  and {counted(others, 'order')} for other reasons")
    return text if found["refused"] else [*text, "  nothing"]


def verdict_lines(found: Report) -> list[str]:
    """Whether the record is as it was written, and who says so."""
    if found["broken"] is not None:
        before = f"What follows is from the {counted(found['lines'], 'line')} before that." if found["lines"] else ""
        return [f"BROKEN: {found['broken']}.", f"Nothing vouches for the rest. {before}".rstrip(), KEEP]
    if found["leader"] == "differs":
        what = "the leader's result folder holds a seal of this site's record that is not in this one"
        return [f"BROKEN: {what}: lines were removed from it, or it was written anew.", KEEP]
    sealed = f"The record is complete: {counted(found['lines'], 'line')}, each sealed with the one before it."
    text = [sealed, "None was changed, removed or moved."]
    if found["interrupted"]:
        text.append(f"The site was interrupted {_times(found['interrupted'])} while it wrote; nothing left unrecorded.")
    return [*text, _witness(found)]


def _witness(found: Report) -> str:
    if found["leader"] == "agrees":
        later = found["lines"] - (found["sealed"] or 0)
        more = f"; {counted(later, 'line')} came after it" if later else ""
        seals = counted(found["seals"], "seal")
        return (
            f"The leader's result folder holds {seals} of this very record, the last of line {found['sealed']}{more}."
        )
    if found["leader"] == "knows nothing":
        return "The leader's result folder holds no seal of this site, and so cannot confirm it."
    return (
        "Whoever controls this site's computer could have written it all anew: compare it with the leader's result "
        "folder (--against) to rule that out."
    )


def _when(time: str | None) -> str:
    return (time or "")[:19].replace("T", " ")


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _runs(count: int) -> str:
    return f"The study was run {_times(count)}." if count else "No order was carried out."


def _asked(one: Asked, width: int) -> str:
    match one["rounds"]:
        case [first, last]:
            more = f"rounds {first} to {last}" if last > first else f"round {first}"
        case _:
            more = ", ".join(one["columns"])
    models = counted(one["models"], "different model") if one["models"] > 1 else ""
    refused = f"{one['refused']:,} refused" if one["refused"] else ""
    rest = "; ".join(filter(None, [more, models, refused]))
    return f"{ASKED[one['kind']]:{width}}  {_times(one['times']):10}  {rest}".rstrip()


def _left(one: Left, secure: bool) -> str:
    words = left_words(one["kind"], secure, one["times"] > 1)
    few, many = one["bytes"]
    size = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    count = f"1 {words}, {size} bytes" if one["times"] == 1 else f"{one['times']:,} {words}, {size} bytes each"
    told = one["told"] or ([] if one["arrays"] else ["no data"])
    return f"{count}: {'; '.join(told)}" if told else count


def _refused(one: Refusal) -> str:
    detail = f": {one['detail']}" if one["detail"] else ""
    return f"{WHY.get(one['reason'], one['reason'])}, {_times(one['times'])}{detail}"
