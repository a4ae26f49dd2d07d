"""The only module that prints. It escapes characters that a terminal would act on.

Texts come from models, from labels and from the names of other people's models and files. An escape
sequence in one of them could set the clipboard (OSC 52), hide lines or answer for the user. A
bidirectional override could make a text read differently from what it is. Such characters are
printed as ``\\x1b`` or ``\\u202e``. Line ends and tabs are printed as they are. In JSON the
characters are escaped as JSON does it, so that a program reads the same value.

``tests/test_architecture.py`` checks that no other file of the command line calls ``print`` or
creates a console.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

__all__ = [
    "TerminalConsole",
    "clear_line",
    "complain",
    "neutral",
    "neutral_line",
    "say",
    "say_json",
    "warn",
    "write_file",
]

# C0 without tab and line feed, DEL and C1; line separators; bidirectional embeddings, overrides and
# isolates; halves of surrogate pairs, which cannot be encoded.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_NEW_LINE = re.compile(r"\r\n")
_CLEAR_LINE = "\r\x1b[K"


def neutral(text: str) -> str:
    """*text* with every character that a terminal would act on escaped. Line ends and tabs stay."""
    if _ACTIVE.search(text) is None:
        return text
    return _ACTIVE.sub(_escaped, _NEW_LINE.sub("\n", text))


def neutral_line(text: str) -> str:
    """*text* on one line: escaped as by ``neutral``, and line ends and tabs are escaped, too."""
    return neutral(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def say(text: str = "", *, flush: bool = False) -> None:
    """Print *text* and a line end on stdout."""
    print(neutral(text), flush=flush)


def say_json(value: Any, *, flush: bool = False) -> None:
    """Print *value* as JSON, and a line end, on stdout."""
    print(_json_text(msgspec.json.encode(value).decode()), flush=flush)


def write_file(raw: bytes) -> None:
    """Write *raw*, a JSON file, to stdout: unchanged, but escaped like ``say_json`` on a
    terminal."""
    if sys.stdout.isatty():
        print(_json_text(raw.decode("utf-8", "backslashreplace")), end="", flush=True)
    else:
        sys.stdout.buffer.write(raw)


def _json_text(text: str) -> str:
    """The JSON *text* as JSON of the same value that contains no character that a terminal acts
    on."""
    return _ACTIVE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def complain(text: str = "", *, end: str = "\n") -> None:
    """Print *text* on stderr and flush it."""
    print(neutral(text), end=end, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print *text* on stderr as a warning: the command goes on."""
    complain(f"llmsession: {text}")


def clear_line() -> None:
    """Erase the unfinished line on stderr."""
    print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)


class TerminalConsole(Console):
    """A rich console that escapes texts as ``neutral`` does. The console's own control sequences
    for styles and cursor movement are not escaped."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """See ``Console``. Escapes *text* before its width is measured."""
        return super().render_str(neutral(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See ``Console``. Escapes everything that reaches the console in another way."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else neutral(segment.text)
            yield segment if text == segment.text else segment._replace(text=text)
