"""Plans, budgets and policies, for those who write a policy. The documented path."""

from .planning.policy import Budget, Policy, measured, planned
from .view.plan import Plan, SummaryRequest

__all__ = ["Budget", "Plan", "Policy", "SummaryRequest", "measured", "planned"]
