"""Formats of coding agents, of plain message lists and of recorded requests, a module each.

In: a file's bytes, or a folder's files. Out: Conversations, folded by one set of rules
(``fold``), and the bytes again. Absent: formats of chat applications.
"""
