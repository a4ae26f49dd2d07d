"""Formats of coding agents, a module each.

In: a file's bytes, or a folder's files. Out: Conversations, and for formats that an application
can import the files again. Absent: the rules for turns (``common.assembly``), other formats.
"""
