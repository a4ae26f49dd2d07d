"""Policies reproduced from other systems, loaded by name."""
