"""Is a run as forecast, contradicted or undecided? What the comparisons say together."""

from __future__ import annotations

import dataclasses

import jax

from fedpoint.core.algorithm import Algorithm, find
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.record import values_of
from fedpoint.results.forecast import Forecast
from fedpoint.results.run import Run
from fedpoint.results.verdict import Check, Verdict
from fedpoint.verbs.check.comparisons import OF_FORECAST, Comparisons
from fedpoint.verbs.check.diagnosis import diagnosis
from fedpoint.verbs.forecast import in_rounds


@checked
def check(run: Run, claims: Algorithm | str | None = None) -> Verdict:
    """Compare a run with its forecast: path, every round's step and noise, limit, floor, rate, what is conserved, and
    on a network what is certain.

    The verdict is true where the run was compared with its forecast and nothing contradicts it. `verdict.outcome` is
    "as forecast", "contradicted", or "undecided" where nothing of the forecast could be compared, or where a run from a
    folder is not finished and nothing contradicts it so far.

    Args:
        run: a result of `fp.run`, or of `fp.load`.
        claims: what the algorithm claims to be: a name of the catalogue, whose forecast is then made with the run's own
            hyper-parameters, or an algorithm. Default: the run's own algorithm, so that a user's own one is compared
            with what its code says.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    >>> bool(fp.check(fp.run(fp.Scaffold(step=0.1, local_steps=3), quad, rounds=300, repeats=8)))
    True
    """
    if int(run.rounds[-1]) < 1:
        raise FedpointError("the run has no rounds yet: there is nothing to check")
    if run.repeat_models:
        raise FedpointError("models that only fit and predict have no forecast to check the run against")
    experiment = run.session.experiment
    start = jax.tree.map(lambda a: a[0, 0], run.history)
    algorithm = experiment.algorithm if claims is None else claimed(claims, experiment.algorithm)
    experiment = in_rounds(experiment.replace(algorithm=algorithm, start=start, repeats=1))
    return verdict_of(Comparisons(run, experiment)).so_far(run.unfinished)


def claimed(claims: Algorithm | str, algorithm: Algorithm) -> Algorithm:
    """The catalogue's algorithm of that name with the hyper-parameters of another."""
    if isinstance(claims, Algorithm):
        return claims
    if not isinstance(claims, str):
        raise FedpointError(f'claims must be an algorithm or the name of one, such as "fedavg"; got {claims!r}')
    cls = find(claims).cls
    assert cls is not None
    names = {f.name: f for f in dataclasses.fields(cls)}
    given = {name: value for name, value in values_of(algorithm).items() if name in names}
    missing = [n for n, f in names.items() if n not in given and f.default is dataclasses.MISSING]
    if missing:
        raise FedpointError(
            f"claims={claims!r}: the run's algorithm does not say {', '.join(missing)}: "
            f"give claims=fp.{cls.__name__}(...)"
        )
    return cls(**given)


def verdict_of(c: Comparisons) -> Verdict:
    checks = c.checks()
    if c.f.diverges and c.f.rate is not None:
        return _of_divergence(c, checks)
    if any(one.ok is False for one in checks):
        return Verdict("contradicted", diagnosis(c, [one for one in checks if one.ok is False]), checks, c.f)
    if not _compared(checks):
        return Verdict("undecided", _undecided(c, checks), checks, c.f)
    return Verdict("as forecast", _where(c, {one.name for one in checks if one.ok}), checks, c.f)


def _compared(checks: list[Check]) -> bool:
    """Whether anything of the forecast was compared: what is conserved says nothing of where and how fast."""
    return any(one.ok is not None for one in checks if one.name in OF_FORECAST)


def _undecided(c: Comparisons, checks: list[Check]) -> str:
    reasons = dict.fromkeys(one.words for one in checks if one.ok is None)
    return "nothing of the forecast could be compared: " + ("; ".join(reasons) or c.f.reason or "it has no curve")


def _of_divergence(c: Comparisons, checks: list[Check]) -> Verdict:
    """A mean that must grow has to; a mean square grows by rare events, which few repeats may not have met."""
    run, f = c.run, c.f
    last, first = (float(run.error[:, i].mean()) if run.has_error else 0.0 for i in (-1, 0))
    grew = not last <= 10 * first
    failed = [one for one in checks if one.ok is False]
    if f.rate is not None and f.rate >= 1 and any(one.name == "path" for one in failed) and not grew:
        words = f"was to diverge ({f.reason}), but its error is {last:.3g} after {counted(c.rounds[-1], 'round')}"
        return Verdict("contradicted", words, checks, f)
    lost = [one for one in failed if one.name not in OF_FORECAST]
    if lost:
        return Verdict("contradicted", diagnosis(c, lost), checks, f)
    words = f"was to diverge ({f.reason}) and {'did' if grew else 'has not yet'}"
    return Verdict("as forecast" if grew or _compared(checks) else "undecided", words, checks, f)


def _end_of(f: Forecast, title: str) -> str:
    """A word for the limit: it is that of rounds without noise, unless something moves the mean of runs from there."""
    if f.along_trajectories:
        return f"{title}'s limit along trajectories"
    return f"the limit of {title} with its noise" if f.noise_bias else f"{title}'s fixed point"


def _where(c: Comparisons, held: set[str]) -> str:
    """Words for a run that nothing contradicts, by what of it was compared."""
    f, title = c.f, c.title
    if f.changes:
        return f"follows the forecast of {title}, whose rounds change"
    if "limit" in held:
        if f.bias is None:
            return f"ends where {title} should, as fast and as noisy"
        place = c.goal if f.bias == 0 else f"{_end_of(f, title)}, {f.bias:.3g} from {c.goal}"
        return f"ends at {place}, as forecast"
    if "bound" in held:
        return f"stays within what is certain under {type(f.timing).__name__}"
    if f.noiseless and {"path", "rate"} <= held:  # both to rounding
        return f"{title} does what its forecast says"
    return f"follows the forecast of {title} so far: {counted(c.rounds[-1], 'round')} cannot show its end"
