"""What does a channel cost? Ways to send messages side by side: error, bytes and privacy, forecast and run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpoint.channel import Channel
from fedpoint.core.arguments import checked_methods
from fedpoint.core.describe import describe_record
from fedpoint.core.numbers import counted, finite, with_error
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@checked_methods
@dataclass(frozen=True)
class Offer:
    """One way to send messages, and what it costs.

    Attributes:
        label: what to call the channel.
        channel: the way in which messages are sent.
        bytes: sent to the hub in the whole run, in expectation.
        epsilon: spent by then; None where nothing is private.
        forecast: the expected error after the rounds; None where there is no forecast.
        why: why there is none.
        error: the mean over runs; None where none were made.
        standard_error: of that mean.
    """

    label: str
    channel: Channel
    bytes: float
    epsilon: float | None
    forecast: float | None
    why: str = ""
    error: float | None = None
    standard_error: float | None = None

    def to_dict(self) -> dict[str, Plain]:
        return {
            "label": self.label,
            "channel": describe_record(self.channel),
            "bytes": self.bytes,
            "epsilon": finite(self.epsilon),
            "forecast": finite(self.forecast),
            "why": self.why,
            "error": finite(self.error),
            "standard_error": finite(self.standard_error),
        }


@checked_methods
class Price:
    """Ways to send the messages of one experiment, with the error that each leaves. Printed, it is a table.

    Attributes:
        experiment: whose messages are sent.
        rounds: of every run.
        runs: of each channel.
        delta: of the epsilons.
        offers: the channels with their costs and errors (`fp.Offer`).
    """

    def __init__(self, experiment: Experiment, rounds: int, runs: int, delta: float, offers: Sequence[Offer]):
        self.experiment, self.rounds, self.runs, self.delta = experiment, rounds, runs, delta
        self.offers = list(offers)

    def rows(self) -> list[list[str]]:
        """The cells of the table, its heading first."""
        private = any(o.epsilon is not None for o in self.offers)
        ran = any(o.error is not None for o in self.offers)
        heading = ["channel", "bytes up", *(["epsilon"] if private else []), "forecast", *(["runs"] if ran else [])]
        found = [heading]
        for o in self.offers:
            epsilon = [] if not private else ["-" if o.epsilon is None else f"{o.epsilon:.3g}"]
            forecast = "-" if o.forecast is None else f"{o.forecast:.3g}"
            measured = [] if not ran else [with_error(o.error, o.standard_error)]
            found.append([o.label, f"{o.bytes:,.0f}", *epsilon, forecast, *measured])
        return found

    @property
    def notes(self) -> list[str]:
        said = [f"{o.label}: no forecast, {o.why}" for o in self.offers if o.why]
        if any(o.epsilon is not None for o in self.offers):
            said.append(f"epsilon at delta = {self.delta:g}, of agents; `fp.privacy.spent` says against whom")
        return said

    def table(self) -> str:
        title = f"{self.experiment.algorithm.card.title}, {counted(self.rounds, 'round')}: E|w - w*|^2 at their end"
        return "\n".join([title, "", *aligned(self.rows()), *(f"Note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Plain]:
        """Plain types, for programs."""
        return {
            "rounds": self.rounds,
            "runs": self.runs,
            "delta": self.delta,
            "offers": [o.to_dict() for o in self.offers],
        }

    def plot(self, path: str | Path | None = None, against: str | None = None, title: str | None = None) -> Figure:
        """Error against "epsilon" or "bytes": forecasts as a line or crosses, runs as dots with two standard errors.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            against: "epsilon" or "bytes"; default: epsilon where some offer has one.
            title: above it.
        """
        from fedpoint.show.price import price_picture

        return price_picture(self, path=path, against=against, title=title)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<Price of {counted(len(self.offers), 'channel')} for {self.experiment.algorithm.card.title}>"

    def _repr_html_(self) -> str:
        from fedpoint.show.html import price_html

        return price_html(self)


def measured(offer: Offer, error: float, standard_error: float) -> Offer:
    """The same once it was run."""
    return dataclasses.replace(offer, error=error, standard_error=standard_error)
