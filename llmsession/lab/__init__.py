"""Comparisons on recorded conversations: token counters with reported usage, and policies with each
other.

In: conversations. Out: rows of figures, and a report. The lab calls no model, runs no live session
and opens no file.
"""
