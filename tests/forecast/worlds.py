"""Small problems of every kind, with everything unequal, and the catalogue on them: K = 3, d = 2, as few shapes as
possible, so that programs are compiled once."""

import numpy as np

import fedpoint as fp

K, D = 3, 2
P = np.array([0.5, 0.2, 0.3])
START = np.array([1.5, -2.0])
_rng = np.random.default_rng(11)


def _spd(low, high):
    axes = np.linalg.qr(_rng.standard_normal((D, D)))[0]
    M = axes @ np.diag(_rng.uniform(low, high, D)) @ axes.T
    return (M + M.T) / 2


H = np.stack([_spd(0.5, 2.0) for _ in range(K)])
CENTERS = _rng.standard_normal((K, D))
_A = [_rng.standard_normal((m, D)) for m in (4, 6, 8)]
_b = [a @ np.array([0.5, 1.0]) + 0.5 * _rng.standard_normal(len(a)) for a in _A]
_X = _rng.standard_normal((30, D))
_luck = _rng.standard_normal(30)
_groups = np.repeat(np.arange(K), (6, 10, 14))


def _models(spread):
    """The agents' own optima: equal for spread 0."""
    return CENTERS.mean(0) + spread * (CENTERS - CENTERS.mean(0))


def quadratic(noise=0.3, spread=1.0):
    return fp.problems.Quadratic(H, _models(spread), noise=noise, weights=P)


def stream(spread=1.0):
    """Unequal covariances and noise."""
    return fp.problems.LinearStream(_models(spread), noise=[0.1, 0.3, 0.2], covariance=H, weights=P)


def squares(sampling="iid", batch=2, spread=1.0):
    b = [y + spread * a @ c for a, y, c in zip(_A, _b, CENTERS, strict=True)]
    return fp.problems.LeastSquares(_A, b, weights=P, mean=True, batch=batch, sampling=sampling)


def logistic(batch=2, ridge=0.2, spread=1.0):
    """Labels follow a common line, and each agent's own by `spread`."""
    score = _X @ np.array([1.0, -0.5]) + spread * (_X * CENTERS[_groups]).sum(1)
    return fp.problems.Logistic(_X, np.sign(score + _luck), _groups, ridge=ridge, batch=batch)


AFFINE = {"quadratic": quadratic, "stream": stream, "squares": squares}
RAGGED = (1, 2, 4)
OWN = np.array([0.05, 0.2, 0.1])
ETA = 0.1

BIASED = {
    "fedavg": fp.FedAvg(ETA, RAGGED, normalise=False),
    "fedavg, normalised": fp.FedAvg(0.4, RAGGED, normalise=True),
    "fedavg, own steps": fp.FedAvg(OWN, RAGGED, normalise=False),
    "fedprox": fp.FedProx(ETA, RAGGED, pull=0.8),
    "fedprox, exact": fp.FedProx(pull=0.8, exact=True),
    "fednova": fp.FedNova(ETA, RAGGED),
    "fednova, all of it": fp.FedNova(ETA, RAGGED, momentum=0.6, pull=0.8, decay=0.7),
    "fednova, tau_eff": fp.FedNova(ETA, RAGGED, effective=1.5),
    "general rule": fp.GeneralRule(ETA, RAGGED, weights="fedavg", effective=1.2, momentum=0.5),
    "general rule, weights": fp.GeneralRule(ETA, RAGGED, weights=[0.1, 0.6, 0.3], pull=0.5),
    "general rule, a": fp.GeneralRule(ETA, RAGGED, coefficients=[1.0, 0.5, 2.0, 0.3], weights="fednova"),
    "q-fedavg, q = 0": fp.QFedAvg(0.0, ETA, RAGGED),
    "fedopt, sgd": fp.FedOpt(ETA, RAGGED, "sgd", server_step=0.7),
    "fedavgm": fp.FedAvgM(ETA, RAGGED, server_step=0.3, momentum=0.5),
    "fedavgm, turning": fp.FedAvgM(ETA, RAGGED, server_step=0.3, momentum=0.9),
}
UNBIASED = {
    "gradient exchange": fp.GradientExchange(ETA),
    "parameter exchange": fp.ParameterExchange(ETA),
    "fedavg, E = 1": fp.FedAvg(ETA),
    "scaffold": fp.Scaffold(0.05, RAGGED),
    "scaffold, own steps": fp.Scaffold(OWN, RAGGED),
    "scaffold, option 1": fp.Scaffold(0.05, RAGGED, option=1),
    "scaffold, E = 1": fp.Scaffold(ETA, server_step=0.8),
    "scaffnew": fp.Scaffnew(0.05, probability=0.5),
    "scaffnew, H = 3": fp.Scaffnew(0.1, local_steps=3),
    "feddyn": fp.FedDyn(0.05, RAGGED, pull=0.5),
    "feddyn, exact": fp.FedDyn(pull=0.5, exact=True),
    "fedlin": fp.FedLin(ETA, RAGGED),
    "mime": fp.Mime(ETA, RAGGED, momentum=0.5),
    "fednewton": fp.FedNewton(),
}
CATALOGUE = {**BIASED, **UNBIASED}
