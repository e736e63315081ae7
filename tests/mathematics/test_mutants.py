"""Does the suite convict? Every algorithm obeys its law (`laws.py`), and every broken variant of it violates it.

A mutant (`mutants.py`, `network_mutants.py`) is the library's class with one plausible mistake. The laws are those that
the other files of this folder build on; a law that a mutant passes would be too weak.
"""

import inspect

import executions
import laws
import network_mutants  # noqa: F401 - registers its own
import pytest
from mutants import MUTANTS

import fedpoint as fp

BY_HAND = [(name, law) for name in laws.LAWS for law in laws.LAWS[name] if (name, law) not in laws.SAMPLED]


@pytest.mark.parametrize(("name", "law"), sorted(laws.ENGINE))
def test_the_librarys_algorithm_obeys_its_laws(name, law):
    laws.LAWS[name][law](fp.CATALOGUE[name].cls, executions.engine)


@pytest.mark.parametrize(("name", "law"), BY_HAND)
def test_the_librarys_algorithm_obeys_its_laws_by_hand(name, law):
    laws.LAWS[name][law](fp.CATALOGUE[name].cls, executions.by_hand)


@pytest.mark.parametrize(("name", "law", "broken"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_variant_is_convicted(name, law, broken):
    with pytest.raises(AssertionError):
        laws.LAWS[name][law](broken, executions.by_hand)


def test_every_algorithm_of_the_library_has_laws_and_mutants():
    own = {
        name
        for name, card in fp.CATALOGUE.items()
        if inspect.getmodule(card.cls).__name__.startswith("fedpoint.algorithms")
    }
    assert own == set(laws.LAWS), "write its laws in laws.py"
    assert own == {name for name, _, _ in MUTANTS}, "write a broken variant in mutants.py"
