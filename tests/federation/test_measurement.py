"""How much a server learns from measurements: rounded, counted in bits, and as many as the study names; bisection."""

import json

import numpy as np
import pytest
from malicious import STUDY, Server, answered, failure, refusals, write_table
from studies import BOWLS, CONTROL, content

import fedpoint as fp
from fedpoint.federation import measurement
from fedpoint.federation.site import site as site_module
from fedpoint.federation.site.consent import Consent
from fedpoint.federation.site.site import Site
from fedpoint.federation.study import parse


def test_measurements_are_as_many_as_the_study_names(tmp_path):
    for count, after in ((0, []), (1, [6]), (2, [3, 6]), (4, [2, 3, 5, 6])):
        made = fp.federate(content(CONTROL, BOWLS, rounds=6, measurements=count), folder=tmp_path / str(count))
        assert sorted(made.measured) == after
        assert (made.loss is None) == (count == 0)
        lines = (tmp_path / str(count) / "b" / "audit.jsonl").read_text().splitlines()
        assert sum(json.loads(line)["asked"]["kind"] == "measure" for line in lines) == count


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"measurements": 9}, "measurements = 9: only 5 rounds to measure after"),
        ({"measurements": 2, "asynchronous": {}}, "at their own pace"),
        ({"measurements": -1}, "measurements"),
        ({"runs": 0}, "runs"),
    ],
)
def test_terms_that_cannot_be(more, said):
    with pytest.raises(fp.FedpointError, match=said):
        parse(content(**more))


def test_a_measurement_is_rounded_at_the_site(tmp_path):
    """Of any table, one of few values: so many bits."""
    seen = []
    for seed in range(6):
        data = write_table(tmp_path / f"{seed}.csv", seed=seed)
        server, site = Server(data), Site(STUDY, "north", tmp_path / str(seed), data)
        (*_, last) = (answered(site, one).header for one in server.honest())
        seen.append(last["measures"])
    assert all(len(str(one["loss"]).replace(".", "").strip("0")) <= 3 for one in seen)
    assert all(len(str(one["accuracy"])) <= len("0.55") for one in seen)
    assert len({one["loss"] for one in seen}) > 1


def test_bits_are_those_of_all_values_that_rounding_leaves(rng):
    """Counted from floats of all sizes: no more different values than 2 to the bits."""
    losses = {measurement.rounded({"loss": float(x)})["loss"] for x in rng.uniform(1, 10, 200_000)}
    assert len(losses) == 901  # 1.00, 1.01, ..., 10.0: 900 a decade
    shares = {measurement.rounded({"accuracy": k / 7919})["accuracy"] for k in range(7920)}
    assert len(shares) == 101
    decades = np.log10(np.finfo(float).max) - np.log10(np.finfo(float).smallest_subnormal)
    assert 2 ** measurement.bits(classes=True) >= 2 * 900 * decades * 101
    assert 2 ** (measurement.bits(classes=True) - 2) < 2 * 900 * decades * 101
    assert measurement.bits(classes=True, rows=20) < measurement.bits(classes=True)


# Bisection.

ONE = parse(
    content(
        {"name": "fedavg", "step": 0.1},
        {"kind": "table", "model": "logistic", "target": "ill", "features": ["dose"], "ridge": 0.0},
        rounds=3, sites=["north", "south"],
    )
)  # fmt: skip


class Bisection:
    """Reads rows from measurements. A very long model makes the loss s sum |x - t| over the rows that it gets wrong: a
    convex function of the threshold t with a kink at each row, so that it is straight where no row is."""

    def __init__(self, site, server):
        self.site, self.server, self.orders, self.seen = site, server, 0, {}
        assert [failure(site, server.order(kind)) for kind in ("columns", "moments", "ready")] == [None] * 3

    def ask(self, t):
        """Loss and accuracy at a threshold; StopIteration at the first refusal."""
        if t not in self.seen:
            self.orders += 1
            packet = answered(self.site, self.server.measure(3, {"model": 1e6 * np.array([1.0, -t])}, merged=-1))
            if "failure" in packet.header:
                raise StopIteration(packet.header["failure"])
            self.seen[t] = packet.header["measures"]
        return self.seen[t]

    def rows(self, low, high, digits=2):
        """Values and classes between two thresholds, to so many digits."""
        ends = [self.ask(low)["loss"], self.ask(high)["loss"]]
        middle = (low + high) / 2
        if high - low < 0.6 * 10.0**-digits:
            less, more = self.ask(low)["accuracy"], self.ask(high)["accuracy"]
            return [] if less == more else [(round(middle, digits), int(more < less))]
        if abs(self.ask(middle)["loss"] - sum(ends) / 2) <= 1e-9 * max(ends):
            return []
        return self.rows(low, middle, digits) + self.rows(middle, high, digits)


@pytest.fixture
def doses(tmp_path, rng):
    """40 rows of one number with two digits, and a class; no two the same."""
    values = np.sort(rng.choice(np.arange(1, 4000), 40, replace=False)) / 100
    ill = rng.permutation(np.arange(40) % 2)
    lines = ["dose,ill", *(f"{x:.2f},{y}" for x, y in zip(values, ill, strict=True))]
    (tmp_path / "doses.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "doses.csv", list(zip(values.tolist(), ill.tolist(), strict=True))


def bisection(path, tmp_path):
    server = Server(path, study=ONE)
    server.setup["recipe"] = server.recipe  # not scaled
    return Bisection(Site(ONE, "north", tmp_path / "records", path), server)


def test_without_the_terms_a_server_reads_every_row(doses, tmp_path, monkeypatch):
    """The attack works: a site that answers every measurement gives its table away."""
    path, rows = doses
    monkeypatch.setattr(Consent, "permit", lambda *_: None)
    monkeypatch.setattr(Consent, "keep", lambda *_: None)
    monkeypatch.setattr(site_module, "rounded", dict)
    attack = bisection(path, tmp_path)
    found = attack.rows(0.005 - 0.0025, 0.0025 + 0.005 * 2**13)
    assert found == rows
    assert attack.orders < 2000


def test_the_attack_ends_at_its_first_wrong_order(doses, tmp_path):
    """One measurement is answered, the next is refused; two more stop the site. No row was read."""
    path, _ = doses
    attack = bisection(path, tmp_path)
    with pytest.raises(StopIteration, match="terms"):
        attack.rows(0.005 - 0.0025, 0.0025 + 0.005 * 2**13)
    assert (attack.orders, len(attack.seen)) == (2, 1)
    assert "the measurement after round 3 was asked for again, of another model" in refusals(attack.site.folder)[0]
    for t in (1.0, 2.0):
        with pytest.raises(StopIteration, match="terms"):
            attack.ask(t)
    with pytest.raises(StopIteration, match="stopped"):
        attack.ask(3.0)


def test_within_the_terms_too_few_bits_leave_for_any_row(doses, tmp_path):
    """Three runs of one measurement each: fewer bits than seven of the forty rows have."""
    path, rows = doses
    site, told = Site(ONE, "north", tmp_path / "records", path), 0
    for run in ("aa", "bb", "cc"):
        server = Server(path, run, ONE)
        server.setup["recipe"] = server.recipe
        attack = Bisection(site, server)
        attack.ask(20.0)
        told += len(attack.seen)
        with pytest.raises(StopIteration, match="terms"):
            attack.ask(10.0)
    assert told == ONE.terms.runs == 3
    bits = told * measurement.bits(classes=True, rows=len(rows))
    assert bits < 7 * np.log2(4000 * 2)
