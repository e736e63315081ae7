"""How is a study run, watched and stopped by whoever leads it? Jobs are segments of it, submitted with the admin's kit.

A job that fails (a site's process died, the server was killed) is followed by another, which goes on from the hub's
ledger. A site that comes while a job runs cannot join it: the job is ended, and the next one has the site.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.numbers import counted
from fedpoint.federation.flare.connection import CONNECT, Connection
from fedpoint.federation.flare.kits import Kit
from fedpoint.federation.flare.names import FETCH, HUB, SITE, STATUS, STOP, TASK
from fedpoint.federation.flare.presence import Presence, look
from fedpoint.federation.identity import approvals, certificates, sealed
from fedpoint.federation.identity.approvals import Approval
from fedpoint.federation.identity.signed import SignedStudy
from fedpoint.federation.protocol import OWN
from fedpoint.federation.result import StudyResult
from fedpoint.federation.transport import Event, NoAnswerYet, Outcome, Status, Stopped, Tell
from fedpoint.store.disk import read_manifest, write_bytes

POLL = 0.3
REQUEST = 0.2  # seconds between a site's questions for its one task, in which orders come by `line.py`
BEGIN, GONE = 180.0, 30.0  # seconds without a word from a job: until its first, and then
LOOK = 0.5  # seconds between looks at which sites are there
REST, LONGEST_REST = 20.0, 600.0  # seconds before a site that a new job was begun for, in vain, gets another
SOON = 20.0  # seconds that sites which are only starting are waited for, before the first job
COMING = ("SUBMITTED", "APPROVED", "DISPATCHED")  # states of a job that is not at work yet
SEGMENTS = 20  # jobs in a row without a round gained


def job_folder(title: str, sites: Sequence[str], fresh: str, where: Path, watch: bool = False) -> Path:
    """A job: two configurations and nothing that runs. The classes are those of the installed fedpoint, the study is
    what the server has and sites have approved under this title."""
    folder = where / title
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    meta = {"name": title, "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["server", *sites]}}
    hub = {"id": "hub", "path": HUB, "args": {"study": title, "fresh": fresh, "watch": watch, **OWN.plain()}}
    none: dict[str, object] = {"components": [], "task_data_filters": [], "task_result_filters": []}
    asks = {"task_request_interval": REQUEST, "heart_beat_timeout": 30}
    server = {"format_version": 2, "server": asks, "workflows": [hub], **none}
    site = {"tasks": [TASK], "executor": {"path": SITE, "args": {"study": title}}}
    client = {"format_version": 2, "executors": [site], **none}
    (folder / "meta.json").write_text(json.dumps(meta))
    (config / "config_fed_server.json").write_text(json.dumps(server))
    (config / "config_fed_client.json").write_text(json.dumps(client))
    return folder


class Outside:
    """Sites that are there and not in the job at hand: they came, or came back, after it had begun."""

    def __init__(self) -> None:
        self.next = 0.0  # when to look
        self.before: set[tuple[str, str]] = set()  # job and site, in the last look
        self.rest: dict[str, tuple[float, float]] = {}  # a site that got a new job: when it may get another, and pause

    def has_come(self, job: str, present: Callable[[], dict[str, Presence]]) -> bool:
        """Whether a site was outside in two looks one after the other: in the first it may be about to begin. One that
        got a new job and is outside again all the same has to wait, longer each time."""
        now = time.monotonic()
        if now < self.next:
            return False
        self.next = now + LOOK
        found = {site: job in one.jobs for site, one in present().items() if one.answers}
        for site, inside in found.items():
            if inside:
                self.rest.pop(site, None)
        outside = {(job, site) for site, inside in found.items() if not inside}
        come = {site for _, site in outside & self.before if now >= self.rest.get(site, (0.0, 0.0))[0]}
        for site in come:
            pause = min(2 * self.rest.get(site, (0.0, REST / 2))[1], LONGEST_REST)
            self.rest[site] = now + pause, pause
        self.before = outside
        return bool(come)


class Lead(Connection):
    """A session with the server about one study, by the administrator's kit."""

    def __init__(self, kit: Kit, signed: SignedStudy, wait: float = CONNECT):
        super().__init__(kit, wait)
        self.signed, self.study = signed, signed.study()
        self.approved: dict[str, Approval] = {}
        self.outside = Outside()
        self.noted: list[str] = []  # what was told of sites that were not there at the start

    def present(self) -> dict[str, Presence]:
        """The study's sites that the server knows, and that have approved it."""
        self._look_at_approvals()
        return {site: one for site, one in sorted(look(self.ask).items()) if site in self.approved}

    def _look_at_approvals(self) -> None:
        """The receipts of sites, each held against the authority."""
        if len(self.approved) < len(self.study.sites):
            found = self.board({"approvals": self.signed.title}).get("approvals", {})
            for site in (site for site in self.study.sites if site in found and site not in self.approved):
                data = found[site].encode()
                made = approvals.read(data, self.kit.authority, sealed.once_valid(data))
                if (made.site, made.fingerprint) == (site, self.signed.fingerprint):
                    self.approved[site] = made

    def sites(self) -> list[str]:
        """The sites that are there."""
        return [site for site, one in self.present().items() if one.answers]

    def jobs(self) -> list[str]:
        """The jobs of this study that have not ended. A server that was killed lists its jobs as running ever after."""
        every = self.ask("list_jobs") or []
        listed = {one["job_id"]: str(one.get("status", "")) for one in every if one["job_name"] == self.signed.title}
        info = self.ask("get_system_info")
        at_work = set() if info is None else {one.job_id for one in info.job_info}
        return [job for job, status in listed.items() if job in at_work or status in COMING]

    def status(self, since: int = 0) -> Status:
        """Where the study is: connected sites, and what the hub says while a job runs."""
        present, jobs = self.present(), self.jobs()
        sites = [site for site, one in present.items() if one.answers]
        unheard = {site: round(one.unheard, 1) for site, one in present.items() if not one.answers}
        found = Status(study=self.study.name, server=self.study.server, sites=sites, unheard=unheard, jobs=jobs)
        found["approved"] = [site for site in self.study.sites if site in self.approved]
        for job in found["jobs"]:
            found |= self._told(job, since)
        return found

    def _told(self, job: str, since: int) -> Status:
        """What the hub says; nothing where it is not heard."""
        return self.ask("do_app_command", job, STATUS, {"since": since}) or Status()

    def stop(self) -> list[str]:
        """Stop what runs, after the round at hand. A later run goes on from there."""
        jobs = self.jobs()
        for job in jobs:
            if self.ask("do_app_command", job, STOP, {"stop": True}) is None:
                self.ask("abort_job", job)
        return jobs

    # Running.

    def run(
        self, folder: Path, tell: Tell, fresh: bool = False, wait: float = 300.0, watch: bool = False
    ) -> StudyResult:
        """From where the hub's ledger stands to the end, segment by segment; the hub's folder is copied to `folder`."""
        self._check_folder(folder)
        vain, last = 0, -1
        anew = secrets.token_hex(8) if fresh else ""
        for job in self.jobs():  # one that is still at work is followed, or makes way
            if fresh:
                self.ask("abort_job", job)
            _, outcome = self._follow(job, folder, tell, GONE)
            if outcome["state"] == "done" and not fresh:
                return StudyResult(folder)
        soon = SOON
        while True:
            self._gather(wait, soon, tell)
            soon = 0.0
            with tempfile.TemporaryDirectory(prefix="fedpoint-") as work:
                made = job_folder(self.signed.title, sorted(self.approved), anew, Path(work), watch)
                job = self.ask("submit_job", str(made))
            if job is None:
                vain += 1
            else:
                reached, outcome = self._follow(job, folder, tell, BEGIN)
                if outcome["state"] == "done":
                    return StudyResult(folder)
                if outcome["state"] == "diverged":
                    raise Diverged(outcome["message"], reached)
                if outcome["state"] == "stopped":
                    raise Stopped(outcome["message"])
                if outcome["state"] == "failed":
                    raise FedpointError(outcome["message"])
                vain, last = (vain + 1, last) if reached <= last else (0, reached)
                tell({"segment": outcome["message"]})
            if vain >= SEGMENTS:
                raise NoAnswerYet(
                    f"{counted(vain, 'job')} in a row completed no round; last: {self.trouble or 'see the server log'}"
                )
            time.sleep(POLL)

    def _check_folder(self, folder: Path) -> None:
        """A result is not written over that of another study, or of another version of it."""
        found = read_manifest(folder / "hub.npz", "hub") if (folder / "hub.npz").exists() else None
        if found is not None and found.get("study") != self.study.fingerprint:
            raise FedpointError(f"{folder} has the result of another study, or version: choose another one (--folder)")

    def _gather(self, wait: float, soon: float, tell: Tell) -> None:
        """Wait until enough sites are there: all of them at first (`soon`), then as many as the quorum asks for."""
        end, least = time.monotonic() + wait, self.study.least
        soon = time.monotonic() + min(wait, soon)
        while True:
            here = set(self.sites())
            missing = [site for site in self.study.sites if site not in here]
            now = time.monotonic()
            if not missing or (len(here) >= least and now > soon):
                return
            if now > end:
                raise NoAnswerYet(
                    f"waited {counted(round(wait), 'second')} for {', '.join(missing)}; start them and run again"
                )
            asked = [site for site in missing if site not in self.approved]
            tell({"waiting": "approval", "for": asked} if asked else {"waiting": "sites", "for": missing})
            time.sleep(POLL)

    def _follow(self, job: str, folder: Path, tell: Tell, first: float) -> tuple[int, Outcome]:
        """Tell of the rounds of a job until it ends; the round it reached, and how it ended. `first`: seconds until its
        first word."""
        since, gone = 0, time.monotonic() + first
        shares = Event()
        while True:
            told = self._told(job, since)
            if told:
                gone = time.monotonic() + GONE
                if not told.get("outcome") and self.outside.has_come(job, self.present):
                    self.ask("do_app_command", job, STOP, {"again": True})
            for note in told.get("notes", []):
                if note not in self.noted:
                    tell({"note": note})
                    self.noted.append(note)
            if told.get("shares", shares) != shares:
                shares = told["shares"]
                tell(shares)
            for event in told.get("events", []):
                since = event["round"] + 1
                tell(event)
            if told.get("waiting"):
                tell(told["waiting"])
            if told.get("outcome") and self._fetched(job, told["outcome"], folder):
                return since, told["outcome"]
            meta = self.ask("get_job_meta", job) or {}
            if str(meta.get("status", "")).startswith("FINISHED"):
                return since, self._outcome(job, folder)
            if time.monotonic() > gone:  # a server that was killed forgets its jobs, but may list them as running
                self.ask("abort_job", job)
                return since, self._outcome(job, folder)
            time.sleep(POLL)

    def _fetched(self, job: str, outcome: Outcome, folder: Path) -> bool:
        """The hub's folder, piece by piece while the job still listens; False when it does not any more."""
        with tempfile.TemporaryDirectory(prefix="fedpoint-") as work:
            for name, size in outcome["files"].items():
                path = Path(work) / name
                if not path.resolve().is_relative_to(Path(work).resolve()):
                    raise FedpointError(f"the server names a file that is not below its folder: {name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    while file.tell() < size:
                        told = self.ask("do_app_command", job, FETCH, {"file": name, "at": file.tell()}) or {}
                        piece = base64.b64decode(told.get("piece", ""))
                        if not piece:
                            return False
                        file.write(piece)
            self.ask("do_app_command", job, FETCH, {"file": None})
            self._keep(Path(work), folder)
            return True

    def _outcome(self, job: str, folder: Path) -> Outcome:
        """How the segment ended, downloaded from the engine with the hub's folder."""
        lost = Outcome(state="waiting", message="the job ended without a message")
        with tempfile.TemporaryDirectory(prefix="fedpoint-") as work:
            where = self.ask("download_job_result", job, work)
            found = sorted(Path(where or work).rglob("outcome.json"))
            if not found:
                return lost
            self._keep(found[0].parent, folder)
            return json.loads(found[0].read_text())

    def _keep(self, made: Path, folder: Path) -> None:
        if (made / "hub.npz").exists():
            shutil.rmtree(folder / "models", ignore_errors=True)  # those of an older run would stay among the new
            shutil.copytree(made, folder, dirs_exist_ok=True)
            write_bytes(folder / "signed.json", self.signed.data)
            write_bytes(folder / "authority.crt", certificates.pem(self.kit.authority))
            (folder / "approvals").mkdir(exist_ok=True)
            for site, one in self.approved.items():
                write_bytes(folder / "approvals" / f"{site}.json", one.data)
