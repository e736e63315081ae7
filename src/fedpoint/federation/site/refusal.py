"""An order that a site does not carry out."""

from __future__ import annotations

from fedpoint.core.errors import FedpointError


class Refused(FedpointError):
    """The reason travels, the details stay."""

    def __init__(self, reason: str, details: str):
        super().__init__(details)
        self.reason = reason
