"""The engine's names that fedpoint uses are there, private ones too; and if one moves, the test says where to."""

import importlib
import inspect
from pathlib import Path

import pytest

import fedpoint

pytest.importorskip("nvflare")

from engine_names import SESSION, Use, Uses, found, trouble, uses

SOURCES = Path(fedpoint.__file__).parent
ALL = list(uses(SOURCES))

# What is asked of objects that the engine hands over, which no import shows.
HANDED_OVER = {
    "nvflare.apis.impl.controller.Controller": "send cancel_all_tasks",
    "nvflare.apis.fl_context.FLContext": "get_engine get_job_id",
    "nvflare.apis.workspace.Workspace": "get_root_dir get_run_dir",
    "nvflare.private.fed.server.server_engine_internal_spec.ServerEngineInternalSpec": "register_app_command",
    "nvflare.private.fed.server.server_engine.ServerEngine": "get_cell get_clients",
    "nvflare.private.fed.client.client_run_manager.ClientRunManager": "get_cell",
    "nvflare.fuel.f3.cellnet.core_cell.CoreCell": "register_request_cb send_request send_reply",
    "nvflare.fuel.f3.cellnet.cell.Cell": "_register_request_cb _send_request",
    SESSION: "close",
}
FIELDS = {  # and what they hold
    "nvflare.fuel.flare_api.api_spec.SystemInfo": "job_info",
    "nvflare.fuel.flare_api.api_spec.JobInfo": "job_id",
    "nvflare.fuel.flare_api.api_spec.ClientInfo": "name last_connect_time",
    "nvflare.apis.controller_spec.Task": "completion_status targets",
    "nvflare.private.fed.server.client_manager.ClientManager": "clients",
    "nvflare.private.fed.server.server_engine.ServerEngine": "server",
}


def test_every_name_is_there():
    assert len({use.name for use in ALL}) > 40
    assert [said for use in ALL if (said := trouble(use))] == []


def test_the_places_that_are_easily_overlooked_are_read():
    """Modules and components that are named in text, functions of a session, methods of a base, names of a name."""
    names = {use.name for use in ALL}
    assert {
        "nvflare.private.fed.app.server.server_train",
        "nvflare.private.fed.app.client.client_train",
        "nvflare.app_common.storages.filesystem_storage.FilesystemStorage",
        "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
        "nvflare.app_common.logging",
        "nvflare.app_opt.pt.tensor_downloader",
        f"{SESSION}.do_app_command",
        f"{SESSION}.download_job_result",
        "nvflare.apis.impl.controller.Controller.control_flow",
        "nvflare.apis.executor.Executor.log_error",
        "nvflare.apis.controller_spec.TaskCompletionStatus.CLIENT_DEAD",
    } <= names
    assert any(use.name.endswith(".Task") and "task_done_cb" in use.keywords for use in ALL)


@pytest.mark.parametrize("name", HANDED_OVER)
def test_what_is_handed_over_answers(name):
    missing = [one for one in HANDED_OVER[name].split() if trouble(Use(f"{name}.{one}", "flare"))]
    assert not missing, f"{name} has no {missing} any more"


@pytest.mark.parametrize("name", FIELDS)
def test_and_holds_what_is_read(name):
    text = inspect.getsource(found(name))
    missing = [one for one in FIELDS[name].split() if f"self.{one} =" not in text and f"self.{one}:" not in text]
    assert not missing, f"{name} has no {missing} any more"


def test_components_take_their_arguments():
    from fedpoint.federation.flare import rules

    def components(value):
        if isinstance(value, dict):
            if "path" in value:
                yield Use(value["path"], "rules", tuple(value["args"]))
            for one in value.values():
                yield from components(one)
        elif isinstance(value, list):
            for one in value:
                yield from components(one)

    made = [*components(rules._server_rules(Path("kit"))), *components(rules._site_rules())]
    made = [use for use in made if not use.name.startswith("fedpoint.")]
    assert len(made) == 9
    assert [said for use in made if (said := trouble(use))] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from nvflare.apis.signal import Sygnal", "which nvflare 2.9.0 does not have: nothing there is called Sygnal"),
        ("import nvflare.apis.sygnal", "nothing there is called sygnal any more"),
        ("from nvflare.apis.fl_context import Shareable", "it is in nvflare.apis.shareable now"),
        ("from nvflare.apis.fl_constant import ReturnCode\nReturnCode.FINE", "nothing there is called FINE any more"),
        (
            "from nvflare.apis.controller_spec import Task\nTask('a', {}, tmeout=3)",
            "with tmeout, which it does not take",
        ),
        ("P = 'nvflare.app_common'\nx = f'{P}.storages.Disk'", "uses nvflare.app_common.storages.Disk"),
        ("x = f\"nvflare.{'apis' if y else 'appis'}.signal\"", "uses nvflare.appis.signal"),
        ("lead.ask('list_the_jobs')", "flare_api.Session.list_the_jobs"),
        (
            "from nvflare.apis.executor import Executor\nclass E(Executor):\n    def excute(self): pass",
            "uses nvflare.apis.executor.Executor.excute",
        ),
        (
            "from nvflare.apis.executor import Executor\nclass E(Executor):\n    def execute(self): self.log_eror()",
            "uses nvflare.apis.executor.Executor.log_eror",
        ),
    ],
)
def test_a_name_that_is_not_there_is_told(text, said):
    (wrong,) = {one for use in Uses(text, "made_up.py").found if (one := trouble(use))}
    assert wrong.startswith("made_up.py, line ")
    assert said.replace("2.9.0", importlib.import_module("nvflare").__version__) in wrong
