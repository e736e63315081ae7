"""What was done? The method whose rounds a subject makes, or the mistake that explains why they are none's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpoint.core.algorithm import CATALOGUE
from fedpoint.verbs.certify import properties
from fedpoint.verbs.certify.battery import (
    REST,
    WHOLE,
    End,
    Evidence,
    Match,
    describe_limit,
    find_correct,
    find_mistake,
    missing,
    nearest,
)
from fedpoint.verbs.certify.method import WEIGHTS_DROPPED
from fedpoint.verbs.certify.methods import Settings
from fedpoint.verbs.certify.mistakes import (
    AGENTS_LEFT_OUT,
    ANSWERS_IGNORED,
    CONSTANT_ADDED,
    CORRECTION_SIGN,
    METHODS,
    NOBODY_ASKED,
    NOT_AVERAGED,
    NOT_LINEAR,
    UPDATE_SIGN,
)
from fedpoint.verbs.certify.properties import Shift
from fedpoint.verbs.certify.world import AGENTS


class Reason(NamedTuple):
    """Why a subject does not pass: the name of a mistake, where it is one, and words."""

    mistake: str | None
    words: str


class Diagnosis(NamedTuple):
    """correct: the method whose rounds it makes. beside: what the findings are measured against. broken: the method
    with a mistake in it whose rounds it makes. place: where it ends. reason: None where nothing speaks against it.
    needed: settings without which nothing can be said."""

    place: End
    correct: Match | None = None
    beside: Match | None = None
    broken: Match | None = None
    reason: Reason | None = None
    needed: tuple[str, ...] = ()


def diagnose(evidence: Evidence, claim: str | None, settings: Settings) -> Diagnosis:
    """What makes the subject's rounds: the claimed method or a mistake in it; without a claim, any."""
    place = describe_limit(evidence, settings)
    needed = [] if claim is None else missing(METHODS[claim], settings)
    for turn, names in enumerate(_methods(claim, settings, evidence.on_network)):
        if found := find_correct(evidence, settings, names):
            return Diagnosis(place, found, found)
        known = find_mistake(evidence, settings, names, claim is not None) if evidence.on_network else None
        if turn == 0 and known is None and (reason := neglect(evidence)):
            return Diagnosis(
                place,
                beside=None if claim is None or needed else nearest(evidence, claim, settings),
                reason=reason if claim is not None else Reason(None, reason.words),
            )
        if found := known or find_mistake(evidence, settings, names, claim is not None):
            assert found.mistake is not None
            other_sign = found.mistake is UPDATE_SIGN and properties.right_control(evidence)
            reason = Reason(*(CORRECTION_SIGN if other_sign else found.mistake).name_and_reason)
            return Diagnosis(place, None, Match(found.method, found.right or found.recipe), found, reason)
    if needed:
        return Diagnosis(place, needed=tuple(needed))
    if claim is not None:
        beside = nearest(evidence, claim, settings)
        return Diagnosis(place, beside=beside, reason=explain(evidence, beside, place))
    if place.name.endswith("of_equal_weights"):
        return Diagnosis(place, reason=Reason("weights_dropped", WEIGHTS_DROPPED))
    return Diagnosis(place, reason=None if place.known else Reason(None, ""))


def _methods(claim: str | None, settings: Settings, on_network: bool) -> list[tuple[str, ...]]:
    """Which methods it may be, those that are told apart by all tests first."""
    if claim is not None:
        return [(claim,)]
    if on_network:
        return [REST]
    steps = settings.get("local_steps", 1)
    several = steps is None or np.max(steps) > 1  # with one step Scaffnew is gradient descent
    return [WHOLE, REST] if several else [WHOLE]


def neglect(evidence: Evidence) -> Reason | None:
    """Agents whose data have no effect on the model."""
    asked, heard = properties.attention(evidence)
    if all(heard):
        return None
    if not any(heard):
        return Reason(*(ANSWERS_IGNORED if any(asked) else NOBODY_ASKED).name_and_reason)
    deaf_to = [k for k in range(AGENTS) if not heard[k]]
    never = [k for k in deaf_to if not asked[k]]
    ignored = [k for k in deaf_to if asked[k]]
    parts = [f"{_agents(never)} never asked for anything"] if never else []
    parts += [f"{_agents(ignored)} asked, but the answers have no effect on the model"] if ignored else []
    return Reason(AGENTS_LEFT_OUT.name, "; ".join(parts))


def _agents(which: list[int]) -> str:
    """`agent 2 is`, `agents 1, 2 and 4 are`."""
    *most, last = map(str, which)
    return f"agents {', '.join(most)} and {last} are" if most else f"agent {last} is"


def explain(evidence: Evidence, beside: Match, place: End) -> Reason:
    """A mistake by its properties, in a subject that claims a method and does not make its rounds."""
    claim, steps = beside.method.name, beside.recipe.local_steps
    named = {mistake.name: mistake.reason for mistake in beside.method.mistakes}
    # Where the number of local steps is drawn, two plays have different rounds whatever is done in them.
    if steps is not None and (reason := _by_comparison(evidence, beside, named)):
        return reason
    if claim in ("scaffold", "scaffnew") and place.name == "fedavg_point":
        return Reason("control_never_stored", "the control variates have no effect")
    if claim == "fednova" and place.name == "fedavg_point":
        return Reason("not_normalised", named["not_normalised"])
    title = CATALOGUE[claim].title
    return Reason(None, f"its rounds are not those of {title}, and no known mistake explains the difference")


def _by_comparison(evidence: Evidence, beside: Match, named: dict[str, str]) -> Reason | None:
    """What plays in worlds that differ say of a mistake."""
    world, claim = evidence.world, beside.method.name
    additive = properties.additive(properties.first_round(evidence), world)
    if not additive and properties.reference_additive(world, beside):
        return Reason(*NOT_AVERAGED.name_and_reason)
    if shift := properties.constant_shift(evidence, beside):
        return _added(shift, claim, named)
    without_pull = beside._replace(recipe=beside.recipe.but({"pull": 0.0}))
    if claim == "fedprox" and properties.constant_shift(evidence, without_pull):
        return Reason(CONSTANT_ADDED.name, f"{CONSTANT_ADDED.reason}, and the proximal term is missing")
    if not properties.stretches(evidence) and properties.reference_stretches(world, beside):
        if claim == "fedprox" and properties.pull_is_bounded(evidence, beside):
            return Reason("pull_not_squared", named["pull_not_squared"])
        return Reason(*NOT_LINEAR.name_and_reason)
    if not evidence.on_network and properties.ignores_weights(evidence):
        return Reason("weights_dropped", WEIGHTS_DROPPED)
    return None


def _added(shift: Shift, claim: str, named: dict[str, str]) -> Reason:
    """Who adds a constant, as far as it can be told."""
    if claim == "scaffold" and not shift.of_hub:
        other = "or agents add a constant to what they send, which begins in the same way"
        return Reason("controls_not_zero", f"{named['controls_not_zero']}; {other}")
    whose = {True: "; it is added by the hub", False: "; it is added by the agents", None: ""}[shift.of_hub]
    return Reason(CONSTANT_ADDED.name, f"{CONSTANT_ADDED.reason}{whose}")
