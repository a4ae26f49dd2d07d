"""A whole service: configuration, start and stop, health, metrics, traces."""
