"""Worst cases against closed forms, against runs of the agents that attain them, and of methods that are broken."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.algorithms.scaffold import Controlled
from fedpoint.proofs import worst
from fedpoint.proofs.motion import Motion
from fedpoint.proofs.rounds import trace
from fedpoint.proofs.scenes import Class

pytest.importorskip("clarabel")

L, MU = 1.0, 0.1
SMOOTH = Class(L, MU)
PAIR = fp.Network.complete(2, weight=0.25)


def motion(method, agents=2, network=None):
    return Motion.of(trace(method, agents, network))


@pytest.mark.parametrize("step", [0.5, 1.9])
def test_gradient_descent_contracts_by_the_worse_end_of_the_spectrum(step):
    """max(|1 - s mu|, |1 - s L|), attained by quadratics."""
    exact = max(abs(1 - step * MU), abs(1 - step * L))
    for cls in (SMOOTH, Class(L, MU, quadratic=True)):
        assert worst.contraction(motion(fp.FedAvg(step)), cls).value == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("step", [0.5, 2.5])
def test_convex_losses_may_be_flat_or_as_steep_as_they_may(step):
    """strong = 0: a flat loss moves nothing, the steepest |1 - s L| times as far; minima need not be single."""
    one, convex = motion(fp.FedAvg(step)), Class(L, 0.0)
    assert worst.contraction(one, convex).value == pytest.approx(max(1.0, abs(1 - step * L)), abs=1e-6)
    proof = fp.prove(fp.FedAvg(step), L, strong=0.0, claims=["bias", "distance"])
    assert proof["distance"].value == pytest.approx(max(1.0, abs(1 - step * L)), abs=1e-6)
    assert proof["bias"].value == math.inf and "convex losses" in str(proof)


@pytest.mark.parametrize(("steps", "known"), [(2, 0.508), (3, 0.864), (5, 1.464)])
def test_bias_of_federated_averaging(steps, known):
    """Known values for L = 1, mu = 0.1, step 0.5 and G = 1, to the digits to which they are known."""
    assert worst.bias(motion(fp.FedAvg(0.5, steps)), SMOOTH, 1.0).value == pytest.approx(known, abs=5e-4)


def test_bias_grows_as_heterogeneity_does():
    """Losses times a number are not of the class, but lengths times a number are: the bias is proportional to G."""
    one = motion(fp.FedAvg(0.5, 2))
    assert worst.bias(one, SMOOTH, 3.0).value == pytest.approx(3 * worst.bias(one, SMOOTH, 1.0).value, rel=1e-5)
    assert worst.bias(one, SMOOTH, 0.0).value == pytest.approx(0.0, abs=1e-3)


def test_local_steps_contract_one_after_the_other():
    """(1 - s mu)^E for s <= 2/(L + mu), each step a contraction and a mean of contractions one too."""
    assert worst.contraction(motion(fp.FedAvg(0.5, 3)), SMOOTH).value == pytest.approx((1 - 0.5 * MU) ** 3, abs=1e-6)


def test_proximal_rounds_contract_by_a_resolvent():
    """v = argmin f(v) + pull/2 |v - w|^2 contracts by pull/(pull + mu)."""
    found = worst.contraction(motion(fp.FedProx(pull=0.5, exact=True)), SMOOTH)
    assert found.value == pytest.approx(0.5 / (0.5 + MU), abs=1e-6)


def test_two_agents_are_as_bad_as_three():
    two, three = (worst.bias(motion(fp.FedAvg(0.5, 2), agents), SMOOTH, 1.0).value for agents in (2, 3))
    assert two == pytest.approx(three, abs=1e-6)


def test_largest_step_of_gradient_descent():
    found = fp.prove(fp.FedAvg(0.3), L, MU, claims=["step"])["step"].value
    assert found == pytest.approx(2 / L, rel=2e-4)


CORRECTED = [
    (fp.Scaffold(0.3, 2), None),
    (fp.Scaffnew(step=0.3, local_steps=2), None),
    (fp.FedLin(0.3, 2), None),
    (fp.GradientTracking(0.3), PAIR),
]


@pytest.mark.parametrize(("method", "network"), CORRECTED, ids=lambda x: type(x).__name__)
def test_corrected_methods_end_at_the_solution(method, network):
    one = motion(method, network=network)
    assert worst.bias(one, SMOOTH, 1.0).value == 0.0
    assert worst.contraction(one, SMOOTH).value < 1


def test_fedlin_is_gradient_descent_for_one_step():
    assert worst.contraction(motion(fp.FedLin(0.3)), SMOOTH).value == pytest.approx(1 - 0.3 * MU, abs=1e-6)


def test_diffusion_is_biased_where_nodes_differ():
    """On quadratics f_k = (x -+ 1)^2/2, w = W (w - s (w -+ 1)) has nodes at +- s l/(1 - l (1 - s)), l = 1/2."""
    found = worst.bias(motion(fp.Diffusion(0.3), network=PAIR), Class(1.0, 0.999), 1.0)
    assert found.value == pytest.approx(0.3 * 0.5 / (1 - 0.5 * 0.7), abs=1e-3)


class Forgetful(fp.Scaffold):
    """Its controls are never stored."""

    def local(self, heard, c_k, agent):
        message, _ = super().local(heard, c_k, agent)
        return message, c_k


class Unshared(fp.Scaffold):
    """The hub's control never changes."""

    def combine(self, hub, inbox):
        return super().combine(hub, inbox)._replace(c=hub.c)

    def local(self, heard, c_k, agent):
        message, new = super().local(heard, c_k, agent)
        return message, 0.5 * new


class WrongSign(fp.Scaffold):
    """Controls push the other way."""

    def local(self, heard, c_k, agent):
        x, c = heard
        steps = agent.steps(self.local_steps)
        y = fp.descend(agent, x, steps, lambda y, e: y - self.step * (agent.field(y, e) + c_k - c))
        new = c_k - c + (x - y) / (steps * self.step)
        return Controlled(y - x, new - c_k), new


def test_forgotten_controls_are_convicted():
    """With c_k = 0 for ever and c the sum of what is told, w* is no fixed point for all agents."""
    one = motion(Forgetful(0.3, 2))
    assert worst.bias(one, SMOOTH, 1.0).value > 0.1


def test_halved_controls_are_convicted():
    assert worst.bias(motion(Unshared(0.3, 2)), SMOOTH, 1.0).value > 0.1


def test_controls_of_the_wrong_sign_are_convicted():
    """w* is a fixed point, and runs leave it."""
    assert worst.contraction(motion(WrongSign(0.3, 2)), SMOOTH).value == math.inf


# The agents of a worst case.


def test_runs_of_the_worst_agents_attain_what_is_proved():
    proof = fp.prove(fp.FedAvg(0.5, 2), L, MU, claims=["contraction", "bias"], attain=True)
    for claim in proof.claims.values():
        assert claim.attained == pytest.approx(claim.value, abs=1e-6), claim.name


def test_worst_quadratics_are_attained():
    proof = fp.prove(fp.Scaffold(0.3, 2), L, MU, claims=["distance"], quadratic=True, attain=True)
    claim = proof["distance"]
    assert claim.attained == pytest.approx(claim.value, abs=1e-5)
    curvatures = np.linalg.eigvalsh(claim.experiments[0].problem.linear_fields()[0])
    assert curvatures.min() >= MU - 1e-9 and curvatures.max() <= L + 1e-9


def test_worst_agents_are_of_the_class():
    """Fields between random points are mu-strongly monotone and L-cocoercive, as gradients of the class are."""
    problem = fp.prove(fp.FedAvg(0.5, 2), L, MU, claims=["bias"])["bias"].experiments[0].problem
    rng = np.random.default_rng(0)
    for _ in range(10):
        x, y = 3 * rng.normal(size=(2, problem.start().size))
        for g, h in zip(problem.fields(x), problem.fields(y), strict=True):
            inner, gap = (g - h) @ (x - y), (x - y) @ (x - y)
            assert inner >= MU * gap - 1e-7
            assert (L + MU) * inner >= (g - h) @ (g - h) + L * MU * gap - 1e-6
    assert np.abs(problem.weights @ problem.fields(problem.solution())).max() < 1e-7


def test_no_bound_of_a_lecture_that_is_strict_is_below_the_worst_case():
    proof = fp.prove(fp.FedAvg(0.15), L, MU, claims=["contraction"])
    strict = [p for c in proof.claims.values() for p in c.promises if p.strict]
    assert strict and all(p.looseness >= 1 - 1e-6 for p in strict)
    assert "Vlaski and Sayed (20)" in proof.text()


# What is refused, with its line.


class Signs(fp.FedAvg):
    def local(self, w, memory, agent):
        return -self.step * jnp.sign(agent.field(w)), memory


class Normed(fp.FedAvg):
    def local(self, w, memory, agent):
        g = agent.field(w)
        size = jnp.linalg.norm(g)
        return -self.step * g / size, memory


class Summed(fp.FedAvg):
    def local(self, w, memory, agent):
        return -self.step * (agent.field(w) + w.mean()), memory


class Decayed(fp.FedAvg):
    def local(self, w, memory, agent):
        return -self.step * (agent.field(w) + 0.1 * w), memory


class Lossy(fp.FedAvg):
    def local(self, w, memory, agent):
        return -self.step * agent.loss(w) * agent.field(w), memory


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Signs, r"sign is not linear in vectors \(test_worst_cases.py, line \d+: return -self.step \* jnp.sign"),
        (Normed, r"it multiplies two vectors \(test_worst_cases.py, line \d+: size = jnp.linalg.norm"),
        (Summed, r"adds them up \(test_worst_cases.py, line \d+: return -self.step \* \(agent.field\(w\) \+ w.mean"),
        (Decayed, "drawn to the origin"),
        (Lossy, r"asks for losses \(test_worst_cases.py, line \d+: return -self.step \* agent.loss"),
    ],
)
def test_what_is_not_linear_is_refused_by_its_line(cls, said):
    with pytest.raises(fp.FedpointError, match=said):
        fp.prove(cls(0.1), L, MU, claims=["distance"])


def test_random_rounds_are_refused():
    with pytest.raises(fp.FedpointError, match="draws its number of local steps"):
        fp.prove(fp.Scaffnew(step=0.3, probability=0.5), L, MU)


def test_long_rounds_are_refused_by_claim():
    claim = fp.prove(fp.FedAvg(0.1, 4), L, MU, rounds=9, claims=["distance"])["distance"]
    assert claim.value is None and "fewer local steps" in claim.why


def test_schedules_of_steps_have_a_distance_only():
    schedule = fp.steps.InverseTime.lecture004(strong=MU, smooth=L, local_steps=2)
    proof = fp.prove(fp.FedAvg(schedule, 2), L, MU, rounds=2, claims=["bias", "distance"])
    assert proof["bias"].value is None and "rounds of FedAvg differ" in proof["bias"].why
    assert 0 < proof["distance"].value < 1.5


def test_bad_input():
    with pytest.raises(fp.FedpointError, match="strong must be below smooth"):
        fp.prove(fp.FedAvg(0.1), 1.0, 2.0)
