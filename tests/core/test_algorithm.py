"""Cards, names, and the messages for hyper-parameters that make no sense."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.algorithms import CATALOGUE
from fedpoint.core.algorithm import find, samples_per_round


def quad(agents=3):
    return fp.problems.Quadratic(1.0, np.arange(agents)[:, None] * 1.0)


def test_the_catalogue_holds_the_methods_of_the_lectures():
    assert set(CATALOGUE) >= {
        "gradient_exchange",
        "parameter_exchange",
        "fedavg",
        "fedprox",
        "general_rule",
        "fednova",
        "scaffold",
        "scaffnew",
        "qfedavg",
        "fedopt",
        "fedgd",
        "fedsgd",
        "fedrelax",
    }


def test_a_card_says_whether_its_method_is_for_networks():
    assert {name for name, card in CATALOGUE.items() if card.network} == {
        *("fedgd", "fedsgd", "fedrelax"),
        *("diffusion", "exact_diffusion", "extra", "gradient_tracking", "push_sum"),
    }
    assert not fp.Card("own", "Own", "a card without a class", "").network


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_card_says_what_the_table_and_the_citation_need(name):
    card = CATALOGUE[name]
    assert card.name == name and card.cls.card == card and getattr(fp, card.cls.__name__) is card.cls
    assert card.title and card.summary and card.limit and card.references
    assert bool(card.lecture) == bool(card.taught)  # which lectures, by number and by name, or none
    assert (card.participation is None) or not set(card.participation) - {
        "Everyone",
        "Uniform",
        "ByWeight",
        "Importance",
        "Answering",
    }
    everything = {"Everyone", "Uniform", "ByWeight", "Importance", "Answering"}
    assert card.restriction or card.participation is None or set(card.participation) == everything
    for reference in card.references:
        assert reference.bibtex().startswith(f"@{reference.kind}{{{reference.key},") and reference.year > 2000
        assert str(reference.year) in reference.text() and " and " not in reference.text().split(".")[0]
    assert ">>>" in card.cls.__doc__ and "References:" in card.cls.__doc__


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("fedavg", "fedavg"),
        ("FedAvg", "fedavg"),
        ("SCAFFOLD", "scaffold"),
        ("Gradient exchange", "gradient_exchange"),
        ("gradient-exchange", "gradient_exchange"),
        ("GradientExchange", "gradient_exchange"),
        ("q-FedAvg", "qfedavg"),
        ("fed_nova", "fednova"),
    ],
)
def test_a_card_is_found_whatever_case_dashes_and_spaces(written, name):
    assert find(written).name == name


@pytest.mark.parametrize(("written", "guess"), [("fedavgg", "fedavg"), ("scafold", "scaffold"), ("fednov", "fednova")])
def test_an_unknown_name_suggests_the_nearest(written, guess):
    with pytest.raises(fp.FedpointError, match=f"unknown algorithm '{written}': did you mean '{guess}'"):
        find(written)


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(fp.FedpointError, match=r"Known: apfl, .*fedavg, .*scaffold") as caught:
        find("zzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.FedAvg(step=-0.1), "FedAvg: step must be above 0, got -0.1"),
        (lambda: fp.FedAvg(step=0.0), "FedAvg: step must be above 0"),
        (lambda: fp.FedAvg(step=float("nan")), "FedAvg: step must be a number, got nan"),
        (lambda: fp.FedAvg(step=float("inf")), "FedAvg: step must be .*got inf"),
        (lambda: fp.FedAvg(step=[0.1, -0.1]), "FedAvg: step must be above 0"),
        (lambda: fp.FedAvg(step="fast"), "FedAvg: step must be a number, got 'fast'"),
        (lambda: fp.FedAvg(step=0.1, local_steps=0, normalise=True), "local_steps must be at least 1, got 0"),
        (lambda: fp.FedAvg(step=0.1, local_steps=2.5, normalise=True), "local_steps must be whole numbers, got 2.5"),
        (lambda: fp.FedAvg(step=0.1, local_steps=[1, 0], normalise=True), "local_steps must be at least 1"),
        (lambda: fp.GradientExchange(step=[0.1, 0.2]), "step must be one number, got 2 .*fp.sweep"),
        (lambda: fp.GradientExchange(step=-1.0), "GradientExchange: step must be above 0"),
        (lambda: fp.ParameterExchange(step=-1.0), "ParameterExchange: step must be above 0"),
        (lambda: fp.FedProx(step=0.1, pull=-1.0), "FedProx: pull must be at least 0"),
        (lambda: fp.FedProx(), "give step=, or exact=True"),
        (lambda: fp.FedProx(pull=0.0, exact=True), "needs a pull above 0"),
        (lambda: fp.FedNova(0.1, momentum=1.0), "momentum must be below 1, got 1"),
        (lambda: fp.FedNova(0.1, momentum=-0.1), "momentum must be at least 0"),
        (lambda: fp.FedNova(0.1, decay=0.0), "decay must be above 0"),
        (lambda: fp.GeneralRule(0.1, weights="fedova"), "did you mean 'fednova'"),
        (lambda: fp.GeneralRule(0.1, 2, coefficients=[1.0, 2.0], momentum=0.5), "coefficients are for plain steps"),
        (lambda: fp.Scaffold(0.1, option=3), "option must be 1 or 2, got 3"),
        (lambda: fp.Scaffold(0.1, server_step=0.0), "server_step must be above 0"),
        (lambda: fp.Scaffnew(0.1), "give probability=, or a fixed local_steps="),
        (lambda: fp.Scaffnew(0.1, probability=1.5), "probability must be at most 1"),
        (lambda: fp.Scaffnew(0.1, probability=0.0), "probability must be above 0"),
        (lambda: fp.Scaffnew(0.1, local_steps=0), "local_steps must be at least 1"),
        (lambda: fp.Scaffnew(0.1, local_steps=2.5), "local_steps must be whole numbers, got 2.5"),
        (lambda: fp.Scaffnew(0.1, local_steps=[1, 2]), "local_steps must be one number, got 2"),
        (lambda: fp.GeneralRule(0.1, 5, coefficients=[1.0, 2.0]), "2 coefficients for 5 local steps"),
        (lambda: fp.GeneralRule(0.1, 2, coefficients=[1.0, -1.0]), "none negative, not all zero"),
        (lambda: fp.FedNova(0.1, effective=-1.0), "effective must be above 0"),
        (lambda: fp.QFedAvg(q=-1.0, step=0.1), "QFedAvg: q must be at least 0"),
        (lambda: fp.FedOpt(0.1, server="adm"), "unknown server 'adm': did you mean 'adam'"),
        (lambda: fp.FedOpt(0.1, second=1.0), "second must be below 1"),
        (lambda: fp.FedOpt(0.1, adaptivity=0.0), "adaptivity must be above 0"),
        (lambda: fp.FedGD(0.0), "FedGD: step must be above 0"),
        (lambda: fp.FedGD(0.1, coupling=-1.0), "FedGD: coupling must be at least 0"),
        (lambda: fp.FedGD(0.1, coupling=[1.0, 2.0]), "FedGD: coupling must be one number"),
        (lambda: fp.FedSGD(0.1, local_steps=0), "local_steps must be at least 1"),
        (lambda: fp.FedRelax(-1.0), "FedRelax: coupling must be at least 0"),
    ],
)
def test_a_hyper_parameter_out_of_range_is_refused_by_name(make, words):
    with pytest.raises(fp.FedpointError, match=words):
        make()


def test_whole_floats_are_whole_numbers():
    algorithm = fp.FedAvg(0.1, local_steps=3.0, normalise=True)
    assert algorithm.local_steps == 3 and isinstance(algorithm.local_steps, int)


@pytest.mark.parametrize(
    "algorithm",
    [
        fp.FedAvg(0.1, local_steps=[1, 2], normalise=True),
        fp.FedAvg([0.1, 0.2]),
        fp.Scaffold(0.1, local_steps=[1, 2, 3, 4]),
        fp.GeneralRule(0.1, weights=[0.5, 0.5]),
    ],
)
def test_numbers_per_agent_must_be_as_many_as_the_agents(algorithm):
    with pytest.raises(fp.FedpointError, match=r"has \d values, but there are 3 agents"):
        fp.run(algorithm, quad(3), rounds=1)


def test_how_many_samples_a_round_draws_is_known_before_it():
    assert samples_per_round(fp.GradientExchange(0.1)) == 1
    assert samples_per_round(fp.FedAvg(0.1, local_steps=[2, 7], normalise=True)) == 7
    assert samples_per_round(fp.FedAvg(0.1, local_steps=fp.steps.Stragglers(4, 0.5), normalise=True)) == 4
    assert samples_per_round(fp.Scaffold(0.1, 3)) == 3
    assert samples_per_round(fp.Scaffold(0.1, 3, option=1)) == 4
    assert samples_per_round(fp.Scaffnew(0.1, probability=0.5)) is None


def test_an_algorithm_of_ones_own_needs_three_methods():
    class Half(fp.Algorithm):
        def init(self, w):
            return w, ()

        def local(self, w, memory, agent):
            return w, memory

    with pytest.raises(fp.FedpointError, match="algorithm Half lacks the method 'combine'"):
        Half()


def test_an_algorithm_of_ones_own_has_a_card_but_is_not_in_the_catalogue():
    before = dict(CATALOGUE)

    class MyMethod(fp.Algorithm):
        """Half a step.

        More.
        """

        step: float

        def init(self, w):
            return w, ()

        def local(self, w, memory, agent):
            return -self.step * agent.field(w), memory

        def combine(self, w, inbox):
            return w + inbox.mean

    assert MyMethod.card.name == "my_method" and MyMethod.card.summary == "Half a step."
    assert before == CATALOGUE
    run = fp.run(MyMethod(0.5), quad(), rounds=1)
    np.testing.assert_allclose(run.model, [[0.5]])


def test_algorithms_print_and_compare_by_value():
    assert fp.FedAvg(0.1, 3, normalise=True) == fp.FedAvg(0.1, 3, normalise=True) and fp.FedAvg(
        0.1, 3, normalise=True
    ) != fp.FedAvg(0.1, 4, normalise=True)
    assert "step=0.1" in repr(fp.FedAvg(0.1)) and "local_steps=1" in repr(fp.FedAvg(0.1))
