"""Plans, budgets and policies, for those who write a policy. The documented path."""

from .view.plan import Budget, Plan, Policy, SummaryRequest, measured, planned

__all__ = ["Budget", "Plan", "Policy", "SummaryRequest", "measured", "planned"]
