"""Drive a real session through a recorded conversation."""
