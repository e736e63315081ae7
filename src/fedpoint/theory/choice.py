"""Which theory answers about the noise of an experiment? Or why none does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedpoint.core.algorithm import samples_per_round
from fedpoint.theory import late_answers
from fedpoint.theory.affine import Affine
from fedpoint.theory.budget import Late
from fedpoint.theory.closure import Closure
from fedpoint.theory.columns import Columns
from fedpoint.theory.jumps import why_not
from fedpoint.theory.messages import Messages
from fedpoint.theory.messages import suits as messages_suit
from fedpoint.theory.noise import Unprobed
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Outlook
from fedpoint.theory.sampled import Drawn, sampled_floor, too_long
from fedpoint.theory.steady import NoLimit
from fedpoint.theory.trajectory import OwnChains, Trajectory, unclosed, unsuited

LARGEST_STATE = 2500  # numbers of a state whose covariance is computed
LARGEST_MODEL = 200  # of one model
LARGEST_MODELS = 600  # of the models of all nodes together
LARGEST_NOISE = 1 << 21  # numbers of the covariances of all agents' fields, beyond which columns take much less time

ASKED_TWICE = "agents are asked more than once in a round: how its noise adds up is known from drawn rounds only"
NESTED = "agents meet at the hubs of regions: how noise adds up is known from drawn rounds only"
UNTOLD = "what the channel does is known from drawn rounds only"

# Words for theories; any other text is a reason why there is none.
KINDS = ("exact", "trajectory", "chains", "closure", "columns", "messages", "sampled", "jumps", "linearised")


@dataclass(frozen=True)
class Asked:
    """What an outlook is asked about: x, the fixed point of the expected round; origin, where runs begin; rate, of the
    mean's deviation, nan where the theory tells it; known: whether the gauge measures from what the run is after, else
    from where it settles."""

    setting: Setting
    x: np.ndarray
    origin: np.ndarray
    gauge: Gauge
    rate: float
    known: bool
    seed: int


def in_step(setting: Setting) -> bool:
    """With a fusion center that waits for its answers, or on a network where all nodes work in every round and hear
    what is fresh."""
    timing, agents = setting.timing, setting.agents
    if not setting.topology.by_node:
        return not setting.bound.timing.on_clock
    return timing.all_heard and timing.slots(agents) == agents and timing.depth(1) == 1


def kind_of(setting: Setting, wanted: str) -> str:
    """The word for the theory to be used, or why there is none. wanted: "auto", "exact" or "sampled"."""
    s = setting
    if s.scheduled:
        return "decaying steps and running means have no steady state: only the curve is forecast"
    if s.adaptive:
        return "changes are adaptive (they depend on ratios of their own history): only limit and rate are forecast"
    if not in_step(s):
        late = why_not(s) if s.topology.by_node else late_answers.why_not(s, s.bound.experiment.timing)
        return late or "jumps"
    if not s.moments.independent:
        return f"who works in a round of {s.timing.names()[0]} depends on who did before"
    if s.bound.merged_by:
        exact = f"{s.bound.merged_by} does not merge linearly: noise moves where it ends"
        return exact if wanted == "exact" else "sampled"
    if wanted != "sampled" and s.oracle.moves and not s.exact:
        if not unsuited(s):
            return "trajectory"
        if not unclosed(s):
            return "chains"
    doubt = doubt_of(s)
    if wanted == "auto" and _by_columns(s):
        return "columns"
    if wanted == "auto" and doubt == UNTOLD and not _large(s) and messages_suit(s):
        return "messages"
    if wanted == "sampled" or (wanted == "auto" and (doubt or (s.lossy and _large(s)))):
        return "sampled"
    if (s.lossy and doubt) or _apart(s) or s.surveys or s.topology.nested:
        return doubt
    if _large(s):
        return (
            f"the state has {s.size} numbers ({_model(s)} of them the model): covariances are computed up to "
            f"{LARGEST_STATE} ({_largest(s)})"
        )
    known = wanted == "exact" or not s.own_kind  # how the method uses its samples
    return "exact" if s.problem.linear and s.straight and known else "closure"


def _by_columns(setting: Setting) -> bool:
    """Covariances are too large, or those of all agents' fields take too long; and columns of noise can be drawn."""
    s, many = setting, setting.agents * _model(setting) ** 2 > LARGEST_NOISE
    plain = not (s.surveys or s.topology.by_node or s.topology.nested or s.lossy)
    return (_large(s) or many) and plain and not (s.oracle.moves and not s.exact)


def _model(setting: Setting) -> int:
    """How many numbers all models have."""
    return len(setting.flatten(setting.start))


def _largest(setting: Setting) -> int:
    return LARGEST_MODELS if setting.topology.by_node else LARGEST_MODEL


def _large(setting: Setting) -> bool:
    """Too large for covariances."""
    return setting.size > LARGEST_STATE or _model(setting) > _largest(setting)


def doubt_of(setting: Setting) -> str:
    """Why second moments do not follow from the update; empty where they do."""
    s = setting
    if s.surveys:
        return ASKED_TWICE
    if s.topology.nested:
        return NESTED
    if not s.exact and not s.oracle.known_noise:
        return "the problem does not tell the covariance of its samples"
    if _apart(s):
        return "the problem does not tell the covariance of two fields with the same sample"
    if not s.exact and not s.oracle.independent:
        return "samples within a round depend on each other"
    if s.lossy and not s.known_channel:
        return UNTOLD
    if s.multiplies_luck:
        return "the hub multiplies what depends on how many steps agents took"
    if s.topology.by_node and not s.exact and samples_per_round(s.algorithm) is None:
        return "how many samples nodes take is drawn in the run"
    return ""


def _apart(setting: Setting) -> bool:
    """Chains share samples, and what these have in common is not known."""
    return bool(setting.algorithm.chains > 1 and not setting.exact and not setting.oracle.known_cross_noise)


def outlook_of(kind: str, asked: Asked) -> Outlook | str:
    """The theory of that kind, or why it gives no answer."""
    a = asked
    if kind == "exact":
        return Affine(a.setting, a.x, a.origin, a.gauge)
    if kind == "closure":
        return _own(a) if a.setting.own_kind else _moving_limit(a, Closure)
    if kind == "trajectory":
        return _moving_limit(a, Trajectory)
    if kind == "chains":
        return _moving_limit(a, OwnChains)
    if kind == "columns":
        made = Columns(a.setting, a.x, a.origin, a.gauge, seed=a.seed)
        try:
            _ = made.floor
        except Late as late:
            return str(late)
        made.gauge = a.gauge if a.known else replace(a.gauge, target=made.limit)
        return made
    return _messages(a) if kind == "messages" else _drawn(a)


def _messages(a: Asked) -> Outlook | str:
    """Of messages over a channel that is not linear, as far as their moments settle: else drawn rounds."""
    made = Messages(a.setting, a.x, a.origin, a.gauge, a.seed)
    try:
        if made.settled is None:
            return _drawn(a)
    except (NoLimit, Unprobed):
        return _drawn(a)
    made.gauge = a.gauge if a.known else replace(a.gauge, target=made.limit)
    return made


def _moving_limit(a: Asked, theory: type[Closure] | type[Trajectory]) -> Outlook | str:
    """Of a theory whose limit is another than the fixed point."""
    made = theory(a.setting, a.x, a.origin, a.gauge)
    try:
        end = made.limit
    except NoLimit as error:
        return str(error)
    made.gauge = a.gauge if a.known else replace(a.gauge, target=end)
    return made


def _own(a: Asked) -> Outlook | str:
    """Of a method about which nothing is known: a closure where drawn rounds bear it out, else drawn rounds alone."""
    try:
        made = _moving_limit(a, Closure)
    except Unprobed:
        return _drawn(a)
    return made if isinstance(made, Closure) and made.borne_out else _drawn(a)


def _drawn(a: Asked) -> Outlook | str:
    s, gap = a.setting, a.gauge(a.setting.read(a.x) - a.gauge.target)
    if a.rate >= 1:
        return "nothing is drawn"
    late = too_long(s, a.rate)
    if late:
        return late
    found = sampled_floor(s, a.x, a.gauge.of_state(s.reading_at(a.x)), gap, a.rate, seed=a.seed)
    if isinstance(found, str):
        return found
    made = Drawn(s, a.x, a.origin, a.gauge, found)
    made.gauge = a.gauge if a.known else replace(a.gauge, target=made.limit)
    return made
