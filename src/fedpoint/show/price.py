"""Error against epsilon, or against bytes: forecasts with dots of runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.show.figures import COLOURS, INK, PALE, check_path, log_axis, one_axes, save, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpoint.results.price import Offer, Price

AGAINST = {"epsilon": "epsilon spent at delta = {delta:g}", "bytes": "bytes sent to the hub"}


def price_picture(
    price: Price, path: str | Path | None = None, against: str | None = None, title: str | None = None
) -> Figure:
    """One point for each channel; those of the same kind are joined."""
    if path is not None:
        check_path(path)
    if against is None:
        against = "epsilon" if any(o.epsilon is not None for o in price.offers) else "bytes"
    if against not in AGAINST:
        raise FedpointError(f"unknown axis {against!r}: {nearest(against, AGAINST)}")
    known = [o for o in price.offers if against == "bytes" or o.epsilon is not None]
    places = {o.label: (o.epsilon or 0.0) if against == "epsilon" else o.bytes for o in known}
    kinds: dict[str, list[Offer]] = {}
    for offer in known:
        kinds.setdefault(_kind(offer), []).append(offer)
    if not kinds:
        raise FedpointError("nothing to plot: no channel is private, so that there is no epsilon")
    figure, ax = one_axes(list(kinds), width=7.0)
    for i, (kind, offers) in enumerate(kinds.items()):
        colour = COLOURS[i % len(COLOURS)]
        told = sorted((places[o.label], o.forecast) for o in offers if o.forecast is not None)
        if told:
            ax.plot(*zip(*told, strict=True), "-x", color=colour, linewidth=1.4, markersize=5)
        for offer in offers:
            if offer.error is not None and math.isfinite(offer.error):
                spread = 2 * (offer.standard_error or 0.0)
                ax.errorbar(places[offer.label], offer.error, spread, fmt="o", color=colour, markersize=4)
        last = max(offers, key=lambda o: places[o.label])
        level = last.forecast if last.forecast is not None else last.error
        if level is not None:
            ax.annotate(kind, (places[last.label], level), (6, 4), textcoords="offset points", color=INK, fontsize=8)
    for offer in price.offers if against == "epsilon" else ():
        if offer.epsilon is None and offer.forecast is not None:
            ax.axhline(offer.forecast, color=PALE, linewidth=0.8, linestyle=(0, (4, 3)))
            ax.annotate(
                "without noise",
                (0.01, offer.forecast),
                (0, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                color=INK,
                fontsize=8,
            )
    ax.set_yscale("log")
    words = AGAINST[against].format(delta=price.delta)
    note = "crosses: forecast; dots: mean of runs, with two standard errors"
    style(ax, words, "expected squared distance to the solution", title, note)
    log_axis(ax)
    ax.margins(x=0.06)  # points at the ends are whole
    if path is not None:
        save(figure, path)
    return figure


def _kind(offer: Offer) -> str:
    if offer.channel.is_identity():
        return "plain"
    return " + ".join(type(stage).__name__ for stage in offer.channel.stages())
