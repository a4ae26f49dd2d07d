"""Mutants of ``cli/``: what reaches a terminal, and what a command takes."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["COMMAND_LINE"]

COMMAND_LINE = read_mutants(r"""
in cli/common/terminal.py, by cli/common/test_terminal.py
an escape sequence of a model reaches the terminal in a table (docs/security.md)
    - text = segment.text if segment.control else neutral(segment.text)
    + text = segment.text
    also in cli/common/terminal.py
    - return super().render_str(neutral(text), **options)
    + return super().render_str(text, **options)
    test_a_console_shows_it_in_text_in_markup_and_in_tables
a bidirectional override reaches the terminal in JSON (docs/security.md)
    - print(_json_text(msgspec.json.encode(value).decode()), flush=flush)
    + print(msgspec.json.encode(value).decode(), flush=flush)
    test_json_is_inert_and_has_the_same_value
""")
