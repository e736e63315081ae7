"""An order that a site does not carry out.

| reason | whose fault |
|---|---|
| `order`, `terms` | the hub's: it is no order, or the study forbids it. Three in a row stop the site |
| `stopped` | nobody's any more: the site answers nothing until the person there lifts the stop |
| `version`, `study` | the hub's and the site's releases or studies differ |
| `data`, `floor`, `memory` | the site's: its file, what it may disclose, its records |
| `range` | nobody's: a number that secure sums have no room for |
| `privacy` | nobody's: the agreed epsilon is used up |
"""

from __future__ import annotations

from fedpoint.core.errors import FedpointError

COUNTED = ("order", "terms")  # no honest hub earns these


class Refused(FedpointError):
    """The reason travels, the details stay."""

    def __init__(self, reason: str, details: str):
        super().__init__(details)
        self.reason = reason


def forbidden(details: str) -> Refused:
    """What the study does not allow; the details name the term."""
    return Refused("terms", details)


def malformed(details: str) -> Refused:
    """What no hub writes."""
    return Refused("order", details)
