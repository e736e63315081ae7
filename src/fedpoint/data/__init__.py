"""Data with a network, from packages that hold them: nothing is downloaded at run time."""

from fedpoint.data.states import Panel, contiguity, produc

__all__ = ["Panel", "contiguity", "produc"]
