"""What a probe measures, against closed forms on least squares; what it predicts, against enumerated rounds."""

import functools

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.results.probe import Probe
from fedpoint.theory import probing

DRAW = np.random.default_rng(0)
A = [DRAW.normal(size=(6, 3)) * scale for scale in (1.0, 1.5, 0.5, 1.0)]
B = [DRAW.normal(size=6) + k for k in range(4)]
WEIGHTS = np.array([0.4, 0.3, 0.2, 0.1])
PROBLEM = fp.problems.LeastSquares(A, B, weights=WEIGHTS, mean=True, batch=1)
STEP = 0.05
METHOD = fp.FedAvg(step=STEP, local_steps=5)


class Forgetful(Probe):
    """A mutant: agents do not drift apart, and few are as good as all."""

    def gain(self, local_steps, participants=None, scaffold=False, at=-1):
        return super().gain(local_steps, self.agents, True, at)


def closed(w) -> dict[str, float]:
    """All that is measured, written out."""
    H = [a.T @ a / 6 for a in A]
    g = np.array([a.T @ (a @ w - b) / 6 for a, b in zip(A, B, strict=True)])
    rows = [a * (a @ w - b)[:, None] for a, b in zip(A, B, strict=True)]  # gradients of single rows
    S = sum(p * (r - x).T @ (r - x) / 6 for p, r, x in zip(WEIGHTS, rows, g, strict=True))
    mean, curved = WEIGHTS @ g, sum(p * h for p, h in zip(WEIGHTS, H, strict=True))
    d = g - mean
    D = sum(p * h @ x for p, h, x in zip(WEIGHTS, H, d, strict=True))
    return {
        "square": mean @ mean,
        "heterogeneity": WEIGHTS @ (d**2).sum(1),
        "largest": np.linalg.eigvalsh(curved)[-1],
        "drift": mean @ D,
        "drift_square": D @ D,
        "noise": np.trace(S),
        "noise_curvature": np.trace(S @ curved),
        "spread_curvature": sum(p * x @ curved @ x for p, x in zip(WEIGHTS, d, strict=True)),
    }


W = np.array([1.0, -0.5, 2.0])


@functools.cache
def measured(samples=8, signs=8, few=2, oracle=PROBLEM.oracle):
    """At W, with so many draws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "SIGNS", signs)
        patch.setattr(probing, "FEW", few)
        probing._measured.clear_cache()
        at = probing.asked(PROBLEM.own, PROBLEM.common, WEIGHTS, 0)
        found = probing.measure(oracle, at, W, STEP, samples, (3, 0))
        probing._measured.clear_cache()
    return found


def test_what_draws_nothing_is_exact():
    found, expected = measured(), closed(W)
    for name in ("square", "heterogeneity", "largest", "drift", "drift_square"):
        assert getattr(found, name) == pytest.approx(expected[name], rel=1e-9), name
    # Three steps of Lanczos in three dimensions: the whole spectrum, as g sees it.
    H = sum(p * a.T @ a / 6 for p, a in zip(WEIGHTS, A, strict=True))
    g = sum(p * a.T @ (a @ W - b) / 6 for p, a, b in zip(WEIGHTS, A, B, strict=True))
    for power in range(4):
        seen = found.square * found.parts @ found.curvatures**power
        assert seen == pytest.approx(g @ np.linalg.matrix_power(H, power) @ g, rel=1e-9)


def test_what_is_drawn_is_right_on_average():
    """2,000 samples and signs: a standard error is about one part in forty; four of them."""
    found, expected = measured(samples=2000, signs=2000, few=4000), closed(W)
    for name in ("noise", "noise_curvature", "spread_curvature"):
        assert getattr(found, name) == pytest.approx(expected[name], rel=0.1), name


class WithoutDerivatives(type(PROBLEM.oracle)):
    derivatives = "it is called back"


def test_differences_of_gradients_stand_in_for_derivatives():
    oracle = WithoutDerivatives(**vars(PROBLEM.oracle))
    found, expected = measured(oracle=oracle), closed(W)
    for name in ("largest", "drift", "drift_square"):
        assert getattr(found, name) == pytest.approx(expected[name], rel=1e-6), name


def loss(w) -> float:
    return sum(p * ((a @ w - b) ** 2).mean() / 2 for p, a, b in zip(WEIGHTS, A, B, strict=True))


def changes(w, local_steps, controls=False) -> np.ndarray:
    """(K, d): what exact local steps make of a model."""
    g = np.array([a.T @ (a @ w - b) / 6 for a, b in zip(A, B, strict=True)])
    found = []
    for k, (a, b) in enumerate(zip(A, B, strict=True)):
        y = w
        for _ in range(local_steps):
            y = y - STEP * (a.T @ (a @ y - b) / 6 + controls * (WEIGHTS @ g - g[k]))
        found.append(y - w)
    return np.array(found)


@pytest.mark.parametrize("kind", [Probe, Forgetful])
def test_a_round_gains_what_was_predicted(kind):
    """Exact rounds of everybody, with and without control variates, written out; and of one participant of four, by
    enumeration over whom it is, where all weigh alike."""
    found = measured(samples=2000, signs=2000, few=4000)._replace(noise_curvature=0.0)
    right = []
    for E in (1, 5, 50):
        for controls in (False, True):
            gained = loss(W) - loss(W + WEIGHTS @ changes(W, E, controls))
            right.append(kind((0,), (found,), STEP, 4, 4).gain(E, scaffold=controls) == pytest.approx(gained, rel=1e-9))
        # E loss(W + m_k) - loss(W + mean) = E (m_k - mean)' H (m_k - mean) / 2, k drawn with p_k.
        m = changes(W, E)
        ends = WEIGHTS @ [loss(W + x) for x in m] - loss(W + WEIGHTS @ m)
        made = kind((0,), (found,), STEP, 4, 1)
        right.append(made.gain(E, 4) - made.gain(E) == pytest.approx(ends, rel=0.1))
    assert all(right) is (kind is Probe)


def test_noise_costs_what_was_predicted():
    """E loss(W - s g(z)) - loss(W - s g) is s^2 tr(H S) / 2, with S the covariance of z: of one step and agent."""
    found = measured()._replace(noise_curvature=closed(W)["noise_curvature"])
    made, quiet = (Probe((0,), (p,), STEP, 4, 1) for p in (found, found._replace(noise_curvature=0.0)))
    H = sum(p * a.T @ a / 6 for p, a in zip(WEIGHTS, A, strict=True))
    noises = [r - r.mean(0) for r in (a * (a @ W - b)[:, None] for a, b in zip(A, B, strict=True))]
    expected = sum(p * np.einsum("ni,ij,nj->n", n, H, n).mean() for p, n in zip(WEIGHTS, noises, strict=True))
    assert quiet.gain(1) - made.gain(1) == pytest.approx(STEP**2 * expected / 2, rel=1e-9)


def test_the_verb_tells_and_advises():
    made = fp.probe(METHOD, PROBLEM, rounds=4, participation=2)
    assert made.rounds == (0, 2, 4) and made.participants == 2 and "SCAFFOLD" in str(made)
    assert made.points[0].square > made.points[-1].square  # it has come nearer
    assert set(made.to_dict()) == {"step", "points", "local_steps", "participants", "scaffold"}


def test_the_same_agents_need_no_control_variates():
    same = fp.problems.LeastSquares([A[0]] * 4, [B[0]] * 4, mean=True)
    made = fp.probe(METHOD, same, rounds=4)
    assert not made.scaffold and made.points[0].heterogeneity < 1e-20 and made.enough == 1
    assert made.local_steps > 5  # nothing but curvature stands against more


REFUSED = {
    "no loss": (lambda: fp.probe(fp.FedAvg(step=0.1), fp.problems.LinearSystem([np.eye(2)], [np.ones(2)])), "losses"),
    "network": (lambda: fp.probe(METHOD, PROBLEM, network=fp.Network.ring(4, weight=0.3)), "leave out network="),
    "no step": (lambda: fp.probe(fp.Scaffnew(step=0.1).replace(step=0.0), PROBLEM), "step"),
}


@pytest.mark.parametrize(("call", "match"), REFUSED.values(), ids=REFUSED)
def test_refused_with_one_message(call, match):
    with pytest.raises(fp.FedpointError, match=match):
        call()


def test_many_agents_are_a_sample():
    at = probing.asked(np.zeros((1000, 2)), (), np.full(1000, 1e-3), 0)
    assert len(at.agents) == probing.MOST_AGENTS == len(set(at.agents.tolist())) == len(jax.tree.leaves(at.own)[0])
    assert float(at.share.sum()) == pytest.approx(1.0)
