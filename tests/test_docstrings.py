"""Docstrings: every public argument is explained, and the one reader of docstrings finds it."""

import importlib
import inspect
from dataclasses import fields, is_dataclass

import pytest

import fedpoint as fp
from fedpoint.config.plans import PlanTable
from fedpoint.core.docstrings import meanings, method_meanings, methods, parameters, parsed

ROOMS = sorted(name for name in fp._SUBMODULES if name != "trackers")


def public():
    """(name, thing) of every public function and class, each once."""
    seen = set()
    for room in ["", *ROOMS]:
        module = importlib.import_module(fp._SUBMODULES[room]) if room else fp
        names = getattr(module, "__all__", None) if room else fp._HOME
        for name in names if names is not None else [n for n in vars(module) if not n.startswith("_")]:
            thing = getattr(module, name)
            known = str(getattr(thing, "__module__", "")).startswith("fedpoint")
            if known and callable(thing) and id(thing) not in seen:
                seen.add(id(thing))
                yield ".".join(filter(None, ("fp", room, name))), thing


def arguments(thing):
    """The names that need an explanation: those of the call, and the fields of a dataclass that are not private."""
    try:
        names = [n for n in inspect.signature(thing).parameters if n not in ("self", "args", "kwargs")]
    except (TypeError, ValueError):
        names = []
    if inspect.isclass(thing) and is_dataclass(thing):
        names += [f.name for f in fields(thing) if not f.name.startswith("_")]
    return list(dict.fromkeys(names))


def undocumented(thing):
    explained = meanings(thing)
    return [name for name in arguments(thing) if not explained.get(name)]


def test_every_public_argument_is_explained():
    things = list(public())
    missing = {name: found for name, thing in things if (found := undocumented(thing))}
    assert not missing, "\n".join(f"{name}: {', '.join(found)}" for name, found in missing.items())
    assert len(things) > 200


def unexplained_of_methods(cls):
    """Arguments of its methods that neither the method nor the class explains, nor those it is made of."""
    for name, method in methods(cls).items():
        explained = method_meanings(cls, name)
        for argument in parameters(method):
            if not explained.get(argument):
                yield f"{method.__module__}: {method.__qualname__}({argument})"


def test_every_argument_of_a_public_method_is_explained():
    missing = {told for _, thing in public() if inspect.isclass(thing) for told in unexplained_of_methods(thing)}
    assert not missing, "\n".join(sorted(missing))


def test_methods_inherit_explanations_by_name_and_by_place():
    class Base:
        """A base.

        Arguments of methods:
            w: a model.
        """

        def read(self, hub, w):
            """Read.

            Args:
                hub: the state.
            """

        def rest(self, more): ...

    class Child(Base):
        def read(self, h, w): ...

    Base.__module__ = Child.__module__ = "fedpoint.a_test"
    assert method_meanings(Child, "read") == {"h": "the state.", "w": "a model."}
    assert [told.split(".")[-1] for told in unexplained_of_methods(Child)] == ["rest(more)"]


def test_an_undocumented_argument_is_noticed():
    def move(step, count):
        """Move.

        Args:
            step: how far. count: how often (an item starts a line, so this one is not explained).
        """

    assert undocumented(move) == ["count"]


def test_every_key_of_a_file_is_explained():
    schema = fp.schema()
    tables = {"the file": schema, "[plan]": PlanTable.model_json_schema(), **schema["$defs"]}
    bare = {
        f"{name}: {key}"
        for name, table in tables.items()
        for key, said in table.get("properties", {}).items()
        if not said.get("description") and key not in ("kind", "name", "scheme")  # which the table is called by
    }
    assert not bare and len(tables) > 80, sorted(bare)


@pytest.mark.parametrize("name", ["fp.Scaffold", "fp.run", "fp.plan"])
def test_explained_arguments_exist(name):
    thing = getattr(fp, name.removeprefix("fp."))
    assert parsed(thing.__doc__).summary and parsed(thing.__doc__).example.startswith(">>>")
