"""A federation on fedpoint: a server and sites as processes on loopback, with mutual TLS, led from here."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from common import Clock, report

sys.path.append(str(Path(__file__).resolve().parents[1]))
WAIT = 380.0  # seconds for a study to begin and to end


def main(folder: str) -> None:
    import jobs
    from federation import Federation

    import fedpoint as fp
    from fedpoint.federation.flare.demo import free_port
    from fedpoint.federation.flare.lead import Lead
    from fedpoint.federation.study import parse
    from fedpoint.federation.transport import Event

    job, clock = jobs.read(Path(folder)), Clock(many=True)
    study = parse({
        "name": "sites", "sites": [f"site-{k + 1:02}" for k in range(job.agents)], "server": f"localhost:{free_port()}",
        "rounds": job.rounds, "deadline": 60.0, "problem": job.study_problem, "record_every": job.rounds,
        "algorithm": {"name": "fedavg", "step": job.step}, "share_model": True,
    })  # fmt: skip

    def told(event: Event) -> None:
        if "round" in event:
            clock.lap()

    with tempfile.TemporaryDirectory(prefix="sites-", ignore_cleanup_errors=True) as place:
        with Federation(study, Path(place)) as parties:
            parties.start("server", *study.sites)
            with Lead(parties.kits["admin"], parties.signed, wait=WAIT) as lead:
                made = lead.run(Path(place) / "result", told, wait=WAIT)
        live = np.asarray(made.history[-1])
    clock.close()
    done = job.run(job.rounds, record_every=1)  # the same without sites: what others are compared with
    np.save(Path(folder) / "history.npy", np.asarray(done.history)[0])
    report(clock, job.rounds, live, version=fp.__version__)


if __name__ == "__main__":
    main(*sys.argv[1:2])
