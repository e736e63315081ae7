"""The hub's half of a job: `StudyHub` over FLARE's tasks. One task is one order to one site."""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys

from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.types import Plain
from fedpoint.federation.flare.kits import Kit
from fedpoint.federation.flare.line import Desk
from fedpoint.federation.flare.names import FETCH, KIT, STATUS, STOP, TASK
from fedpoint.federation.hub.alarm import Expected
from fedpoint.federation.hub.hub import StudyHub
from fedpoint.federation.hub.ledger import Ledger
from fedpoint.federation.identity.board import Board
from fedpoint.federation.identity.signed import name_and_number
from fedpoint.federation.protocol import OWN, Release, check
from fedpoint.federation.secure.identity import server_trust
from fedpoint.federation.study import Study
from fedpoint.federation.transport import Arrival, Event, NoAnswerYet, Outcome, Status, Stopped
from fedpoint.store.disk import Busy, write_bytes

# At the end of a job the engine would import torch where it is installed, for tensors that are never there: seconds.
sys.modules.setdefault("nvflare.app_opt.pt.tensor_downloader", None)  # type: ignore[arg-type]

EXPECTED = "expected"  # a folder in the server's kit
HELD = 60.0  # seconds
LATELY = 50  # rounds that `status` tells of
TAKEN = 10.0  # seconds for whoever leads to fetch what came out; later it must be downloaded from the engine
PIECE = 1 << 20  # bytes fetched at a time


class Aborted(Exception):
    """The engine wants the job to end."""


class FlareEngine:
    """FLARE as a `Transport`: each site has one task of the engine's, in which it asks for orders at the desk."""

    def __init__(self, controller: HubController, context: FLContext, signal: Signal, board: Board):
        self.controller, self.context, self.signal, self.board = controller, context, signal, board
        self.arrivals: queue.Queue[Arrival] = queue.Queue()
        self.gone: set[str] = set()  # sites whose half of the job is dead
        self.desk = Desk(context.get_engine().get_cell(), self._site_of, self.arrived)
        for client in context.get_engine().get_clients():
            task = Task(TASK, Shareable(), task_done_cb=self._done)
            controller.send(task, context, targets=[client.name])

    def _site_of(self, message: Message) -> str | None:
        """Who the engine gave the token of a message to."""
        clients = self.context.get_engine().server.client_manager.clients
        client = clients.get(message.get_header(CellMessageHeaderKeys.TOKEN))
        return None if client is None else str(client.name)

    def send(self, site: str, order: bytes, deadline: float) -> None:
        if self.board.is_out(site):
            self.arrivals.put(Arrival(site, None, "revoked"))
        elif site in self.gone:
            self.arrivals.put(Arrival(site, None, "lost"))
        else:
            self.desk.send(site, order, deadline)

    def _done(self, task: Task, fl_ctx: FLContext) -> None:
        if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
            for target in task.targets or []:
                name = target.name if isinstance(target, Client) else str(target)
                self.gone.add(name)
                self.arrivals.put(Arrival(name, None, "lost"))

    def arrived(self, site: str, answer: bytes | None) -> None:
        if self.board.is_out(site):
            self.arrivals.put(Arrival(site, None, "revoked"))
        else:
            self.arrivals.put(Arrival(site, answer, "lost" if answer is None else ""))

    def receive(self, timeout: float) -> Arrival | None:
        end = time.monotonic() + timeout
        while True:
            if self.signal.triggered:
                raise Aborted
            self.desk.look()
            try:
                return self.arrivals.get(timeout=max(0.0, min(0.2, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= end:
                    return None

    def reaches(self, site: str) -> bool:
        """Whether a site is in the job: one that comes later is not, until the next."""
        if self.board.is_out(site):
            return False
        return any(client.name == site for client in self.context.get_engine().get_clients())

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self.desk.close()
        self.controller.cancel_all_tasks(fl_ctx=self.context)


def expected_rows(study: Study, kit: Path) -> Expected:
    """What a hub that watches expects of its sites: files in the folder `expected` of the server's kit, by site."""
    if not study.of_files:
        return True
    found = {site: path for site in study.sites for path in sorted((kit / EXPECTED).glob(f"{site}.*"))}
    if missing := [site for site in study.sites if site not in found]:
        raise FedpointError(
            f"to watch {', '.join(missing)}, put a file of expected rows into {EXPECTED} in the server's kit, named "
            f"as the site: {EXPECTED}/{missing[0]}.csv"
        )
    return found


class HubController(Controller):
    """Runs a segment of a study: from where its ledger stands, to the end or until something stops it."""

    def __init__(self, study: str, fresh: str = "", protocol: int = 0, fedpoint: str = "", watch: bool = False):
        super().__init__()
        self.title, self.rounds = study, 0
        self.fresh, self.watch = fresh, watch
        self.leader = Release.named_in({"protocol": protocol, "fedpoint": fedpoint})
        self.engine: FlareEngine | None = None
        self.hub: StudyHub | None = None
        self.stopping, self.again = threading.Event(), False
        self.told: list[Event] = []
        self.waiting, self.shares = Event(), Event()
        self.round = 0
        self.run = Path()  # where the engine keeps what the job leaves
        self.outcome = Outcome()  # once the segment is over: how it ended, and the files to fetch
        self.taken = threading.Event()

    def _study(self, board: Board) -> Study:
        """What the leader has signed under the title of the job; a job brings none of its own."""
        name, number = name_and_number(self.title)
        made, newest = board.study(self.title), board.newest(name)
        if made is None:
            raise FedpointError(f"the server has no signed study {self.title!r}")
        if number < newest:
            raise FedpointError(f"version {newest} of {name} was signed since: run that")
        return made.study()

    def start_controller(self, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        engine.register_app_command(STATUS, self._status)
        engine.register_app_command(STOP, self._stop)
        engine.register_app_command(FETCH, self._fetch)

    def _status(self, topic: str, data: Plain, fl_ctx: FLContext, *_: object) -> Status:
        since = data.get("since") if isinstance(data, dict) else 0
        since = since if isinstance(since, int) else 0
        events = [event for event in self.told if event["round"] >= since][-LATELY:]
        silent = [] if self.hub is None else sorted(self.hub.silent)
        notes = [] if self.hub is None or not self.hub.own else list(self.hub.setup["notes"])
        found = Status(round=self.round, rounds=self.rounds, waiting=self.waiting, silent=silent, notes=notes)
        alarms = [] if self.hub is None else self.hub.watch.alarms
        return {**found, "shares": self.shares, "events": events, "outcome": self.outcome, "alarms": alarms}

    def _stop(self, topic: str, data: Plain, fl_ctx: FLContext, *_: object) -> dict[str, int]:
        """After the round at hand: for good, or (`again`) so that the next job has a site that came meanwhile."""
        self.again = isinstance(data, dict) and bool(data.get("again"))
        self.stopping.set()
        return {"round": self.round}

    def _fetch(self, topic: str, data: Plain, fl_ctx: FLContext, *_: object) -> dict[str, str]:
        """A piece of one of the files; without a name: all were fetched."""
        name, at = (data.get("file"), data.get("at")) if isinstance(data, dict) else (None, None)
        if not isinstance(name, str) or name not in self.outcome.get("files", {}) or not isinstance(at, int):
            self.taken.set()
            return {"piece": ""}
        with (self.run / name).open("rb") as file:
            file.seek(at)
            return {"piece": base64.b64encode(file.read(PIECE)).decode()}

    def _tell(self, event: Event) -> None:
        if "shares" in event:
            self.shares = event
            return
        if "round" not in event:
            self.waiting = event
            return
        self.waiting, self.round = Event(), event["round"] + 1
        self.told = [*self.told[-LATELY:], event]

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self.run = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / "fedpoint"
        kit = Kit(os.environ[KIT])
        folder, board = kit.folder / "fedpoint" / self.title, Board(kit.folder / "board", kit.authority)
        self.engine = FlareEngine(self, fl_ctx, abort_signal, board)
        state, said = "failed", ""
        try:
            check("the server", OWN, "the leader", self.leader)
            study = self._study(board)
            self.rounds = study.rounds
            self._begin_anew(folder)
            ledger = self._ledger(folder, study)
            try:
                expected = self.watch and expected_rows(study, kit.folder)
                trust = server_trust(kit.folder) if study.terms.secure else None
                self.hub = StudyHub(study, self.engine, ledger, self._tell, self.stopping.is_set, expected, trust)
                self.round = self.hub.round
                self.hub.run()
                state = "done"
            finally:
                ledger.close()
        except NoAnswerYet as error:
            state, said = "waiting", str(error)
        except Stopped as error:
            state, said = ("waiting", "a site has connected") if self.again else ("stopped", str(error))
        except Diverged as error:
            state, said = "diverged", str(error)
        except FedpointError as error:
            said = str(error)
        except Aborted:
            state, said = "waiting", "the engine ended the job: a site or its job went away"
        except Exception:
            said = "an internal error of fedpoint: see the server's log"
            self.log_error(fl_ctx, traceback.format_exc())
        self.engine.close()
        self._hand_over(folder, {"state": state, "message": said})
        self.log_info(fl_ctx, f"{state}: {said}")
        end = time.monotonic() + TAKEN
        while not (self.taken.wait(0.1) or abort_signal.triggered) and time.monotonic() < end:
            pass

    def _begin_anew(self, folder: Path) -> None:
        """Put an older run aside, once: later segments of this one (`fresh` names it) go on in its folder."""
        mark = folder / "fresh"
        if not self.fresh or (mark.exists() and mark.read_text() == self.fresh):
            return
        if folder.exists():
            shutil.move(folder, folder.with_name(f"{folder.name}-{time.time_ns()}"))
        folder.mkdir(parents=True)
        write_bytes(mark, self.fresh.encode())

    def _ledger(self, folder: Path, study: Study) -> Ledger:
        """The study's folder. A hub whose server was killed may hold it still, for a moment."""
        end = time.monotonic() + HELD
        while True:
            try:
                return Ledger(folder, study)
            except Busy as error:
                if time.monotonic() > end:
                    raise NoAnswerYet(str(error)) from None
                time.sleep(0.5)

    def _hand_over(self, folder: Path, outcome: Outcome) -> None:
        """What whoever leads fetches, or downloads when the engine has ended the job, which takes it many seconds."""
        if folder.exists():
            own = shutil.ignore_patterns("lock", "first-answers")  # what single sites have said stays at the hub
            shutil.copytree(folder, self.run, dirs_exist_ok=True, ignore=own)
        self.run.mkdir(parents=True, exist_ok=True)
        write_bytes(self.run / "outcome.json", json.dumps(outcome).encode())
        files = [path for path in self.run.rglob("*") if path.is_file()]
        self.outcome = {**outcome, "files": {str(path.relative_to(self.run)): path.stat().st_size for path in files}}

    def stop_controller(self, fl_ctx: FLContext) -> None:
        self.stopping.set()

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """What a site says of its task when the job is over; its answers do not come that way."""
