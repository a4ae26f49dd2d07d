"""What a run writes down, and the violations that are found in it."""
