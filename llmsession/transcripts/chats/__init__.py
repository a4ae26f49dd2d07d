"""Formats of chat applications, a module each.

In: a file's bytes, or a folder's files. Out: Conversations, put together by one set of rules
(``assembly``), branches of a tree among them (``trees``), and the bytes again. Absent: formats
of coding agents.
"""
