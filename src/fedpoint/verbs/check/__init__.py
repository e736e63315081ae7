"""Did it happen? `fp.check` compares a run with its forecast, and says in plain words what it finds."""

from fedpoint.verbs.check.examine import check

__all__ = ["check"]
