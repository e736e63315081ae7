"""PEPit writes the same worst cases from code of its own, round by round: the numbers must agree.

It shares nothing with `fp.prove` but the solver: rounds are written out here on its points, and its interpolation
conditions are its own. Run it where PEPit is (`pip install pepit cvxpy`); elsewhere it is skipped. Tolerance: solvers
stop at about 1e-8 of squares, of which roots are taken.
"""

import math

import pytest

import fedpoint as fp

pytest.importorskip("clarabel")
PEPit = pytest.importorskip("PEPit")

from PEPit.functions import SmoothConvexFunction, SmoothStronglyConvexFunction  # noqa: E402

L, MU, STEP = 1.0, 0.1, 0.5
CLOSE = 1e-5


def agents_of(problem, count, mu):
    """Losses of the class, and where the gradient of their mean vanishes, with mean |g_k|^2 <= 1 there."""
    kind = SmoothStronglyConvexFunction if mu else SmoothConvexFunction
    given = {"mu": mu, "L": L} if mu else {"L": L}
    losses = [problem.declare_function(kind, **given) for _ in range(count)]
    best = sum(losses[1:], losses[0]).stationary_point()
    slopes = [loss.gradient(best) for loss in losses]
    problem.add_constraint(sum((g**2 for g in slopes[1:]), slopes[0] ** 2) <= count)
    return losses, best


def averaged(losses, w, steps, step=STEP):
    ends = []
    for loss in losses:
        y = w
        for _ in range(steps):
            y = y - step * loss.gradient(y)
        ends.append(y)
    return sum(ends[1:], ends[0]) / len(ends)


def corrected(losses, w, steps, step=STEP):
    """FedLin."""
    own = [loss.gradient(w) for loss in losses]
    mean = sum(own[1:], own[0]) / len(own)
    ends = []
    for loss, g in zip(losses, own, strict=True):
        y = w
        for _ in range(steps):
            y = y - step * (loss.gradient(y) - g + mean)
        ends.append(y)
    return sum(ends[1:], ends[0]) / len(ends)


def solved(problem):
    return math.sqrt(max(problem.solve(wrapper="cvxpy", solver="CLARABEL", verbose=0), 0.0))


def distance(round, count, steps, rounds=1, mu=MU):
    """|w - w*| after so many rounds from a distance of 1, at most."""
    problem = PEPit.PEP()
    losses, best = agents_of(problem, count, mu)
    w = problem.set_initial_point()
    problem.set_initial_condition((w - best) ** 2 <= 1)
    for _ in range(rounds):
        w = round(losses, w, steps)
    problem.set_performance_metric((w - best) ** 2)
    return solved(problem)


def contraction(round, count, steps, mu=MU, step=STEP):
    """The distance of two runs after a round, from a distance of 1, at most."""
    problem = PEPit.PEP()
    losses, _ = agents_of(problem, count, mu)
    one, two = problem.set_initial_point(), problem.set_initial_point()
    problem.set_initial_condition((one - two) ** 2 <= 1)
    problem.set_performance_metric((round(losses, one, steps, step) - round(losses, two, steps, step)) ** 2)
    return solved(problem)


def bias(count, steps, mu=MU):
    """How far from w* a round of FedAvg can change nothing, at most. All gradients of it add up to zero, so the last
    is minus the sum of the others."""
    problem = PEPit.PEP()
    losses, best = agents_of(problem, count, mu)
    w, others = problem.set_initial_point(), []
    for k, loss in enumerate(losses):
        y = w
        for e in range(steps):
            if k == count - 1 and e == steps - 1:
                loss.add_point((y, -sum(others[1:], others[0]), PEPit.Expression()))
                break
            others.append(loss.gradient(y))
            y = y - STEP * others[-1]
    problem.set_performance_metric((w - best) ** 2)
    return solved(problem)


def proved(method, claim, **options):
    options = {"smooth": L, "strong": MU, **options}
    return fp.prove(method, claims=[claim], **options)[claim].value


FEDAVG, FEDLIN, SCAFFOLD = fp.FedAvg(STEP, 2), fp.FedLin(STEP, 2), fp.Scaffold(STEP, 2)
# Asked here, and of PEPit, which gets one agent for gradient descent: a method that averages is as bad with one.
CASES = {
    "gradient descent, step 0.5: contraction": (
        lambda: proved(fp.FedAvg(0.5), "contraction"), lambda: contraction(averaged, 1, 1, step=0.5),
    ),
    "gradient descent, step 1.9: contraction": (
        lambda: proved(fp.FedAvg(1.9), "contraction"), lambda: contraction(averaged, 1, 1, step=1.9),
    ),
    "FedAvg, E = 2: contraction": (lambda: proved(FEDAVG, "contraction"), lambda: contraction(averaged, 2, 2)),
    "FedAvg, E = 2: distance after 2 rounds": (
        lambda: proved(FEDAVG, "distance", rounds=2), lambda: distance(averaged, 2, 2, 2),
    ),
    "FedAvg, E = 2: bias": (lambda: proved(FEDAVG, "bias"), lambda: bias(2, 2)),
    "FedAvg, E = 3: bias": (lambda: proved(fp.FedAvg(STEP, 3), "bias"), lambda: bias(2, 3)),
    "FedLin, E = 2: distance": (lambda: proved(FEDLIN, "distance"), lambda: distance(corrected, 2, 2)),
    "SCAFFOLD, E = 2: distance after 1 round": (
        lambda: proved(SCAFFOLD, "distance"), lambda: distance(averaged, 2, 2),  # its controls are zero then
    ),
    "gradient descent, convex losses, step 2.5: contraction": (
        lambda: proved(fp.FedAvg(2.5), "contraction", strong=0.0), lambda: contraction(averaged, 1, 1, 0.0, 2.5),
    ),
    "FedAvg, E = 2, convex losses: distance": (
        lambda: proved(FEDAVG, "distance", strong=0.0), lambda: distance(averaged, 2, 2, mu=0.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_worst_case_is_the_same(name):
    here, there = CASES[name]
    assert here() == pytest.approx(there(), abs=CLOSE)


if __name__ == "__main__":  # python tests/prove/test_pepit.py
    for name, (here, there) in CASES.items():
        print(f"| {name} | {here():.6f} | {there():.6f} |")
