"""What is done about an error depends on its kind, never on its words."""

import pytest
from studies import BOWLS, CONTROL, content

from fedpoint.core.errors import FedpointError
from fedpoint.federation.hub.ledger import Ledger
from fedpoint.federation.study import parse
from fedpoint.federation.transport import NoAnswerYet
from fedpoint.store.disk import Busy, take_lock

pytest.importorskip("nvflare")

STUDY = parse(content(CONTROL, BOWLS))


def test_a_hub_waits_for_a_folder_that_another_process_writes(tmp_path, monkeypatch):
    from fedpoint.federation.flare import controller

    monkeypatch.setattr(controller, "HELD", 0.6)
    hub = controller.HubController("trial.1")
    with take_lock(tmp_path), pytest.raises(NoAnswerYet, match="is writing"):
        hub._ledger(tmp_path, STUDY)
    hub._ledger(tmp_path, STUDY).close()


def test_and_for_nothing_else(tmp_path, monkeypatch):
    from fedpoint.federation.flare import controller

    def refuses(folder, study):
        asked.append(folder)
        raise FedpointError("process 7 is writing this message")

    asked = []
    monkeypatch.setattr(controller, "Ledger", refuses)
    with pytest.raises(FedpointError, match="is writing") as said:
        controller.HubController("trial.1")._ledger(tmp_path, STUDY)
    assert not isinstance(said.value, Busy | NoAnswerYet)
    assert len(asked) == 1


def errors():
    """What the engine raises; and whether the session is of no use after it."""
    from nvflare.apis.fl_exception import FLCommunicationError
    from nvflare.fuel.flare_api import api_spec

    return [
        (api_spec.NoConnection("away"), True),
        (api_spec.SessionClosed("over"), True),
        (api_spec.SessionExpired("over"), True),
        (api_spec.AuthenticationError("unknown"), True),
        (FLCommunicationError("no word"), True),
        (TimeoutError("no word"), True),
        (api_spec.JobNotRunning("cannot connect: no session"), False),
        (api_spec.AuthorizationError("session of another user"), False),
        (api_spec.InternalError("connect the session"), False),
    ]


class Session:
    """Says what it is told to, and notes whether it was closed."""

    def __init__(self, error):
        self.error, self.closed = error, False

    def list_jobs(self):
        raise self.error

    def close(self):
        self.closed = True


@pytest.mark.parametrize("number", range(9))
def test_a_session_is_renewed_where_it_is_lost_and_only_there(number):
    from fedpoint.federation.flare.lead import Lead

    class Signed:
        def study(self):
            return STUDY

    error, lost = errors()[number]
    lead, session = Lead(None, Signed()), Session(error)
    lead._session = session
    assert lead.ask("list_jobs") is None
    assert session.closed is lost
    assert type(error).__name__ in lead.trouble


def test_a_ledger_is_one_process_s(tmp_path):
    ledger = Ledger(tmp_path, STUDY)
    with pytest.raises(Busy):
        Ledger(tmp_path, STUDY)
    ledger.close()
