"""A site's half of a job: orders go to a process of their own, which holds the data; if that dies, the job does not."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedpoint.federation.flare.names import ANSWER, KIT, ORDER, TASK
from fedpoint.federation.site.worker import Worker


class SiteExecutor(Executor):
    """Takes no argument: what runs here, and on which data, the site's own kit says."""

    def __init__(self) -> None:
        super().__init__()
        kit = Path(os.environ[KIT])
        study = tomllib.loads((kit / "study.toml").read_text())
        self.worker = Worker(kit, study["deadline"])
        self.worker.start()  # it loads and compiles while the engine's halves of the job find each other

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.END_RUN:
            self.worker.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        order = shareable.get(ORDER)
        if task_name != TASK or not isinstance(order, bytes):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            answer = self.worker.ask(order)
        except OSError as error:
            self.log_error(fl_ctx, f"the worker is gone ({error}); another one is started for the next order")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = Shareable()
        reply[ANSWER] = answer
        return reply
