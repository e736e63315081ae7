"""One good call of everything public, by name. The generator (`generator.py`) makes odd calls of these."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import interface
import numpy as np
from odd_objects import (
    FITTED,
    Constantly,
    any_model,
    baselines,
    bounds,
    certificate,
    choice,
    chosen_coupling,
    class_baselines,
    comparison,
    constants,
    couplings,
    cox,
    dataset,
    descent,
    expansion,
    experiment,
    file,
    fitted,
    forecast,
    glm,
    labels,
    logistic,
    loss,
    mdp,
    method,
    network_forecast,
    own_problem,
    pair,
    panel,
    plan,
    predictor,
    price,
    private_experiment,
    probe,
    proof,
    quad,
    ring,
    row_loss,
    rows,
    run,
    run_of_classes,
    run_of_classifiers,
    run_of_models,
    run_on_rows,
    squares,
    stability,
    stream,
    sweep,
    system,
    table,
    td,
    trace_file,
    turns_file,
    unprotected,
    verdict,
    written,
)

import fedpoint as fp

Good = tuple[Callable[..., Any], dict[str, Any]]  # what is called, and its arguments by name
Table = dict[str, Callable[[], Good]]

STUDY = {
    "name": "trial",
    "sites": ["a", "b"],
    "server": "localhost:8102",
    "rounds": 2,
    "problem": {"kind": "quadratic", "H": [1.0, 1.0], "centers": [[0.0], [1.0]]},
    "algorithm": {"name": "fedavg", "step": 0.5},
}


def methods() -> Table:
    """Constructors of algorithms, of what they are made of, and of who works when."""
    step = {"step": 0.1}
    with_step = "APFL Diffusion Ditto ExactDiffusion Extra FedDyn FedExP FedLin GradientTracking Mime "
    with_step += (
        "FedAdagrad FedAdam FedAvg FedAvgM FedGD FedLSA FedNova FedOpt FedProx FedSGD FedYogi FineTuned GeneralRule "
        "PFedMe PushSum"
    )
    found = {f"fp.{name}": _maker(name, step) for name in f"{with_step} GradientExchange ParameterExchange".split()}
    others: dict[str, dict[str, Any]] = {
        "Averaged": {"inner": method()},
        "Extrapolated": {"inner": method()},
        "FedNewton": {},
        "FedRelax": {},
        "QFedAvg": {"q": 1.0, "step": 0.1},
        "ScaffLSA": {"step": 0.1, "local_steps": 2},
        "Scaffnew": {"step": 0.1, "probability": 0.5},
        "Scaffold": {"step": 0.1},
        "Everyone": {},
        "Uniform": {"count": 1},
        "ByWeight": {"count": 1},
        "Importance": {"count": 1},
        "Answering": {"scheme": fp.Everyone(), "probability": 0.5},
        "Synchronous": {},
        "PartiallyAsynchronous": {"bounded": 3},
        "TotallyAsynchronous": {},
        "RandomActivation": {},
        "RandomLinks": {"loss": 0.2},
        "WorstCase": {"bounded": 3},
        "Clock": {},
        "Arrivals": {"clock": fp.Clock()},
        "Waiting": {"clock": fp.Clock()},
        "InStep": {"clock": fp.Clock()},
        "OwnPace": {"clock": fp.Clock()},
        "Recorded": {"rows": ((("0", 0),), (("1", 1),))},
        "Replay": {"events": ((0, "0", None, 0), (1, "1", None, 0))},
        "Channel": {},
        "Prices": {"per_float": 1.0},
        "Regions": {"of": 1},
        "Privacy": {"epsilon": 1.0, "delta": 1e-5},
        "Processes": {"count": 1},
        "participation.Poisson": {"probability": 0.5},
        "staleness.Constant": {},
        "staleness.Hinge": {},
        "staleness.Polynomial": {},
        "steps.Epochs": {"count": 1},
        "steps.Exponential": {"initial": 0.1, "factor": 0.9},
        "steps.InverseTime": {"scale": 1.0, "offset": 2.0},
        "steps.Scaled": {"schedule": fp.steps.InverseTime(1.0, 2.0), "factor": 0.5},
        "steps.ByRound": {"schedule": fp.steps.Exponential(0.1, 0.9), "local_steps": 2},
        "steps.Scheduled": {"function": lambda t: 0.1},
        "steps.Stragglers": {"steps": 2, "fraction": 0.5},
        "channel.AdaptiveClip": {"norm": 1.0},
        "channel.Cast": {"dtype": "float32"},
        "channel.Chain": {"links": (fp.channel.Clip(1.0),)},
        "channel.Correlated": {"multiplier": 1.0, "coefficients": 0.5},
        "channel.Clip": {"norm": 1.0},
        "channel.Erase": {"probability": 0.5},
        "channel.FixedPoint": {"width": 16, "range": 1.0},
        "channel.Gaussian": {"multiplier": 1.0},
        "channel.Quantise": {"width": 8},
        "channel.RandK": {"fraction": 0.5},
        "channel.Sign": {},
        "channel.TopK": {"fraction": 0.5},
        "attack.FalseRows": {"agents": [0], "factor": 2.0},
        "attack.GarbageControls": {"agents": [0]},
        "attack.InnerProduct": {"agents": [0]},
        "attack.LabelFlip": {"agents": [0]},
        "attack.LittleIsEnough": {"agents": [0]},
        "attack.Scaling": {"agents": [0], "factor": 2.0},
        "attack.SignFlip": {"agents": [0]},
        "gather.CentredClipping": {"radius": 1.0},
        "gather.GeometricMedian": {},
        "gather.Krum": {"liars": 1},
        "gather.Median": {},
        "gather.MultiKrum": {"liars": 1, "keep": 2},
        "gather.NearestNeighbourMixing": {"liars": 1, "then": fp.gather.Median()},
        "gather.TrimmedMean": {"count": 1},
        "gather.WeightedSums": {},
        "Reference": {"key": "a", "authors": "A, B", "title": "t", "venue": "v", "year": 2020},
        "Card": {"name": "mine", "title": "Mine", "summary": "", "lecture": ""},
    }
    found |= {f"fp.{name}": _maker(name, arguments) for name, arguments in others.items()}
    return found | {
        "FedAvg.replace": lambda: (method().replace, step),
        "Clock.sample": lambda: (fp.Clock.sample, {"agents": 2}),
        "InverseTime.lecture004": lambda: (
            fp.steps.InverseTime.lecture004,
            {"strong": 1.0, "smooth": 2.0, "local_steps": 2},
        ),
        "Replay.read": lambda: (fp.Replay.read, {"path": turns_file()}),
        "Reference.bibtex": lambda: (fp.FedAvg.card.references[0].bibtex, {}),
        "Reference.text": lambda: (fp.FedAvg.card.references[0].text, {}),
        "fp.only": lambda: (_of_body(fp.only), {"own_steps": 1}),
        "fp.all_but": lambda: (_of_body(fp.all_but), {"own_steps": 1}),
        "fp.read_trace": lambda: (fp.read_trace, {"path": trace_file()}),
    }


def _of_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """With a name where none is given."""

    def of_body(*values: Any, **named: Any) -> Any:
        return function(*(values or ["body"]), **named)

    of_body.__wrapped__ = function  # type: ignore[attr-defined] # its signature
    return of_body


def _maker(name: str, arguments: dict[str, Any]) -> Callable[[], Good]:
    def good() -> Good:
        found: Any = fp
        for part in name.split("."):
            found = getattr(found, part)
        return found, dict(arguments)

    return good


def problems() -> Table:
    """Constructors of problems, and what problems are asked."""
    X, y, groups = rows()
    w = np.zeros(2)
    found: Table = {
        "fp.problems.Quadratic": lambda: (fp.problems.Quadratic, {"H": [1.0, 2.0], "centers": [[0.0], [1.0]]}),
        "fp.problems.LeastSquares": lambda: (fp.problems.LeastSquares, {"A": X, "b": y, "groups": groups}),
        "fp.problems.Logistic": lambda: (fp.problems.Logistic, {"X": X, "y": labels(), "groups": groups}),
        "fp.problems.LinearStream": lambda: (fp.problems.LinearStream, {"models": [[1.0, 0.0], [0.0, 1.0]]}),
        "LinearStream.sample": lambda: (fp.problems.LinearStream.sample, {"agents": 2, "dim": 2}),
        "fp.problems.LinearSystem": lambda: (
            fp.problems.LinearSystem,
            {"A": np.stack([np.eye(2), 2 * np.eye(2)]), "b": np.ones((2, 2))},
        ),
        "fp.problems.Loss": lambda: (
            fp.problems.Loss,
            {"loss": row_loss, "params": np.zeros(2), "data": (X, y), "groups": groups},
        ),
        "fp.problems.AnyModel": lambda: (
            fp.problems.AnyModel,
            {"X": X, "y": y, "groups": groups, "models": Constantly(), "shared": X[:3]},
        ),
        "fp.problems.Cox": lambda: (fp.problems.Cox, {"X": X, "time": 1.0 + np.arange(len(X)), "event": labels() > 0}),
        **{
            f"Cox.{name}": lambda name=name: (getattr(cox(), name), {})
            for name in ("local_rows", "start", "solution", "why_no_solution")
        },
        "fp.problems.GLM": lambda: (
            fp.problems.GLM,
            {"X": X, "y": labels() > 0, "groups": groups, "family": "binomial"},
        ),
        **{
            f"GLM.{name}": lambda name=name: (getattr(glm(), name), {"w": w})
            for name in ("means", "row_gradients", "row_deviances", "variances", "hessians", "informations")
        },
        "GLM.row_metrics": lambda: (glm().row_metrics, {"w": w, "X": X, "y": labels() > 0}),
        "GLM.noise": lambda: (glm().noise, {"w": w}),
        "GLM.objective": lambda: (glm().objective, {"models": np.zeros((2, 2))}),
        "GLM.restricted": lambda: (glm().restricted, {"chosen": [np.arange(3)] * 3}),
        **{
            f"GLM.{name}": lambda name=name: (getattr(glm(), name), {})
            for name in (
                *("constant", "constants", "linear_fields", "local_solutions", "row_weights"),
                *("solution", "start", "why_no_solution"),
            )
        },
        "fp.problems.MDP": lambda: (fp.problems.MDP, {"P": np.full((3, 2, 3), 1 / 3), "R": np.ones((3, 2, 3))}),
        "fp.problems.TD": lambda: (fp.problems.TD, {"mdps": [mdp(), mdp()], "features": np.eye(3)[:, :2]}),
        "fp.problems.Noise": lambda: (fp.problems.Noise, {}),
        "fp.problems.garnet": lambda: (
            fp.problems.garnet,
            {"states": 4, "actions": 2, "branching": 2, "dim": 2, "agents": 2},
        ),
        "fp.problems.frozen_lake": lambda: (fp.problems.frozen_lake, {"agents": 2}),
        "fp.problems.cliff_walking": lambda: (fp.problems.cliff_walking, {"agents": 2}),
        "fp.problems.taxi": lambda: (fp.problems.taxi, {"agents": 1, "features": 2}),
        "Quadratic.own_losses": lambda: (quad().own_losses, {"models": np.zeros((1, 2, 2))}),
        "Quadratic.sampling_probabilities": lambda: (quad().sampling_probabilities, {"algorithm": method()}),
        "Quadratic.fields": lambda: (quad().fields, {"w": w}),
        "Quadratic.losses": lambda: (quad().losses, {"w": w}),
        "LeastSquares.noise": lambda: (squares().noise, {"w": w}),
        "LeastSquares.evaluate": lambda: (squares().evaluate, {"w": w, "X": X, "y": y}),
        "LeastSquares.restricted": lambda: (squares().restricted, {"chosen": [np.arange(2)] * 3}),
        "Logistic.evaluate": lambda: (logistic().evaluate, {"w": w, "X": X, "y": labels()}),
        "Logistic.row_metrics": lambda: (logistic().row_metrics, {"w": w, "X": X, "y": labels()}),
        "Logistic.row_gradients": lambda: (logistic().row_gradients, {"w": w}),
        "Logistic.restricted": lambda: (logistic().restricted, {"chosen": [np.arange(3)] * 3}),
        "TD.values": lambda: (td().values, {"w": w}),
        "TD.value_error": lambda: (td().value_error, {"w": w}),
        "TD.value_metrics": lambda: (td().value_metrics, {"w": w}),
        "AnyModel.node": lambda: (any_model().node, {"name": "0"}),
        "AnyModel.targets": lambda: (any_model().targets, {"k": 0}),
        "AnyModel.check_rows": lambda: (any_model().check_rows, {"X": X}),
        "Quadratic.noise": lambda: (quad().noise, {"w": w}),
        "LeastSquares.row_metrics": lambda: (squares().row_metrics, {"w": w, "X": X, "y": y}),
        "Loss.restricted": lambda: (loss().restricted, {"chosen": [np.arange(2)] * 3}),
        "Problem.objective": lambda: (own_problem().objective, {"models": w}),
        "Problem.noise": lambda: (own_problem().noise, {"w": w}),
        "LinearSystem.noise": lambda: (system().noise, {"w": w}),
        "Logistic.noise": lambda: (logistic().noise, {"w": w}),
        "Loss.row_metrics": lambda: (loss().row_metrics, {"w": w, "X": X, "y": y}),
        "Loss.noise": lambda: (loss().noise, {"w": w}),
        "LinearStream.noise": lambda: (stream().noise, {"w": w}),
        "LinearStream.row_metrics": lambda: (stream().row_metrics, {"w": w, "X": X, "y": y}),
        "fp.estimate_constants": lambda: (fp.estimate_constants, {"problem": quad(), "draws": 20}),
    }
    for make in (quad, squares, logistic, loss, stream):
        found[f"{type(make()).__name__}.objective"] = lambda make=make: (make().objective, {"models": np.zeros((1, 2))})
    return found


def verbs() -> Table:
    """What a user says."""
    X, y, groups = rows()
    whole: dict[str, Any] = {"algorithm": method(), "problem": quad()}
    return {
        "fp.Experiment": lambda: (fp.Experiment, dict(whole)),
        "Experiment.replace": lambda: (experiment().replace, {"seed": 1}),
        "Experiment.every": lambda: (experiment().every, {"rounds": 3}),
        "Experiment.describe": lambda: (experiment().describe, {}),
        "Experiment.from_dict": lambda: (fp.Experiment.from_dict, {"description": experiment().describe()}),
        "fp.run": lambda: (fp.run, {**whole, "rounds": 3}),
        "fp.run on a network": lambda: (fp.run, {**NETWORKED, "rounds": 2}),
        "fp.run of models": lambda: (
            fp.run,
            {"algorithm": fp.FedRelax(), "problem": any_model(), "network": ring(), "rounds": 1},
        ),
        "fp.sweep": lambda: (fp.sweep, {**whole, "over": {"step": [0.1, 0.2]}, "rounds": 2}),
        "fp.compare": lambda: (fp.compare, {"algorithms": [method()], "problem": quad(), "rounds": 2}),
        "fp.forecast": lambda: (fp.forecast, dict(whole)),
        "fp.forecast on a network": lambda: (fp.forecast, dict(NETWORKED)),
        "fp.plan": lambda: (
            fp.plan,
            {"problem": quad(), "target": 1e-2, "methods": ["fedavg"], "local_steps": [1], "participation": [None]},
        ),
        "fp.prove": lambda: (
            fp.prove,
            {"algorithm": fp.FedAvg(step=0.5), "smooth": 1.0, "strong": 0.1, "claims": ["contraction"]},
        ),
        "fp.price": lambda: (
            fp.price,
            {"algorithm": fp.FedAvg(step=0.5), "problem": quad(), "channels": [None], "rounds": 2, "runs": 0},
        ),
        "fp.probe": lambda: (
            fp.probe,
            {"algorithm": fp.FedAvg(step=0.05), "problem": squares(), "rounds": 1, "samples": 1},
        ),
        "fp.correlated": lambda: (
            fp.correlated,
            {
                "algorithm": fp.FedAvg(step=0.5),
                "problem": quad(),
                "privacy": fp.Privacy(2.0, 1e-5),
                "rounds": 3,
                "terms": 1,
            },
        ),
        "fp.check": lambda: (fp.check, {"run": run()}),
        "fp.statistics.Floor": lambda: (fp.statistics.Floor, {}),
        "fp.statistics.Floor.plain": lambda: (fp.statistics.Floor().plain, {}),
        "fp.privacy.spent": lambda: (fp.privacy.spent, {"experiment": private_experiment(), "rounds": 3}),
        "fp.privacy.multiplier": lambda: (
            fp.privacy.multiplier,
            {"privacy": fp.Privacy(2.0, 1e-5), "participation": None, "rounds": 3},
        ),
        "fp.privacy.certify": lambda: (
            fp.privacy.certify,
            {"mechanism": unprotected, "privacy": fp.Privacy(2.0, 1e-5), "calls": 100},
        ),
        "PrivacyCertificate.text": lambda: (
            fp.privacy.certify(unprotected, fp.Privacy(2.0, 1e-5), calls=100).text,
            {},
        ),
        "PrivacyCertificate.to_dict": lambda: (
            fp.privacy.certify(unprotected, fp.Privacy(2.0, 1e-5), calls=100).to_dict,
            {},
        ),
        "Spent.at": lambda: (fp.privacy.spent(private_experiment(), 3).at, {"delta": 1e-4}),
        "Spent.rows": lambda: (fp.privacy.spent(private_experiment(), 3).rows, {}),
        "Spent.text": lambda: (fp.privacy.spent(private_experiment(), 3).text, {}),
        "Spent.to_dict": lambda: (fp.privacy.spent(private_experiment(), 3).to_dict, {}),
        "fp.certify": lambda: (fp.certify, {"subject": descent, "claims": "gradient_exchange", "step": 0.1}),
        "fp.complexity": lambda: (fp.complexity, {"problem": system(), "target": 0.1, "search": False}),
        "fp.baselines": lambda: (fp.baselines, {"X": X, "y": y, "groups": groups, "seeds": 2, "methods": ["local"]}),
        "fp.federate": lambda: (fp.federate, {"study": STUDY}),
        "fp.warm_start": lambda: (fp.warm_start, {"path": written("saved"), "problem": quad()}),
        "fp.Evaluation": lambda: (fp.Evaluation, {"data": rows()[:2], "every": 2, "patience": 1}),
        "fp.load": lambda: (fp.load, {"path": written("saved")}),
        "fp.read": lambda: (fp.read, {"path": file()}),
        "fp.write": lambda: (_write(), {"path": "written.toml", "rounds": 2}),
        "fp.export": lambda: (fp.export, {"model": run(), "path": "model.npz"}),
        "fp.schema": lambda: (fp.schema, {}),
        "fp.data.spread": lambda: (fp.data.spread, {"y": [0, 1, 1, 0], "groups": [0, 0, 1, 1]}),
        "Spread.text": lambda: (fp.data.spread([0, 1, 1, 0], [0, 0, 1, 1]).text, {"most": 2}),
        "Spread.plot": lambda: (fp.data.spread([0, 1, 1, 0], [0, 0, 1, 1]).plot, {"path": "split.png"}),
        "data.Spread": lambda: (
            fp.data.Spread,
            {"agents": ("0", "1"), "classes": ("a",), "counts": np.ones((2, 1), int)},
        ),
        "fp.data.on_disk": lambda: (fp.data.on_disk, {"source": [(np.zeros(2), 1), (np.ones(2), 0)]}),
        "fp.data.contiguity": lambda: (fp.data.contiguity, {}),
        "fp.data.produc": lambda: (fp.data.produc, {}),
        "fp.data.digits": lambda: (fp.data.digits, {}),
        "fp.trackers.TensorBoard": lambda: (fp.trackers.TensorBoard, {"folder": "events"}),
        "fp.trackers.MLflow": lambda: (fp.trackers.MLflow, {}),
        "fp.trackers.WandB": lambda: (fp.trackers.WandB, {}),
        "fp.data.partition": lambda: (fp.data.partition, {"y": labels(), "kind": "iid", "agents": 2}),
        "fp.data.read_table": lambda: (
            fp.data.read_table,
            {"source": {"a": X[:, 0], "y": y, "who": groups.astype(str)}, "target": "y", "agent": "who"},
        ),
        "fp.metrics.fairness": lambda: (fp.metrics.fairness, {"losses": [1.0, 2.0]}),
    }


NETWORKED: dict[str, Any] = {"algorithm": fp.FedGD(step=0.1), "problem": quad(), "network": pair()}


def _write() -> Callable[..., Any]:
    def write(*values: Any, **named: Any) -> None:
        fp.write(*(values or [named.pop(key) for key in ("path",) if key in named]), experiment(), **named)

    write.__wrapped__ = fp.write  # type: ignore[attr-defined] # its signature
    return write


def results() -> Table:
    """Methods of what verbs return."""
    X, y, groups = rows()
    values: dict[str, tuple[Callable[[], Any], dict[str, dict[str, Any]]]] = {
        "Run": (
            run,
            {
                "export": {"path": "run.npz"},
                "extend": {"rounds": 4},
            },
        ),
        "Run of rows": (
            run_on_rows,
            {
                "evaluate": {"X": X, "y": y},
            },
        ),
        "Run of classes": (run_of_classes, {"evaluate": {"X": X, "y": labels()}}),
        "Run of models": (run_of_models, {"predict": {"X": X, "groups": groups}, "evaluate": {"X": X, "y": y}}),
        "Run of classifiers": (run_of_classifiers, {"predict_proba": {"X": X, "groups": groups}}),
        "Forecast": (
            forecast,
            {
                "curve": {"rounds": 3},
                "rounds_to": {"target": 1.0},
                "quantile": {"probability": 0.9, "rounds": 3},
                "probability": {"error": 0.1, "rounds": 3},
                "curve_error": {"rounds": 3},
                "mean_path": {"rounds": 3},
                "bounds_after": {"rounds": 3},
                "plot": {"rounds": 3},
                "measured": {"difference": np.zeros((1, 2))},
            },
        ),
        "Forecast on a network": (network_forecast, {"bound": {"ticks": 3}, "rounds_to": {"target": 1.0}}),
        "Predictor": (predictor, {"predict": {"X": X}}),
        "Sweep": (sweep, {"measured": {"name": "error"}}),
        "Plan": (plan, {"run": {"top": 1, "repeats": 2}}),
        "Price": (price, {"plot": {"against": "bytes"}, "rows": {}, "table": {}, "to_dict": {}}),
        "Probe": (probe, {"gain": {"local_steps": 5, "participants": 1, "scaffold": False, "at": 0}, "to_dict": {}}),
        "Proof": (proof, {"text": {}, "to_dict": {}}),
        "Claim": (lambda: proof()["contraction"], {"said": {}, "to_dict": {}}),
        "Offer": (lambda: price().offers[0], {"to_dict": {}}),
        "Baselines": (
            baselines,
            {
                "error": {"method": "local"},
                "per_agent": {"method": "local"},
                "per_split": {"method": "local"},
                "difference": {"method": "local", "against": "pooled"},
            },
        ),
        "Baselines of classes": (class_baselines, {"accuracy_per_agent": {"method": "local"}}),
        "Dataset": (dataset, {"rows": {"chosen": [0, 1]}}),
        "Panel": (panel, {"years": {"years": [1970]}}),
        "Table": (table, {"evaluation": {"problem": squares()}}),
        "Bounds": (bounds, {"ticks_to": {"factor": 0.1}}),
    }
    return {
        f"{name}.{attribute}": lambda make=make, attribute=attribute, given=given: (
            getattr(make(), attribute),
            dict(given),
        )
        for name, (make, calls) in values.items()
        for attribute, given in calls.items()
    }


def networks() -> Table:
    """Networks: how they are made, and what they are asked."""
    made: dict[str, dict[str, Any]] = {
        "from_edges": {"edges": [(0, 1), (1, 2)]},
        "directed": {"edges": [(0, 1), (1, 2)]},
        "from_matrix": {"A": np.ones((3, 3)) - np.eye(3)},
        "from_networkx": {"graph": _triangle()},
        "star": {"nodes": 3},
        "complete": {"nodes": 3},
        "ring": {"nodes": 3},
        "grid": {"rows": 2, "columns": 2},
        "random": {"nodes": 5, "degree": 2},
        "clusters": {"labels": [0, 0, 1]},
        "knn": {"points": [[0.0], [1.0], [3.0]], "k": 1},
        "similarity": {"problem": squares(), "k": 1},
    }
    asked: dict[str, dict[str, Any]] = {
        "aligned": {"names": ["a", "b", "c"]},
        "eigenvalues": {"count": 2},
        "total_variation": {"models": np.zeros((3, 2))},
        "minimum": {"problem": squares(), "coupling": 1.0},
        "step_limit": {"problem": squares(), "coupling": 1.0},
    }
    names = {"Network." + name: given for name, given in (made | asked).items()}
    found = {
        name: lambda name=name, given=given: (getattr(ring(), name.split(".")[1]), dict(given))
        for name, given in names.items()
    }
    return found | {
        "fp.Network": lambda: (
            fp.Network,
            {"edges": [(0, 1), (1, 2)], "weights": [1.0, 1.0], "names": ["a", "b", "c"]},
        )
    }


def _triangle():
    import networkx

    return networkx.complete_graph(3)


def theories() -> Table:
    """Functions of fp.theory and fp.gtv."""
    on = {"task": squares(), "network": ring()}
    made: dict[str, tuple[Any, dict[str, Any]]] = {
        "gtv.solve": (fp.gtv.solve, {**on, "coupling": 1.0}),
        "gtv.path": (fp.gtv.path, {**on, "couplings": [0.1, 1.0]}),
        "gtv.choose": (fp.gtv.choose, {**on, "couplings": [0.1, 1.0], "folds": 2}),
        "gtv.objective": (fp.gtv.objective, {**on, "coupling": 1.0, "models": np.zeros((3, 2))}),
        "gtv.balanced": (fp.gtv.balanced, on),
        "theory.asynchronous": (fp.theory.asynchronous, {"kappa": 0.5, "B": 2, "ticks": 5}),
        "theory.expansion": (fp.theory.expansion, {"run": run()}),
        "theory.block_norm": (fp.theory.block_norm, {"T": np.eye(4), "nodes": 2}),
        "theory.contraction": (fp.theory.contraction, {"algorithm": "fedrelax", **on, "coupling": 1.0}),
        "theory.iteration_matrix": (fp.theory.iteration_matrix, {"algorithm": "fedrelax", **on, "coupling": 1.0}),
        "theory.spectral_rate": (fp.theory.spectral_rate, {"algorithm": "fedrelax", **on, "coupling": 1.0}),
        "theory.step_limit": (fp.theory.step_limit, {**on, "coupling": 1.0}),
        "theory.local_sgd_bounds": (
            fp.theory.local_sgd_bounds,
            {"algorithm": method(), "problem": quad(), "radius": 2.0},
        ),
        "theory.lms_floor": (fp.theory.lms_floor, {"problem": stream(), "step": 0.1}),
        "theory.lms_msd": (fp.theory.lms_msd, {"problem": stream(), "step": 0.1, "rounds": 2}),
        "theory.lsa_bias": (fp.theory.lsa_bias, {"problem": system(), "step": 0.1, "local_steps": 2}),
        "theory.lsa_bias_small_step": (
            fp.theory.lsa_bias_small_step,
            {"problem": system(), "step": 0.1, "local_steps": 2},
        ),
        "theory.lsa_path": (fp.theory.lsa_path, {"problem": system(), "step": 0.1, "local_steps": 2, "rounds": 3}),
    }
    return {f"fp.{name}": lambda one=one: (one[0], dict(one[1])) for name, one in made.items()}


def estimators() -> Table:
    """Estimators: their arguments are looked at when they are fitted, as scikit-learn asks for."""
    found: Table = {}
    X, y, groups = rows()
    for name in FITTED:
        target = labels() if "Classifier" in name else y
        found |= {
            f"fp.estimators.{name}": lambda name=name, y=target: (_fit(name, y), dict(FITTED[name])),
            f"{name}.fit": lambda name=name, y=target: (
                getattr(fp.estimators, name)(**FITTED[name]).fit,
                {"X": X, "y": y, "groups": groups},
            ),
        }
        used = ("transform", "inverse_transform") if name.startswith("FederatedS") else ("transform",)
        used = ("predict",) if name.endswith(("sor", "fier", "GLM")) else used
        used = (*used, "predict_proba", "decision_function") if name.endswith("fier") else used
        used = (*used, "predict_log_proba") if name == "FederatedClassifier" else used
        if name.startswith("Network") or name.endswith("GLM"):
            found[f"{name}.score"] = lambda name=name, y=target: (fitted(name).score, {"X": X, "y": y})
        for attribute in used:
            found[f"{name}.{attribute}"] = lambda name=name, attribute=attribute: (
                getattr(fitted(name), attribute),
                {"X": X},
            )
    found["FederatedGLM.summary"] = lambda: (fitted("FederatedGLM").summary, {})
    one = "FederatedClassifier"
    scored = {"X": X, "y": labels(), "groups": groups}
    for attribute, given in {"agent_scores": scored, "export": {"path": "estimator.npz"}, "predictor": {}}.items():
        found[f"{one}.{attribute}"] = lambda attribute=attribute, given=given: (getattr(fitted(one), attribute), given)
    return found


def _fit(name: str, y: np.ndarray) -> Callable[..., Any]:
    X, _, groups = rows()
    kind = getattr(fp.estimators, name)

    def fit(*values: Any, **arguments: Any) -> Any:
        return kind(*values, **arguments).fit(X, y, groups)

    fit.__wrapped__ = kind  # type: ignore[attr-defined] # its signature
    return fit


def statistics() -> Table:
    """Statistics over sites."""
    X, _, groups = rows()
    data = {"x": X[:, 0], "days": 1.0 + np.arange(len(X))[::-1] % 5, "died": np.arange(len(X)) % 3 > 0, "site": groups}
    data["arm"] = np.arange(len(X)) % 2
    survival = {"data": data, "time": "days", "event": "died", "groups": "site"}
    return {
        "fp.cox": lambda: (fp.cox, {"formula": "x", "data": data, "time": "days", "event": "died", "groups": "site"}),
        "fp.glm": lambda: (fp.glm, {"formula": "days ~ x", "data": data, "groups": "site", "family": "poisson"}),
        "fp.statistics.Floor": lambda: (fp.statistics.Floor, {}),
        "fp.statistics.kaplan_meier": lambda: (fp.statistics.kaplan_meier, {**survival, "floor": None}),
        "fp.statistics.logrank": lambda: (fp.statistics.logrank, {**survival, "by": "arm", "floor": None}),
        "fp.statistics.table_one": lambda: (fp.statistics.table_one, {"data": data, "groups": "site", "floor": None}),
        "fp.statistics.private_glm": lambda: (
            fp.statistics.private_glm,
            {
                "formula": "died ~ x",
                "data": data | {"died": 1.0 * data["died"]},
                "groups": "site",
                "channel": [fp.channel.Clip(100.0), fp.channel.Gaussian(1e-4)],
                "rounds": 1,
            },
        ),
        "fp.statistics.value_of_joining": lambda: (
            fp.statistics.value_of_joining,
            {"formula": "days ~ x", "data": data, "groups": "site"},
        ),
        "fp.statistics.meta_analysis": lambda: (
            fp.statistics.meta_analysis,
            {"estimates": [0.1, 0.3, 0.2], "std_errors": [0.1, 0.2, 0.1]},
        ),
    }


def bare() -> Table:
    """Methods that can be called without arguments, of every object; each definition once."""
    encoder = partial(fitted, "FederatedEncoder")
    made = (quad, squares, logistic, loss, stream, system, td, mdp, any_model, ring, experiment, constants)
    shown = (run, forecast, verdict, sweep, comparison, plan, choice, baselines, dataset, table, stability, bounds)
    found: Table = {}
    seen: set[str] = set()
    for make in (*made, *shown, encoder, certificate, predictor, panel, couplings, chosen_coupling, expansion):
        cls = type(make())
        for name in interface.methods(cls):
            method = getattr(make(), name)
            needed = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
            if not needed and interface.definition(method) not in seen:
                seen.add(interface.definition(method))
                found[f"{cls.__name__}.{name}()"] = lambda make=make, name=name: (getattr(make(), name), {})
    return found


AREAS = (methods, problems, verbs, results, networks, theories, estimators, statistics, bare)


def everything() -> Table:
    return {name: good for area in AREAS for name, good in area().items()}
