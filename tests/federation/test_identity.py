"""One authority a project, and signed studies: what was not signed, or is not valid now, is refused with a reason."""

import datetime
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import padding
from studies import AVERAGE, content

from fedpoint.core.errors import FedpointError
from fedpoint.federation import installed
from fedpoint.federation.identity import certificates, signed
from fedpoint.federation.identity.certificates import Authority, NotTrusted
from fedpoint.federation.identity.difference import differences
from fedpoint.federation.site.policy import OF, Policy, Used, read_policy
from fedpoint.federation.study import parse
from fedpoint.store.disk import canonical, read_object

TODAY = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
STUDY = parse(content())


def days(number):
    return datetime.timedelta(days=number)


class Project:
    """An authority with a leader and a site; keys are made once, they are slow."""

    def __init__(self, name, key):
        self.authority = Authority.new(name, TODAY)
        self.root, self.key = self.authority.certificate, key
        self.leader = self.authority.certify(key.public_key(), "admin@fedpoint.study", "lead", when=TODAY)
        self.site = self.authority.certify(key.public_key(), "north", "site", when=TODAY)


@pytest.fixture(scope="module")
def key():
    return certificates.new_key()


@pytest.fixture(scope="module")
def project(key):
    return Project("dialysis", key)


@pytest.fixture(scope="module")
def document(project):
    return signed.sign(STUDY, 1, project.key, project.leader, TODAY)


def test_a_signed_study_is_read_back(project, document):
    found = signed.verify(document.data, project.root, TODAY)
    assert found == document
    assert found.study().content == STUDY.content
    assert (found.fingerprint, found.title) == (STUDY.fingerprint, "trial.1")


def test_no_byte_of_it_may_change(project, document):
    """Every byte: the study, the number, the time, the certificate, the signature."""
    for at in range(0, len(document.data), 7):
        for flip in (1, 128):
            data = bytearray(document.data)
            data[at] ^= flip
            with pytest.raises(NotTrusted):
                signed.verify(bytes(data), project.root, TODAY)
    with pytest.raises(NotTrusted, match="changed after it was signed"):
        signed.verify(document.data + b"\n", project.root, TODAY)


def changed(document, **more):
    said = read_object(document.data) | more
    return canonical({name: value for name, value in said.items() if value is not None})


def test_what_an_attacker_would_change(project, document):
    """More rounds, another number, another signer: each under the old signature."""
    more = changed(document, study={**STUDY.content, "rounds": 6000})
    for data in (more, changed(document, number=2), changed(document, time="2031")):
        with pytest.raises(NotTrusted, match="what it signs was changed"):
            signed.verify(data, project.root, TODAY)


@pytest.mark.parametrize(
    "more",
    [
        {"number": 0},
        {"number": True},
        {"number": "1"},
        {"study": []},
        {"study": {"name": "../../x"}},
        {"signature": None},
        {"extra": 1},
        {"signer": "x"},
        {"signature": "?"},
    ],
)
def test_what_is_no_signed_study(more, project, document):
    with pytest.raises(NotTrusted):
        signed.verify(changed(document, **more), project.root, TODAY)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 10_000])
def test_what_is_no_document(data, project):
    with pytest.raises(NotTrusted, match="not a signed study"):
        signed.verify(data, project.root, TODAY)


def test_a_study_signed_by_a_site_is_refused(project, monkeypatch):
    forged = signed.sign(STUDY, 2, project.key, project.site, TODAY)
    with pytest.raises(NotTrusted, match="'north' signed this study, and does not lead the project"):
        signed.verify(forged.data, project.root, TODAY)
    monkeypatch.setattr(certificates, "roles_of", lambda _: ["lead"])  # without the check it would pass
    assert signed.verify(forged.data, project.root, TODAY).number == 2


def test_the_leader_of_another_authority_is_refused(project, document, monkeypatch):
    other = Project("dialysis", project.key)  # the same name, even the same key
    forged = signed.sign(STUDY, 2, other.key, other.leader, TODAY)
    with pytest.raises(NotTrusted, match="is not of this project's authority"):
        signed.verify(forged.data, project.root, TODAY)
    with pytest.raises(NotTrusted, match="is not of this project's authority"):
        signed.verify(document.data, other.root, TODAY)
    monkeypatch.setattr(certificates, "check", lambda *_: None)
    assert signed.verify(forged.data, project.root, TODAY).number == 2


def test_a_signature_for_another_purpose_is_none(project, document, monkeypatch):
    """The engine signs names and nonces with the same key: none of that is ever a study."""
    body = canonical({k: v for k, v in read_object(document.data).items() if k != "signature"})
    monkeypatch.setattr(signed, "PURPOSE", signed.PURPOSE._replace(mark=b""))
    bare = signed.sign(STUDY, 1, project.key, project.leader, TODAY)
    assert canonical({k: v for k, v in read_object(bare.data).items() if k != "signature"}) == body
    monkeypatch.undo()
    with pytest.raises(NotTrusted, match="the signature is not"):
        signed.verify(bare.data, project.root, TODAY)


@pytest.mark.parametrize(
    ("after", "said"),
    [(-1, "begins on 2029-12-31 23:55: is this clock right"), (366, "ended on 2031-01-01: it must be renewed")],
)
def test_certificates_have_a_beginning_and_an_end(after, said, project, document):
    with pytest.raises(NotTrusted, match=said):
        signed.verify(document.data, project.root, TODAY + days(after))
    signed.verify(document.data, project.root, TODAY + days(364))


def test_warnings_come_thirty_days_before_the_end(project):
    end = TODAY + days(certificates.YEAR)
    assert certificates.ending(project.site, end - days(30) - datetime.timedelta(seconds=1)) == ""
    assert "ends on 2031-01-01, in 30 days" in certificates.ending(project.site, end - days(30))
    assert "in 1 day:" in certificates.ending(project.site, end - days(1))
    assert "ended on 2031-01-01" in certificates.ending(project.site, end)


def test_no_certificate_outlives_its_authority(project):
    late = project.root.not_valid_after_utc - days(10)
    made = project.authority.certify(project.key.public_key(), "north", "site", when=late)
    assert made.not_valid_after_utc == project.root.not_valid_after_utc


@pytest.mark.parametrize(
    ("role", "purpose"), [("server", "serverAuth"), ("lead", "clientAuth"), ("site", "clientAuth")]
)
def test_a_certificate_serves_one_end_of_a_connection(role, purpose, project):
    """Nobody who may join can stand in for the server."""
    from cryptography import x509

    made = project.authority.certify(project.key.public_key(), "north", role, when=TODAY)
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [one._name for one in usage] == [purpose]


def test_requests_prove_that_their_maker_has_the_key(key):
    made = certificates.request(key, "north")
    name, public = certificates.read_request(made)
    assert name == "north"
    assert public == key.public_key()
    assert b"PRIVATE" not in made
    from cryptography import x509

    body = bytearray(x509.load_pem_x509_csr(made).public_bytes(certificates.serialization.Encoding.DER))
    at = bytes(body).index(b"north")
    body[at : at + 5] = b"south"
    with pytest.raises(NotTrusted):
        asked = x509.load_der_x509_csr(bytes(body))
        certificates.read_request(asked.public_bytes(certificates.serialization.Encoding.PEM))
    for wrong in (b"", b"hello", certificates.pem(Authority.new("x").certificate)):
        with pytest.raises(NotTrusted, match="not a certificate request"):
            certificates.read_request(wrong)


def test_keys_are_their_owner_s(tmp_path, key):
    """Nobody else can read the authority's key; with a passphrase not even its owner's backup can be used."""
    made = Authority(key, Authority.new("dialysis").certificate)
    made.write(tmp_path, "correct horse")
    assert stat.S_IMODE((tmp_path / certificates.KEY).stat().st_mode) == 0o600
    assert certificates.is_encrypted(tmp_path / certificates.KEY)
    assert Authority.read(tmp_path, "correct horse").certificate == made.certificate
    with pytest.raises(FedpointError, match="the passphrase is wrong"):
        Authority.read(tmp_path, "battery staple")
    with pytest.raises(FedpointError, match="is encrypted: give its passphrase"):
        Authority.read(tmp_path)


def test_signatures_are_of_the_library(project):
    proof = certificates.signature(project.key, b"data")
    certificates.check_signature(project.leader, b"data", proof)
    plain = project.key.sign(b"data", padding.PKCS1v15(), certificates.hashes.SHA256())
    for data, wrong in ((b"other", proof), (b"data", proof[:-1] + b"\0\0"), (b"data", plain), (b"data", b"")):
        with pytest.raises(NotTrusted):
            certificates.check_signature(project.leader, data, wrong)


def test_the_difference_names_every_value_that_changed():
    after = {**STUDY.content, "rounds": 90, "quorum": 2, "algorithm": {**STUDY.algorithm, "step": 0.1}}
    assert differences(STUDY.content, after) == [
        "algorithm.step: 0.05 -> 0.1", "quorum: not said before, now 2", "rounds: 5 -> 90",
    ]  # fmt: skip
    assert differences(after, STUDY.content)[1] == "quorum: was 2, no longer said"
    assert differences({"sites": ["a", "b"]}, {"sites": ["b", "a"]}) == ['sites: ["a", "b"] -> ["b", "a"]']
    assert differences(after, after) == []


TABLE = {"kind": "table", "model": "logistic", "target": "died", "features": ["age", "sex"]}
ALLOWED = {
    "studies": ["trial"], "data": "t.csv", "columns": ["died", "age", "sex"], "models": ["logistic"],
    "methods": ["fedavg"], "rounds": 5, "runs": 6, "measurements": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "study", "used", "said"),
    [
        ({}, {}, {}, []),
        ({"rounds": 4}, {}, {}, ["rounds is 5; the policy allows 4"]),
        ({"runs": 3}, {}, {}, []),
        ({"runs": 2}, {}, {}, ["runs is 3; the policy allows 2 in all"]),
        ({}, {}, {"runs": 3}, []),
        ({}, {}, {"runs": 4}, [f"runs is 3 after 4 runs {OF}; the policy allows 6 in all"]),
        ({}, {"measurements": 2}, {}, ["measurements is 2; the policy allows 1"]),
        ({}, {"measures": ["loss", "auc"]}, {}, ["its measurements tell auc; the policy allows loss, accuracy"]),
        ({"studies": ["other"]}, {}, {}, ["the study is trial; the policy is for other"]),
        ({"sites": ["a", "b", "c", "d"]}, {}, {}, []),
        ({"sites": ["a", "b"]}, {}, {}, ["its sites are c too; the policy is for a, b"]),
        ({"methods": ["scaffold"]}, {}, {}, ["the method is fedavg; the policy allows scaffold"]),
        (
            {"methods": ["averaged", "scaffold"]},
            {"algorithm": {"name": "averaged", "inner": AVERAGE}},
            {},
            ["the method is fedavg; the policy allows averaged, scaffold"],
        ),
        ({"models": []}, {}, {}, ["the model is logistic; the policy allows none"]),
        ({"columns": ["age", "sex"]}, {}, {}, ["it reads died; the policy allows age, sex"]),
        ({"columns": ["died", "age"]}, {}, {}, ["it reads sex; the policy allows died, age"]),
        ({"data": None}, {}, {}, ["it reads a table; the policy names none (data)"]),
        ({"secure": True}, {}, {}, ["its server sees each site's answers; the policy wants secure = true"]),
        ({"epsilon": 3.0}, {}, {}, ["it promises no privacy; the policy wants epsilon of at most 3"]),
        ({}, {"gather": "median"}, {}, ["it says gather, which the policy does not cover"]),
        (
            {"rounds": 4, "runs": 2},
            {},
            {},
            ["rounds is 5; the policy allows 4", "runs is 3; the policy allows 2 in all"],
        ),
    ],
)
def test_a_policy_allows_what_it_says_and_no_more(policy, study, used, said):
    made = parse({**content(AVERAGE, TABLE), **study})
    assert Policy.model_validate(ALLOWED | policy).objections(made, Used(**used)) == said


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ({}, ["it says ward = 3 to the model, which the policy does not"]),
        ({"tumour": {"ward": 4}}, ["it says ward = 3 to the model, which the policy does not"]),
        ({"tumour": {"ward": 3, "width": 8}}, []),
        ({"another": {"ward": 3}}, ["it says ward = 3 to the model, which the policy does not"]),
    ],
)
def test_what_a_study_says_to_an_installed_model_is_in_the_policy(allowed, said, monkeypatch):
    """Its options may choose rows: a leader that tries one ward after the other waits for a person."""

    class Tumour:
        def start(self, ward):
            return np.zeros(2)

    monkeypatch.setattr(installed, "_allowed", {"tumour": Tumour()})
    made = parse(content(AVERAGE, {"kind": "installed", "name": "tumour", "options": {"ward": 3}}))
    policy = Policy.model_validate(ALLOWED | {"models": ["tumour"], "options": allowed})
    assert policy.objections(made, Used()) == said


def test_epsilon_adds_up_over_versions():
    made = parse(content(AVERAGE, TABLE))
    made.content["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0}
    policy = Policy.model_validate(ALLOWED | {"epsilon": 3.0})
    assert policy.objections(made, Used(epsilon=1.0)) == []
    assert policy.objections(made, Used(epsilon=1.5)) == [f"epsilon is 2 after 1.5 {OF}; the policy allows 3 in all"]
    made = parse(content(AVERAGE, TABLE, privacy={"epsilon": 2.0, "delta": 1e-3, "clip": 1.0}))
    assert policy.objections(made, Used()) == ["delta is 0.001; the policy allows 1e-05"]  # it would hide nobody


def test_policies_are_read_with_all_their_mistakes(tmp_path):
    assert read_policy(tmp_path) is None
    (tmp_path / "policy.toml").write_text('methods = "all"\nrounds = 0\ncolour = 1\nfloor = {rows = 1}\n')
    with pytest.raises(FedpointError) as error:
        read_policy(tmp_path)
    for part in ("methods", "rounds", "colour", "runs: is missing", "floor"):
        assert part in str(error.value), error.value
