"""Formats that are plain lists of API messages, and recorded requests."""
