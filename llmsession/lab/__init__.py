"""Comparisons on recorded conversations: how close counters come to what was reported.

In: conversations. Out: rows of figures. Absent: sessions, and decisions about a live one.
"""
