"""Promises, works, timers, the task host and worker threads. Nothing here knows of sessions."""
