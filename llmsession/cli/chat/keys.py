"""Keys: those that stop a turn while it streams, and a command on a line that was filled in.

prompt_toolkit is imported where keys are read: it takes a fifth of the time in which every command
starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["draft_keys", "stop_keys"]


@contextmanager
def stop_keys(stop: Callable[[], None]) -> Iterator[None]:
    """Call *stop* for each Esc and Ctrl-C meanwhile. Other keys are swallowed: they were not
    meant for the next line. Without a terminal nothing is read."""
    if not sys.stdin.isatty():
        yield
        return
    from prompt_toolkit.input import create_input
    from prompt_toolkit.keys import Keys

    stopping, keys = {Keys.Escape, Keys.ControlC}, create_input()

    def read() -> None:
        # A lone Esc may begin the code of another key, which then comes in the same read.
        if any(press.key in stopping for press in (*keys.read_keys(), *keys.flush_keys())):
            stop()

    with keys.raw_mode(), keys.attach(read):
        yield


def draft_keys(draft: Callable[[], str]) -> KeyBindings:
    """A slash that is typed where the line still is what it was filled with, *draft*, begins a
    command: it takes the place of the draft."""
    from prompt_toolkit.application.current import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    def is_untouched() -> bool:
        buffer = get_app().current_buffer
        return bool(draft()) and buffer.text == draft() and buffer.document.is_cursor_at_the_end

    @bindings.add("/", filter=Condition(is_untouched))
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.text = ""
        event.current_buffer.insert_text("/")

    return bindings
