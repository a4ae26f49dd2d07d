"""Comparisons on recorded conversations: of counters with what was reported, and of policies.

In: conversations. Out: rows of figures, and a report. Absent: models, live sessions and files.
"""
