"""Formats of chat applications, one module for each.

In: a file's bytes, or a folder's files. Out: conversations, one for each branch of a tree
(``common.trees``), and, for formats that an application can import, the files again. The rules for
turns are in ``common.assembly``.
"""
