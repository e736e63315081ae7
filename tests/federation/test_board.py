"""What travels between leader, server and sites proves itself: every forgery, replay and stolen key is refused."""

import datetime
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from malicious import METHOD, TABLE, write_table
from parts import few_keys, key, trial_of
from studies import content

from fedpoint.cli import main
from fedpoint.core.errors import FedpointError
from fedpoint.federation.flare.kits import Invitation, Kit, make_kit
from fedpoint.federation.flare.project import Project
from fedpoint.federation.identity import approvals, board, certificates, revocations, sealed, signed
from fedpoint.federation.identity.board import Board
from fedpoint.federation.identity.certificates import NotTrusted
from fedpoint.federation.receipts import receipts
from fedpoint.federation.secure.identity import Impostor, kit_identity, server_trust
from fedpoint.federation.site import engagement
from fedpoint.federation.site.policy import used_before
from fedpoint.federation.study import parse
from fedpoint.store.disk import write_npz

SITES = ["north", "south"]


def study(**more):
    return parse(content(METHOD, TABLE, **{"rounds": 3, "sites": SITES, **more}))


@pytest.fixture
def trial(tmp_path, monkeypatch):
    return trial_of(study(), tmp_path / "project", monkeypatch)


@pytest.fixture
def server(trial):
    return Board(trial.kits["server"].folder / "board", trial.project.invitation.authority)


def cli(*arguments, **more):
    return CliRunner().invoke(main, ["federate", *map(str, arguments)], **more)


def days(number):
    return datetime.timedelta(days=number)


# The board.


def test_the_server_takes_the_next_version_and_no_older_one(trial, server):
    own = trial.kits["admin"]
    second = signed.sign(study(rounds=4), 2, own.key, own.certificate)
    server.post("study", second.data)
    server.post("study", second.data)  # again is no harm
    assert server.newest("trial") == 2
    assert server.study("trial.2").content["rounds"] == 4
    other = signed.sign(study(rounds=5), 2, own.key, own.certificate)
    with pytest.raises(NotTrusted, match="another version 2 of trial is here already"):
        server.post("study", other.data)
    fourth = signed.sign(study(rounds=5), 4, own.key, own.certificate)
    third = signed.sign(study(rounds=6), 3, own.key, own.certificate)
    server.post("study", fourth.data)
    with pytest.raises(NotTrusted, match="version 3 of trial is older than version 4"):
        server.post("study", third.data)
    assert [one["study"]["rounds"] for one in map(json.loads, server.news("north", {"trial.1"})["studies"])] == [5]


@pytest.mark.parametrize("who", ["north", "server"])
def test_only_the_leader_s_signature_is_a_study_s(who, trial, server):
    own = trial.kits[who]
    forged = signed.sign(study(rounds=99), 2, own.key, own.certificate)
    with pytest.raises(NotTrusted, match="does not lead the project"):
        server.post("study", forged.data)
    with pytest.raises(NotTrusted, match="does not lead the project"):
        engagement.receive(trial.kits["south"].folder, "south", forged.data, trial.kits["south"].authority)


def test_a_site_takes_no_study_of_another_authority(trial, tmp_path):
    other = Project.init(tmp_path / "other", "trial", "localhost:8102")
    forged = signed.sign(study(rounds=99), 2, other.admin.key, other.admin.certificate)
    with pytest.raises(NotTrusted, match="is not of this project's authority"):
        engagement.receive(trial.kits["south"].folder, "south", forged.data, trial.kits["south"].authority)
    assert [one.number for one in engagement.engagements(trial.kits["south"].folder)] == [1]


def test_an_old_study_cannot_be_replayed_to_a_site(trial, monkeypatch):
    kit, own = trial.kits["north"], trial.kits["admin"]
    for number in (2, 3):
        made = signed.sign(study(rounds=number), number, own.key, own.certificate)
        assert engagement.receive(kit.folder, "north", made.data, kit.authority).number == number
    assert engagement.receive(kit.folder, "north", made.data, kit.authority) is None  # it is known
    late = signed.sign(study(rounds=9), 2, own.key, own.certificate)
    with pytest.raises(NotTrusted, match="another version 2"):
        engagement.receive(kit.folder, "north", late.data, kit.authority)
    fresh = make_kit(kit.folder.parent / "fresh", "north", trial.project.invitation)
    engagement.receive(fresh.folder, "north", made.data, fresh.authority)
    with pytest.raises(NotTrusted, match="version 1 of trial is older than version 3"):
        engagement.receive(fresh.folder, "north", trial.signed.data, fresh.authority)
    monkeypatch.setattr(engagement, "check_newer", lambda *_: None)  # without the check it would be taken
    assert engagement.receive(fresh.folder, "north", trial.signed.data, fresh.authority).number == 1


def test_orders_are_of_the_version_that_was_approved_last(trial):
    kit, own, first = trial.kits["north"], trial.kits["admin"], trial.parts["north"]
    assert engagement.at_work(kit.folder, "trial.1") is None
    (first.folder / "consent.json").write_text("{}")
    assert engagement.at_work(kit.folder, "trial.1") == first
    made = signed.sign(study(rounds=9), 2, own.key, own.certificate)
    second = engagement.receive(kit.folder, "north", made.data, kit.authority)
    assert engagement.at_work(kit.folder, "trial.1") == first  # nobody has decided about the second
    assert engagement.at_work(kit.folder, "trial.2") is None
    (second.folder / "consent.json").write_text("{}")
    assert engagement.at_work(kit.folder, "trial.1") is None
    assert engagement.at_work(kit.folder, "trial.2") == second
    for odd in ("", "trial", "../trial.1", "trial.01", "trial.2/"):
        assert engagement.at_work(kit.folder, odd) is None


def test_studies_of_others_are_not_fetched(trial, server):
    few = signed.sign(study(sites=["south"], name="other"), 1, trial.kits["admin"].key, trial.kits["admin"].certificate)
    server.post("study", few.data)
    assert server.news("north", {"trial.1"})["studies"] == []
    assert engagement.receive(trial.kits["north"].folder, "north", few.data, trial.kits["north"].authority) is None
    assert server.news("south", {"trial.1"})["studies"] == [few.data.decode()]


# Approvals.


def approval(trial, site="north", title="trial.1", **more):
    kit = trial.kits[more.pop("signer", site)]
    finger = more.get("fingerprint", trial.signed.fingerprint)
    return approvals.approve(site, title, finger, "person", kit.key, kit.certificate).data


def test_an_approval_is_the_site_s_own(trial, server, monkeypatch):
    server.post("approval", approval(trial))
    assert [*server.approvals("trial.1")] == ["north"]
    forged = approval(trial, "south", signer="north")
    with pytest.raises(NotTrusted, match="'north' signed an approval of 'south'"):
        server.post("approval", forged)
    for data, said in (
        (approval(trial, title="trial.2"), "an approval of trial.2, which is not here"),
        (approval(trial, fingerprint="0" * 64), "an approval of trial.1, which is not here"),
        (approval(trial)[:-9] + b'AAAAAA=="', "not a signed approval"),
    ):
        with pytest.raises(NotTrusted, match=said):
            server.post("approval", data)
    monkeypatch.setattr(certificates, "name_of", lambda _: "south")
    server.post("approval", forged)  # without the check it would be taken
    assert [*server.approvals("trial.1")] == ["north", "south"]


def test_a_study_is_no_approval_and_no_revocation(trial, server):
    for kind, data in (
        ("approval", trial.signed.data), ("revocations", trial.signed.data), ("study", approval(trial)),
        ("certificate", trial.signed.data), ("colour", trial.signed.data), ("study", b"x" * (board.LONGEST + 1)),
    ):  # fmt: skip
        with pytest.raises(NotTrusted):
            server.post(kind, data)


# Revoking, renewing, a lost disk.


def test_a_revoked_site_is_out_and_a_new_key_lets_it_in_again(trial, server):
    project, old = trial.project, trial.kits["north"]
    assert not server.is_out("north")
    project.revoke("north")
    for kind, text in project.documents():
        server.post(kind, text.encode())
    assert server.is_out("north") and not server.is_out("south")
    with pytest.raises(NotTrusted, match="the certificate of north was revoked"):
        server.post("approval", approval(trial))
    with pytest.raises(NotTrusted, match="was revoked"):
        server.post("certificate", certificates.pem(old.certificate))
    with pytest.raises(NotTrusted, match="was revoked"):
        project.sign(study(rounds=9))
    with pytest.raises(NotTrusted, match="was revoked"):
        project.renewed("north", project.authority())
    again = make_kit(project.folder / "north-again", "north", project.invitation)
    again.take(project.certify(project.requested(again.request())[1], "north", project.authority()))
    for kind, text in project.documents():
        server.post(kind, text.encode())
    assert not server.is_out("north")
    with pytest.raises(NotTrusted, match="was revoked"):
        server.revoked.check(old.certificate)
    server.revoked.check(again.certificate)


def test_the_engine_s_login_refuses_a_revoked_certificate(trial, server, monkeypatch):
    """The very function that the server's login calls: with the same proof, before and after."""
    pytest.importorskip("nvflare")
    from cryptography.x509.oid import ExtendedKeyUsageOID
    from nvflare.private.fed.utils.identity_utils import IdentityAsserter

    from fedpoint.federation.flare.post import Verifier

    kit = trial.kits["north"]
    startup = kit.folder / "startup"
    proof = IdentityAsserter(str(startup / "client.key"), str(startup / "client.crt")).sign_common_name("nonce")
    verifier = Verifier(str(startup / "rootCA.pem"), server)

    def login():
        return verifier.verify_common_name(
            asserted_cn="north", asserter_cert=kit.certificate, signature=proof, nonce="nonce",
            intermediate_certs=[], expected_eku=ExtendedKeyUsageOID.CLIENT_AUTH,
        )  # fmt: skip

    login()
    trial.project.revoke("north")
    for kind, text in trial.project.documents():
        server.post(kind, text.encode())
    with pytest.raises(NotTrusted, match="was revoked"):
        login()
    monkeypatch.setattr(revocations.Revocations, "holds", lambda *_: False)
    login()


def test_a_stolen_key_has_no_part_in_secure_sums(trial, server):
    """Whoever has the server and a lost disk cannot stand in for that site: others hold its certificate against the
    list that they heard last."""
    post = pytest.importorskip("fedpoint.federation.flare.post")
    south, north = trial.kits["south"], trial.kits["north"]
    thief = kit_identity(north.folder, "north")
    known = [kit_identity(south.folder, "south").trust, server_trust(trial.kits["server"].folder)]
    proof = "north", thief.certificate, b"keys", thief.sign(b"keys")
    for trust in known:
        trust.verify(*proof)
    listed = trial.project.revoke("north").data
    post.take_revoked(south, listed.decode())  # as `fetch` does while it is connected
    server.post("revocations", listed)
    for trust in known:  # the same as before: a worker that is at work hears of it
        with pytest.raises(Impostor, match="the certificate of north was revoked"):
            trust.verify(*proof)


def test_revocations_only_grow_and_only_the_leader_s_count(trial, server):
    own, site = trial.kits["admin"], trial.kits["north"]
    first = server.revoked.and_also({"1": "a"}, own.key, own.certificate)
    second = first.and_also({"2": "b"}, own.key, own.certificate)
    server.post("revocations", second.data)
    with pytest.raises(NotTrusted, match="a later list"):
        server.post("revocations", first.data)
    other = first.and_also({"3": "c"}, own.key, own.certificate)
    with pytest.raises(NotTrusted, match="another list 2"):
        server.post("revocations", other.data)
    forged = second.and_also({"4": "d"}, site.key, site.certificate)
    with pytest.raises(NotTrusted, match="does not lead the project"):
        server.post("revocations", forged.data)
    assert dict(server.revoked.names) == {"1": "a", "2": "b"}


def test_a_revocation_puts_out_whom_it_names_and_not_who_has_come_back_since(trial, server):
    """South lost its key, has a new certificate, and is connected with it; then north is revoked."""
    post, own = pytest.importorskip("fedpoint.federation.flare.post"), trial.kits["admin"]
    keeper, clients = post.BoardKeeper(), {f"token of {site}": SimpleNamespace(name=site) for site in SITES}
    manager = SimpleNamespace(clients=clients)
    keeper.server, keeper.board = SimpleNamespace(client_manager=manager, logout_client=clients.pop), server
    first = server.revoked.and_also({"1": "south"}, own.key, own.certificate)
    server.post("revocations", first.data)
    second = first.and_also({"2": "north"}, own.key, own.certificate)
    keeper._asked(SimpleNamespace(payload=json.dumps({"post": [["revocations", second.data.decode()]]}).encode()))
    assert server.revoked.number == 2
    assert list(clients) == ["token of south"]


def test_a_request_in_another_s_name_is_refused(trial, tmp_path):
    thief = make_kit(tmp_path / "thief", "north", trial.project.invitation)
    with pytest.raises(NotTrusted, match="north has a certificate for another key"):
        trial.project.requested(thief.request())
    assert trial.project.requested(trial.kits["north"].request())[0] == "north"  # the same key again is a renewal
    for name in ("admin", "admin@fedpoint.study", "../north", "North"):
        with pytest.raises(NotTrusted, match="is not the name of a site"):
            trial.project.requested(certificates.request(key(0), name))


def test_a_certificate_is_of_the_kit_s_own_key_and_name(trial):
    north, south = trial.kits["north"], trial.kits["south"]
    with pytest.raises(NotTrusted, match="the certificate is of south"):
        north.take(south.certificate)
    made = trial.project.authority().certify(south.key.public_key(), "north", "site")
    with pytest.raises(NotTrusted, match="of another key"):
        north.take(made)
    other = certificates.Authority.new("trial").certify(north.key.public_key(), "north", "site")
    with pytest.raises(NotTrusted, match="is not of this project's authority"):
        north.take(other)


def test_a_renewed_certificate_is_fetched_and_an_ended_one_is_told_of(trial, server):
    from fedpoint.federation.flare.post import take_certificate

    project, kit = trial.project, trial.kits["north"]
    short = project.certify(kit.key.public_key(), "north", project.authority(), days=20)
    kit.take(short)
    assert "in 19 days" in kit.check_certificate()
    assert any("certificate of north ends" in text for text in project.warnings())
    made = project.renewed("north", project.authority())
    server.post("certificate", certificates.pem(made))
    take_certificate(kit, server.news("north", set())["certificate"])
    assert kit.certificate == made and kit.check_certificate() == "" and project.warnings() == []
    take_certificate(kit, certificates.pem(short).decode())  # an older one changes nothing
    assert kit.certificate == made
    begun = certificates.now() - days(400)
    ended = project.authority().certify(kit.key.public_key(), "north", "site", when=begun)
    kit.certificate_file.write_bytes(certificates.pem(ended))
    out = cli("site", kit.folder)
    assert out.exit_code == 2
    assert "ended on" in out.output and "fedpoint federate renew north" in out.output


def test_what_was_accepted_stays_when_its_signer_s_certificate_ends(trial, server, monkeypatch):
    monkeypatch.setattr(certificates, "now", lambda: datetime.datetime.now(datetime.UTC) + days(400))
    assert server.study("trial.1") is not None
    assert server.news("north", set())["studies"] == []  # but nobody is given it any more
    with pytest.raises(NotTrusted, match="must be renewed"):
        server.post("study", trial.signed.data)
    assert sealed.once_valid(trial.signed.data) < certificates.now()


# The commands.


def test_joining_loads_no_jax(trial):
    """It is done on a machine that waits, in seconds."""
    kit = trial.kits["north"]
    code = (
        "import sys\nfrom fedpoint.cli import main\n"
        f"try:\n    main(['federate', 'join', {str(kit.folder)!r}, {str(kit.certificate_file)!r}])\n"
        "except SystemExit as end:\n    print(end.code, 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


def test_from_zero_to_an_approved_second_version(tmp_path, monkeypatch):
    """Every file that travels is public: no private key is ever in one."""
    few_keys(monkeypatch)
    monkeypatch.chdir(tmp_path)
    out = cli("init", "dialysis", "--server", "localhost:8102")
    assert out.exit_code == 0, out.output
    for site in SITES:
        out = cli("request", "dialysis/invitation.json", site)
        assert out.exit_code == 0, out.output
        finger = next(line.split()[2].rstrip(":") for line in out.output.splitlines() if line.startswith("your key"))
        csr = tmp_path / site / f"{site}.csr"
        out = cli("add", csr, "--project", "dialysis", "--offline", input="y\n")
        assert finger in out.output, out.output
        assert cli("join", site, f"dialysis/certificates/{site}.crt").exit_code == 0
        for path in (csr, tmp_path / "dialysis" / "invitation.json", tmp_path / f"dialysis/certificates/{site}.crt"):
            assert b"PRIVATE" not in path.read_bytes()
        assert not [*(tmp_path / "dialysis").glob(f"**/{site}*.key")]
    write_study("dialysis/study.toml", rounds=3)
    assert "trial.1 is signed" in cli("study", "dialysis/study.toml", "--offline").output
    assert "was signed before" in cli("study", "dialysis/study.toml", "--offline").output
    fetch("dialysis", "north")
    data = write_table(tmp_path / "t.csv")
    out = cli("approve", "north", "--data", data, input="y\n")
    assert out.exit_code == 0 and "Nothing of this study was approved here before." in out.output, out.output
    write_study("dialysis/study.toml", rounds=5)
    assert "rounds: 3 -> 5" in cli("study", "dialysis/study.toml", "--offline").output
    fetch("dialysis", "north")
    out = cli("approve", "north", input="n\n")  # the file is that of the version before
    assert "Changed since trial.1, which was approved:\n  rounds: 3 -> 5" in out.output
    assert out.exit_code == 2 and "not approved" in out.output
    assert cli("approve", "north", "--yes").exit_code == 0
    assert engagement.at_work(tmp_path / "north", "trial.2").consent().data == str(data)
    write_study("dialysis/study.toml", rounds=6)
    out = cli("status", "dialysis/study.toml")
    assert out.exit_code == 2 and "was changed after it was signed" in out.output


def write_study(path, **more):
    from fedpoint.store.disk import to_toml

    with open(path, "wb") as file:
        file.write(to_toml({name: value for name, value in study(**more).content.items() if name != "server"}))


def fetch(project, site):
    """What the server would give the site."""
    made, kit = Project(project), Kit(site)
    for text in made.board.news(site, {one.title for one in engagement.engagements(kit.folder)})["studies"]:
        engagement.receive(kit.folder, site, text.encode(), kit.authority)


POLICY = """
data = "t.csv"
columns = ["ill", "age", "dose", "kind"]
models = ["logistic"]
methods = ["fedavg", "scaffold"]
rounds = 5
runs = 6
floor = {rows = 10, per_category = 3, per_class = 3}
"""


def policy_says(trial, text=POLICY, data=True):
    kit = trial.kits["north"].folder
    (kit / "policy.toml").write_text(text)
    if data:
        write_table(kit / "t.csv")
    return cli("approve", kit, "--by-policy")


def test_a_policy_approves_by_itself(trial):
    out = policy_says(trial)
    assert out.exit_code == 0 and "trial.1 is approved by policy.toml" in out.output, out.output
    said = trial.parts["north"].consent()
    assert (said.by, said.floor["rows"]) == ("policy", 10)
    made = approvals.read(
        (trial.parts["north"].folder / "approval.json").read_bytes(), trial.project.invitation.authority
    )
    assert (made.by, made.study, made.fingerprint) == ("policy", "trial.1", trial.signed.fingerprint)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"age", ', "", "it reads age"),
        ("rounds = 5", "rounds = 2", "rounds is 3; the policy allows 2"),
        ('"fedavg", "scaffold"', '"fedprox"', "the policy allows fedprox"),
        ("floor = {rows = 10", "floor = {rows = 9000", "the floor is 9000"),
        ('data = "t.csv"\n', "", "the policy names none (data)"),
        ("runs = 6", "runs = 6\nepsilon = 1.0", "it promises no privacy"),
    ],
)
def test_what_a_policy_does_not_cover_waits_for_a_person(old, new, said, trial):
    assert old in POLICY
    out = policy_says(trial, POLICY.replace(old, new))
    assert out.exit_code == 2 and "trial.1 waits for a person" in out.output and said in out.output, out.output
    assert not trial.parts["north"].approved


def test_a_policy_counts_the_runs_of_earlier_versions(trial):
    kit, part, own = trial.kits["north"], trial.parts["north"], trial.kits["admin"]
    assert policy_says(trial).exit_code == 0
    part.records.mkdir(exist_ok=True)
    runs = {str(number): {} for number in range(4)}
    (part.records / "orders.json").write_text(json.dumps({"studies": {part.fingerprint: runs}, "refused": 0}))
    made = signed.sign(study(rounds=4), 2, own.key, own.certificate)
    second = engagement.receive(kit.folder, "north", made.data, kit.authority)
    assert used_before(kit.folder, second).runs == 4
    out = policy_says(trial)
    said = "runs is 3 after 4 runs of earlier versions and other studies; the policy allows 6 in all"
    assert out.exit_code == 2 and said in out.output


def test_a_policy_counts_studies_of_other_names(trial):
    """A leader that signs the same under another name gets no more by it; what was agreed to counts at once."""
    kit, own = trial.kits["north"], trial.kits["admin"]
    assert policy_says(trial).exit_code == 0
    names = ("again", "once-more")
    for name in names:
        made = signed.sign(study(name=name), 1, own.key, own.certificate)
        engagement.receive(kit.folder, "north", made.data, kit.authority)
    first, second = (cli("approve", kit.folder, name, "--by-policy") for name in names)
    assert first.exit_code == 0, first.output
    assert second.exit_code == 2
    assert "runs is 3 after 6 runs of earlier versions and other studies; the policy allows 6" in second.output


def test_a_person_sees_what_all_studies_tell_of_this_site(trial):
    kit, own = trial.kits["north"], trial.kits["admin"]
    for name, epsilon in (("first", 2.0), ("second", 1.5)):
        privacy = {"epsilon": epsilon, "delta": 1e-5, "clip": 1.0}
        made = signed.sign(study(name=name, privacy=privacy, measurements=0), 1, own.key, own.certificate)
        engagement.receive(kit.folder, "north", made.data, kit.authority)
        out = cli("approve", kit.folder, name, "--data", write_table(kit.folder / "t.csv"), "--yes")
        assert out.exit_code == 0, out.output
    assert "epsilon 2 of earlier versions and other studies, 3.5 with this one" in out.output


DROPS = {"features": ["age", "dose"], "missing": "drop"}


@pytest.mark.parametrize(
    ("rows", "first", "second", "refused"),
    [
        (0, {}, DROPS, False),
        (1, {}, DROPS, True),
        (1, DROPS, {}, True),
        (19, {}, DROPS, True),
        (20, {}, DROPS, False),
        (3, {"held_out": "mark"}, {"held_out": "more"}, True),
        (0, {"held_out": "mark"}, {"held_out": "more"}, False),
    ],
)
def test_two_studies_do_not_tell_of_a_few_rows_together(rows, first, second, refused, trial):
    """One leaves out rows that the other has: those with a gap in a column more, or those that a column marks. What
    both say of a column differs by these rows, though each study by itself is above the floor."""
    kit, own = trial.kits["north"], trial.kits["admin"]
    lines = [f"{i % 2},{20 + i},{'' if i < rows else i},{i // 60},{(i + rows) // 60}" for i in range(90)]
    (kit.folder / "t.csv").write_text("\n".join(["ill,age,dose,mark,more", *lines]) + "\n")
    table = {"kind": "table", "model": "logistic", "target": "ill", "features": ["age"]}
    for name, change in (("first", first), ("second", second)):
        wanted = parse(content(METHOD, table | change, rounds=3, sites=SITES, name=name))
        made = signed.sign(wanted, 1, own.key, own.certificate)
        engagement.receive(kit.folder, "north", made.data, kit.authority)
    out = cli("approve", kit.folder, "first", "--data", kit.folder / "t.csv", "--yes")
    assert out.exit_code == 0, out.output
    (kit.folder / "policy.toml").write_text(
        POLICY.replace('"kind"', '"mark", "more"').replace("rows = 10", "rows = 20")
    )
    for how in (["--by-policy"], ["--data", kit.folder / "t.csv", "--yes"])[: 1 + refused]:
        out = cli("approve", kit.folder, "second", *how)
        assert (out.exit_code != 0) == refused, out.output
        said = f"has {rows} row{'s' * (rows > 1)} that "
        assert (said in " ".join(out.output.split()) and "both together tell of these alone" in out.output) == refused


def test_a_study_that_was_changed_on_disk_is_not_approved(trial):
    part = trial.parts["north"]
    text = (part.folder / "study.toml").read_text()
    (part.folder / "study.toml").write_text(text.replace("rounds = 3", "rounds = 4"))
    out = policy_says(trial)
    assert out.exit_code == 2 and "was changed since it was signed" in out.output
    (part.folder / "study.toml").write_text(text)
    (part.folder / "signed.json").write_bytes(trial.signed.data.replace(b'"rounds":3', b'"rounds":4'))
    out = policy_says(trial)
    assert out.exit_code == 2 and "what it signs was changed" in out.output


def test_the_result_folder_proves_who_signed_and_who_approved(trial, tmp_path):
    """For the dossier: what was forged later is not shown."""
    folder, root = tmp_path / "result", trial.project.invitation.authority
    (folder / "approvals").mkdir(parents=True)
    assert receipts(folder, trial.signed.fingerprint) is None
    (folder / "signed.json").write_bytes(trial.signed.data)
    (folder / "authority.crt").write_bytes(certificates.pem(root))
    (folder / "approvals" / "north.json").write_bytes(approval(trial))
    found = receipts(folder, trial.signed.fingerprint)
    assert found.study.startswith("version 1, signed 20") and [*found.sites] == ["north"]
    assert found.sites["north"].endswith("by a person") and found.authority == certificates.fingerprint(root)
    with pytest.raises(NotTrusted, match="of another study"):
        receipts(folder, "0" * 64)
    (folder / "approvals" / "south.json").write_bytes(approval(trial))
    with pytest.raises(NotTrusted, match=r"is not an approval of trial\.1 by south"):
        receipts(folder, trial.signed.fingerprint)
    (folder / "approvals" / "south.json").write_bytes(approval(trial, "south", signer="north"))
    with pytest.raises(NotTrusted, match="'north' signed an approval of 'south'"):
        receipts(folder, trial.signed.fingerprint)


def test_a_result_is_not_written_over_that_of_another_version(trial, tmp_path):
    pytest.importorskip("nvflare")
    from fedpoint.federation.flare.lead import Lead

    lead, made = Lead(trial.kits["admin"], trial.signed, wait=0.1), parse(content(name="another", rounds=1))
    write_npz(tmp_path / "hub.npz", "hub", {}, {"study": made.fingerprint})
    with pytest.raises(FedpointError, match="has the result of another study, or version"):
        lead.run(tmp_path, print, wait=0.1)


def test_invitations_are_checked(tmp_path):
    path = tmp_path / "invitation.json"
    for text in ("", "[]", "{}", '{"project": "x"}', '{"project": "x", "server": "y", "authority": "z"}'):
        path.write_text(text)
        out = cli("request", path, "north", "--folder", tmp_path / "north")
        assert out.exit_code == 2 and "Traceback" not in out.output, out.output
    assert Invitation("p", "h:1", None).port == 1
