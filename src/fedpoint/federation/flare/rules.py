"""What may the engine do at a party? Rules that are written anew whenever the party starts.

No code in jobs, only our two classes, no log upload, nothing for administrators to read at sites. Importing this loads
no JAX.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedpoint.federation.flare.names import COURIER, HUB, KEEPER, SITE
from fedpoint.store.disk import write_bytes

if TYPE_CHECKING:  # it loads JAX
    from fedpoint.core.types import Plain

LOGGING = "nvflare.app_common.logging."  # which the engine adds to every job by itself
ROLE = "lead"
MAY = ("submit_job", "manage_job", "download_job", "view", "app_command")
MAY_NOT = ("clone_job", "operate", "shell_commands", "byoc", "server-predeployed-flwr")
RULES = {
    "format_version": "1.0",
    "permissions": {ROLE: dict.fromkeys(MAY, "any") | dict.fromkeys(MAY_NOT, "none")},
}
PARTS = "nvflare.app_common"
STUDIES = 10  # at work side by side


def lock_down(folder: Path, party: str) -> None:
    """The rules of a party, in its kit."""
    local = folder / "local"
    local.mkdir(exist_ok=True)
    resources = _server_rules(folder) if party == "server" else _site_rules()
    write_bytes(local / "resources.json", json.dumps(resources, indent=1).encode())
    write_bytes(local / "authorization.json", json.dumps(RULES, indent=1).encode())


def _policy(cls: str) -> dict[str, Plain]:
    return {"format_version": 2, "class_list_enforcement_mode": "enforce", "class_allow_list": [cls, LOGGING]}


def _component(name: str, path: str, **arguments: Plain) -> dict[str, Plain]:
    return {"id": name, "path": path, "args": arguments}


def _server_rules(kit: Path) -> dict[str, Plain]:
    storage = f"{PARTS}.storages.filesystem_storage.FilesystemStorage"
    keep: Plain = {"path": storage, "args": {"root_dir": str(kit / "engine" / "snapshots"), "uri_root": "/"}}
    server: dict[str, Plain] = {"admin_storage": "transfer", "max_num_clients": 1000, "heart_beat_timeout": 30}
    jobs = 2 * STUDIES  # of each study one that ends, which takes the engine seconds, and the next
    scheduler = f"{PARTS}.job_schedulers.job_scheduler.DefaultJobScheduler"
    manager = "nvflare.apis.impl.job_def_manager.SimpleJobDefManager"
    launcher = f"{PARTS}.job_launcher.server_process_launcher.ServerProcessJobLauncher"
    return _policy(HUB) | {
        "servers": [{**server, "download_job_url": "", "admin_timeout": 10.0}],
        "snapshot_persistor": {
            "path": f"{PARTS}.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {"uri_root": "/", "storage": keep},
        },
        "components": [
            _component("job_scheduler", scheduler, max_jobs=jobs, min_schedule_interval=0.5, max_schedule_interval=5.0),
            _component("job_manager", manager, uri_root=str(kit / "engine" / "jobs"), job_store_id="job_store"),
            _component("job_store", storage),
            _component("process_launcher", launcher),
            _component("board", KEEPER),
        ],
    }


def _site_rules() -> dict[str, Plain]:
    manager = f"{PARTS}.resource_managers.gpu_resource_manager.GPUResourceManager"
    consumer = f"{PARTS}.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"
    launcher = f"{PARTS}.job_launcher.client_process_launcher.ClientProcessJobLauncher"
    return _policy(SITE) | {
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30},
        "components": [
            _component("resource_manager", manager, num_of_gpus=0, mem_per_gpu_in_GiB=0, expiration_period=300),
            _component("resource_consumer", consumer),
            _component("process_launcher", launcher),
            _component("courier", COURIER),
        ],
    }
