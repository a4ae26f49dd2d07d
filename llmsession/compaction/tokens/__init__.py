"""Estimates and sizes: texts, messages, requests."""
