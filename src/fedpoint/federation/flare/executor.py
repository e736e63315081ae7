"""A site's half of a job: orders go to a process of their own, which holds the data; if that dies, the job does not."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from fedpoint.federation.flare.line import ANSWER, END, LOST, NOTHING, ORDER, Line
from fedpoint.federation.flare.names import KIT, TASK
from fedpoint.federation.site import engagement
from fedpoint.federation.site.worker import Worker
from fedpoint.store.disk import read_toml

AGAIN = 0.5  # seconds before a hub that was not reached is asked again
LOOK = 0.2  # seconds between looks at whether the job is over
CLOSE = 5.0  # seconds for an order at hand to be given up


class SiteExecutor(Executor):
    """All orders of a job are one task of the engine's. Takes the title of a study: what runs here, and on which data,
    is what the site has approved under that title."""

    def __init__(self, study: str = "") -> None:
        super().__init__()
        self.kit, self.study = Path(os.environ[KIT]), study
        self.worker: Worker | None = None
        self._approved()  # its worker loads and compiles while the engine's halves of the job find each other

    def _approved(self) -> Worker | None:
        """The worker of the study, while it is approved; None where it is not, or no longer the newest."""
        found = engagement.at_work(self.kit, self.study)
        if found is None:
            self._end()
        elif self.worker is None:
            deadline = read_toml((found.folder / "study.toml").read_text())["deadline"]
            self.worker = Worker(found.folder, float(str(deadline)))
            self.worker.start()
        return self.worker

    def _end(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.END_RUN:
            self._end()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        line = Line(fl_ctx.get_engine().get_cell(), FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()]))
        over = threading.Event()
        serving = threading.Thread(target=self._serve, args=(line, over, fl_ctx), daemon=True)
        serving.start()
        while serving.is_alive() and not abort_signal.triggered:
            serving.join(LOOK)
        over.set()
        if self.worker is not None:
            self.worker.give_up()
        serving.join(CLOSE)
        return Shareable()

    def _serve(self, line: Line, over: threading.Event, fl_ctx: FLContext) -> None:
        """Orders and their answers, until the job ends."""
        said, answer = NOTHING, b""
        while not over.is_set():
            heard = line.ask(said, answer)
            if heard is None:
                over.wait(AGAIN)
                continue
            back, order = heard
            if back == END or over.is_set():
                return
            said, answer = self._answer(order, fl_ctx) if back == ORDER else (NOTHING, b"")

    def _answer(self, order: bytes, fl_ctx: FLContext) -> tuple[str, bytes]:
        worker = self._approved()
        if worker is None:
            self.log_error(fl_ctx, "an order of a study that this site has not approved: it is not looked at")
            return LOST, b""
        try:
            return ANSWER, worker.ask(order)
        except OSError as error:
            self.log_error(fl_ctx, f"the worker is gone ({error}); another one is started for the next order")
            return LOST, b""
