"""The validity rules V1 to V19, and repair."""
