"""The same sessions in a seeded world with virtual time."""
