"""Promises, works, timers, the task host, worker threads: nothing here knows of sessions."""
