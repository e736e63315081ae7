"""May this order be carried out? The site holds it against the study that it consented to; a server's word is none.

A run asks for columns, moments, then rounds that only go forward, and measurements where the study names them. Each is
answered once; the same order again gets the same bytes, from the site's own store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.core.types import Tree
from fedpoint.federation.secure.letters import STAGES
from fedpoint.federation.shapes import misfit
from fedpoint.federation.site import derivation
from fedpoint.federation.site.answers import Answered, Answers, RunRecord, nothing_answered
from fedpoint.federation.site.order import Order
from fedpoint.federation.site.refusal import Refused, forbidden
from fedpoint.federation.study import Study
from fedpoint.federation.wire import NEVER, Arrays, Header, Packet, encode
from fedpoint.store.disk import canonical

REPEATS = 100  # times that an answer may be asked for again: by a hub that was killed, or did not hear it
Statement = Callable[[], Packet]  # this site's own answer to "columns"


class Consent:
    """What a site has agreed to, and how much of it was used up."""

    def __init__(self, study: Study, name: str, answers: Answers, statement: Statement):
        self.study, self.name, self.answers, self.statement = study, name, answers, statement

    def permit(self, order: Order) -> bytes | None:
        """The answer that was given to this very order before; None: it may be carried out. Refused otherwise."""
        if order.kind == "excluded":  # asks for nothing
            return None
        record = self._record(order)
        if order.kind in STAGES:
            return self._permit_stage(order, record)
        before = record["answered"].get(_place(order))
        if before is not None and before["order"] == order.digest:
            return self._again(order, record, before)
        match order.kind:
            case "columns":
                self._check_columns(record)
            case "moments":
                self._check_moments(order, record)
            case "ready":
                self._check_setup(order, record)
            case "work":
                self._check_work(order, record)
            case "measure":
                self._check_measurement(order, record)
            case "end":
                self._check_end(order, record)
        if order.setup is not None and not record["setup"]:  # by its first appearance, whatever comes of it
            self.answers.note(order.run, {**record, "setup": _hash(order), "recipe": None})
        return None

    def _record(self, order: Order) -> RunRecord:
        runs, most = self.answers.runs, self.study.terms.runs
        if order.run in runs:
            return runs[order.run]
        if len(runs) >= most:
            raise forbidden(f"run {len(runs) + 1} was begun, but the study has {counted(most, 'run')} (runs = {most})")
        if order.merged != NEVER:
            raise Refused("memory", f"nothing is known here of run {order.run}, of which the hub has merged rounds")
        return nothing_answered()

    def _again(self, order: Order, record: RunRecord, before: Answered) -> bytes:
        again, answer = _once_more(order, before), self.answers.bytes_of(before)
        self.answers.note(order.run, _with(record, order, again))
        return answer

    def _permit_stage(self, order: Order, record: RunRecord) -> bytes | None:
        """Of a secure round: what was answered is in memory, as its secrets are."""
        before, answer = self.answers.passing.get((order.run, order.kind), (None, b""))
        if before is None or before["order"] != order.digest:
            self._check_stage(order, record)
            return None
        self.answers.passing[order.run, order.kind] = _once_more(order, before), answer
        return answer

    # The rules, kind by kind.

    def _check_columns(self, record: RunRecord) -> None:
        if record["setup"] or "moments" in record["answered"]:
            raise forbidden("columns were asked for after what follows from them: a run asks for them first")

    def _check_moments(self, order: Order, record: RunRecord) -> None:
        table = self.study.table
        if table is None:
            raise forbidden("moments were asked for, but the data of this study are generated")
        if "moments" in record["answered"]:
            raise forbidden("moments were asked for again, by another recipe: a run asks for them once")
        if record["setup"] or "columns" not in record["answered"]:
            raise forbidden("moments were asked for out of turn: they come after columns and before the rounds")
        derivation.check_recipe(table, self._stated(record), order.recipe)

    def _check_setup(self, order: Order, record: RunRecord) -> None:
        """The first setup of a run follows from the study; all others are the same."""
        assert order.setup is not None  # of these kinds
        if record["setup"]:
            if record["setup"] != _hash(order):
                raise forbidden("recipe, classes, index or share are not those with which this run began")
            return self._check_merged(order, record)
        derivation.check_share(self.study, self.name, order.setup)
        if self.study.table is None:
            if order.setup["recipe"] or order.setup["classes"] is not None:
                raise forbidden("a recipe or classes, but the data of this study are generated")
        else:
            if record["recipe"] is None:
                raise forbidden(f"{order.kind} was asked for out of turn: it comes after moments")
            derivation.check_setup(self.study.table, self._stated(record), order.setup, record["recipe"])
        self._check_merged(order, record)

    def _stated(self, record: RunRecord) -> Header:
        """What this site says of its columns, as it did when the run began."""
        said = self.statement()
        if record["answered"]["columns"]["answer"] != hashlib.sha256(encode(*said)).hexdigest():
            raise Refused("data", "the file is another than when this run began: put it back, or ask for a new run")
        return said.header

    def _check_merged(self, order: Order, record: RunRecord) -> None:
        """Merged is what this site has sent last, or what was merged before."""
        merged, possible = order.merged, record["mergeable"]
        if merged not in possible:
            raise forbidden(
                f"the hub says that it has merged round {merged} of this site; it can have merged "
                f"{' or '.join(map(str, possible))} last ({NEVER}: none)"
            )
        if order.kind != "ready" and not merged < order.round:
            raise forbidden(f"the hub says that it has merged round {merged} before round {order.round}")

    def _check_work(self, order: Order, record: RunRecord) -> None:
        rounds, round = self.study.rounds, order.round
        if not 0 <= round < rounds:
            raise forbidden(
                f"round {round} was asked for, but the study has {counted(rounds, 'round')} (rounds = {rounds})"
            )
        if round == record["round"]:
            raise forbidden(f"round {round} was asked for again, with other content: each is answered once")
        if round < record["round"]:
            raise forbidden(f"round {round} was asked for after round {record['round']}: rounds only go forward")
        if "end" in record["answered"]:
            raise forbidden(f"round {round} was asked for after the end of the run")
        if round < record["measured"]:
            raise forbidden(f"round {round} was asked for after the measurement that ends it")
        self._check_setup(order, record)
        self._check_privacy()

    def _check_privacy(self) -> None:
        """One answer more, if the agreed epsilon has room for it."""
        privacy, answered = self.study.terms.privacy, self.answers.worked
        if privacy is not None and not privacy.allows(self.study.rounds, answered + 1):
            raise Refused(
                "privacy",
                f"the agreed epsilon of {privacy.epsilon:g} is used up: this site has answered "
                f"{counted(answered, 'round')} of this study, and takes part in no more",
            )

    def _check_stage(self, order: Order, record: RunRecord) -> None:
        """What follows the work of a secure round: of the last round that was answered, and in a run that goes on."""
        if not self.study.terms.secure:
            raise forbidden(f"{order.kind} was asked for, but the study has no secure sums (secure = false)")
        if order.round != record["round"]:
            raise forbidden(
                f"{order.kind} of round {order.round} was asked for, but the last round answered is {record['round']}"
            )

    def _check_measurement(self, order: Order, record: RunRecord) -> None:
        after, count, allowed = order.round, self.study.terms.measurements, self.study.measured_after
        if after not in allowed:
            where = f"after round {', '.join(map(str, allowed))}" if allowed else "never"
            raise forbidden(
                f"a measurement after round {after} was asked for, but the study measures {where} "
                f"(measurements = {count})"
            )
        if _place(order) in record["answered"]:
            raise forbidden(f"the measurement after round {after} was asked for again, of another model")
        if after <= max(record["round"], record["measured"]):
            raise forbidden(f"the measurement after round {after} was asked for after later rounds")
        self._check_setup(order, record)

    def _check_end(self, order: Order, record: RunRecord) -> None:
        rounds = self.study.rounds
        if order.round != rounds:
            raise forbidden(
                f"the run was ended after round {order.round}, but the study has {counted(rounds, 'round')}"
            )
        if "end" in record["answered"]:
            raise forbidden("the run was ended again, with another model")
        self._check_setup(order, record)

    def check_shared(self, order: Order, like: Tree, arrays: Arrays) -> None:
        """The model at the end: where the study shares it, and nowhere else."""
        if self.study.terms.share_model:
            return self.check_arrays(order, like, arrays)
        if arrays:
            raise forbidden("a model was sent, but the study does not give sites the model (share_model = false)")
        return None

    def check_arrays(self, order: Order, like: Tree, arrays: Arrays) -> None:
        """What the hub says to a site: of the shapes that the method has, and finite."""
        wrong = misfit(like, arrays)
        if wrong:
            raise forbidden(f"what came with {order.kind} is not what the method says to a site: {wrong}")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise forbidden(f"what came with {order.kind} is not finite")

    def keep(self, order: Order, answer: bytes) -> None:
        """The order was carried out; its answer has not left yet."""
        record = self.answers.of(order.run)
        if order.kind in ("ready", "excluded"):  # nothing is said, however often
            return
        given = Answered(order=order.digest, answer=hashlib.sha256(answer).hexdigest(), again=0)
        if order.kind in STAGES:
            return self.answers.keep_passing(order.run, order.kind, given, answer)
        record = _with(record, order, given)
        if order.kind == "moments":
            record = {**record, "recipe": order.recipe}
        elif order.setup is not None:
            if order.kind == "work":
                possible = [order.merged, order.round]
                record = {**record, "round": order.round, "mergeable": possible, "worked": record["worked"] + 1}
            else:
                record = {**record, "mergeable": [order.merged]}
            if order.kind == "measure":
                record = {**record, "measured": order.round}
        self.answers.keep(order.run, record, answer)


def _once_more(order: Order, before: Answered) -> Answered:
    """An answer that is given again, if it may be."""
    if before["again"] >= REPEATS:
        raise forbidden(f"the answer to {order.kind} was asked for again more than {REPEATS} times")
    return {**before, "again": before["again"] + 1}


def _place(order: Order) -> str:
    """Where an answer is kept: one of each kind, and every measurement."""
    return f"measure {order.round}" if order.kind == "measure" else order.kind


def _with(record: RunRecord, order: Order, given: Answered) -> RunRecord:
    return {**record, "answered": {**record["answered"], _place(order): given}}


def _hash(order: Order) -> str:
    return hashlib.sha256(canonical(order.setup)).hexdigest()
