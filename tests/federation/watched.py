"""Sites that do something else than they should, and studies whose hub watches them."""

import numpy as np

import fedpoint as fp
from fedpoint.core.random import Key
from fedpoint.engine.state import AGENTS
from fedpoint.federation.holding import Holding
from fedpoint.federation.hub.alarm import Watch
from fedpoint.federation.hub.center import Center
from fedpoint.federation.hub.expectation import Order
from fedpoint.federation.hub.norms import norm
from fedpoint.federation.site import site as site_module
from fedpoint.federation.study import parse
from fedpoint.federation.wire import OwnSetup
from fedpoint.theory.betting import combined


class Scaled(Holding):
    """Sends so many times what it should."""

    factor = 2.0

    def work(self, heard, kept, round):
        arrays, pending = super().work(heard, kept, round)
        return {name: self.factor * array for name, array in arrays.items()}, pending


class Forgetful(Holding):
    """Has its memory as it was at the start, every time."""

    def work(self, heard, kept, round):
        return super().work(heard, self.start._replace(round=kept.round), round)


def scaled(factor):
    return type("Scaled", (Scaled,), {"factor": factor})


def with_rows_of(other):
    """Works on the rows of another site."""

    class Foreign(Holding):
        def __init__(self, study, setup, columns):
            super().__init__(study, setup, columns)
            self.own = self.own._replace(mine=Holding(study, {**setup, "index": other}, columns).own.mine)

    return Foreign


def drawing(seed, kind=Holding):
    """Draws for itself, not as the study says; otherwise as another kind does."""

    class Drawing(kind):
        def __init__(self, study, setup, columns):
            super().__init__(study, setup, columns)
            self.own = self.own._replace(key=Key.of(seed, 0, AGENTS))

    return Drawing


def federated(monkeypatch, content, kinds, **more):
    """A watched study in which some sites are of another kind (by their number)."""

    def made(study, setup, columns, held):
        return kinds.get(setup["index"], Holding)(study, setup, columns)

    with monkeypatch.context() as patch:
        patch.setattr(site_module, "Holding", made)
        return fp.federate(content, expected=True, **more)


def rehearsed(content, kinds, each=lambda watch: None):
    """The same without messages, which takes a tenth of the time: the watch at the end, and the alarms by site.
    each: is called after every round."""
    study = parse(content)
    problem = study.generated()
    outline = study.outline(problem.start(), problem.weights.tolist(), problem.local_rows())
    center = Center(study.experiment(outline).bind())
    own = [
        OwnSetup(index=k, share=float(p), heaviest=float(max(problem.weights)), recipe=[], classes=None)
        for k, p in enumerate(problem.weights)
    ]
    watch, sites = Watch(study, center, own, {}), [kinds.get(k, Holding)(study, one, None) for k, one in enumerate(own)]
    kept, alarms = [held.start for held in sites], {}
    for round in range(study.rounds):
        tick, found = center.ask(round), {}
        for k in center.agents_of(tick):
            told = center.tell(k, round)
            watch.asked(k, Order(round, kept[k].round, told))
            found[k] = sites[k].work(told, kept[k], round)
        said = {k: center.decoded(k, found[k][0]) for k in found}
        good = {k: message for k, message in said.items() if norm(message) <= (study.terms.norm_cap or np.inf)}
        watch.heard(good)
        center.merge(round, tick, good)
        for k in good:
            kept[k] = found[k][1]
        alarms |= {alarm["site"]: alarm for alarm in watch.news()}
        each(watch)
    return watch, alarms


def stakes(watch):
    """What each site's stake has become."""
    return {site: float(np.exp(combined(seen["stakes"].values()))) for site, seen in watch.seen.items()}
