"""Who is measured: what to install, which jobs they can do, how long they may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jobs

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "peers"
PLAIN = tuple(job.name for job in jobs.JOBS.values() if job not in jobs.REAL and job.method == "fedavg")
NETWORKS = ("cnn", "transformer")
PRIVATE = ("clipped", "private")
LIVE = tuple(job.name for job in jobs.SITES)


@dataclass(frozen=True)
class Peer:
    """kind: "framework", "primitives" or "plain" (a loop as a user would write it); only frameworks count in ratios.

    packages: installed into `environment` (without any, fedpoint's serves). rounds: of each job, for peers that
    must be told; others stop when the job's time is over. limit: seconds for one job. why: a note for the page.
    """

    name: str
    title: str
    kind: str
    packages: tuple[str, ...] = ()
    jobs: tuple[str, ...] = PLAIN
    rounds: int | None = None
    limit: float = 90.0
    environment: str | None = None
    note: str = ""
    many: bool = False  # works in several processes
    live: int | None = None  # rounds of a federation of real sites, where fewer than the job's are enough


TORCH = "torch==2.13.0"
PEERS = {
    peer.name: peer
    for peer in (
        Peer("fedjax", "FedJAX", "framework", jobs=(*PLAIN, *NETWORKS, "loans"),
             note="with jax 0.4.30; today's has no jax.tree_map, where it stops",
             packages=("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.12", "optax==0.2.4",
                       "numpy<2", "scipy<1.14")),
        Peer("fedlab", "FedLab", "framework", (TORCH, "fedlab==1.3.0"),
             (*PLAIN, "scaffold", *NETWORKS, "loans", "compressed"),
             note="empty modules stand for torchvision, whose registry build does not load beside CPU torch"),
        Peer("pfl", "pfl", "framework", (TORCH, "pfl==0.6.0"),
             (*PLAIN, "scaffold", *NETWORKS, "loans", *PRIVATE), note="changes are averaged in single precision"),
        Peer("flower", "Flower", "framework", ("flwr[simulation]==1.41.0", TORCH),
             ("streamed", "softmax", *NETWORKS, "loans", *PRIVATE, *LIVE), 5, 120.0,
             note="by Ray on two cores, clients in NumPy, or PyTorch (CNN and transformer)", many=True, live=5),
        Peer("nvflare", "NVFlare", "framework", ("nvflare==2.9.0", TORCH), ("softmax", "scaffold", *LIVE), 2, 200.0,
             note="clients in NumPy; the simulator on two threads starts a process for a client's turn, asked or not; "
             "only those are simulated whom the two rounds ask", many=True),
        Peer("appfl", "APPFL", "framework", (TORCH, "appfl==1.12.0"), (), note="on the scoreboard only"),
        Peer("fluke", "fluke", "framework", (TORCH, "fluke-fl==0.8.1"), (), note="on the scoreboard only, with empty "
             "modules in place of torchvision"),
        Peer("drjax", "DrJAX", "primitives", ("drjax==0.2.1", "jax==0.10.2"),
             note="broadcast, map and mean; all else is the hand-written loop"),
        Peer("jax", "JAX, hand-written", "plain", jobs=(*PLAIN, *NETWORKS, "loans")),
        Peer("numpy", "NumPy, hand-written", "plain",
             jobs=(*PLAIN, "scaffold", "loans", *PRIVATE, "compressed")),
        Peer("torch", "PyTorch, hand-written", "plain", (TORCH, "pfl==0.6.0"), (*PLAIN, *NETWORKS, "loans"),
             environment="pfl"),
    )
}  # fmt: skip
