"""What happens to a message on its way from an agent to a hub."""

from fedpoint.channel.adaptive_clip import AdaptiveClip
from fedpoint.channel.base import Channel, Hub
from fedpoint.channel.cast import Cast
from fedpoint.channel.chain import Chain
from fedpoint.channel.clip import Clip
from fedpoint.channel.correlated import Correlated
from fedpoint.channel.erase import Erase
from fedpoint.channel.fixed_point import FixedPoint
from fedpoint.channel.gaussian import Gaussian
from fedpoint.channel.quantise import Quantise
from fedpoint.channel.rand_k import RandK
from fedpoint.channel.sign import Sign
from fedpoint.channel.top_k import TopK

__all__ = [
    "AdaptiveClip",
    "Cast",
    "Chain",
    "Channel",
    "Clip",
    "Correlated",
    "Erase",
    "FixedPoint",
    "Gaussian",
    "Hub",
    "Quantise",
    "RandK",
    "Sign",
    "TopK",
]
