"""Orders and answers between hub and sites: each arrives once, in order, whatever messages are lost on the way."""

import os
import random
import threading
import time

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

from fedpoint.federation.flare import line as module
from fedpoint.federation.flare.demo import free_port
from fedpoint.federation.flare.line import ANSWER, END, LARGE, LOST, NOTHING, ORDER, WAIT, Desk, Line


class Cells:
    """The engine between a hub and its sites: loses every message with some chance, and waits 50 ms for a reply."""

    def __init__(self, loss=0.0, seed=0):
        self.loss, self.luck, self.core_cell = loss, random.Random(seed), self
        self.topics, self.replies, self.sizes = {}, {}, []

    def register_request_cb(self, channel, topic, cb):
        self.topics[topic] = cb

    def lost(self):
        return self.luck.random() < self.loss

    def ask(self, site, channel, topic, target, request, timeout, optional):
        number = f"{site} {time.monotonic_ns()}"
        there = self.replies[number] = [threading.Event(), None]
        self.sizes.append((topic, len(request.payload)))
        headers = {**request.headers, "site": site, MessageHeaderKey.ORIGIN: site, MessageHeaderKey.REQ_ID: number}
        if not self.lost():
            said = self.topics[topic](Message(headers, request.payload))
            if said is not None:
                self.answer(number, said)
        there[0].wait(0.05)
        return self.replies.pop(number)[1] or make_reply(ReturnCode.TIMEOUT)

    def answer(self, number, reply):
        if number in self.replies and not self.lost():
            reply.headers.setdefault(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
            self.replies[number][1] = reply
            self.replies[number][0].set()

    def send_reply(self, reply, to_cell, for_req_ids, optional):
        self.answer(for_req_ids[0], reply)


class Site:
    """Its own way to the engine."""

    def __init__(self, cells, name):
        self.cells, self.name, self.core_cell = cells, name, self

    def send_request(self, **said):
        return self.cells.ask(self.name, **said)


def name_in(message):
    return message.get_header("site")


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize(("loss", "size"), [(0.0, 3), (0.4, 3), (0.3, 30)])
def test_every_order_arrives_once_and_in_order_and_so_does_every_answer(loss, size, monkeypatch):
    """Three sites answer 20 orders each; `size` above 10 is a message that goes in pieces."""
    monkeypatch.setattr(module, "INLINE", 10)
    monkeypatch.setattr(module, "LONG", 0.03)
    heard, worked = {name: [] for name in "abc"}, {name: [] for name in "abc"}
    cells = Cells(loss)
    desk = Desk(cells, name_in, lambda site, answer: heard[site].append(answer))

    def work(name):
        end, said, answer = Line(Site(cells, name), "hub"), NOTHING, b""
        while True:
            found = end.ask(said, answer)
            if found is None:
                continue
            back, order = found
            if back == END:
                return
            said, answer = (ANSWER, order.upper()) if back == ORDER else (NOTHING, b"")
            worked[name] += [order] if back == ORDER else []

    sites = [threading.Thread(target=work, args=(name,), daemon=True) for name in "abc"]
    for site in sites:
        site.start()
    orders = {name: [f"{name}{k:02}".encode().ljust(size, b"x") for k in range(20)] for name in "abc"}
    for k in range(20):
        for name in "abc":
            desk.send(name, orders[name][k], 60.0)
        wait_for(lambda k=k: desk.look() or all(len(one) > k for one in heard.values()))
    while any(site.is_alive() for site in sites):
        desk.close()
        time.sleep(0.005)
    assert worked == orders
    assert heard == {name: [order.upper() for order in given] for name, given in orders.items()}
    if not loss:  # an exchange is one question, and one message more for each that is large
        assert sum(topic == module.NEXT for topic, _ in cells.sizes) <= 3 * (20 + 2) + 30
        assert max(length for topic, length in cells.sizes if topic == module.NEXT) <= 10


def questions():
    """A desk, what it heard, and a function that asks it as a site would."""
    cells, heard = Cells(), []
    desk = Desk(cells, name_in, lambda site, answer: heard.append((site, answer)))
    line = {name: Line(Site(cells, name), "hub") for name in "ab"}
    return desk, heard, line


def test_an_order_that_is_late_is_not_given_and_a_question_does_not_wait_for_ever(monkeypatch):
    desk, heard, line = questions()
    desk.send("b", b"old", -1.0)
    assert line["b"].ask(NOTHING) is None
    desk.send("a", b"before anybody asks", 60.0)
    desk.send("a", b"new", 60.0)
    assert line["a"].ask(NOTHING) == (ORDER, b"new")
    assert line["a"].ask(LOST) is None  # nothing came: asked again with the same number, and heard once
    monkeypatch.setattr(module, "LONG", 0.0)
    time.sleep(0.001)
    desk.look()
    assert line["a"].ask(LOST) == (WAIT, b"")
    assert heard == [("a", None)]


def test_an_answer_that_is_not_of_bytes_holds_none():
    """A site may encode any object; of a number, `bytes` would make as many zeros at the hub."""
    desk, heard, _ = questions()
    desk.asked(Message({"site": "a", module.NUMBER: 1, module.SAID: ANSWER}, 4))
    desk.bring(Message({"site": "a"}, [1, 2]))
    desk.asked(Message({"site": "a", module.NUMBER: 2, module.SAID: module.BROUGHT}, 4))
    assert heard == [("a", b""), ("a", b"")]


def test_a_site_gets_its_own_orders_only(monkeypatch):
    """Large ones too, and nobody who is not known gets any."""
    monkeypatch.setattr(module, "INLINE", 2)
    desk, _, line = questions()
    desk.send("a", b"secret", 60.0)
    assert line["b"].ask(NOTHING) is None
    assert line["b"]._piecewise(module.TAKE, b"") == b""
    assert line["a"].ask(NOTHING) == (ORDER, b"secret")
    assert line["b"]._piecewise(module.TAKE, b"") == b""
    stranger = Message({module.NUMBER: 1, module.SAID: NOTHING}, b"")
    for asked in (desk.asked, desk.take, desk.bring):
        assert asked(stranger).get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.UNAUTHENTICATED
    assert desk.last["a"][1].get_header(module.SAID) == LARGE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_over_the_engine_s_own_cells():
    """A job's cell behind the server's, and a site's: messages as long as may be in one piece, longer ones, and long
    ones of many pieces, both ways."""
    from nvflare.fuel.f3.cellnet.cell import Cell

    url = f"tcp://localhost:{free_port()}"
    server = Cell(fqcn="server", root_url=url, secure=False, credentials={}, create_internal_listener=True)
    server.start()
    inside = server.get_internal_listener_url()
    hub = Cell(fqcn="server.job", root_url=url, secure=False, credentials={}, parent_url=inside)
    hub.start()
    site = Cell(fqcn="a", root_url=url, secure=False, credentials={})
    site.start()
    try:
        heard = []
        desk = Desk(hub, lambda message: message.get_header(MessageHeaderKey.ORIGIN), lambda *one: heard.append(one))
        end, sent = Line(site, "server.job"), []
        for size in (0, 5, module.INLINE, module.INLINE + 1, 5 * module.INLINE):
            order = os.urandom(size)
            sent.append(order)
            threading.Timer(0.2, desk.send, ("a", order, 60.0)).start()
            assert end.ask(ANSWER, order[::-1]) == (ORDER, order)
        desk.close()
        assert end.ask(NOTHING) == (END, b"")
        assert heard == [("a", order[::-1]) for order in sent]
    finally:
        for cell in (site, hub, server):
            cell.stop()
