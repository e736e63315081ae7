"""What happens to a message on its way from an agent to a hub."""

from fedpoint.channel.base import Channel, Hub
from fedpoint.channel.cast import Cast
from fedpoint.channel.chain import Chain
from fedpoint.channel.clip import Clip
from fedpoint.channel.gaussian import Gaussian

__all__ = [
    "Cast",
    "Chain",
    "Channel",
    "Clip",
    "Gaussian",
    "Hub",
]
