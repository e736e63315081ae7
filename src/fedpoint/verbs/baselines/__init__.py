"""Is it worth it? `fp.baselines` fits local, pooled, federated and coupled models to one table, and compares them."""

from fedpoint.verbs.baselines.comparison import baselines

__all__ = ["baselines"]
