"""Prices, and the arithmetic of budgets."""
