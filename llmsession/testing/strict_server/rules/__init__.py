"""Request validation in the real APIs' own words."""
