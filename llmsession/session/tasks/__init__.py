"""Promises, wait queues, works, timers, the task host, worker threads. It knows no sessions."""
