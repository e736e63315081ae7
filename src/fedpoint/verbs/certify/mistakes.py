"""What is right, and which mistakes are known? One entry per method: its correct variants and its ways to go wrong.

Mistakes are those found in public implementations and lecture notes. Each has a name, a reason in plain words, and the
switches of `methods.Recipe` that make it.
"""

from __future__ import annotations

from dataclasses import replace

from fedpoint.verbs.certify import drift, methods, nodes, personal
from fedpoint.verbs.certify.method import COMMON, WEIGHTS_DROPPED, Method, Mistake
from fedpoint.verbs.certify.methods import Settings

SAMPLE_REUSED = Mistake(
    "sample_reused",
    "all local steps of a round use the same sample: take a fresh one at each step (in a class: agent.field(y, e), and "
    "the number of steps in a field called local_steps)",
)

SAMPLES_SHARED = Mistake(
    "samples_shared",
    "several agents use the same sample in a round, so that their noise is one noise and does not average out: each "
    "must draw its own",
)
SAMPLE_KEPT = Mistake(
    "sample_kept",
    "samples of an earlier round are used again, so that the noise does not average out over the rounds: draw fresh "
    "ones",
)
SAMPLES_NOT_USED = Mistake(
    "samples_not_used",
    "a round has no noise although its fields have: agent.field is given a constant where a sample belongs",
)
NOISE_AMPLIFIED = Mistake(
    "noise_amplified",
    "a round is noisier than fresh samples make it, and not as one sample for all local steps would: look for fields "
    "that are counted several times and subtracted again",
)

NOBODY_ASKED = Mistake(
    "nobody_asked",
    "no agent is ever asked for anything (a field, a loss, a prox): the model cannot depend on their data",
)
ANSWERS_IGNORED = Mistake("answers_ignored", "agents are asked, but their answers have no effect on the model")
AGENTS_LEFT_OUT = Mistake("agents_left_out", "what some agents hold has no effect on the model")
CONSTANT_ADDED = Mistake("constant_added", "a round adds a constant, which depends on neither the model nor the data")
NOT_AVERAGED = Mistake(
    "not_averaged",
    "what agents send is not averaged: how much one of them counts depends on what the others say, as in a median",
)
NOT_LINEAR = Mistake(
    "not_linear",
    "when all lengths double, its changes do not: something is clipped, normalised or cut off that the method leaves "
    "alone",
)

NOT_SQUARED = Mistake(
    "pull_not_squared",
    "the proximal term is not squared: its gradient is a vector of constant length, which does not grow with the "
    "distance from the received model (take (pull/2)|v - w|^2, whose gradient is pull (v - w))",
    tuple({"term": "norm", "stretch": s} for s in (0.5, 1.0, 2.0)),
)

PROX = (
    NOT_SQUARED,
    Mistake(
        "pull_to_zero",
        "the proximal term pulls towards 0 instead of towards the received model w",
        tuple({"term": "zero", "stretch": s} for s in (1.0, 0.5, 2.0)),
    ),
    Mistake("pull_sign_flipped", "the proximal term pushes away from the received model", ({"stretch": -1.0},)),
    Mistake("pull_missing", "the proximal term has no effect: this is FedAvg", ({"stretch": 0.0},), claimed=True),
    Mistake(
        "pull_doubled",
        "the pull is off by a factor of two: the term is (pull/2)|v - w|^2, with the gradient pull (v - w)",
        ({"stretch": 2.0}, {"stretch": 0.5}),
        claimed=True,
    ),
)

NOT_STORED = Mistake(
    "control_never_stored",
    "a control variate is never stored (c_k, c or both stay zero), so that it has no lasting effect",
    ({"stored": "none"}, {"stored": "hub"}, {"stored": "agents"}),
)
NOT_ZERO = Mistake(
    "controls_not_zero",
    "the control variates do not start at zero: their mean is then never c, and the limit is wrong",
    ({"begin": "field"}, {"begin": "one"}),
)

# The same rounds, with c for -c: only who sees the control variates can tell the two apart.
UPDATE_SIGN = Mistake(
    "control_sign_flipped",
    "the new control variates have the wrong sign (they must be mean gradients, c_k+ = c_k - c + (x - y)/(E eta)), or "
    "they enter the local steps with the wrong sign, which makes the same rounds (y -= eta (g - c_k + c))",
    ({"update": -1.0},),
)
CORRECTION_SIGN = Mistake(
    "correction_sign_flipped",
    "the correction enters the local steps with the wrong sign: y -= eta (g - c_k + c)",
    ({"correction": -1.0},),
)

CONTROL = (
    NOT_STORED,
    UPDATE_SIGN,
    Mistake(
        "control_sign_flipped",
        "a sign in the update of the control variates is flipped: c_k+ = c_k - c + (x - y)/(E eta) (option II), "
        "c += sum p_k (c_k+ - c_k)",
        ({"minus": -1.0}, {"hub": -1.0}, {"update": -1.0, "minus": -1.0}),
    ),
    Mistake(
        "control_divided_by_selected",
        "the server divides the change of c by the number of agents selected instead of all: then c is no longer the "
        "mean of the c_k whenever only some take part",
        ({"control": "scaled"}, {"control": "selected"}, {"control": "selected", "merge": "plain"}),
    ),
    Mistake(
        "weights_dropped",
        WEIGHTS_DROPPED,
        ({"merge": "plain", "control": "all"}, {"control": "all"}),
    ),
    Mistake(
        "control_per_wrong_steps",
        "the new control variate divides x - y by the wrong number of steps: it must be the mean gradient, "
        "(x - y)/(E_k eta)",
        ({"per": "one"}, {"per": "more"}, {"per": "less"}, {"per": "square"}, {"per": "most"}),
    ),
    Mistake(
        "server_step_in_control",
        "the server's step is applied to the control variate c as well as to the model",
        (lambda r: {"hub": r.server_step},),
    ),
    NOT_ZERO,
)

CORRECTIONS = (
    replace(
        NOT_STORED,
        reason="the corrections h_k are not stored, or not added up, so that they have no lasting effect",
        switches=({"stored": "none"}, {"stored": "last"}),
        claimed=True,
    ),
    replace(
        UPDATE_SIGN,
        reason="the corrections have the wrong sign where they are updated, h_k += (p/step)(w+ - x_k), or where they "
        "are used, x -= step (g - h_k), which makes the same rounds",
    ),
    Mistake(
        "probability_missing",
        "the update of the corrections lacks the probability of communication: h_k += (p/step)(w+ - x_k)",
        ({"scale": "one"},),
    ),
    replace(
        NOT_ZERO, reason="the corrections h_k do not start at zero: their mean then stays off zero, the limit off w*"
    ),
)

NOT_NORMALISED = Mistake(
    "not_normalised",
    "changes are not divided by the agent's number of local steps: this is FedAvg, drawn to agents that do more",
    ({"normalised": False},),
    claimed=True,
)

LENGTHS = (
    NOT_NORMALISED,
    Mistake(
        "wrong_effective_length",
        "tau_eff is wrong: it must be the p-weighted mean of the agents' numbers of local steps over those heard",
        tuple({"tau": tau} for tau in ("plain", "most", "sum", "one", "unscaled", "counted")),
    ),
    Mistake(
        "wrong_length",
        "changes are divided by the number of local steps although momentum, pull or decay make |a|_1 another number",
        ({"counted": False},),
    ),
)

FAIR = (
    Mistake("fairness_missing", "the losses have no effect: this is q = 0", (lambda r: {"q": 0.0},), claimed=True),
    Mistake(
        "curvature_without_slope",
        "the curvature h_k lacks q F_k^(q-1) |D_k|^2",
        ({"curvature": "no slope"},),
    ),
    Mistake(
        "curvature_summed",
        "the step is divided by the sum of v_k h_k over the selection, whose weights do not sum to one: take the mean",
        ({"curvature": "summed"},),
    ),
    Mistake("loss_at_end", "F_k is taken after the local steps instead of at the received model", ({"at_end": True},)),
)

SERVER = (
    Mistake("server_state_lost", "the server optimiser's state is not kept between rounds", ({"kept": False},)),
    Mistake(
        "server_step_missing",
        "the server's step has no effect",
        (lambda r: {"server_step": 1.0},),
        claimed=True,
    ),
)

DYNAMIC = (
    replace(
        NOT_STORED,
        reason="h_k, or the hub's h, is never stored (one of them or both stay zero), so that it has no effect",
    ),
    Mistake(
        "control_sign_flipped",
        "a sign of h_k or h is flipped: h_k -= a (y_k - w), h -= a sum p_k (y_k - w), w+ = mean - h/a",
        ({"update": -1.0}, {"hub": -1.0}, {"minus": -1.0}),
    ),
    Mistake(
        "control_divided_by_selected",
        "the server divides its change of h by the number of agents selected instead of all: then h is no longer the "
        "mean of the h_k whenever only some take part",
        ({"control": "scaled"}, {"control": "selected"}),
    ),
    Mistake("weights_dropped", WEIGHTS_DROPPED, ({"merge": "plain", "control": "all"}, {"control": "all"})),
    replace(NOT_ZERO, reason="the h_k do not start at zero: their mean is then never h, and the limit is wrong"),
)

LONGER = (
    Mistake(
        "half_missing",
        "the server step lacks its factor of one half: sum |change_k|^2 is divided by 2 (|mean change|^2 + eps)",
        ({"halved": 1.0},),
    ),
    Mistake(
        "step_below_one",
        "the server step falls below 1: it is the larger of 1 and the ratio",
        ({"bounded": False},),
    ),
    Mistake("not_squared", "lengths of changes are not squared", ({"measure": "lengths"},)),
)

SURVEYED = (
    Mistake(
        "gradient_stale",
        "everybody's gradient is that of the round before: it must be taken at the model that local steps start from",
        ({"stale": True},),
    ),
    Mistake(
        "own_gradient_kept",
        "the own gradient at the received model is not subtracted, so that agents' own gradients count twice",
        ({"subtract": 0.0},),
    ),
    Mistake(
        "correction_missing",
        "neither everybody's gradient nor the own one at the received model has an effect: these are FedAvg's steps",
        ({"everybody": 0.0, "subtract": 0.0},),
        claimed=True,
    ),
)

MOMENTUM = (
    SURVEYED[1],
    SURVEYED[2],
    Mistake(
        "momentum_moved",
        "agents update the momentum in their local steps: it is the hub's, and stays as it is for the round",
        ({"moved": True},),
    ),
    Mistake("server_state_lost", "the momentum is not kept between rounds", ({"kept": False},)),
    Mistake(
        "gradient_not_damped",
        "gradients are not multiplied by 1 - momentum: with m = (1 - beta) c + beta m they must be in local steps too",
        ({"undamped": True},),
    ),
)

NEWTON = (
    Mistake(
        "newton_steps_averaged",
        "agents' own Newton steps are averaged: send Hessians and gradients, and solve once with their means",
        ({"curvature": "own"},),
    ),
    Mistake(
        "hessian_summed",
        "Hessians are added up while gradients are averaged, so that the step is too short by the number of agents",
        ({"curvature": "summed"},),
    ),
    Mistake("hessian_diagonal", "only the diagonal of the Hessian has an effect", ({"curvature": "diagonal"},)),
    Mistake("weights_dropped", WEIGHTS_DROPPED, ({"curvature": "equal"},)),
)

PLAIN = (("pull", 0.0), ("exact", False), ("normalise", False))  # settings of other methods, which this one lacks
ONE_STEP = (*PLAIN, ("local_steps", 1))
STEPS = ("step", "local_steps")  # of methods with own models they are not to be told from where fields are evaluated
ORDERS: tuple[Settings, ...] = ({"order": "adapt_then_combine"}, {"order": nodes.COMBINE_FIRST})
NORMALISED: tuple[Settings, ...] = ({"normalise": False}, {"normalise": True})

METHODS = {
    method.name: method
    for method in (
        Method("gradient_exchange", methods.average, COMMON, ONE_STEP),
        Method("parameter_exchange", methods.average, COMMON, ONE_STEP),
        Method("fedavg", methods.average, COMMON, PLAIN[:2], NORMALISED),
        Method(
            "fedprox",
            methods.average,
            (*PROX, *COMMON),
            PLAIN[2:],
            variants=({"exact": False}, {"exact": True}),
            needs=("step", "pull"),
        ),
        Method("fednova", methods.rule, (*LENGTHS, *COMMON), (*PLAIN[1:], ("weights", "fednova"))),
        Method(
            "scaffold",
            methods.scaffold,
            (*CONTROL, *COMMON),
            PLAIN,
            variants=({"option": 2}, {"option": 1}),
            steady=True,
        ),
        Method("scaffnew", methods.scaffnew, (*CORRECTIONS, *COMMON), PLAIN, partial=False),
        Method("qfedavg", methods.qfedavg, (*FAIR, *COMMON), PLAIN, needs=("step", "q")),
        Method(
            "fedopt",
            methods.optimised,
            (*SERVER, *COMMON),
            PLAIN,
            variants=({"corrected": True}, {"corrected": False}),
        ),
        Method("general_rule", methods.rule, COMMON, PLAIN[1:]),
        Method(
            "feddyn",
            drift.feddyn,
            (*DYNAMIC, *COMMON),
            PLAIN[2:],
            variants=({"exact": False}, {"exact": True}),
            needs=("step", "pull"),
            steady=True,
        ),
        Method("fedexp", drift.fedexp, (*LONGER, *COMMON), PLAIN),
        Method("fedlin", drift.fedlin, (*SURVEYED, *COMMON), PLAIN, partial=False),
        Method("mime", drift.mime, (*MOMENTUM, *COMMON), PLAIN, needs=("step", "momentum")),
        Method(
            "ditto",
            personal.ditto,
            (*personal.DITTO, *COMMON),
            PLAIN[1:2],
            NORMALISED,
            needs=(*STEPS, "pull"),
            read=personal.own_kept,
        ),
        Method(
            "fine_tuned",
            personal.fine_tuned,
            (*personal.TUNED, *COMMON),
            PLAIN[:2],
            NORMALISED,
            needs=(*STEPS, "own_steps"),
            read=personal.own_kept,
        ),
        Method(
            "apfl",
            personal.apfl,
            (*personal.MIXED, *COMMON),
            PLAIN[:2],
            NORMALISED,
            needs=(*STEPS, "mix"),
            read=personal.mixture,
        ),
        Method(
            "pfedme",
            personal.pfedme,
            (*personal.ENVELOPES, *COMMON),
            (("exact", True), ("normalise", False)),
            needs=(*STEPS, "pull"),
            read=personal.own_kept,
        ),
        *(
            Method(
                name,
                round,
                (*known, *nodes.LOCAL),
                PLAIN,
                variants,
                partial=False,
                read=personal.own_kept,
                network=ways,
            )
            for name, round, known, variants, ways in (
                ("diffusion", nodes.diffusion, nodes.DIFFUSION, ORDERS, "both ways"),
                ("exact_diffusion", nodes.exact_diffusion, nodes.BALANCED, ({},), "both ways"),
                ("extra", nodes.extra, nodes.DIFFERENCES, ({},), "both ways"),
                ("gradient_tracking", nodes.gradient_tracking, nodes.TRACKED, ORDERS, "both ways"),
                ("push_sum", nodes.push_sum, nodes.PUSHED, ({},), "one way"),
            )
        ),
        Method("fednewton", methods.newton, (*NEWTON, *COMMON), ONE_STEP, needs=(), partial=False),
    )
}

# Known by their properties.
OTHERS = (
    *(NOBODY_ASKED, ANSWERS_IGNORED, AGENTS_LEFT_OUT, CONSTANT_ADDED, NOT_AVERAGED, NOT_LINEAR, CORRECTION_SIGN),
    *(SAMPLE_REUSED, SAMPLES_SHARED, SAMPLE_KEPT, SAMPLES_NOT_USED, NOISE_AMPLIFIED),
)
