"""How a hub makes one inbox of many messages: weighted sums, and means that a few liars cannot move."""

from fedpoint.gather.base import Gather, WeightedSums
from fedpoint.gather.centred_clipping import CentredClipping
from fedpoint.gather.geometric_median import GeometricMedian
from fedpoint.gather.krum import Krum, MultiKrum
from fedpoint.gather.median import Median
from fedpoint.gather.nearest_neighbours import NearestNeighbourMixing
from fedpoint.gather.trimmed_mean import TrimmedMean

__all__ = [
    "CentredClipping",
    "Gather",
    "GeometricMedian",
    "Krum",
    "Median",
    "MultiKrum",
    "NearestNeighbourMixing",
    "TrimmedMean",
    "WeightedSums",
]
