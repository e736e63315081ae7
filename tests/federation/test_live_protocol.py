"""Real processes: a site of another release takes part, one of another protocol does not, and both sides say why."""

import time

import pytest
from live import QUIET, Live, Running
from studies import BOWLS, CONTROL, SITES, content

from fedpoint.core.errors import FedpointError
from fedpoint.federation.protocol import OWN

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

STUDY = content(CONTROL, BOWLS, rounds=3, deadline=15.0)
RELEASE = """
import fedpoint.federation.protocol as protocol
protocol.OWN = protocol.Release({}, "0.0.9")
"""


@pytest.fixture
def live(tmp_path, monkeypatch):
    """All parties run, site b with another release since it approved the study."""
    made = Live(tmp_path / "live", STUDY)

    def start(number):
        made.start()
        end = time.monotonic() + 120
        with made.lead() as lead:
            while "b" not in lead.sites():
                assert time.monotonic() < end
                time.sleep(0.5)
        made.stop("b")
        (tmp_path / "sitecustomize.py").write_text(RELEASE.format(number))
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", str(tmp_path), prepend=":")
            made.start("b")
        return made

    yield start
    made.close()


def test_a_site_of_another_release_takes_part(live, tmp_path):
    going = Running(live(OWN.protocol), tmp_path / "hub")
    going.start()
    made = going.result()
    assert made.events[-1]["answered"] == SITES
    assert not made.refused


def test_a_site_of_another_protocol_does_not_and_both_sides_say_why(live, tmp_path):
    made = live(OWN.protocol - 1)
    said = rf"b cannot take part .* at b, install fedpoint {OWN.fedpoint}"
    with pytest.raises(FedpointError, match=said), made.lead() as lead:
        lead.run(tmp_path / "hub", lambda event: None, wait=240.0)
    log = (made.parts["b"].folder / "site.log").read_text()
    assert f"this site runs fedpoint 0.0.9 (protocol {OWN.protocol - 1})" in log
    assert f"at this site, install fedpoint {OWN.fedpoint}" in log
