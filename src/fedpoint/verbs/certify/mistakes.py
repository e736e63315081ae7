"""What is right, and which mistakes are known? One entry per method: its correct variants and its ways to go wrong.

Mistakes are those found in public implementations and lecture notes. Each has a name, a reason in plain words, and the
switches of `methods.Recipe` that make it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Literal, Protocol, TypeAlias

import numpy as np

from fedpoint.verbs.certify import drift, methods, nodes, personal
from fedpoint.verbs.certify.methods import Recipe, Round, Setting, Settings
from fedpoint.verbs.certify.world import AGENTS, Normal, Play, Reading, World, everyone, play

Switches: TypeAlias = Settings | Callable[[Recipe], Settings]


@dataclass(frozen=True)
class Mistake:
    """switches: those that make it; none where it is known by what it does, whatever the method.

    claimed: it is one only of a subject that claims the method with these settings.
    """

    name: str
    reason: str
    switches: tuple[Switches, ...] = ()
    claimed: bool = False

    @property
    def name_and_reason(self) -> tuple[str, str]:
        return self.name, self.reason


class Once(Protocol):
    """The first noisy round of somebody: of a seed, or with noise as it is written."""

    def __call__(self, seed: int, rng: Normal | None = None) -> Play: ...


@dataclass(frozen=True)
class Method:
    """A method of the catalogue.

    variants: settings that a subject may choose, unless they are given; all are right. fixed: settings that are part
    of the method. needs: settings without which there is nothing to compare with. steady: the limit stays at w* also
    when only some take part. partial: valid then at all. read: where agents have models of their own, an agent's, of
    the common one and what it keeps. network: for methods of nodes, which ways their edges go.
    """

    name: str
    round: Round
    mistakes: tuple[Mistake, ...] = ()
    fixed: tuple[tuple[str, Setting], ...] = ()
    variants: tuple[Settings, ...] = ({},)
    needs: tuple[str, ...] = ("step",)
    steady: bool = False
    partial: bool = True
    read: Callable[[Recipe, np.ndarray, np.ndarray], np.ndarray] | None = None
    network: Literal["", "both ways", "one way"] = ""

    @property
    def copies(self) -> int:
        """How many models there are."""
        return 1 if self.read is None else AGENTS

    def play(
        self,
        recipe: Recipe,
        world: World,
        ticks: Sequence[Sequence[int]],
        seed: int = 0,
        noise: float = 0.0,
        rng: Normal | None = None,
    ) -> Play:
        """Rounds with these settings and switches."""
        return play(partial(self.round, recipe), world, ticks, seed, noise, rng=rng, read=self.reading(recipe))

    def reading(self, recipe: Recipe) -> Reading | None:
        """An agent's model, with these settings."""
        return None if self.read is None else partial(self.read, recipe)

    def once(self, recipe: Recipe, world: World, noise: float) -> Once:
        """The first noisy round."""
        return lambda seed, rng=None: self.play(recipe, world, everyone(1), seed, noise, rng)

    def recipes(self, settings: Settings) -> Iterator[Recipe]:
        """The correct variants with these settings."""
        for variant in self.variants:
            if all(settings.get(name, value) == value for name, value in variant.items()):
                yield Recipe.of(settings | variant | dict(self.fixed))

    def wrong(self, settings: Settings, claimed: bool) -> Iterator[tuple[Mistake, Recipe, Recipe]]:
        """The broken variants with these settings, each with the correct one that it comes from."""
        for mistake, recipe in product(self.mistakes, list(self.recipes(settings))):
            if claimed or not mistake.claimed:
                for switches in mistake.switches:
                    yield mistake, recipe.but(switches(recipe) if callable(switches) else switches), recipe


WEIGHTS_DROPPED = "the weights p_k are dropped: all agents count alike although their weights differ"

COMMON = (
    Mistake("weights_dropped", WEIGHTS_DROPPED, ({"merge": "plain"},)),
    Mistake(
        "weights_renormalised",
        "the weights are divided by their sum over the agents selected: then agents with a small weight count for too "
        "much whenever few take part (take p_k K/L, which need not sum to one)",
        ({"merge": "renormalised"},),
    ),
    Mistake(
        "models_weighted",
        "models are summed with the weights p_k K/L, which do not sum to one over a selection, so that the model "
        "shrinks or grows by chance: apply them to the changes y_k - w",
        ({"merge": "models"},),
    ),
    Mistake(
        "not_scaled_up",
        "the changes of those selected are summed with p_k alone: without K/L a round of L agents goes only L/K of "
        "the way",
        ({"merge": "unscaled"},),
        claimed=True,
    ),
    Mistake("ascent", "it goes up the gradient: the sign of the step is flipped", ({"sign": -1.0},)),
    Mistake(
        "gradient_frozen",
        "all local steps use the gradient at the received model: it is not evaluated again at each local model",
        ({"frozen": True},),
        claimed=True,
    ),
    Mistake(
        "step_divided",
        "the local step is smaller than the step that was given, by the number of local steps (divided once too often)",
        ({"divide": 1}, {"divide": 2}),
        claimed=True,
    ),
    Mistake(
        "wrong_number_of_steps",
        "agents take one local step more, or one less, than local_steps says",
        ({"more": 1}, {"more": -1}),
        claimed=True,
    ),
)

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

OWN_SENT = Mistake(
    "own_model_sent",
    "the change of the agent's own model is sent, which never leaves it: what is averaged is the common one's",
    ({"sent": "own"},),
)
OWN_FORGOTTEN = Mistake(
    "own_model_forgotten",
    "an agent's own model begins anew from the common one in every round: it is to be kept",
    ({"anew": True},),
)

DITTO = (
    OWN_SENT,
    OWN_FORGOTTEN,
    Mistake("pull_sign_flipped", "the pull is a push: away from the common model", ({"stretch": -1.0},)),
    Mistake("pull_to_zero", "the pull is towards 0 instead of towards the common model", ({"near": "zero"},)),
    Mistake("pull_doubled", "the pull is off by a factor of two", ({"stretch": 2.0}, {"stretch": 0.5}), claimed=True),
    Mistake(
        "pulled_to_own_steps",
        "the own model is pulled to where the agent's common steps of this round end: it is to be pulled to the "
        "common model that was received",
        ({"near": "end"},),
    ),
    Mistake("pull_missing", "the pull has no effect: agents learn alone", ({"stretch": 0.0},), claimed=True),
)

TUNED = (
    OWN_SENT,
    Mistake(
        "tuning_goes_on",
        "fine-tuning goes on from the agent's last own model: it begins at the common model in every round",
        ({"anew": True},),
    ),
    Mistake(
        "tuned_from_own_steps",
        "fine-tuning begins where the agent's common steps of this round end: it begins at the common model received",
        ({"near": "end"},),
    ),
)

MIXED = (
    OWN_SENT,
    OWN_FORGOTTEN,
    Mistake(
        "mixture_swapped",
        "own and common model change places in the mixture: it is a v_k + (1 - a) w",
        tuple({"swapped": where} for where in ("point", "point factor", "point read", "point factor read")),
    ),
    Mistake(
        "mixture_not_evaluated",
        "the field is evaluated at the own model: it belongs at the mixture a v_k + (1 - a) w",
        ({"near": "own"},),
    ),
    Mistake(
        "chain_rule_missing",
        "the factor a of the chain rule is missing in the own step: the gradient of f_k(a v + (1 - a) w) is a g_k",
        ({"chained": True},),
    ),
)

ENVELOPES = (
    replace(OWN_SENT, reason="theta_k - w is sent: it is the change of w_k after its steps on the envelope"),
    Mistake(
        "chain_rule_missing",
        "the factor pull is missing in the local step: an envelope's gradient is pull (w - theta)",
        ({"chained": True},),
    ),
    *(mistake for mistake in PROX if mistake.name == "pull_doubled"),
    replace(SERVER[1], switches=({"server_step": 1.0},)),
)

NOT_MIXED = Mistake("neighbours_not_heard", "what neighbours say has no effect: nodes learn alone", ({"graph": "own"},))
UNEVEN = (
    NOT_MIXED,
    Mistake("own_left_out", "a node averages its neighbours and leaves itself out", ({"graph": "others"},)),
    Mistake(
        "edges_count_alike",
        "the weights of the edges are dropped: nodes of many neighbours then count for more than others",
        ({"graph": "plain"},),
    ),
    Mistake(
        "weights_not_completed",
        "the neighbours' weights do not sum to one, and what is left is not the node's own: models shrink",
        ({"graph": "incomplete"},),
    ),
)
LAZY = Mistake(
    "identity_missing", "nodes average with W where (I + W)/2 belongs: half of it stays their own", ({"lazy": False},)
)
LOCAL = tuple(m for m in COMMON if m.name in ("ascent", "gradient_frozen", "step_divided", "wrong_number_of_steps"))

DIFFUSION = (
    *UNEVEN,
    Mistake(
        "gradient_before_mean",
        "fields are evaluated at the node's model before the mean: this is decentralised gradient descent, W w - step "
        "g(w), which is stable for shorter steps only",
        ({"evaluated": "before"},),
    ),
    Mistake(
        "order_swapped",
        "combine and adapt change places",
        (lambda r: {"order": {nodes.COMBINE_FIRST: "adapt_then_combine"}.get(r.order, nodes.COMBINE_FIRST)},),
        claimed=True,
    ),
)
BALANCED = (
    *UNEVEN,
    LAZY,
    Mistake(
        "correction_sign_flipped",
        "the correction has the wrong sign: phi = psi + w - (psi of the tick before)",
        ({"correction": -1.0},),
    ),
    Mistake("correction_missing", "the correction has no effect: this is diffusion", ({"correction": 0.0},)),
    Mistake(
        "correction_after_mean",
        "the correction is added after the mean: it belongs into what neighbours hear",
        ({"place": "after"},),
    ),
    Mistake(
        "corrected_kept",
        "the corrected phi is kept for the next tick: the correction is by psi, where the node's own steps had led",
        ({"stored": "last"},),
    ),
)
DIFFERENCES = (
    *UNEVEN,
    LAZY,
    Mistake(
        "old_gradient_forgotten",
        "the gradient of the tick before is not subtracted: its step counts twice",
        ({"subtract": 0.0},),
    ),
    Mistake(
        "correction_sign_flipped", "the gradient of the tick before is added: it is subtracted", ({"subtract": -1.0},)
    ),
)
TRACKED = (
    *UNEVEN,
    Mistake(
        "tracker_not_averaged",
        "the estimates of the gradient are not averaged: each then follows its node's own gradient only",
        ({"tracked": False},),
    ),
    replace(DIFFERENCES[-2], switches=({"subtract": 0.0}, {"kept": False})),
    DIFFERENCES[-1],
    Mistake(
        "tracker_not_started",
        "the estimates begin at zero and not as the first gradients: their sum then lacks these forever",
        ({"started": False},),
    ),
)
PUSHED = (
    NOT_MIXED,
    Mistake(
        "shares_do_not_add_up",
        "nodes average what they hear: in push-sum they divide what they have among those who hear them, so that "
        "nothing is lost (columns of W sum to one)",
        ({"graph": "rows"}, {"graph": "plain"}, {"graph": "turned"}),
    ),
    Mistake(
        "gradient_at_sum", "fields are evaluated at the sum of models: they belong at v/y", ({"evaluated": "sum"},)
    ),
    Mistake("ones_not_handed_on", "the sums of ones stay one: they are handed on like the models", ({"ones": False},)),
    Mistake("sum_for_ratio", "a node reads its sum of models: its model is v/y", ({"shown": "sum"},)),
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
            (*DITTO, *COMMON),
            PLAIN[1:2],
            NORMALISED,
            needs=(*STEPS, "pull"),
            read=personal.own_kept,
        ),
        Method(
            "fine_tuned",
            personal.fine_tuned,
            (*TUNED, *COMMON),
            PLAIN[:2],
            NORMALISED,
            needs=(*STEPS, "own_steps"),
            read=personal.own_kept,
        ),
        Method(
            "apfl",
            personal.apfl,
            (*MIXED, *COMMON),
            PLAIN[:2],
            NORMALISED,
            needs=(*STEPS, "mix"),
            read=personal.mixture,
        ),
        Method(
            "pfedme",
            personal.pfedme,
            (*ENVELOPES, *COMMON),
            (("exact", True), ("normalise", False)),
            needs=(*STEPS, "pull"),
            read=personal.own_kept,
        ),
        *(
            Method(name, round, (*known, *LOCAL), PLAIN, variants, partial=False, read=personal.own_kept, network=ways)
            for name, round, known, variants, ways in (
                ("diffusion", nodes.diffusion, DIFFUSION, ORDERS, "both ways"),
                ("exact_diffusion", nodes.exact_diffusion, BALANCED, ({},), "both ways"),
                ("extra", nodes.extra, DIFFERENCES, ({},), "both ways"),
                ("gradient_tracking", nodes.gradient_tracking, TRACKED, ORDERS, "both ways"),
                ("push_sum", nodes.push_sum, PUSHED, ({},), "one way"),
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
