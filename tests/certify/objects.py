"""One or more objects of every method in the catalogue: none may be convicted."""

import fedpoint as fp

OBJECTS = {
    "GradientExchange": lambda: fp.GradientExchange(0.1),
    "ParameterExchange": lambda: fp.ParameterExchange(0.1),
    "FedAvg": lambda: fp.FedAvg(0.1, 3, normalise=True),
    "FedAvg, not normalised": lambda: fp.FedAvg(0.1, 3, normalise=False),
    "FedProx": lambda: fp.FedProx(0.1, 3, pull=0.3),
    "FedProx, exact": lambda: fp.FedProx(pull=0.3, exact=True),
    "FedNova": lambda: fp.FedNova(0.1, 3),
    "FedNova, all solvers": lambda: fp.FedNova(0.1, 3, momentum=0.5, pull=0.2, decay=0.9),
    "GeneralRule": lambda: fp.GeneralRule(0.1, 3),
    "GeneralRule, FedNova's": lambda: fp.GeneralRule(0.1, 3, weights="fednova", momentum=0.4),
    "GeneralRule, given": lambda: fp.GeneralRule(
        0.1, 3, weights=[0.1, 0.2, 0.3, 0.2, 0.2], effective=1.3, coefficients=[1.0, 0.5, 0.3, 0.2, 0.1]
    ),
    "GeneralRule, each its own": lambda: fp.GeneralRule(
        0.1,
        3,
        weights="fednova",
        coefficients=[[1.0] * 5, [1.0, 0.5] * 3, [0.2, 0.0, 1.0, 0.1, 0.3], [2.0] * 5, [1.0] * 6],
    ),
    "SCAFFOLD": lambda: fp.Scaffold(0.1, 3),
    "SCAFFOLD, option 1": lambda: fp.Scaffold(0.1, 3, option=1),
    "Scaffnew": lambda: fp.Scaffnew(0.1, probability=0.4),
    "Scaffnew, fixed": lambda: fp.Scaffnew(0.1, local_steps=3),
    "q-FedAvg, q = 0": lambda: fp.QFedAvg(0.0, 0.1, 3),
    "q-FedAvg": lambda: fp.QFedAvg(1.5, 0.1, 3),
    "FedDyn": lambda: fp.FedDyn(0.1, 3, pull=0.5),
    "FedDyn, exact": lambda: fp.FedDyn(pull=0.5, exact=True),
    "FedExP": lambda: fp.FedExP(0.1, 3),
    "FedLin": lambda: fp.FedLin(0.1, 3),
    "Mime": lambda: fp.Mime(0.1, 3, momentum=0.6),
    "FedNewton": lambda: fp.FedNewton(),
    "FedNewton, not damped": lambda: fp.FedNewton(halvings=0),
    "FedNewton, products": lambda: fp.FedNewton(products=20),
    "Ditto": lambda: fp.Ditto(0.1, 3, pull=0.5),
    "Ditto, normalised": lambda: fp.Ditto(0.1, 3, pull=0.5, normalise=True),
    "Fine-tuning": lambda: fp.FineTuned(0.1, 3, own_steps=2),
    "APFL": lambda: fp.APFL(0.1, 3, mix=0.6),
    "pFedMe": lambda: fp.PFedMe(0.1, 0.5, 3),
    "FedOpt": lambda: fp.FedOpt(0.1, 3),
    "FedAvgM": lambda: fp.FedAvgM(0.1, 3),
    "FedAdam": lambda: fp.FedAdam(0.1, 3),
    "FedYogi": lambda: fp.FedYogi(0.1, 3),
    "FedAdagrad": lambda: fp.FedAdagrad(0.1, 3),
}
