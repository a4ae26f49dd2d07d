"""The validity rules V1 to V18, and repair."""
