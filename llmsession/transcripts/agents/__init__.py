"""Formats of coding agents, one module for each.

In: a file's bytes, or a folder's files. Out: conversations, and, for formats that an application
can import, the files again. The rules for turns are in ``common.assembly``.
"""
