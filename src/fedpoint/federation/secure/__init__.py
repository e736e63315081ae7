"""How does a hub learn a sum and no summand? Secure aggregation after Bonawitz et al. (2017)."""
