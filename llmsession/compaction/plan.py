"""Plans, budgets and policies: the documented import path for authors of policies."""

from .planning.policy import Budget, Policy, measured, planned
from .view.plan import Plan, SummaryRequest

__all__ = ["Budget", "Plan", "Policy", "SummaryRequest", "measured", "planned"]
