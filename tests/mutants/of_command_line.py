"""Mutants of ``cli/``: what reaches a terminal, and what a command takes."""

from __future__ import annotations

from .mutant import read_mutants

__all__ = ["COMMAND_LINE"]

COMMAND_LINE = read_mutants(r"""
in cli/common/terminal.py, by cli/common/test_terminal.py
an escape sequence of a model reaches the terminal in a table (docs/explanation/security.md)
    - text = segment.text if segment.control else neutral(segment.text)
    + text = segment.text
    also in cli/common/terminal.py
    - return super().render_str(neutral(text), **options)
    + return super().render_str(text, **options)
    test_a_console_shows_it_in_text_in_markup_and_in_tables
a bidirectional override reaches the terminal in JSON (docs/explanation/security.md)
    - print(_json_text(msgspec.json.encode(value).decode()), flush=flush)
    + print(msgspec.json.encode(value).decode(), flush=flush)
    test_json_is_inert_and_has_the_same_value

in transport/wire/secret_files.py, by transport/wire/test_secret_files.py
tokens that the group may write are used (docs/explanation/security.md)
    - if status.st_mode & bit:
    + if status.st_mode & bit & stat.S_IWOTH:
    test_a_secret_that_others_may_write_is_refused_and_what_to_do_is_said

in transport/server/socket_server.py, by transport/server/test_service.py
a start waits for ever for the lock of the socket's folder (docs/how-to/run-a-service.md)
    - fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    + fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB) if False else None
    test_a_start_does_not_hang_where_the_sockets_folder_is_locked
""")
