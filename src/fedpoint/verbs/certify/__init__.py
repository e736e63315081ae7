"""Is it what it claims to be? `fp.certify` examines an algorithm on small problems whose answers are known."""

from fedpoint.verbs.certify.examination import certify

__all__ = ["certify"]
