"""Decide from a recording alone whether an invariant was violated."""
