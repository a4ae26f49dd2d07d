"""Plans, budgets and policies, for those who write a policy. The documented path."""

from .view.plan import Budget, Plan, Policy, Wanted, measured, planned

__all__ = ["Budget", "Plan", "Policy", "Wanted", "measured", "planned"]
