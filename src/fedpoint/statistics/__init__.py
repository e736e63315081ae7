"""Statistics of rows that stay at their sites: each method sends sums over a site's rows, and nothing else."""

from fedpoint.data.floor import Floor
from fedpoint.statistics.joining import value_of_joining
from fedpoint.statistics.meta import meta_analysis
from fedpoint.statistics.private_glm import private_glm
from fedpoint.statistics.survival import kaplan_meier, logrank
from fedpoint.statistics.table_one import table_one

__all__ = ["Floor", "kaplan_meier", "logrank", "meta_analysis", "private_glm", "table_one", "value_of_joining"]
