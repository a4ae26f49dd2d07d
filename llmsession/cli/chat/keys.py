"""Keys that stop a streaming turn, and the slash that replaces a draft by a command.

prompt_toolkit is imported only where keys are read: the import takes a fifth of the start-up time
of every other command.
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
    """While the context is open, call *stop* on each Esc and Ctrl-C. Other keys are discarded: they
    were not meant for the next line. Without a terminal no key is read."""
    if not sys.stdin.isatty():
        yield
        return
    from prompt_toolkit.input import create_input
    from prompt_toolkit.keys import Keys

    stopping, keys = {Keys.Escape, Keys.ControlC}, create_input()

    def read() -> None:
        # The code of another key may begin with Esc; the whole code then arrives in one read.
        if any(press.key in stopping for press in (*keys.read_keys(), *keys.flush_keys())):
            stop()

    with keys.raw_mode(), keys.attach(read):
        yield


def draft_keys(draft: Callable[[], str]) -> KeyBindings:
    """A binding for the slash. Typed into an untouched *draft*, it replaces the draft, so that a
    command can be typed."""
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
