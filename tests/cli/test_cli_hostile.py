"""What comes from elsewhere leads nowhere and blocks nobody: links, pipes, sockets, devices and files without an end,
in place of every file of a run folder and of every file that a user names, for every command."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import fedpoint as fp
from fedpoint.config import read
from fedpoint.config.runner import perform
from fedpoint.core.errors import FedpointError
from fedpoint.ui.runs import Runs
from fedpoint.verbs.watch import Watch

SECONDS = 60  # for one test: what blocks, blocks for good
TEXT = """\
rounds = 6
[problem]
kind = "least_squares"
agents = 2
dim = 2
[algorithm]
name = "fedavg"
step = 0.1
"""


class Slow(BaseException):
    """It took too long; no handler of errors takes it for one."""


@pytest.fixture(autouse=True)
def in_time():
    def late(*_):
        raise Slow

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The folder of a finished run."""
    place = tmp_path_factory.mktemp("hostile")
    (place / "file.toml").write_text(TEXT)
    perform(read(place / "file.toml"), place / "r", Watch())
    return place / "r"


@pytest.fixture
def r(sound):
    shutil.copytree(sound, "runs/r")
    return Path("runs/r")


@pytest.fixture
def precious():
    """What is not the run's: a file and a folder of the user's."""
    Path("mine").mkdir()
    (Path("mine") / "000000000000-000000000009.npz").write_bytes(b"mine, and as long as it was")
    (Path("mine") / ".old.tmp").write_bytes(b"mine too")
    return Path("mine")


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in Path(folder).rglob("*")}


def pipe(path):
    os.mkfifo(path)


def in_socket(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:  # the name of a socket must be short
        made.bind(path.name)


def device(path):
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("making a device is for root")


def link_to_file(path):
    path.symlink_to(Path("mine/000000000000-000000000009.npz").absolute())


def link_to_folder(path):
    path.symlink_to(Path("mine").absolute())


def link_to_nothing(path):
    path.symlink_to(Path("mine/new").absolute())


KINDS = {
    "pipe": pipe,
    "socket": in_socket,
    "device": device,
    "link to a file": link_to_file,
    "link to a folder": link_to_folder,
    "link to nothing": link_to_nothing,
    "folder": Path.mkdir,
}
PLACES = {
    "run.json": lambda r: r / "run.json",
    "config.toml": lambda r: r / "config.toml",
    "events.jsonl": lambda r: r / "events.jsonl",
    "summary.json": lambda r: r / "summary.json",
    "model.npz": lambda r: r / "model.npz",
    "lock": lambda r: r / "lock",
    "writing.lock": lambda r: r / "writing.lock",
    "checkpoints": lambda r: r / "checkpoints",
    "records": lambda r: r / "records",
    "a checkpoint": lambda r: max((r / "checkpoints").iterdir()),
    "a record": lambda r: max((r / "records").iterdir()),
    "something else": lambda r: r / "notes",
}
COMMANDS = (
    ("resume", "runs/r", "--rounds", "9", "--no-figure", "--quiet"),
    ("check", "runs/r"),
    ("report", "runs/r", "--out", "page.html"),
    ("cite", "runs/r"),
    ("predict", "runs/r", "rows.csv"),
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
def test_a_run_folder_holds_files_and_nothing_else(cli, r, precious, kind, place):
    """Each command refuses it at once, names it, and touches neither the folder nor what a link leads to."""
    path = PLACES[place](r)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    before = contents(precious)
    inside = sorted(r.rglob("*"))
    for command in COMMANDS:
        said = cli(*command, status=2).stderr
        assert said.startswith("Error: ") and len(said.splitlines()) == 1
        assert str(path) in said and f"is a {kind.partition(' ')[0]}".replace("a link", "a symbolic link") in said
    with pytest.raises(FedpointError, match=path.name):
        fp.load(r)
    listed = Runs(Path("runs")).list()
    assert [run["state"] for run in listed] == ["unreadable"] and path.name in listed[0]["message"]
    with pytest.raises(FedpointError, match=path.name):
        Runs(Path("runs")).curves("r")
    assert contents(precious) == before and sorted(r.rglob("*")) == inside


@pytest.mark.parametrize("place", [p for p in PLACES if p not in ("checkpoints", "records", "something else")])
def test_a_folder_in_the_place_of_a_file(cli, r, place):
    """No traceback: it is named where it is needed."""
    path = PLACES[place](r)
    path.unlink(missing_ok=True)
    path.mkdir()
    said = cli(*COMMANDS[0], status=2).stderr
    assert path.name in said and len(said.splitlines()) <= 2
    assert len(Runs(Path("runs")).list()) == 1


@pytest.mark.parametrize("place", ["events.jsonl", "lock", "writing.lock"])
def test_what_is_written_in_place_has_no_other_name(cli, r, precious, place):
    """A hard link cannot be told from the file: what has two names is refused, before a byte of it is changed."""
    mine = next(precious.glob("*.npz"))
    (r / place).unlink()
    os.link(mine, r / place)
    before = contents(precious)
    said = cli(*COMMANDS[0], status=2).stderr
    assert f"{place} has another name too (a hard link)" in said and len(said.splitlines()) == 1
    assert contents(precious) == before


@pytest.mark.parametrize("place", ["model.npz", "summary.json", "a checkpoint", "a record", "run.json", "config.toml"])
def test_what_is_replaced_may_have_another_name(cli, r, precious, place):
    """A copy by hard links, as a backup is: the copy keeps its bytes when the run goes on."""
    path = PLACES[place](r)
    os.link(path, precious / "backup")
    before = contents(precious)
    cli(*COMMANDS[0])
    assert contents(precious) == before and fp.load(r).rounds[-1] == 9


def test_a_run_in_a_linked_folder_is_the_users_own_choice(cli, r):
    Path("latest").symlink_to(r)
    cli("check", "latest", status=0)
    cli("resume", "latest", "--rounds", "9", "--no-figure", "--quiet")
    assert fp.load(r).rounds[-1] == 9


def test_a_comparison_leads_nowhere(cli, sound, precious, toml):
    one = TEXT[TEXT.index("[algorithm]") :].replace("[algorithm]", "[[algorithm]]")
    path = toml(TEXT.replace("[algorithm]", "[[algorithm]]") + one.replace("fedavg", "scaffold"))
    cli("run", path, "--folder", "both", "--no-figure", "--quiet")
    first = next(Path("both").glob("1-*"))
    shutil.copytree(first, precious / "run")
    shutil.rmtree(first)
    first.symlink_to((precious / "run").absolute())
    before = contents(precious)
    for command in (("resume", "both", "--rounds", "9"), ("check", "both"), ("report", "both"), ("cite", "both")):
        assert f"both/{first.name} is a symbolic link" in cli(*command, status=2).stderr
    assert contents(precious) == before
    first.unlink()
    (Path("both") / "notes-on-it").mkdir()  # whose name is not that of a run
    shutil.copytree(sound, "both/copy of it")
    cli("check", "both")


def test_litter_of_a_creation_leads_nowhere(cli, precious, toml):
    """The folder beside a new run that a killed creation might have left."""
    Path(".new.01234567.tmp").symlink_to(precious.absolute())
    before = contents(precious)
    cli("run", toml(TEXT), "--folder", "new", "--no-figure", "--quiet")
    assert contents(precious) == before


# What a user names.


def descriptor(path):
    """As <(...) of a shell: a pipe under the name of a descriptor."""
    path.symlink_to(f"/proc/self/fd/{os.pipe()[0]}")


ENDLESS = {
    "a pipe": pipe,
    "a socket": in_socket,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a full device": lambda path: path.symlink_to("/dev/full"),
    "a substituted pipe": descriptor,
    "a file of /proc": lambda path: path.symlink_to("/proc/self/environ"),
    "a sparse file": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}
TABLE = 'kind = "table"\nfile = "given"\ntarget = "y"\nagent = "a"'
PROBLEM = 'kind = "least_squares"\nagents = 2\ndim = 2'
NAMED = {
    "table": TEXT.replace(PROBLEM, TABLE),
    "parquet": TEXT.replace(PROBLEM, TABLE.replace("given", "given.parquet")),
    "trace": 'participation = {scheme = "everyone", trace = "given"}\n' + TEXT,
    "edges": TEXT.replace("fedavg", "fedgd").replace("[problem]", 'network = {file = "given"}\n[problem]'),
    "replay": TEXT.replace("fedavg", "fedgd").replace(
        "[problem]", 'network = "ring"\nschedule = {kind = "replay", file = "given"}\n[problem]'
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("what", NAMED)
def test_files_that_a_file_names(cli, toml, kind, what):
    ENDLESS[kind](Path("given.parquet" if what == "parquet" else "given"))
    if what == "parquet":
        pytest.importorskip("pyarrow")
    for command in ("run", "forecast"):
        said = cli(command, toml(NAMED[what]), status=2).stderr
        assert "given" in said and "Traceback" not in said
    assert not Path("runs").exists()


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("command", ["run", "forecast", "plan", "cite", "predict", "predict rows", "federate request"])
def test_files_that_a_user_names(cli, r, kind, command):
    given = Path("given.toml" if "predict" not in command else "given.npz")
    ENDLESS[kind](given)
    Path("rows.csv").write_text("a,b\n1,2\n")
    arguments = {
        "predict": ("predict", given, "rows.csv"),
        "predict rows": ("predict", r, given),
        "federate request": ("federate", "request", given, "north"),
    }.get(command, (command, given))
    said = cli(*arguments, status=2).stderr
    assert given.name in said and "Traceback" not in said


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_folder_that_is_none(cli, toml, kind):
    ENDLESS[kind](Path("given"))
    Path("rows.csv").write_text("a,b\n1,2\n")
    for command in ("check", "resume", "report", "predict"):
        more = ("rows.csv",) if command == "predict" else ()
        assert "given" in cli(command, "given", *more, status=2).stderr
    with pytest.raises(FedpointError, match="given"):
        fp.load("given")
    if kind != "a folder":
        assert "is not an empty folder" in cli("run", toml(TEXT), "--folder", "given", status=2).stderr


def test_the_list_of_the_page_waits_for_nobody(r):
    """One pipe among the runs once blocked it for good."""
    for number, name in enumerate(["run.json", "config.toml", "events.jsonl", "summary.json", "lock"]):
        shutil.copytree(r, f"runs/{number}")
        (Path(f"runs/{number}") / name).unlink()
        os.mkfifo(f"runs/{number}/{name}")
    os.mkfifo("runs/pipe")
    Path("runs/link").symlink_to("r")
    Path("runs/self").symlink_to(".")
    states = {run["name"]: run["state"] for run in Runs(Path("runs")).list()}
    assert states == {"r": "finished", **{str(number): "unreadable" for number in range(5)}}


# Names that are no text.


NAME = os.fsdecode(b"r\xff\xe9")


def bytes_may_be_names(folder):
    try:
        (Path(folder) / NAME).touch()
        (Path(folder) / NAME).unlink()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not bytes_may_be_names("."), reason="this file system has only names that are text")
def test_names_that_are_not_text(cli, toml, tmp_path):
    """Bytes that are no UTF-8 name a file, its folder and its run: every command works, and prints something."""
    signal.alarm(5 * SECONDS)  # these compute something
    place = tmp_path / NAME
    place.mkdir()
    shutil.copy(toml(TEXT), place / f"{NAME}.toml")
    folder = place / f"run{NAME}"
    assert cli("run", place / f"{NAME}.toml", "--folder", folder).exit_code == 0
    for command in ("resume", "report", "cite"):
        cli(command, folder)
    assert fp.load(folder).finished and repr(fp.load(folder))
    runs = Runs(place)
    (listed,) = runs.list()
    assert listed["state"] == "finished" and listed["name"] == r"runr\udcff\udce9"
    assert listed["name"].encode() and runs.curves(listed["name"])["x"][-1] == 6
    assert "there is no file" in cli("run", place / "nothing.toml", status=2).stderr


@pytest.mark.skipif(not bytes_may_be_names("."), reason="this file system has only names that are text")
def test_a_table_whose_name_toml_cannot_hold(cli, toml, tmp_path):
    """A run folder names it in its configuration, which is text."""
    place = tmp_path / NAME
    place.mkdir()
    (place / "given").write_text("a,x,y\n1,2,3\n1,3,3\n2,1,0\n2,2,5\n")
    shutil.copy(toml(NAMED["table"]), place / "file.toml")
    said = cli("run", place / "file.toml", "--folder", "r", status=2).stderr
    assert "is not UTF-8 text" in said and r"r\udcff\udce9" in said and "rename" in said
    assert not Path("r").exists()


@pytest.mark.skipif(not bytes_may_be_names("."), reason="this file system has only names that are text")
def test_such_names_are_printed_in_any_encoding(tmp_path):
    """To a terminal or a pipe that would refuse them: no traceback of Python's."""
    signal.alarm(5 * SECONDS)
    folder = tmp_path / NAME
    for encoding in ("utf-8", "ascii"):
        done = subprocess.run(
            [sys.executable, "-m", "fedpoint", "predict", os.fsencode(folder), "rows.csv"],
            env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"},
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 2 and b"Traceback" not in done.stderr
        assert done.stderr.startswith(b"Error: ") and b"is missing; check the path" in done.stderr
