"""Snapshots of the fold in the store: how they are written, checked and used to open a session."""
