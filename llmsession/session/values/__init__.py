"""Configuration, commands, outcomes, labels, validation."""
