"""A store in one SQLite file, written by one thread."""
