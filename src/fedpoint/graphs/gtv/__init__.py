"""What are the best models of all nodes together? GTVMin: each node's own loss, and neighbours that should agree.

    min over w_1, ..., w_K of  sum_i L_i(w_i) + coupling sum_edges A_ij |w_i - w_j|^2

L_i is agent i's loss as the problem defines it, not weighted by p_i. Lecture 003. With coupling 0 every node is fitted
alone; as it grows, the nodes of each connected component come to share one model.
"""

from fedpoint.graphs.gtv.couplings import Choice, Path, balanced, choose, path
from fedpoint.graphs.gtv.minimum import Objective, objective, solve

__all__ = ["Choice", "Objective", "Path", "balanced", "choose", "objective", "path", "solve"]
