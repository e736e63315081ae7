"""What happens to a message on its way from an agent to a hub, and how messages are gathered there."""

from fedpoint.channel.base import Channel, Hub
from fedpoint.channel.gather import Gather, Median, WeightedSums
from fedpoint.channel.half import HalfPrecision

__all__ = ["Channel", "Gather", "HalfPrecision", "Hub", "Median", "WeightedSums"]
