"""Real processes: a site that sends twice what it should is named by the hub of a watched study."""

import pytest
from live import QUIET, Live
from studies import BOWLS, CONTROL, content

from fedpoint.core.errors import FedpointError

pytest.importorskip("nvflare")
pytestmark = QUIET

STUDY = content(CONTROL, BOWLS, rounds=10, deadline=30.0)
TABLE = {"kind": "table", "model": "linear", "target": "w", "features": ["u", "v"]}
TWICE = """
from fedpoint.federation.holding import Holding

honest = Holding.work


def work(self, heard, kept, round):
    arrays, pending = honest(self, heard, kept, round)
    return {name: (2 if round >= 3 else 1) * array for name, array in arrays.items()}, pending


Holding.work = work
"""


@pytest.mark.slow
def test_an_alarm_over_the_real_transport(tmp_path, monkeypatch):
    live = Live(tmp_path / "live", STUDY)
    (tmp_path / "sitecustomize.py").write_text(TWICE)
    try:
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", str(tmp_path), prepend=":")
            live.start("b")
        live.start("server", "a", "c")
        with live.lead() as lead:
            made = lead.run(tmp_path / "result", lambda event: None, wait=240.0, watch=True)
    finally:
        live.close()
    (alarm,) = made.alarms
    assert (alarm["site"], alarm["reason"], alarm["since"]) == ("b", "scaled", 3)
    assert alarm["factor"] == pytest.approx(2.0) and made.round == 10


def test_files_of_expected_rows_lie_in_the_server_s_kit(tmp_path):
    from fedpoint.federation.flare.controller import expected_rows
    from fedpoint.federation.study import parse

    assert expected_rows(parse(STUDY), tmp_path) is True  # generated rows need none
    study = parse(content(CONTROL, TABLE))
    (tmp_path / "expected").mkdir()
    paths = {site: tmp_path / "expected" / f"{site}.csv" for site in study.sites}
    for site in ("a", "c"):
        paths[site].touch()
    with pytest.raises(FedpointError, match=r"to watch b, put a file .* as the site: expected/b\.csv"):
        expected_rows(study, tmp_path)
    paths["b"].touch()
    assert expected_rows(study, tmp_path) == paths
