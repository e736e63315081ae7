"""A site's half of a job: orders go to a process of their own, which holds the data; if that dies, the job does not."""

from __future__ import annotations

import os
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedpoint.federation.flare.names import ANSWER, KIT, ORDER, TASK
from fedpoint.federation.site import engagement
from fedpoint.federation.site.worker import Worker
from fedpoint.store.disk import read_toml


class SiteExecutor(Executor):
    """Takes the title of a study: what runs here, and on which data, is what the site has approved under that title."""

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
        order = shareable.get(ORDER)
        if task_name != TASK or not isinstance(order, bytes):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        worker = self._approved()
        if worker is None:
            self.log_error(fl_ctx, "an order of a study that this site has not approved: it is not looked at")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        try:
            answer = worker.ask(order)
        except OSError as error:
            self.log_error(fl_ctx, f"the worker is gone ({error}); another one is started for the next order")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = Shareable()
        reply[ANSWER] = answer
        return reply
