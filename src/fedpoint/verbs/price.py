"""What does a channel cost? `fp.price` puts ways to send messages side by side: error, bytes, privacy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, Unpack

from fedpoint.channel import Channel
from fedpoint.channel.chain import as_channel
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.errors import Diverged, FedpointError, check_count
from fedpoint.engine.session import Session
from fedpoint.experiment import Experiment
from fedpoint.metrics.means import mean_and_error
from fedpoint.privacy import spent
from fedpoint.problems.base import Problem
from fedpoint.results.labels import short
from fedpoint.results.price import Offer, Price, measured
from fedpoint.verbs.forecast import prepare
from fedpoint.verbs.run import MethodOptions, as_experiment, run

Way: TypeAlias = Channel | Sequence[Channel] | None  # how messages are sent; None: as they are


@checked
def price(
    algorithm: Algorithm | Experiment,
    problem: Problem | None = None,
    *,
    channels: Iterable[Way],
    rounds: int,
    runs: int = 20,
    delta: float = 1e-5,
    **options: Unpack[MethodOptions],
) -> Price:
    """Compare ways to send messages: the error after the rounds (forecast, and the mean over runs), the bytes sent
    to the hub, and the epsilon spent.

    Args:
        algorithm: a method, for instance `fp.FedAvg(step=0.1)`, or an `fp.Experiment`, then without a problem.
        problem: from `fp.problems`, or your own.
        channels: channels, lists of them, or None for messages as they are.
        rounds: of every run.
        runs: of each channel, for the mean; 0: forecasts alone.
        delta: of the epsilons.
        options: as in `fp.Experiment`.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0, 2.0], [2.0, 0.0]])
    >>> made = fp.price(fp.FedAvg(step=0.5), quad, channels=[None, fp.channel.Cast("float32")], rounds=20, runs=0)
    >>> [offer.bytes for offer in made.offers]
    [640.0, 320.0]
    """
    check_count("rounds", rounds, 1)
    check_count("runs", runs, 0)
    if runs == 1:
        raise FedpointError("runs must be 0 (forecasts only) or at least 2: one run has no standard error")
    experiment = as_experiment(algorithm, problem, options)
    ways = [as_channel(one) for one in channels]
    if not ways:
        raise FedpointError("channels is empty: give at least one, or None for messages as they are")
    made = Price(experiment, rounds, runs, delta, [])
    for way in ways:
        asked = experiment.replace(channel=way, record_every=rounds)
        offer = _forecast(asked, rounds, delta)
        made.offers.append(_run(asked, offer, rounds, runs) if runs else offer)
    return made


def _forecast(asked: Experiment, rounds: int, delta: float) -> Offer:
    bound = asked.bind()
    moments = bound.timing.moments(asked.problem.weights)
    message = Session(bound, rounds).message
    sent = rounds * moments.merge * float(moments.heard.sum()) * message.exchanges * message.up_bytes
    epsilon = spent(asked, rounds, delta).epsilon if asked.channel.noises() else None
    label = "plain" if asked.channel.is_identity() else " + ".join(short(stage) for stage in asked.channel.stages())
    try:
        forecast = float(prepare(asked).curve(rounds)[-1])
    except FedpointError as error:
        return Offer(label, asked.channel, sent, epsilon, None, str(error))
    return Offer(label, asked.channel, sent, epsilon, forecast)


def _run(asked: Experiment, offer: Offer, rounds: int, runs: int) -> Offer:
    try:
        ends = run(asked.replace(repeats=runs), rounds=rounds).error[:, -1]
    except Diverged:
        return measured(offer, float("inf"), 0.0)
    mean, error = mean_and_error(ends)
    assert mean is not None and error is not None  # of two repeats at least
    return measured(offer, mean, error)
