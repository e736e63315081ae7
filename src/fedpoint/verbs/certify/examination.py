"""fp.certify: which method is this, and which mistake was made in it?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpoint.channel import Channel
from fedpoint.core.algorithm import CATALOGUE, Algorithm, find
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted, with_error
from fedpoint.core.record import owner_of, values_of
from fedpoint.core.wrapped import Wrapped
from fedpoint.experiment import Experiment
from fedpoint.gather import Gather, WeightedSums
from fedpoint.results.certificate import Certificate, Finding, Ruling
from fedpoint.verbs.certify import battery
from fedpoint.verbs.certify.battery import SAME, SAME_LIMIT, SHORT, End, Evidence, Match, Subject
from fedpoint.verbs.certify.composed import Composed, certify_composed, prepare_wrapper
from fedpoint.verbs.certify.diagnosis import Diagnosis, Reason, diagnose
from fedpoint.verbs.certify.methods import Recipe, Setting, Settings
from fedpoint.verbs.certify.mistakes import METHODS, SAMPLES_SHARED
from fedpoint.verbs.certify.samples import SCORE, noise_of, sample_test
from fedpoint.verbs.certify.subjects import check_settings, prepare_function, prepare_object
from fedpoint.verbs.certify.world import Rounds

# Server optimisers by their own names, with the library's defaults.
SERVERS: dict[str, Settings] = {
    "fedavgm": {"server": "momentum", "momentum": 0.9, "server_step": 1.0},
    "fedadam": {"server": "adam", "momentum": 0.9, "server_step": 0.1},
    "fedyogi": {"server": "yogi", "momentum": 0.9, "server_step": 0.1},
    "fedadagrad": {"server": "adagrad", "server_step": 0.1},
}


@checked
def certify(
    subject: Algorithm | Experiment | Rounds, claims: str | None = None, seed: int = 0, **settings: Setting
) -> Certificate:
    """Examine an algorithm, or a plain function, on small problems whose answers are known.

    Args:
        subject: an algorithm object (the library's or your own `fp.Algorithm`), an experiment, whose method is examined
            with its channel and gather, or a function `round(w, agents) -> w` of NumPy arrays; see docs/certify.md for
            what `agents` offers.
        claims: the name in the catalogue of the method it should be. Objects of the library's classes, and of classes
            derived from them, claim that method when nothing is said.
        seed: of the problems and the noise.
        settings: step, local_steps, pull, ... as the subject uses them. Of an object they are read from its fields
            (step, local_steps, pull and server_step are replaced by the battery's own, which show more); of a function
            they are observed where they can be.

    >>> import fedpoint as fp
    >>> def round(w, agents):
    ...     return w - 0.1 * sum(agent.field(w) for agent in agents) / len(agents)
    >>> certificate = fp.certify(round, claims="gradient_exchange", step=0.1)
    >>> certificate.passed, certificate.mistake
    (False, 'weights_dropped')
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise FedpointError(f"certify: seed must be a whole number, at least 0; got {seed!r}")
    channel: Channel = Channel()
    gather: Gather = WeightedSums()
    if isinstance(subject, Experiment):
        channel, gather, subject = subject.channel, subject.gather, subject.algorithm
    return _certify(subject, claims, int(seed), settings, channel, gather)


def _certify(
    subject: Algorithm | Rounds, claims: str | None, seed: int, settings: Settings, channel: Channel, gather: Gather
) -> Certificate:
    made_of = subject.composition() if isinstance(subject, Algorithm) else None
    if isinstance(subject, Wrapped) and made_of is not None and _claims_itself(subject, claims):
        inner = _certify(subject.inner, None, seed, settings, channel, gather)
        prepared, world = prepare_wrapper(subject, check_settings(settings), seed, channel, gather)
        made_of = prepared.composition()
        assert made_of is not None
        return certify_composed(Composed(prepared, made_of, world, channel, gather), _kind(subject), inner, seed)
    claim = _claim(subject, claims)
    given = SERVERS.get("" if claims is None else _plain(claims), {})
    examined: Subject
    if isinstance(subject, Algorithm):
        own = values_of(subject)
        given = check_settings({n: v for n, v in given.items() if n not in own} | settings)
        examined, known, world = prepare_object(subject, given, seed, channel, gather)
    elif isinstance(subject, type) or not callable(subject):
        what = f"the class {subject.__name__}" if isinstance(subject, type) else f"a {type(subject).__name__}"
        raise FedpointError(f"certify takes an algorithm object or a function round(w, agents), got {what}")
    else:
        examined, known, world = prepare_function(subject, check_settings(given | settings), claim, seed)
    evidence = Evidence(examined, world, seed)
    if claim is not None and bool(METHODS[claim].network) != evidence.on_network:
        raise FedpointError(
            f"{examined.name} is {'a method for networks' if evidence.on_network else 'a method with a hub'}, and "
            f"{_title(claim)} is not"
        )
    if claim is not None and METHODS[claim].copies != evidence.copies:
        raise _other_models(examined.name, claim)
    diagnosis = diagnose(evidence, claim, known)
    if claim is not None and diagnosis.needed:
        raise _ask(examined.name, claim, diagnosis.needed)
    return _judge(evidence, claim, known, diagnosis)


def _kind(subject: Algorithm) -> str:
    """The title of the class that tells what it is made of."""
    owner = owner_of(type(subject), "composition")
    assert owner is not None and issubclass(owner, Algorithm)
    return owner.card.title


def _claims_itself(subject: Algorithm, claims: str | None) -> bool:
    return claims is None or _plain(claims) == _plain(_kind(subject))


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _title(name: str) -> str:
    return CATALOGUE[name].title


def _claim(subject: Algorithm | Rounds, claims: str | None) -> str | None:
    if claims is not None:
        if _plain(claims) in SERVERS:
            return "fedopt"
        name = find(claims).name
        if name not in METHODS:
            raise FedpointError(f"certify has no reference for {name!r}. Known: {', '.join(sorted(METHODS))}.")
        return name
    if isinstance(subject, Algorithm):
        for base in type(subject).__mro__:
            card = vars(base).get("card")
            if card is not None and card.name in METHODS and CATALOGUE[card.name].cls is base:
                return card.name
    return None


def _other_models(name: str, claim: str) -> FedpointError:
    if METHODS[claim].copies == 1:
        return FedpointError(
            f"{name} has a model of its own at each agent, and {_title(claim)} has one for all of them"
        )
    return FedpointError(
        f"{name} has one model for all agents, and {_title(claim)} one at each: set personal = True in the class, and "
        "let read give the agent's own"
    )


def _ask(name: str, claim: str, missing: Sequence[str]) -> FedpointError:
    names = [{"step": "step= (or exact=True)"}.get(n, f"{n}=") if claim == "fedprox" else f"{n}=" for n in missing]
    if "step" in missing and "local_steps" not in missing:
        names.append("local_steps=")
    return FedpointError(
        f"certify cannot tell the settings of {name} from what it does: to compare it with {_title(claim)}, give "
        + " and ".join(names)
        + " as it uses them"
    )


def _judge(evidence: Evidence, claim: str | None, known: Settings, diagnosis: Diagnosis) -> Certificate:
    place, correct, beside, broken, reason, _ = diagnosis
    findings = [] if beside is None else _rounds(evidence, beside)
    findings.append(_limit(evidence, beside, place))
    if beside is not None:
        findings += _steady(evidence, beside)
    if reason is not None:
        reason = Reason(reason.mistake, _joined(reason.words, _consequence(evidence, beside, place)))
    elif correct is not None:  # otherwise there is no variance to expect
        samples, reason = _samples(evidence, correct)
        findings += samples
        reason = reason or _later(findings, correct)
    else:
        again = evidence.subject.repeats(evidence.world, noise_of(evidence.world), evidence.seed)
        reason = Reason(*SAMPLES_SHARED.name_and_reason) if again is not None and again.agents else None
    like = correct or battery.find_correct(evidence, known, battery.WHOLE)
    name, title = (like.method.name, _title(like.method.name)) if like else (place.name, place.words)
    if like is None and broken is not None:
        title = f"{_title(broken.method.name)} with a mistake: {place.words}"
    return Certificate(
        subject=evidence.subject.name,
        claim=claim,
        behaves_like=name,
        title=title,
        verdict=_verdict(claim, reason),
        mistake=None if reason is None else reason.mistake,
        reason="" if reason is None else reason.words,
        findings=findings,
        seed=evidence.seed,
        settings=_shown(beside, known),
        unexercised=evidence.subject.unexercised(evidence.world, noise_of(evidence.world)),
    )


def _verdict(claim: str | None, reason: Reason | None) -> Ruling:
    """With a claim a subject is what it claims to be, or not; without one it may be neither right nor wrong."""
    if reason is None:
        return "passed"
    return "unknown" if claim is None and reason.mistake is None else "convicted"


def _joined(words: str, more: str) -> str:
    return f"{words}; {more}" if words else more


def _later(findings: list[Finding], correct: Match) -> Reason | None:
    """What a subject that begins as a method does does otherwise."""
    wrong = [f"{f.test}: {f.reason}" for f in findings if f.ok is False]
    if not wrong:
        return None
    return Reason(None, f"its first {SHORT} rounds are those of {_title(correct.method.name)}, but {'; '.join(wrong)}")


def _shown(match: Match | None, known: Settings) -> Settings:
    """The settings that matter: those that differ from a method's defaults."""
    if match is None:
        return {n: v for n, v in known.items() if v is not None}
    values, usual = vars(match.recipe), vars(Recipe())
    return {n: values[n] for n in known if n in ("step", "local_steps") or np.any(values[n] != usual[n])}


def _rounds(evidence: Evidence, beside: Match) -> list[Finding]:
    """Round by round beside the method, with everyone and with some."""
    title, found = _title(beside.method.name), []
    cases = [("rounds, everyone", evidence.short, evidence.expect(beside.method, beside.recipe))]
    if beside.method.partial and evidence.some is not None:
        expected = evidence.expect_some(beside.method, beside.recipe)
        cases.append(("rounds, some", evidence.some, expected))
    for test, seen, expected in cases:
        apart = battery.deviation(seen, expected)
        ok = apart <= SAME
        reason = f"those of {title}"
        if not ok:
            first = battery.first_difference(seen, expected)
            reason = f"not those of {title} from round {first} on: up to {apart:.2g} apart"
        found.append(Finding(test, ok, apart, f"at most {SAME:g}", reason))
    return found


def _limit(evidence: Evidence, beside: Match | None, place: End) -> Finding:
    seen, words = evidence.everyone, place.words
    away = None if seen.diverged else evidence.away(evidence.world.optimum())
    if beside is None:
        return Finding("limit", True if place.known else None, away, "a known point", words)
    expected = evidence.expect(beside.method, beside.recipe, len(evidence.lengths))
    title = _title(beside.method.name)
    if seen.diverged or expected.diverged:
        ok = seen.diverged == expected.diverged
        reason = f"{words}, as {title} does with these settings" if ok else words
        return Finding("limit", ok, away, "finite", reason)
    apart = float(np.abs(seen.last - expected.last).max())
    ok = apart <= SAME_LIMIT * (1 + np.abs(expected.last).max()) or not (seen.settled or expected.settled)
    reason = words if ok else f"{words}; {title} ends {apart:.2g} from there"
    return Finding("limit", bool(ok), apart, f"at most {SAME_LIMIT:g} from {title}'s", reason)


def _steady(evidence: Evidence, beside: Match) -> list[Finding]:
    """What control variates must do whoever takes part: the limit stays at w*, and c the mean of the c_k."""
    found: list[Finding] = []
    run = evidence.some_limit if beside.method.steady else None
    if run is not None:
        if run.diverged:
            return [Finding("limit, some", False, None, "w*", f"diverges (within {counted(len(run.models), 'round')})")]
        away = float(np.linalg.norm(run.last - evidence.world.optimum()))
        ok = away <= SAME_LIMIT * (1 + np.linalg.norm(run.last))
        reason = "ends at w*" if ok else f"ends {away:.2g} from w*, where {_title(beside.method.name)} ends at it"
        found.append(Finding("limit, some", bool(ok), away, "w*", reason))
    if run is not None and run.gap is not None:
        ok = run.gap <= SAME * (1 + np.abs(run.last).max()) * max(1.0, np.abs(evidence.world.H).max())
        reason = "c is the mean of the c_k" if ok else f"c is {run.gap:.2g} away from sum p_k c_k"
        found.append(Finding("controls", bool(ok), run.gap, "c = sum p_k c_k", reason))
    return found


def _consequence(evidence: Evidence, beside: Match | None, place: End) -> str:
    """What a mistake leads to, with numbers."""
    if beside is None or place.name in ("diverges", "start"):
        return place.words
    steady = [f for f in _steady(evidence, beside) if f.test.startswith("limit") and not f.ok]
    return f"{place.words}, with two or three of five it {steady[0].reason}" if steady else place.words


def _samples(evidence: Evidence, match: Match) -> tuple[list[Finding], Reason | None]:
    """The variance of one noisy round beside that of fresh samples."""
    found = sample_test(evidence.subject, evidence.world, evidence.seed, match.method, match.recipe)
    if found is None:
        return [], None
    mistake = found.mistake
    words = f"the variance of a round is {with_error(found.ratio, found.error)} of that of fresh samples"
    if found.reused is not None:
        words += f" (one sample for all local steps: {found.reused.variance / found.fresh.variance:.3f})"
    expected = f"at most 1 within {SCORE:g} standard errors"
    finding = Finding("samples", mistake is None, found.ratio, expected, words)
    return [finding], None if mistake is None else Reason(mistake.name, f"{mistake.reason}; {words}")
