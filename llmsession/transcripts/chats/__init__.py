"""Formats of chat applications, a module each.

In: a file's bytes, or a folder's files. Out: Conversations, one for each branch of a tree
(``common.trees``), and for formats that an application can import the files again. Absent: the
rules for turns (``common.assembly``), formats of coding agents.
"""
