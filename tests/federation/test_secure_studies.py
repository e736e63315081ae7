"""Studies with secure sums: the model is that without masks, whoever is lost; the hub sees nothing else, and sites
refuse what would tell it more."""

import contextlib

import numpy as np
import pytest
from studies import AVERAGE, CONTROL, MIXING, SITES, content, gap

import fedpoint as fp
from fedpoint.core.errors import FedpointError
from fedpoint.federation import wire
from fedpoint.federation.announcement import announce, lines
from fedpoint.federation.hub.hub import StudyHub
from fedpoint.federation.hub.ledger import Ledger
from fedpoint.federation.hub.shares import too_late
from fedpoint.federation.inprocess import Fault, InProcess
from fedpoint.federation.result import StudyResult
from fedpoint.federation.secure.encoding import Encoding, OutOfRange
from fedpoint.federation.secure.identity import Trust, rehearsed
from fedpoint.federation.secure.letters import STAGES, packed_keys, unpacked_keys
from fedpoint.federation.secure.party import Party
from fedpoint.federation.secure.shamir import SHARE
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import parse

CLIP = {"kind": "clip", "norm": 5.0}
ORDERS = ("work", *STAGES)  # of a secure round
FIRST = 2  # "columns" and "ready" come before the first round


def secure(algorithm=AVERAGE, **more):
    return content(algorithm, **{"secure": True, "channel": CLIP, "rounds": 3, **more})


def resolution(study):
    """What one secure sum may be off by, over rounds: every number of a sum by one step of the grid for each site."""
    encoding = Encoding(CLIP["norm"], 1.0, len(study.sites))
    return study.rounds * len(study.sites) * encoding.resolution


# Sums.


@pytest.mark.parametrize("algorithm", [AVERAGE, CONTROL], ids=["fedavg", "scaffold"])
def test_the_model_is_that_without_masks(algorithm):
    made = fp.federate(secure(algorithm))
    assert all(event["merged"] and event["answered"] == SITES for event in made.events)
    assert not made.refused
    plain = fp.federate({**secure(algorithm), "secure": False})
    off = np.abs(made.model - plain.model).max()
    assert 0 < off < resolution(made.study)  # rounded, and by no more
    assert gap(made) < resolution(made.study)


def test_some_sites_are_asked_and_none_of_them_is_seen():
    sites = [f"s{k}" for k in range(5)]
    problem = {"kind": "least_squares", "agents": 5, "rows": [4, 9], "dim": 3, "mean": True}
    made = fp.federate(secure(CONTROL, sites=sites, problem=problem, participation=3, rounds=4))
    assert all(event["merged"] and len(event["answered"]) == 3 for event in made.events)
    assert all(event["norms"] == {} for event in made.events)
    assert gap(made) < resolution(made.study)


def test_twenty_sites_of_which_some_are_lost_at_every_stage():
    """One site after the other is lost, in another stage of the first round each; none in the second."""
    sites = [f"s{k:02d}" for k in range(20)]
    problem = {"kind": "quadratic", "agents": 20, "dim": 3}
    faults = [Fault(f"s{k:02d}", FIRST + k, "dead") for k in range(len(ORDERS))]
    made = fp.federate(secure(sites=sites, problem=problem, quorum=14, rounds=2), faults=faults)
    first, second = made.events
    gone = sites[: 1 + ORDERS.index("mask")]  # whose masked answers did not come
    assert first["merged"] and first["answered"] == sites[len(gone) :]
    assert second["merged"] and second["answered"] == sites
    assert set(first["refused"].values()) == {"lost"} and len(first["refused"]) == len(ORDERS)
    assert gap(made) < resolution(made.study)


@pytest.mark.parametrize("stage", ORDERS)
@pytest.mark.parametrize("fault", ["dead", "lost", "unheard"])
def test_a_site_that_is_lost_costs_its_round_at_most(stage, fault):
    """Everybody is needed here, so that the first round is over; the second has everybody again."""
    at = FIRST + ORDERS.index(stage)
    made = fp.federate(secure(CONTROL, rounds=2), faults=[Fault("b", at, fault)])
    first, second = made.events
    assert not first["merged"] and "b" in first["refused"]
    assert second["merged"] and second["answered"] == SITES
    assert gap(made) < resolution(made.study)


def test_numbers_that_do_not_fit_are_refused():
    encoding = Encoding(2.0, 0.5, 3)
    for wrong in (2.1, np.nan, np.inf):
        with pytest.raises(OutOfRange):
            encoding.encode({"model": np.array([0.0, wrong])}, 0.5)


def test_the_most_that_sites_can_send_does_not_wrap_around():
    for count in (3, 20):
        encoding = Encoding(2.0, 1 / count, count)
        for sign in (-1.0, 1.0):
            message = {"model": np.full(4, 2.0 * sign)}
            total = sum(encoding.encode(message, 1 / count) for _ in range(count))
            found = encoding.decode(total, 1.0, message)
            assert np.allclose(found["model"], 2.0 * sign, rtol=0, atol=count * encoding.resolution)


def test_a_sum_with_a_wrong_mask_is_known():
    encoding, message = Encoding(2.0, 0.5, 2), {"model": np.ones(3)}
    total = 2 * encoding.encode(message, 0.5)
    assert encoding.decode(total, 1.0, message) is not None
    assert encoding.decode(total + np.uint32(1 << 20), 1.0, message) is None


# Shares.


TABLE = {"kind": "table", "model": "linear", "target": "y", "features": ["x"]}
LYING = [1 - 2e-9, 1e-9, 1e-9]  # shares of which only a's is a sum's


class Unfair(StudyHub):
    """Tells each site that its answer counts for nothing, but a's: the sum would be a's answer."""

    def _settle_in(self, setup):
        super()._settle_in({**setup, "weights": LYING})


class Stretched(StudyHub):
    """Tells b and c that their column is scaled until nothing is left of it: the sum would be a's answer."""

    def _own(self, setup, k):
        recipe = [{**one, "scale": one["scale"] * (1e9 if k else 1.0)} for one in setup["recipe"]]
        return super()._own({**setup, "recipe": recipe}, k)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(3)
    for site, rows in zip(SITES, (30, 40, 50), strict=True):
        lines = [f"{x:.4f},{2 * x + rng.normal():.4f}" for x in rng.normal(0, 2, rows)]
        (folder / f"{site}.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    return folder


def of_tables(**more):
    return secure(problem=TABLE, rounds=2, patience=1, measurements=0, **more)


def test_sites_of_other_sizes_count_by_their_rows(tables, tmp_path):
    _, made = run(tmp_path, of_tables(), data=tables)
    assert made.setup["weights"] == [0.25, 1 / 3, 5 / 12] and all(event["merged"] for event in made.events)
    assert gap(made, made.problem({site: tables / f"{site}.csv" for site in SITES})) < resolution(made.study)


@pytest.mark.parametrize("hub", [Unfair, Stretched])
def test_a_hub_that_lets_one_site_alone_count_learns_nothing(hub, tables, tmp_path):
    with pytest.raises(FedpointError, match="in a row had fewer than 3 good answers"):
        run(tmp_path, of_tables(), hub=hub, data=tables)


@pytest.mark.parametrize("hub", [Unfair, Stretched])
def test_with_terms_that_leave_this_out_it_learns_everything(hub, tables, tmp_path, monkeypatch):
    """The test above can fail: of what is agreed on without shares and recipes comes a sum that is a's answer."""
    for where in ("site", "hub"):
        monkeypatch.setattr(f"fedpoint.federation.{where}.masked.terms_of", lambda heard, setup, rows: bytes(32))
    _, made = run(tmp_path, of_tables(), hub=hub, data=tables)
    assert all(event["merged"] for event in made.events)


def test_a_share_is_that_of_the_studys_weights(tables, tmp_path):
    with pytest.raises(FedpointError, match="the study does not allow what was asked"):
        run(tmp_path, of_tables() | {"problem": {**TABLE, "weights": [1.0, 1.0, 2.0]}}, hub=Unfair, data=tables)
    assert "by the study's weights it is 0.25" in refusals_in(tmp_path / "a")


def test_a_site_that_comes_late_with_other_rows_than_its_share_is_of_is_told():
    study, setup = parse(of_tables(quorum=2)), {"rows": [30, 40, 35]}
    assert too_late(study, "c", setup, 35) == ""
    assert "as if it had 35 rows, and it has 50; with secure = true" in too_late(study, "c", setup, 50)
    assert too_late(parse(of_tables(secure=False)), "c", setup, 50) == ""


# What leaves a site.


def test_nothing_but_masked_numbers_leaves_a_site(tmp_path):
    """Every array of every answer, and every word of its header: no message, no weight."""
    seen = []

    def heard(site):
        def answer(order):
            data = site.answer(order)
            seen.append((wire.decode(order).header["kind"], wire.decode(data)))
            return data

        return answer

    run(tmp_path, secure(measurements=0), heard)
    for kind, packet in seen:
        said = set(packet.header) - {"protocol", "fedpoint", "study", "site", "run", "order", "kind", "round", "chain"}
        if kind == "columns":
            continue
        assert said <= {"seconds"}, (kind, said)
        kinds = {str(array.dtype) for array in packet.arrays.values()}
        assert kinds == {"int32"} if kind == "mask" else kinds <= {"uint8"}


def run(folder, study, wrap=lambda site: site.answer, hub=StudyHub, data=None):
    """A study in this process whose sites are wrapped, or whose hub is another one. data: a folder of tables."""
    study = parse(study)
    known = rehearsed(study.sites)
    files = {name: None if data is None else data / f"{name}.csv" for name in study.sites}
    sites = {name: Site(study, name, folder / name, files[name], identity=known[name]) for name in study.sites}
    engine, ledger = InProcess({name: wrap(site) for name, site in sites.items()}), Ledger(folder / "hub", study)
    try:
        hub(study, engine, ledger, trust=known[study.sites[0]].trust).run()
    finally:
        ledger.close()
    return sites, StudyResult(folder / "hub")


# What sites and hub refuse.


def refusals(site):
    return refusals_in(site.folder)


def refusals_in(folder):
    path = folder / "refusals.jsonl"
    return path.read_text() if path.exists() else ""


class Curious(StudyHub):
    """A hub that sends other orders in a stage than it should; sites are stopped by three of them."""

    stage = "share"

    def order(self, site, kind, arrays=None, deadline=0.0, more=wire.Header()):  # noqa: B008
        if kind == self.stage and site == "a":
            arrays = self.change(dict(arrays))
        super().order(site, kind, arrays, deadline, more)
        if kind == self.stage and site == "a":
            self.engine.due.clear() if self.again(site, arrays, deadline) else None

    def change(self, arrays):
        return arrays

    def again(self, site, arrays, deadline):
        return False


class ForgedKey(Curious):
    """Its own mask key in place of b's: it would know the masks that a and b have in common."""

    def change(self, arrays):
        members = unpacked_keys(arrays, self.sites)
        members["b"] = members["b"]._replace(mask=members["c"].mask)
        return packed_keys(members)


class TooFew(Curious):
    """A sum over two sites."""

    def change(self, arrays):
        return packed_keys({name: keys for name, keys in unpacked_keys(arrays, self.sites).items() if name != "c"})


class AnotherList(Curious):
    """It says that b is lost, whose masked answer it has: it would learn both of b's secrets."""

    stage = "agree"

    def change(self, arrays):
        return {name: array for name, array in arrays.items() if name != "b"}


class Unsigned(Curious):
    """It asks for shares before others have signed who is left."""

    stage = "reveal"

    def change(self, arrays):
        return {name: array for name, array in arrays.items() if name == "a"}


@pytest.mark.parametrize(
    ("hub", "said"),
    [
        (ForgedKey, "the keys of b are not its own for this round"),
        (TooFew, "a sum over 2 sites: at least 3 are needed"),
        (AnotherList, "a sum over 2 sites"),
        (Unsigned, "1 sites have heard that these are left, and 3 must have"),
    ],
)
def test_a_hub_that_asks_for_more_is_refused(hub, said, tmp_path):
    with pytest.raises(FedpointError, match="in a row had fewer than 3 good answers"):
        run(tmp_path, secure(rounds=8, patience=2), hub=hub)
    assert said in (tmp_path / "a" / "refusals.jsonl").read_text()


BROKEN = {  # checks of sites that are left out, by the hub that is then not refused
    "forged keys": (ForgedKey, lambda party: setattr(party.identity.trust, "verify", None), "are not its own"),
    "too few": (TooFew, lambda party: setattr(party, "threshold", 2), "at least 3 are needed"),
    "another list": (AnotherList, lambda party: setattr(party, "threshold", 2), "a sum over 2 sites"),
    "unsigned": (Unsigned, lambda party: setattr(party, "threshold", 1), "3 must have"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_without_a_check_the_hub_is_not_refused(name, tmp_path, monkeypatch):
    """The tests above can fail: each hub gets an answer from a site that does not look."""
    hub, forget, said = BROKEN[name]
    if name == "forged keys":
        monkeypatch.setattr(Trust, "verify", lambda *_: None)
        forget = lambda party: None  # noqa: E731

    def wrap(site):
        forget(site.sums.party)
        return site.answer

    with contextlib.suppress(FedpointError):
        run(tmp_path, secure(rounds=1, patience=1, measurements=0), wrap, hub)
    path = tmp_path / "a" / "refusals.jsonl"
    assert not path.exists() or said not in path.read_text()


class Forgetful(Party):
    """Begins anew when it is asked again."""

    def share(self, members, terms):
        self.now.roster = None
        return super().share(members, terms)

    def agree(self, survivors):
        self.now.survivors = ()
        return super().agree(survivors)


def test_a_forgetful_site_tells_both_secrets(begun):
    """The mutant of the test below: another list of who is left is signed, and another roster answered."""
    sites, asked, _ = begun
    party = sites["a"].sums.party
    party.__class__ = Forgetful
    for kind, without in (("agree", "d"), ("share", "d ")):
        header, arrays = wire.decode(asked[kind, "a"])
        fewer = {name: array for name, array in arrays.items() if not name.startswith(without)}
        assert "failure" not in wire.decode(sites["a"].answer(wire.encode(header, fewer))).header


def order_of(site, kind, arrays, round=0, run="r1", **more):
    header = {**site.release.plain(), "study": site.study.fingerprint, "run": run, "kind": kind, "round": round}
    return wire.encode({**header, "merged": -1, "order": "x", **more}, arrays)


@pytest.fixture
def begun(tmp_path):
    """Sites in the middle of a round, and what each of them has answered so far: by stage and site."""
    said, asked = {}, {}

    def heard(site):
        def answer(order):
            packet = wire.decode(order)
            asked[packet.header["kind"], site.name] = order
            data = site.answer(order)
            said[packet.header["kind"], site.name] = wire.decode(data)
            return data

        return answer

    sites, _ = run(
        tmp_path, secure(rounds=1, measurements=0, sites=["a", "b", "c", "d"], problem=FOUR, quorum=3), heard
    )
    return sites, asked, said


FOUR = {"kind": "quadratic", "agents": 4, "dim": 2}


def test_the_same_order_gets_the_same_bytes(begun):
    sites, asked, said = begun
    for kind in ORDERS:
        again = wire.decode(sites["a"].answer(asked[kind, "a"]))
        assert "failure" not in again.header
        assert {n: a.tobytes() for n, a in again.arrays.items()} == {
            n: a.tobytes() for n, a in said[kind, "a"].arrays.items()
        }


def test_a_hub_never_gets_both_secrets_of_a_site(begun):
    """After a round in which all were left, it says that d was lost; and asks for another roster of the same round."""
    sites, asked, said = begun
    a = sites["a"]
    shown = said["reveal", "a"].arrays
    assert all(array.size == SHARE for array in shown.values())
    header, arrays = wire.decode(asked["agree", "a"])
    rest = {name: array for name, array in arrays.items() if name != "d"}
    failed = wire.decode(a.answer(wire.encode(header, rest)))
    assert failed.header["failure"] == "terms"
    header, arrays = wire.decode(asked["share", "a"])
    fewer = {name: array for name, array in arrays.items() if not name.startswith("d ")}
    assert wire.decode(a.answer(wire.encode(header, fewer))).header["failure"] == "terms"
    assert "another list of those who are left" in refusals(a) and "shares were asked for again" in refusals(a)


def test_stages_of_another_round_are_refused(begun):
    sites, asked, _ = begun
    header, arrays = wire.decode(asked["share", "b"])
    assert wire.decode(sites["b"].answer(wire.encode({**header, "round": 1}, arrays))).header["failure"] == "terms"
    assert "the last round answered is 0" in refusals(sites["b"])


def test_a_site_that_was_started_again_has_no_secrets(begun):
    sites, asked, _ = begun
    a = sites["a"]
    again = Site(a.study, "a", a.folder, identity=a.sums.party.identity)
    header, arrays = wire.decode(asked["mask", "a"])
    other = {name: array for name, array in arrays.items() if name != "d"}
    assert wire.decode(again.answer(wire.encode(header, other))).header["failure"] == "memory"
    assert refusals(again) == ""  # nobody's fault


def test_a_study_without_secure_sums_has_no_stages(tmp_path):
    study = parse(content(rounds=1))
    site = Site(study, "a", tmp_path / "a")
    for kind in STAGES:
        assert wire.decode(site.answer(order_of(site, kind, {}))).header["failure"] in ("terms", "stopped")
    assert "the study has no secure sums" in refusals(site)


# Sites that lie.


class LyingShare(Party):
    """Reveals another share of one site's secret."""

    def reveal(self, signatures):
        shares = super().reveal(signatures)
        first = sorted(shares)[0]
        return {**shares, first: bytes(SHARE - 1) + b"\x07"}


class NotItsVector(Party):
    """Masks another vector than it should; nobody can tell a single one from noise."""

    def mask(self, received, vector):
        return super().mask(received, vector) + np.uint32(1 << 25)


def liars(kind, who):
    def wrap(site):
        if site.name in who:
            party = site.sums.party
            site.sums.party = kind(party.identity, site.study.sites, party.threshold)
        return site.answer

    return wrap


def test_a_lying_share_is_found_and_named(tmp_path):
    """Of five sites three shares open a secret: with one lie among five it is opened, and whose it is is known."""
    sites = [f"s{k}" for k in range(5)]
    problem = {"kind": "quadratic", "agents": 5, "dim": 2}
    study = secure(sites=sites, problem=problem, quorum=3, rounds=2)
    _, made = run(tmp_path, study, liars(LyingShare, {"s3"}))
    assert all(event["merged"] for event in made.events)
    assert [event["refused"] for event in made.events] == [{"s3": "masks"}] * 2
    assert gap(made) < resolution(made.study)


def test_lies_that_cannot_be_told_apart_cost_the_round(tmp_path):
    with pytest.raises(FedpointError, match="in a row had fewer than 3 good answers"):
        run(tmp_path, secure(rounds=8, patience=2), liars(LyingShare, {"b"}))


def test_a_vector_whose_weight_is_wrong_is_not_merged(tmp_path):
    with pytest.raises(FedpointError, match="in a row had fewer than 3 good answers"):
        run(tmp_path, secure(rounds=8, patience=2), liars(NotItsVector, {"b"}))


# What a study may say.


def test_whoever_is_asked_to_take_part_reads_what_leaves():
    privacy = {"epsilon": 3.0, "delta": 1e-5, "clip": 1.0, "noise": "shared"}
    said = announce(parse(secure(channel=None, privacy=privacy)))
    assert [one["kind"] for one in said["leaves"]][2:7] == list(ORDERS)
    page = "\n".join(lines(said))
    assert "sums of 3 or more sites' answers" in page
    assert "epsilon 3 at delta 1e-05" in page


def test_secure_sums_cannot_be_watched():
    with pytest.raises(FedpointError, match="the hub sees no single answer"):
        fp.federate(secure(), expected=True)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"channel": None}, "whole numbers need a bound"),
        ({"channel": [CLIP, {"kind": "cast", "dtype": "float32"}]}, "whole numbers need a bound"),
        ({"gather": "median"}, "looks at single answers"),
        ({"norm_cap": 2.0}, "the hub sees no single answer"),
        ({"asynchronous": {}}, "answers are masked together"),
        ({"network": MIXING}, "made at one hub"),
        ({"participation": 2}, "hides nobody"),
        ({"quorum": 1}, "more than half"),
    ],
)
def test_what_does_not_go_with_secure_sums_is_refused(more, said):
    with pytest.raises(FedpointError, match=said):
        parse(secure(**more))
