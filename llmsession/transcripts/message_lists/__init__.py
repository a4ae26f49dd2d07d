"""Plain lists of API messages, and recorded requests."""
