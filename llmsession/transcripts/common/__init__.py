"""What the formats share: JSON records, turn assembly, branches, times."""
