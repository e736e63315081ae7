"""The jobs on NVFlare's simulator: its controllers of FedAvg and SCAFFOLD, clients in NumPy, two threads."""

import json
import os
import sys
import tempfile
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
os.environ["PYTHONPATH"] = HERE  # the simulator's client processes import the parts too
sys.path.insert(0, HERE)

from common import Job  # noqa: E402
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner  # noqa: E402


def main(folder, rounds, threads=None):
    job = Job(folder)
    controller, trains = ("ToldScaffold", "ScaffoldTrainer") if job.method == "scaffold" else ("ToldFedAvg", "Trainer")
    told = {"id": "told", "path": f"nvflare_parts.{controller}", "args": {"folder": folder, "rounds": int(rounds)}}
    server = {"format_version": 2, "workflows": [told], "components": []}
    trainer = {"path": f"nvflare_parts.{trains}", "args": {"folder": folder}}
    client = {"format_version": 2, "executors": [{"tasks": ["train"], "executor": trainer}], "components": []}
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "job" / "app" / "config"
        config.mkdir(parents=True)
        (config / "config_fed_server.json").write_text(json.dumps(server))
        (config / "config_fed_client.json").write_text(json.dumps(client))
        meta = {"name": "job", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
        (config.parents[1] / "meta.json").write_text(json.dumps(meta))
        local = Path(place) / "work" / "local"
        local.mkdir(parents=True)
        allowed = {"format_version": 2, "class_allow_list": ["nvflare.", "nvflare_parts."]}
        (local / "resources.json").write_text(json.dumps(allowed))
        asked = sorted({k for r in range(int(rounds)) for k in job.participants(r)})
        clients = ",".join(f"site-{k + 1}" for k in asked)  # every client of a simulation gets turns, asked or not
        runner = SimulatorRunner(
            str(config.parents[1]), f"{place}/work", clients=clients, threads=threads or os.cpu_count()
        )
        sys.exit(runner.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
