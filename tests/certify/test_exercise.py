"""What the tests of a certificate never put to use is said, with its line; and nothing that was put to use is."""

import contextlib
import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import right
from jax import lax
from objects import OBJECTS

import fedpoint as fp
from fedpoint.cli.certify import opened
from fedpoint.verbs.certify.exercise import not_watched

NEVER, OFTEN = 1e6, 1.0  # lengths of a field: those of the battery are of order ten at first, and vanish in the end


def line(function, text):
    """Where a text stands in the source of a function."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [first + i for i, words in enumerate(lines) if text in words]
    return found


# Plain functions: each cuts a field off at a length, and marks the line where it does.


def as_if(g, most):
    n = np.linalg.norm(g)
    if n > most:
        g = g * most / n  # here
    return g


def as_min(g, most):
    return g * min(1.0, most / np.linalg.norm(g))  # here


def as_max(g, most):
    return g / max(1.0, np.linalg.norm(g) / most)  # here


def as_clip(g, most):
    return np.clip(g, -most, most)  # here


def as_method(g, most):
    return g.clip(-most, most)  # here


def as_where(g, most):
    return np.where(np.abs(g) > most, np.sign(g) * most, g)  # here


def as_minimum(g, most):
    return g * np.minimum(1.0, most / np.sqrt(np.sum(g**2)))  # here


def as_expression(g, most):
    n = np.sqrt(g @ g)
    return g * most / n if n > most else g  # here


def as_mask(g, most):
    g = g.copy()
    g[np.abs(g) > most] = most  # here
    return g


def number_by_number(g, most):
    n = sum(x * x for x in g) ** 0.5
    return g * min(1.0, most / n)  # here


def as_loop(g, most):
    while np.linalg.norm(g) > most:
        g = g / 2  # here
    return g


CUTS = (
    *(as_if, as_min, as_max, as_clip, as_method, as_where, as_minimum, as_expression, as_mask, number_by_number),
    as_loop,
)


def fedavg(cut, most):
    def averaging(w, agents):
        new = w
        for agent in agents:
            y = w
            for _ in range(3):
                y = y - right.STEP * cut(agent.field(y), most)
            new = new + right.scale(agent, agents) * (y - w)
        return new

    return averaging


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_clipping_that_never_acts_is_said_and_clipping_that_acts_is_not(cut):
    found = fp.certify(fedavg(cut, NEVER), claims="fedavg")
    (part,) = found.unexercised
    assert found.passed and part.file == __file__ and part.line == line(cut, "# here")
    assert f"never exercised: test_exercise.py, line {part.line}: " in found.text()
    assert found.to_dict()["unexercised"][0] == vars(part)
    acting = fp.certify(fedavg(cut, OFTEN), claims="fedavg", step=right.STEP, local_steps=3)
    assert acting.verdict == "convicted" and acting.unexercised == []


def test_what_was_chosen_is_told():
    said = {cut: fp.certify(fedavg(cut, NEVER)).unexercised[0] for cut in (as_if, as_expression, as_min)}
    assert (said[as_if].code, said[as_if].reason) == ("g = g * most / n  # here", "this line never ran")
    assert (said[as_expression].code, said[as_expression].reason) == ("n > most", "it was always false")
    assert said[as_min].code == "min(1.0, most / np.linalg.norm(g))"


def guarded(w, agents):
    if len(agents) == 0:
        raise ValueError("nobody takes part")
    if agents.round < 0:
        w = w + 1
        w = w + 2
    elif agents.round % 2:
        w = w.copy()
    return right.fedavg(w, agents)


def test_lines_are_told_block_by_block():
    (part,) = fp.certify(guarded).unexercised
    assert (part.line, part.code) == (line(guarded, "w + 1"), "w = w + 1")
    assert part.reason == f"this line never ran (nor what follows, to line {part.line + 1})"


def refusing(w, agents):
    new = right.fedavg(w, agents)
    if np.linalg.norm(new) > 1e12:
        raise ValueError(
            "too far",
        )
    if np.abs(new).max() > 1e12:
        raise ValueError("too far")
    assert np.all(np.abs(new) < 1e12), "too far"
    return new


def test_refusals_are_not_told():
    assert fp.certify(refusing).unexercised == []


def decorated(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)

    return inner


@decorated
@decorated
def all_of_it(
    w,
    agents,
    far=lambda x: (
        x > 0  # both ways
    ),
):
    """Every statement runs, however it is written."""
    total, seen = {"change": 0.0}, 0

    class Local:
        step = right.STEP

    def add(change):
        nonlocal seen
        seen += 1
        total["change"] = total["change"] + change

    try:
        for agent in agents:
            with contextlib.suppress(KeyError):
                agent.memory["not there"]
            match agent.index % 2:
                case 0:
                    factor = 1.0
                case _:
                    factor = (
                        2.0
                        / 2.0
                    )  # fmt: skip
            add(
                factor
                * right.scale(agent, agents)
                * agent.field(w)
            )  # fmt: skip
        else:
            seen -= len(agents)
    finally:
        total["sides"] = [
            1.0 if far(x) else 0.0
            for x in total["change"]
            if not seen
        ]  # fmt: skip
    return w - Local.step * total["change"]


def test_of_what_ran_nothing_is_told_however_it_is_written():
    assert fp.certify(all_of_it, claims="gradient_exchange").unexercised == []


def only_with_noise(w, agents):
    """Two samples differ only where fields are noisy."""
    change = 0.0
    for agent in agents:
        one, two = agent.field(w), agent.field(w)
        if np.all(one == two):
            two = one
        else:
            one = (one + two) / 2
        change = change + right.scale(agent, agents) * one
    return w - right.STEP * change


def only_with_some(w, agents):
    factor = 1.0 if len(agents) == agents.population else agents.population / len(agents)
    if len(agents) < agents.population:
        factor = factor * 1.0
    return w - right.STEP * sum(agent.weight * factor * agent.field(w) for agent in agents)


@pytest.mark.parametrize("subject", [only_with_noise, only_with_some])
def test_rounds_with_noise_and_with_some_count(subject):
    assert fp.certify(subject).unexercised == []


UNUSED = {
    "Scaffnew": ["H, p = steps, 1 / steps"],
    "Scaffnew, fixed": ["rng = agents.server.setdefault"],
    "FedDyn": ["y = agent.prox("],
    "FedDyn, exact": ["for _ in range(3):"],
    "Diffusion": ["new = M @ x + stepped("],
    "Diffusion, combine first": ["new = M @ x + stepped("],
}


@pytest.mark.parametrize("case", right.FUNCTIONS)
def test_of_right_functions_only_what_they_were_not_asked_for_is_said(case):
    """Of Scaffnew's two ways to count its steps one is not taken, nor of FedDyn's two ways to solve; fields
    before diffusion's mean are a mistake."""
    function, claim, settings = right.FUNCTIONS[case]
    found = fp.certify(function, claims=claim, **settings)
    assert found.passed
    assert [part.code[: len(code)] for part, code in zip(found.unexercised, UNUSED.get(case, []), strict=True)] == (
        UNUSED.get(case, [])
    )


def wants_floats(w, agents):
    assert all(isinstance(agent.loss(w), float) for agent in agents)
    return right.fedavg(w, agents)


def test_a_function_that_cannot_be_watched_is_told_so():
    found = fp.certify(wants_floats, claims="fedavg")
    assert found.passed and "not watched: wants_floats: which parts of it were put to use is not known" in str(found)


def test_without_its_source_nothing_is_known_of_it():
    made = {"__name__": "__main__", "fp": fp, "np": np}
    exec("def typed(w, agents):\n    return w - 0.1 * np.clip(agents[0].field(w), -1e9, 1e9)", made)
    exec("class Typed(fp.FedAvg):\n    def combine(self, w, inbox):\n        return w + inbox.mean", made)
    for subject in (made["typed"], made["Typed"](0.1)):
        assert [part.reason for part in fp.certify(subject).unexercised] == ["its source is not available"]
    assert not_watched("zeros", [jnp.zeros_like])[0].reason == "it belongs to an installed package"


CHANGED = """
from numpy import clip

def round(w, agents):
    return w - 0.1 * sum(a.weight * clip(a.field(w), -1e9, 1e9) for a in agents)
"""


def test_a_file_that_was_changed_is_read_again(tmp_path):
    for more in (0, 1):
        (tmp_path / "own.py").write_text(more * "# one line more\n" + CHANGED)
        with opened(f"{tmp_path / 'own.py'}:round") as subject:
            (part,) = fp.certify(subject).unexercised
        assert (part.line, part.code) == (5 + more, "clip(a.field(w), -1e9, 1e9)")


def leaves_numpy(g, most):
    return g * min(1.0, most / math.sqrt(g @ g))


def test_numbers_that_leave_numpy_are_not_followed():
    """As docs/certify.md says."""
    assert fp.certify(fedavg(leaves_numpy, NEVER)).unexercised == []


# Classes.


def by_minimum(g, most):
    return g * jnp.minimum(1.0, most / jnp.linalg.norm(g))  # here


@jax.jit
def compiled(g, most):
    n = jnp.linalg.norm(g)
    return jnp.where(n > most, g * most / n, g)  # here


def by_clip(g, most):
    return jnp.clip(g, -most, most)  # here


def by_method(g, most):
    return g.clip(-most, most)  # here


def by_clamp(g, most):
    return lax.clamp(-most, g, most)  # here


def by_cond(g, most):
    return lax.cond(
        jnp.linalg.norm(g) > most,  # here
        lambda g: g * most / jnp.linalg.norm(g),
        lambda g: g,
        g,
    )


def by_loop(g, most):
    return lax.while_loop(lambda g: jnp.linalg.norm(g) > most, lambda g: g / 2, g)  # here


JAX_CUTS = (by_minimum, compiled, by_clip, by_method, by_clamp, by_cond, by_loop)


class Cutting(fp.Algorithm):
    """FedAvg of fields that are cut off; the cut is structure, its length a number."""

    step: float
    cut: object = by_minimum
    most: float = NEVER
    local_steps: int = 3

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        def advance(y, e):
            return y - self.step * self.cut(agent.field(y, e), self.most)

        return fp.descend(agent, w, self.local_steps, advance) - w, memory

    def combine(self, w, inbox):
        return w + inbox.mean


FEW = (by_minimum, by_cond)


@pytest.mark.parametrize(
    "cut", [c if c in FEW else pytest.param(c, marks=pytest.mark.slow) for c in JAX_CUTS], ids=lambda cut: cut.__name__
)
def test_in_a_class_too(cut):
    found = fp.certify(Cutting(0.1, cut, NEVER), claims="fedavg")
    (part,) = found.unexercised
    assert found.passed and part.file == __file__ and part.line == line(inspect.unwrap(cut), "# here")
    acting = fp.certify(Cutting(0.1, cut, 0.1), claims="fedavg")
    assert not acting.passed and acting.unexercised == []


def plain_steps(g, most):
    """Indices, remainders and medians are full of decisions, none of which is the user's."""
    row = jnp.arange(3.0)[jnp.argmax(g)] + jnp.median(g) % 2 + jnp.linalg.norm(g) // 3 + g.at[0].set(1.0).sum()
    return g + 0.0 * row


def both_sides(g, most):
    """In a loop, in a branch, in a function of its own: each comes out either way."""
    up = lax.fori_loop(0, 2, lambda i, x: jnp.maximum(x, i * 1.0), g)
    sign = lax.cond(g[0] > 0, lambda x: jnp.where(x > 0, 1.0, -1.0), lambda x: jnp.sign(x), g)
    return g + 0.0 * (up + sign + jax.jit(lambda x: jnp.minimum(x, -x))(g))


@pytest.mark.parametrize("cut", [plain_steps, both_sides])
def test_nothing_is_said_of_what_was_put_to_use(cut):
    found = fp.certify(Cutting(0.1, cut, 0.0), claims="fedavg")
    assert found.passed and found.unexercised == []


class Optional(Cutting):
    """What Python decides is decided while it is traced."""

    def combine(self, w, inbox):
        if self.local_steps > 100:
            return w  # here
        return jnp.where(inbox.mass < 0.9, w + inbox.mean, w + inbox.mean)


def test_lines_of_a_class_that_were_not_traced():
    found = fp.certify(Optional(0.1, plain_steps), claims="fedavg")
    assert [(part.line, part.reason) for part in found.unexercised] == [
        (line(Optional, "# here"), "this line never ran")
    ]


FEW_OBJECTS = ("SCAFFOLD", "FedYogi")


@pytest.mark.parametrize("case", [c if c in FEW_OBJECTS else pytest.param(c, marks=pytest.mark.slow) for c in OBJECTS])
def test_of_the_catalogue_nothing_is_said(case):
    """Derived from, so that it is a user's: what the library decides in its own lines is not his."""
    method = OBJECTS[case]()
    own = type("Own", (type(method),), {"__doc__": "Somebody's."})
    found = fp.certify(own(**{name: value for name, value in vars(method).items() if not name.startswith("_")}))
    assert found.passed and found.unexercised == []


BESIDE = """
def cut(g, most):
    if (g @ g) ** 0.5 > most:
        g = 0 * g
    return g
"""
OWN = """
from cutting_off import cut

def round(w, agents):
    return w - 0.1 * sum(a.weight * cut(a.field(w), 1e9) for a in agents)
"""


def test_a_part_may_lie_in_another_file(tmp_path):
    for name, text in (("cutting_off", BESIDE), ("own", OWN)):
        (tmp_path / f"{name}.py").write_text(text)
    with opened(f"{tmp_path / 'own.py'}:round") as subject:
        (part,) = fp.certify(subject).unexercised
    assert (part.file, part.line, part.code) == (str(tmp_path / "cutting_off.py"), 4, "g = 0 * g")
