"""What should I choose? `fp.plan` picks algorithm, step, local steps, participation and rounds for a target."""

from fedpoint.verbs.plan.planner import plan

__all__ = ["plan"]
