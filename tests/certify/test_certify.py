"""Nothing right is convicted, and every known mistake is, with its own name: over 20 seeds kept back for it.

Here each case has one of those seeds, in turn, and classes (which are compiled) are a few; the slow tests take all of
them. Statistical tests inside fp.certify have a fixed seed each and a threshold of six standard errors: over these
some 2,000 certificates a false conviction by chance has a probability of about 1e-5.
"""

import itertools
import json
import sys

import broken
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import right
from objects import OBJECTS

import fedpoint as fp
from fedpoint.verbs.certify.mistakes import METHODS, OTHERS

SEEDS = range(1000, 1020)


def in_turn(cases):
    return [pytest.param(case, [SEEDS[i % len(SEEDS)]], id=str(case)) for i, case in enumerate(cases)]


def covered(cases, few=None):
    """Each case (or those of `few`) with one seed; and each with all seeds, slow."""
    chosen = in_turn([case for case in cases if few is None or case in few])
    return chosen + [pytest.param(case, SEEDS, id=f"{case}, all seeds", marks=pytest.mark.slow) for case in cases]


def first_of_each(cases):
    """One variant of every mistake."""
    return list({mistake: (mistake, variant) for mistake, variant in reversed(list(cases))}.values())


@pytest.mark.parametrize(("case", "seeds"), covered(list(right.FUNCTIONS)))
def test_a_correct_function_is_not_convicted(case, seeds):
    function, claim, settings = right.FUNCTIONS[case]
    for seed in seeds:
        found = fp.certify(function, claims=claim, seed=seed, **settings)
        assert found.passed and found.mistake is None, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("case", right.FUNCTIONS)
def test_a_correct_function_is_not_convicted_without_a_claim(case):
    function, _, settings = right.FUNCTIONS[case]
    for seed in SEEDS:
        found = fp.certify(function, seed=seed, **settings)
        assert found.passed and found.mistake is None, str(found)


@pytest.mark.parametrize(("case", "seeds"), covered(list(broken.FUNCTIONS), first_of_each(broken.FUNCTIONS)))
def test_a_broken_function_is_convicted_of_its_own_mistake(case, seeds):
    function, claim, settings = broken.FUNCTIONS[case]
    for seed in seeds:
        found = fp.certify(function, claims=claim, seed=seed, **settings)
        assert found.verdict == "convicted" and found.mistake == case[0] and found.reason, str(found)


@pytest.mark.parametrize(("case", "seeds"), covered(list(OBJECTS), ("FedAvg", "SCAFFOLD")))
def test_an_algorithm_of_the_catalogue_is_not_convicted(case, seeds):
    for seed in seeds:
        found = fp.certify(OBJECTS[case](), seed=seed)
        assert found.passed and found.mistake is None, str(found)
        assert found.behaves_like == found.claim == type(OBJECTS[case]()).card.name


SOME_CLASSES = ("UnsquaredProx", "ForgetsE", "DividesBySelected", "Silent", "LeavesOut", "ClipsProx")


@pytest.mark.parametrize(("case", "seeds"), covered(list(broken.CLASSES), SOME_CLASSES))
def test_a_broken_class_is_convicted_of_its_own_mistake(case, seeds):
    algorithm, claim, mistake = broken.CLASSES[case]
    for seed in seeds:
        found = fp.certify(algorithm, claims=claim, seed=seed)
        assert found.verdict == "convicted" and found.mistake == mistake and found.reason, str(found)


def test_every_method_has_a_reference_and_an_object_here():
    cards = [card for card in fp.CATALOGUE.values() if card.cls.__module__.startswith("fedpoint.algorithms")]
    own = {card.name for card in cards if card.cls.mixes or not card.network}  # a coupling has no common model
    assert own == set(METHODS)
    assert own == {type(make()).card.name for make in OBJECTS.values()}


def test_every_known_mistake_is_made_here():
    named = {mistake for mistake, _ in broken.FUNCTIONS} | {mistake for _, _, mistake in broken.CLASSES.values()}
    known = {mistake.name for method in METHODS.values() for mistake in method.mistakes}
    known |= {mistake.name for mistake in OTHERS}
    assert named == known


# Without a claim.


def test_without_a_claim_it_names_the_method():
    found = fp.certify(right.fedavg, seed=1)
    assert (found.claim, found.behaves_like, found.passed) == (None, "fedavg", True)
    assert found.settings["local_steps"] == 3 and abs(found.settings["step"] - right.STEP) < 1e-12
    assert fp.certify(right.gradient_descent, seed=1).behaves_like == "gradient_exchange"


def test_controls_without_effect_are_fedavg_unless_more_was_claimed():
    broken_scaffold = broken.scaffold(store=())
    assert fp.certify(broken_scaffold, seed=1).behaves_like == "fedavg"
    found = fp.certify(broken_scaffold, claims="SCAFFOLD", seed=1)
    assert (found.behaves_like, found.mistake, found.passed) == ("fedavg", "control_never_stored", False)
    assert "ends at FedAvg's point, " in found.reason and " from w*" in found.reason


def test_lengths_that_rarely_change_are_random_all_the_same():
    """Scaffnew with a large p: for long stretches, as at first here, every round is one local step."""
    rng = np.random.default_rng(0)
    drawn = itertools.chain([1] * 15, (int(rng.geometric(0.6)) for _ in itertools.count()))

    def rarely(w, agents):
        H = next(drawn)
        ends = [(a, broken.local_steps(a, w, H, extra=lambda y, a=a: -a.memory.get("h", 0.0))) for a in agents]
        new = sum(a.weight * x for a, x in ends)
        for a, x in ends:
            a.memory["h"] = a.memory.get("h", 0.0) + 0.6 / right.STEP * (new - x)
        return new

    found = fp.certify(rarely, claims="scaffnew", step=right.STEP, probability=0.6)
    assert found.passed, str(found)


def test_where_lengths_are_drawn_two_plays_differ_whatever_is_done_in_them():
    """Half of Scaffnew's correction is no known mistake; nor is it a median, or a dropped weight."""

    def halved(w, agents):
        H = int(agents.server.setdefault("rng", np.random.default_rng()).geometric(0.4))
        ends = [(a, broken.local_steps(a, w, H, extra=lambda y, a=a: -a.memory.get("h", 0.0) / 2)) for a in agents]
        new = sum(a.weight * x for a, x in ends)
        for a, x in ends:
            a.memory["h"] = a.memory.get("h", 0.0) + 0.4 / right.STEP * (new - x)
        return new

    found = fp.certify(halved, claims="scaffnew", step=right.STEP, probability=0.4)
    assert (found.verdict, found.mistake) == ("convicted", None)
    assert "no known mistake explains the difference" in found.reason


class SignDescent(fp.Algorithm):
    """A method of nobody's catalogue."""

    step: float

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        return jnp.sign(agent.field(w)), memory

    def combine(self, w, inbox):
        return w - self.step * inbox.mean


def median(w, agents):
    return w + np.median([-0.1 * agent.field(w) for agent in agents], axis=0)


def sign_of_mean(w, agents):
    return w - 0.01 * np.sign(sum(agent.weight * agent.field(w) for agent in agents))


def forgetful(w, agents):
    """One over the number of rounds is the step: it never stands still."""
    t = agents.server["t"] = agents.server.get("t", 0) + 1
    return w - 0.1 / t * sum(a.weight * a.field(w) for a in agents)


class Stays(SignDescent):
    def combine(self, w, inbox):
        return w


class Wanders(SignDescent):
    """It never asks anybody, and moves all the same."""

    def local(self, w, memory, agent):
        return self.step + 0.0 * w, memory


UNKNOWN = {
    "identity": (broken.identity, "no agent is ever asked for anything", "never moves"),
    "plus one": (broken.plus_one, "no agent is ever asked for anything", "does not settle within 1,000 rounds"),
    "to zero": (broken.to_zero, "no agent is ever asked for anything", "ends at no known point"),
    "away": (lambda w, agents: 3.0 * w + 1.0, "no agent is ever asked for anything", "diverges"),
    "deaf": (broken.deaf, "agents are asked, but their answers have no effect", "never moves"),
    "one alone": (broken.of(lambda a: a[:1]), "agents 1, 2, 3 and 4 are never asked", "the minimiser of agent 0 alone"),
    "one step of one": (lambda w, a: w - 0.1 * a[2].field(w), "never asked", "the minimiser of agent 2 alone"),
    "heard in part": (broken.asks_all_hears_one, "asked, but the answers have no effect", "minimiser of agent 0"),
    "median": (median, "", "it ends at no known point"),
    "sign": (sign_of_mean, "", "it does not settle within 1,000 rounds"),
    "smaller steps": (forgetful, "", "it does not settle within 1,000 rounds"),
    "two steps too long": (lambda w, a: w - 5.0 * sum(x.field(w) for x in a) ** 3, "", "diverges"),
    "class, silent": (Wanders(0.1), "no agent is ever asked for anything", "does not settle"),
    "class, deaf": (Stays(0.1), "agents are asked, but their answers have no effect", "never moves"),
    "class, sign": (SignDescent(0.1), "", "it does not settle within 1,000 rounds"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_nobody_knows_is_not_passed(case):
    subject, why, where = UNKNOWN[case]
    found = fp.certify(subject, seed=2)
    assert (found.verdict, found.mistake, found.passed, bool(found)) == ("unknown", None, False, False), str(found)
    assert why in found.reason and where in found.reason
    plain = json.loads(json.dumps(found.to_dict()))
    assert (plain["verdict"], plain["passed"], plain["reason"]) == ("unknown", False, found.reason)


def test_a_notebook_shows_the_verdict_and_what_was_not_exercised():
    def boxed(w, agents):
        return np.clip(right.fedavg(w, agents), -1e6, 1e6)

    shown = {subject: fp.certify(subject)._repr_html_() for subject in (broken.identity, boxed)}
    assert "– identity is neither" in shown[broken.identity] and "never exercised" not in shown[broken.identity].lower()
    assert "✓ boxed has no known mistake" in shown[boxed] and "Never exercised:" in shown[boxed]
    assert "-1e6, 1e6)" in shown[boxed]


@pytest.mark.parametrize("claim", METHODS)
def test_who_asks_nobody_is_told_so_whatever_he_claims(claim):
    """Without settings, which he has not: there is nothing to compare. What adds to the common model only moves no
    agent's own, but for the mixtures of APFL."""
    moved = "does not settle" if METHODS[claim].read is None or claim == "apfl" else "the model never moves"
    for subject, where in ((broken.identity, "the model never moves"), (broken.plus_one, moved)):
        found = fp.certify(subject, claims=claim)
        assert (found.verdict, found.mistake) == ("convicted", "nobody_asked")
        assert where in found.reason


def test_a_method_that_merges_every_tenth_round_only_is_not_taken_to_stand_still():
    def rarely(w, agents):
        if agents.round % 10:
            return w
        return w - 0.1 * sum(agent.weight * agent.field(w) for agent in agents)

    found = fp.certify(rarely)
    assert (found.verdict, found.behaves_like) == ("passed", "optimum")


def test_equal_weights_are_found_out_at_the_limit_also_where_the_weights_are_used():
    def at_its_own_pace(w, agents):
        pace = max(agent.weight for agent in agents)
        return w - 0.1 * pace * sum(agent.field(w) for agent in agents)

    found = fp.certify(at_its_own_pace)
    assert (found.verdict, found.mistake) == ("convicted", "weights_dropped")
    assert found.behaves_like == "optimum_of_equal_weights"


def test_a_sample_that_agents_share_is_found_out_whatever_the_method():
    def shared(w, agents):
        """Not gradient exchange: p_k without K/L."""
        z = agents[0].sample()
        return w - 0.1 * sum(agent.weight * agent.field(w, z) for agent in agents)

    found = fp.certify(shared)
    assert (found.verdict, found.mistake, found.behaves_like) == ("convicted", "samples_shared", "optimum")


def test_a_function_that_computes_with_jax_is_in_double_precision():
    def with_jax(w, agents):
        return w + sum(right.scale(a, agents) * (-right.STEP * jnp.asarray(a.field(jnp.asarray(w)))) for a in agents)

    assert fp.certify(with_jax, claims="gradient_exchange").passed


def test_what_begins_as_a_method_and_ends_otherwise():
    def tires(w, agents):
        return right.fedavg(w, agents) if agents.round < 9 else w

    found = fp.certify(tires)
    assert found.verdict == "unknown" and "it ends at no known point" in found.reason
    claimed = fp.certify(tires, claims="fedavg")
    assert (claimed.verdict, claimed.mistake) == ("convicted", None) and "no known point" in claimed.reason


# What the certificate says.


def test_the_certificate_in_words_and_in_plain_types():
    found = fp.certify(broken.scaffold(control=broken.scale), claims="scaffold", step=right.STEP,
                       local_steps=right.STEPS, seed=3)  # fmt: skip
    text = str(found)
    assert text.startswith("scaffold_round claims to be SCAFFOLD and is not: control_divided_by_selected.")
    assert "[NO] limit, some: ends" in text and "[NO] controls: c is" in text
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["mistake"] == "control_divided_by_selected" and plain["settings"]["local_steps"] == right.STEPS
    assert {finding["test"] for finding in plain["findings"]} >= {"rounds, everyone", "rounds, some", "limit"}
    assert all(set(f) == {"test", "ok", "measured", "expected", "reason"} for f in plain["findings"])


def test_the_sign_of_a_correction_is_told_apart_where_the_controls_are_seen():
    settings = {"step": right.STEP, "local_steps": right.STEPS}
    seen = fp.certify(broken.scaffold(correction=-1), claims="scaffold", seed=4, **settings)
    assert seen.mistake == "correction_sign_flipped"

    def hidden(w, agents):
        """The same, with other names for the controls."""
        for place in (agents.server, *(agent.memory for agent in agents)):
            if "mine" in place:
                place["c"] = place.pop("mine")
        new = broken.scaffold(correction=-1)(w, agents)
        for place in (agents.server, *(agent.memory for agent in agents)):
            place["mine"] = place.pop("c")
        return new

    found = fp.certify(hidden, claims="scaffold", seed=4, **settings)
    assert found.mistake == "control_sign_flipped" and "makes the same rounds" in found.reason


def test_the_step_of_a_function_may_have_any_size():
    for step in (1e-5, 30.0):
        found = fp.certify(lambda w, agents, s=step: w - s * sum(a.weight * a.field(w) for a in agents))
        assert found.behaves_like == "optimum" and found.passed  # not gradient exchange: p_k without K/L
        assert abs(found.settings["step"] - step) < 1e-9 * step


def test_a_class_whose_steps_have_another_name():
    """The engine draws as many samples as `local_steps` says: under another name all steps get the first one."""

    class Own(fp.Algorithm):
        rate: float
        E: int = 3

        def init(self, w):
            return w, ()

        def local(self, w, memory, agent):
            return fp.descend(agent, w, self.E, lambda y, e: y - self.rate * agent.field(y, e)) - w, memory

        def combine(self, w, inbox):
            return w + inbox.mean

    found = fp.certify(Own(0.1), claims="fedavg", step=0.1)
    assert found.settings["local_steps"] == 3
    assert [f.ok for f in found.findings if f.test.startswith("rounds")] == [True, True]


# Users' mistakes.


def nothing(w, agents):
    pass


def too_short(w, agents):
    return w[:2]


def not_there(w, agents):
    return w / agents[7].weight


def not_a_number(w, agents):
    return w * np.nan


def a_word(w, agents):
    return "w"


def imaginary(w, agents):
    return w + 1j


def single(w, agents):
    return right.fedavg(w, agents).astype(np.float32)


def leaving(w, agents):
    sys.exit(4)


def in_turn_given(w, agents):
    yield w


def without_agents(w):
    return w


def remembering():
    rounds = []

    def with_a_memory(w, agents):
        rounds.append(1)
        return w - 0.1 / len(rounds) * agents[0].field(w)

    return with_a_memory


@pytest.mark.parametrize(
    ("subject", "options", "words"),
    [
        (nothing, {}, "must return the new model, an array of 3 numbers; it returned nothing"),
        (a_word, {}, "it returned a str"),
        (too_short, {}, r"returned a model of shape \(2,\); the model it was given has \(3,\)"),
        (
            not_there,
            {},
            r"not_there raised IndexError in round 1: list index out of range \(test_certify.py, line \d+: .*\)",
        ),
        (not_a_number, {}, "not_a_number returned NaN in its first round"),
        (imaginary, {}, "an array of 3 numbers; it returned complex ones"),
        (single, {}, "single returned float32: rounds are compared to 1e-8, which takes double precision"),
        (leaving, {}, r"leaving raised SystemExit in round 1: 4 \(test_certify.py, line \d+: sys.exit\(4\)\)"),
        (in_turn_given, {}, "it returned a generator"),
        (without_agents, {}, "takes 1 positional argument but 2 were given"),
        (fp.FedRelax(coupling=1.0), {}, "certify cannot examine FedRelax: it is a method for networks"),
        (remembering(), {}, "gives other models when it is run again from the same start"),
        (right.fedavg, {"claims": "scafold"}, "unknown algorithm 'scafold': did you mean 'scaffold'"),
        (right.fedavg, {"stp": 1}, "unknown setting 'stp': did you mean 'step'"),
        (right.fedavg, {"local_steps": [1, 2]}, "local_steps has 2 numbers; the battery has 5 agents"),
        (right.fedavg, {"step": -1.0}, "step must be above 0"),
        (right.fedavg, {"claims": "qfedavg"}, "to compare it with q-FedAvg, give q= as it uses them"),
        (median, {"claims": "fedavg"}, "give step= and local_steps= as it uses them"),
        (right.scaffnew(0.4), {"claims": "scaffnew"}, "give probability= as it uses them"),
        (fp.FedAvg, {}, "takes an algorithm object or a function"),
        (fp.FedAvg(0.1), {"seed": -1}, "seed must be a whole number"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_users_mistake_is_one_message(subject, options, words):
    with pytest.raises(fp.FedpointError, match=words):
        fp.certify(subject, **options)


class Raises(SignDescent):
    def local(self, w, memory, agent):
        raise KeyError("weights")


class TurnsToNan(SignDescent):
    def combine(self, w, inbox):
        return w + jnp.log(-1.0 + 0 * w)


class Refuses(fp.FedAvg):
    """Steps of its own are short enough; those of the battery are not."""

    def check(self):
        if np.max(self.step) > 0.12:
            raise RuntimeError("too long a step")


class CallsBack(SignDescent):
    def local(self, w, memory, agent):
        def failing(x):
            raise OSError("no such device")

        like = jax.ShapeDtypeStruct(w.shape, w.dtype)
        return jax.pure_callback(failing, like, w, vmap_method="sequential"), memory


class HalfOfIt(fp.Channel):
    def encode(self, message, memory, agent):
        return message / 2, memory


def test_an_experiment_is_examined_with_its_channel():
    e = fp.Experiment(fp.FedAvg(step=0.1), fp.problems.Quadratic(1.0, [[0.0], [1.0]]), seed=3)
    assert fp.certify(e).to_dict() == fp.certify(fp.FedAvg(step=0.1)).to_dict()
    halved = fp.certify(e.replace(channel=HalfOfIt()))
    assert not halved.passed and halved.claim == "fedavg"


def test_a_class_that_fails():
    with pytest.raises(fp.FedpointError, match=r"Raises.local raised KeyError: 'weights' \(test_certify.py, line \d+"):
        fp.certify(Raises(0.1))
    with pytest.raises(fp.FedpointError, match=r"Refuses raised RuntimeError: too long a step \(test_certify.py, line"):
        fp.certify(Refuses(0.1))
    with pytest.raises(fp.FedpointError, match="CallsBack raised JaxRuntimeError"):
        fp.certify(CallsBack(0.1))
    with pytest.raises(fp.FedpointError, match="TurnsToNan left the finite numbers in its first round"):
        fp.certify(TurnsToNan(0.1))
